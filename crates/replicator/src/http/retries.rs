//! When an operation is tried again.

use std::time::Duration;

use super::Peer;
use crate::error::Error;

/// The first pause before a request is repeated; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, also when `Retry-After` asks for more: beyond it the job's own backoff is the better place.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Counts the attempts of one operation, and waits between them.
pub(crate) struct Retries<'a> {
    peer: &'a Peer,
    both_sides: bool,
    attempt: u32,
}

impl<'a> Retries<'a> {
    pub(super) fn new(peer: &'a Peer) -> Self {
        Self { peer, both_sides: false, attempt: 0 }
    }

    /// Waits for the moment of the next attempt after `error`.
    ///
    /// # Errors
    /// `error` itself, if another attempt is not worth while, or not this peer's, or was the last.
    pub async fn pause(&mut self, error: Error) -> Result<(), Error> {
        // The other side's requests have had their own attempts, unless both are one operation.
        let ours = self.both_sides || matches!(&error, Error::Peer(error) if error.side == self.peer.0.side);
        if self.attempt >= self.peer.0.retries || !ours || !error.is_passing() {
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

    /// For an operation on both peers at once.
    pub fn of_both_sides(mut self) -> Self {
        self.both_sides = true;
        self
    }

    /// Something has been achieved: the count begins anew.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}
