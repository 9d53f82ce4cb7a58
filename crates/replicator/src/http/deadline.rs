//! `request_timeout`: the moment by which a whole answer has to be there.
//!
//! Silence is what tells that a peer is gone, so that by default there is no such moment: a large attachment may take hours.
//! An answer of changes has none in any case, because it may never end.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Fault;

/// When a request began; the end of its time, if it has one, and how much time that was.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    began: Instant,
    end: Option<(Instant, Duration)>,
}

impl Deadline {
    /// That of a request for `path` which begins now.
    pub fn of(path: &str, request_timeout: Option<Duration>) -> Self {
        let ends = request_timeout.filter(|_| path.split('?').next() != Some("_changes"));
        let began = Instant::now();
        Self { began, end: ends.and_then(|time| Some((began.checked_add(time)?, time))) }
    }

    /// When the request began.
    pub fn began(self) -> Instant {
        self.began
    }

    /// Waits for `future`.
    ///
    /// # Errors
    /// What is wrong when the time is over.
    pub async fn before<T>(self, future: impl Future<Output = T>) -> Result<T, Fault> {
        match self.end {
            None => Ok(future.await),
            Some((end, time)) => tokio::time::timeout_at(end, future).await.map_err(|_| Fault::TooLong(time)),
        }
    }
}
