//! `minimum_progress`: the bytes that a response must bring in every `progress_interval` of waiting.
//!
//! `connection_timeout` ends silence. A peer that sends a byte now and then is never silent, and could hold a job's
//! slot forever. The time spent waiting for a response and the bytes that arrive meanwhile are therefore summed up. Not
//! counted are:
//!
//! - white space: heartbeats consist of nothing else;
//! - waiting while nothing is due: a feed between two rows, where a filter may search for hours;
//! - the time in which this side does not read, because the other peer is slow.
//!
//! The interval is at least three times the allowed silence. A peer that is as slow as `connection_timeout` allows, and
//! sends a small document each time, thus stays above the minimum. A replication may set a `connection_timeout` of its
//! own, up to a day, so the interval has a bound that only the configuration moves.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Fault;

/// The minimum progress of a response while the client waits for it. CouchDB has no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumProgress {
    /// Bytes that are not white space; 0 disables the limit.
    pub bytes: u64,
    /// The interval in which these bytes must arrive. If three times the allowed silence is longer, that applies.
    pub interval: Duration,
}

impl Default for MinimumProgress {
    /// 512 bytes in 90 s. No correct peer was seen to be this slow in the middle of a response. A filter that finds
    /// nothing for hours is between two rows, and large documents arrive at the speed of the network. 90 s is less than
    /// the two minutes after which a run counts as healthy. A job that fails repeatedly for this reason is therefore
    /// retried less and less often.
    fn default() -> Self {
        Self { bytes: 512, interval: Duration::from_secs(90) }
    }
}

/// An interval has room for this many silences.
const SILENCES: u32 = 3;
/// It is at most this many times the configured one: 15 minutes.
const LONGEST: u32 = 10;

/// The minimum of peers that may be silent for `timeout`.
pub(crate) fn least(least: MinimumProgress, timeout: Duration) -> MinimumProgress {
    let longest = least.interval.saturating_mul(LONGEST);
    let interval = least.interval.max(timeout.saturating_mul(SILENCES).min(longest));
    MinimumProgress { interval, ..least }
}

/// The bytes of a piece that count. Of a large piece, the first ones are enough.
pub(crate) fn substance(piece: &[u8], least: MinimumProgress) -> u64 {
    let some = usize::try_from(least.bytes).unwrap_or(usize::MAX).saturating_mul(2);
    piece[..piece.len().min(some)].iter().filter(|byte| !byte.is_ascii_whitespace()).count() as u64
}

/// The progress of a response since it last met the minimum.
pub(crate) struct Trickle {
    least: MinimumProgress,
    waited: Duration,
    came: u64,
    /// When the wait for the next piece began.
    waits_since: Option<Instant>,
    /// Nothing is due.
    rests: bool,
}

impl Trickle {
    /// For a response that may be silent for `timeout`. If it `rests`, nothing is due at the start.
    pub fn new(minimum: MinimumProgress, timeout: Duration, rests: bool) -> Self {
        let least = least(minimum, timeout);
        Self { least, waited: Duration::ZERO, came: 0, waits_since: None, rests }
    }

    /// Sets whether nothing is due until more data arrives.
    pub fn rest(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// A wait for the next piece begins, or continues.
    pub fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// A piece has arrived.
    ///
    /// # Errors
    /// If too little arrived for too long.
    pub fn came(&mut self, piece: &[u8], now: Instant) -> Result<(), Fault> {
        let waited = self.waits_since.take().map_or(Duration::ZERO, |since| now - since);
        let MinimumProgress { bytes, interval } = self.least;
        if self.rests || bytes == 0 {
            return Ok(());
        }
        self.waited += waited;
        self.came += substance(piece, self.least);
        if self.came >= bytes {
            (self.waited, self.came) = (Duration::ZERO, 0);
        } else if self.waited >= interval {
            return Err(Fault::TooSlow { came: self.came, least: bytes, interval });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LEAST: MinimumProgress = MinimumProgress { bytes: 100, interval: Duration::from_secs(90) };

    /// Receives pieces, each after this pause. Returns the number of pieces after which the response failed.
    fn given_up(trickle: &mut Trickle, piece: &[u8], pause: Duration, pieces: usize) -> Option<usize> {
        let mut now = Instant::now();
        (1..=pieces).find(|_| {
            trickle.waits(now);
            now += pause;
            trickle.came(piece, now).is_err()
        })
    }

    #[test]
    fn a_byte_a_second_is_too_little_and_two_are_enough() {
        let trickle = || Trickle::new(LEAST, 30 * SECOND, false);
        assert_eq!(given_up(&mut trickle(), b"x", SECOND, 1_000), Some(90));
        assert_eq!(given_up(&mut trickle(), b"xx", SECOND, 1_000), None);
        // A small document just before each silence becomes an error.
        assert_eq!(given_up(&mut trickle(), &[b'x'; 40], 29 * SECOND, 1_000), None);
        assert_eq!(given_up(&mut trickle(), b" \r\n\tx  ", SECOND, 1_000), Some(90));
        let off = MinimumProgress { bytes: 0, ..LEAST };
        assert_eq!(given_up(&mut Trickle::new(off, SECOND, false), b"x", SECOND, 1_000), None);
    }

    #[test]
    fn a_longer_allowed_silence_lengthens_the_interval_up_to_a_bound() {
        for (silence, intervals) in [(300 * SECOND, 18), (600 * SECOND, 18), (100 * SECOND, 6)] {
            let mut trickle = Trickle::new(LEAST, silence, false);
            assert_eq!(given_up(&mut trickle, b"x", 50 * SECOND, 100), Some(intervals), "{silence:?}");
        }
    }

    #[test]
    fn idle_time_and_unread_time_do_not_count() {
        let mut trickle = Trickle::new(LEAST, 30 * SECOND, true);
        assert_eq!(given_up(&mut trickle, b"x", SECOND, 1_000), None);
        trickle.rest(false);
        assert_eq!(given_up(&mut trickle, b"x", SECOND, 1_000), Some(90));
        let mut trickle = Trickle::new(LEAST, 30 * SECOND, false);
        let mut now = Instant::now();
        for _ in 0..1_000 {
            now += SECOND;
            trickle.waits(now);
            assert!(trickle.came(b"x", now).is_ok());
        }
    }
}
