//! When an operation is retried.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Side};
use crate::peer::Peer;

/// The first pause before a request is repeated; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, even if `Retry-After` asks for more. Beyond it, the job's backoff is the better place to wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A 429 is no attempt: the limiter delays the next request according to the server's capacity. But if a server rejects
/// everything for this long, the job crashes and backs off. The time is below `health_threshold` (120 s): longer runs
/// count as healthy, so that consecutive crashes would not add up.
const THROTTLED_FOR: Duration = Duration::from_secs(100);
/// The limit of 429s per attempt of the operation. The limiter needs 40 of them to reach its longest interval.
const THROTTLED_PER_ATTEMPT: u32 = 20;
/// The number of expired sessions that are no attempts either.
const LOGGED_OUT: u32 = 2;

/// Counts the attempts of one operation, and waits between them.
pub struct Retries<'a> {
    peer: &'a Peer,
    both_sides: bool,
    attempt: u32,
    /// How often it was throttled, and since when.
    throttled: (u32, Option<Instant>),
    logged_out: u32,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(peer: &'a Peer) -> Self {
        Self { peer, both_sides: false, attempt: 0, throttled: (0, None), logged_out: 0 }
    }

    /// Waits until the next attempt after `error`.
    ///
    /// # Errors
    /// `error` itself, if another attempt cannot help, if it is another peer's, or if this attempt was the last.
    pub async fn pause(&mut self, error: Error) -> Result<(), Error> {
        // The other side's requests had their own attempts, unless both are one operation.
        let ours = self.both_sides || matches!(&error, Error::Peer(error) if error.side == self.peer.0.side);
        if !ours || !error.is_passing() {
            return Err(error);
        }
        if error.is_logged_out() && self.logged_out < LOGGED_OUT {
            self.logged_out += 1;
            return Ok(());
        }
        if error.status() == Some(429) {
            return self.throttled(error);
        }
        if self.attempt >= self.peer.0.settings.retries_per_request {
            return Err(error);
        }
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.attempt);
        let pause = pause.max(error.retry_after().unwrap_or_default()).min(LONGEST_PAUSE);
        self.attempt += 1;
        let (attempt, pause_ms) = (self.attempt, pause.as_millis() as u64);
        tracing::info!(attempt, pause_ms, "trying again: {error}");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// [`pause`](Self::pause) for an optional request to the source. Returns the error if the same may come in another way.
    pub async fn pause_optional(&mut self, error: Error) -> Result<Option<Error>, Error> {
        // A server without the request may have no better answer than an error of its own.
        let paused = match error.status() {
            Some(500 | 501) => Err(error),
            _ => self.pause(error).await,
        };
        match paused {
            Ok(()) => Ok(None),
            Err(error) if error.side() == Some(Side::Source) && error.may_concern_request() => {
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits before the operation goes on in smaller requests. It is no attempt: the caller can divide a request only so often.
    pub async fn pause_to_divide(&mut self, error: &Error) {
        tracing::info!(
            pause_ms = FIRST_PAUSE.as_millis() as u64,
            "trying again in smaller requests: {error}"
        );
        tokio::time::sleep(FIRST_PAUSE).await;
    }

    fn throttled(&mut self, error: Error) -> Result<(), Error> {
        let (times, since) = &mut self.throttled;
        *times += 1;
        let since = since.get_or_insert_with(Instant::now);
        if *times > self.peer.0.settings.retries_per_request.saturating_mul(THROTTLED_PER_ATTEMPT)
            || since.elapsed() > THROTTLED_FOR
        {
            return Err(error);
        }
        tracing::debug!(times, "throttled: {error}");
        Ok(())
    }

    /// For an operation on both peers.
    pub fn of_both_sides(mut self) -> Self {
        self.both_sides = true;
        self
    }

    /// The operation made progress: resets the count.
    pub fn reset(&mut self) {
        (self.attempt, self.throttled, self.logged_out) = (0, (0, None), 0);
    }
}
