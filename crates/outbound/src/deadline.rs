//! `request_timeout`: the time limit of a complete response.
//!
//! Only silence shows that a peer is gone, so there is no limit by default: a large attachment may take hours. A
//! response of `_changes` never has a limit, because it may be endless.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Fault;

/// When a request began and, if it has a time limit, its end and the limit itself.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    pub began: Instant,
    end: Option<(Instant, Duration)>,
}

impl Deadline {
    /// The deadline of a request for `path` that begins now.
    pub fn of(path: &str, request_timeout: Option<Duration>) -> Self {
        let ends = request_timeout.filter(|_| path.split('?').next() != Some("_changes"));
        let began = Instant::now();
        Self { began, end: ends.and_then(|time| Some((began.checked_add(time)?, time))) }
    }

    /// Waits for `future` until the deadline.
    ///
    /// # Errors
    /// The fault of a request whose time is over.
    pub async fn before<T>(self, future: impl Future<Output = T>) -> Result<T, Fault> {
        match self.end {
            None => Ok(future.await),
            Some((end, time)) => tokio::time::timeout_at(end, future).await.map_err(|_| Fault::TooLong(time)),
        }
    }
}
