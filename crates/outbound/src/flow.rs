//! `minimum_progress` of a whole one-shot run: the bytes that it moves in every `progress_interval`.
//!
//! [`Trickle`](crate::trickle) judges one response at a time, and a feed between two rows owes it nothing. So a source that answers each of many
//! requests late and with little, or that sends heartbeats or a small row now and then for ever, meets the minimum with every response, and holds the
//! run's slot. Therefore the run as a whole must move the same minimum: bytes of responses, without white space, and of requests. Its interval is a
//! quarter longer, so that a slow response ends first, with its address in the reason: 112 s, less than `health_threshold` (120 s), so that such
//! crashes in a row add up.
//!
//! Not counted are intervals with an *excuse*, in which the run waits for something that the peers do not owe:
//!
//! - a feed with a filter, which may search for hours behind heartbeats;
//! - memory or a place of this server, which other runs hold.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::error::Error;
use crate::trickle::MinimumProgress;

/// What a run has moved, on both sides.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    bytes: AtomicU64,
    /// The number of waits that excuse the run now.
    excuses: AtomicUsize,
    /// Whether there was one in this interval.
    was_excused: AtomicBool,
}

/// Excuses the run until it is dropped.
pub struct Excuse(Arc<Flow>);

impl Drop for Excuse {
    fn drop(&mut self) {
        self.0.excuses.fetch_sub(1, Relaxed);
    }
}

impl Flow {
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn excuse(self: &Arc<Self>) -> Excuse {
        self.excuses.fetch_add(1, Relaxed);
        self.was_excused.store(true, Relaxed);
        Excuse(Arc::clone(self))
    }

    /// Excuses the run while `wait` is pending.
    pub async fn excused<T>(self: &Arc<Self>, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        if let std::task::Poll::Ready(done) = futures::poll!(wait.as_mut()) {
            return done;
        }
        let _excuse = self.excuse();
        wait.await
    }

    /// Returns after an interval without an excuse in which too little has moved.
    pub async fn too_slow(&self, MinimumProgress { bytes, interval }: MinimumProgress) -> Error {
        let least = MinimumProgress { bytes, interval: interval + interval / 4 };
        loop {
            let before = self.begin();
            tokio::time::sleep(least.interval).await;
            if let Some(error) = self.judge(before, least) {
                return error;
            }
        }
    }

    /// Begins an interval.
    fn begin(&self) -> u64 {
        self.was_excused.store(self.excuses.load(Relaxed) > 0, Relaxed);
        self.bytes.load(Relaxed)
    }

    /// Ends it.
    fn judge(
        &self,
        before: u64,
        MinimumProgress { bytes: least, interval }: MinimumProgress,
    ) -> Option<Error> {
        let moved = self.bytes.load(Relaxed) - before;
        let is_slow = moved < least && !self.was_excused.load(Relaxed);
        is_slow.then_some(Error::TooSlow { moved, least, interval })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    const LEAST: MinimumProgress = MinimumProgress { bytes: 100, interval: Duration::from_secs(10) };

    #[test]
    fn an_interval_with_too_little_ends_the_run_and_others_do_not() {
        let flow = Flow::default();
        for _ in 0..3 {
            let before = flow.begin();
            flow.moved(60);
            flow.moved(40);
            assert!(flow.judge(before, LEAST).is_none());
        }
        let before = flow.begin();
        flow.moved(99);
        assert_eq!(
            flow.judge(before, LEAST).unwrap().to_string(),
            "too slow: 99 bytes from and to both databases in 10000 ms, [replicator] minimum_progress is 100"
        );
    }

    #[tokio::test]
    async fn an_excuse_at_any_time_of_an_interval_counts() {
        let flow = Arc::new(Flow::default());
        let before = flow.begin();
        let excuse = flow.excuse();
        assert!(flow.judge(before, LEAST).is_none());
        let before = flow.begin();
        drop(excuse);
        assert!(flow.judge(before, LEAST).is_none());
        // What is there at once excuses nothing, and what is awaited does.
        let before = flow.begin();
        assert_eq!(flow.excused(std::future::ready(7)).await, 7);
        assert!(flow.judge(before, LEAST).is_some());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut wait = pin!(flow.excused(receiver));
        assert!(futures::poll!(wait.as_mut()).is_pending());
        let before = flow.begin();
        sender.send(8).unwrap();
        assert_eq!(wait.await, Ok(8));
        assert!(flow.judge(before, LEAST).is_none());
        assert!(flow.judge(flow.begin(), LEAST).is_some());
    }
}
