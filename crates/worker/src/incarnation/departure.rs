//! The end of an incarnation: it leaves, or another worker has removed it.

use turnwise_queue::claims::StopCause;
use turnwise_queue::workers::Removal;

use super::Incarnation;
use crate::times::ERROR_PAUSE;

impl Incarnation {
    /// A clean shutdown: gives every job back and clears every row. Takes as long as the handlers and the store; the
    /// caller sets the deadline.
    pub(crate) async fn leave(&mut self) {
        for running in self.running.values() {
            running.controls.stop_for(StopCause::Shutdown);
        }
        self.take_over_blocked();
        self.schedule_ping();
        while self.has_runs() {
            tokio::select! {
                biased;
                Some(ended) = self.runs.join_next() => { self.forget(ended); }
                () = self.health.due.happens() => {
                    // It keeps pinging for as long as its handlers take.
                    if !self.ping().await {
                        return self.halt().await;
                    }
                    self.schedule_ping();
                }
            }
        }
        self.fair.close().await;
        if let Err(error) = self.shared.leaving(&self.id).remove(Removal::Left, None, |_, _| ()).await {
            tracing::error!(%error, "cannot leave the membership");
        }
    }

    /// For an incarnation that was removed: its claims are gone. Aborts all runs and waits for their end.
    pub(crate) async fn halt(&mut self) {
        for running in self.running.values() {
            running.controls.halt.cancel();
        }
        self.take_over_blocked();
        while self.has_runs()
            && let Some(ended) = self.runs.join_next().await
        {
            self.forget(ended);
        }
        // A removed worker may have no access to the store. Losing its last charges is better than a long wait.
        tokio::select! {
            biased;
            () = self.fair.close() => {}
            () = self.shared.store.runtime().sleep(ERROR_PAUSE) => {}
        }
    }
}
