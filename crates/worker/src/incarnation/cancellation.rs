//! Cancellation: stops the jobs whose clients have cancelled them. The same signal says that the worker's mode has changed.

use turnwise_queue::{Error, jobs, workers};
use turnwise_store::Isolation;

use super::Incarnation;
use crate::times::ERROR_PAUSE;

impl Incarnation {
    /// Watches the key that clients change when they cancel a job of this worker.
    pub(super) async fn watch_cancellations(&mut self) {
        let (store, key) = (&self.shared.store, self.shared.keys.signal(&self.shared.job_type, &self.id));
        let seen = match store.begin().await {
            Ok(tx) => tx.get_with(&key, Isolation::Snapshot).await.unwrap_or_default(),
            Err(_) => None,
        };
        self.cancellation = match store.watch(key, seen).await {
            Ok(watch) => watch.into(),
            Err(error) => {
                tracing::error!(%error, "cannot watch for cancelled jobs: reads them again soon");
                self.after(ERROR_PAUSE)
            }
        };
    }

    /// Stops the jobs that clients have cancelled.
    pub(super) async fn stop_cancelled(&mut self) {
        // The watch is renewed before the read, so that no change is missed.
        self.watch_cancellations().await;
        let (keys, job_type, id) = (&self.shared.keys, &self.shared.job_type, &self.id);
        let requests = self
            .shared
            .store
            .transact(|tx| async move {
                let requests = jobs::cancel_requests(&tx, keys, job_type, id).await?;
                // A worker that was removed learns that with its heartbeat.
                let mode = match workers::mode(&tx, keys, job_type, id).await {
                    Err(Error::Halt) => None,
                    mode => Some(mode?),
                };
                Ok::<_, Error>((requests, mode))
            })
            .await;
        match requests {
            Ok((claims, mode)) => {
                for running in claims.iter().filter_map(|claim| self.running.get(claim)) {
                    running.controls.stop.cancel();
                }
                mode.into_iter().for_each(|mode| self.learn_mode(mode));
            }
            Err(error) => {
                tracing::error!(%error, "cannot read which jobs are cancelled: reads again soon");
                self.cancellation = self.after(ERROR_PAUSE);
            }
        }
    }
}
