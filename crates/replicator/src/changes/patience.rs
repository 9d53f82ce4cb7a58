//! How long a feed may be silent, and how long it may be quiet.
//!
//! The model: a feed is *silent* when even heartbeats are missing, and *quiet* when it sends heartbeats but no rows.
//! Silence means a broken connection, or a server that searches and sends nothing meanwhile (older ones do while a
//! filter finds nothing). Quiet means that there are no changes, or that the server's reader of changes has died behind
//! the heartbeats. The reader cannot distinguish these causes, so it retries in both cases. Each retry without effect
//! doubles the time until the next one, so that a server that is only slow is not restarted without end. Each success
//! halves it again.

use std::time::Duration;

use tokio::time::Instant;

/// The longest silence that is allowed.
const LONGEST_SILENCE: Duration = Duration::from_secs(60 * 60);
/// A quiet feed is checked at least this often.
const LONGEST_QUIET: Duration = Duration::from_secs(60 * 60);
/// A feed is checked once it has been quiet for this many connection timeouts: a minute.
const QUIET_TIMEOUTS: u32 = 2;
/// After a slow search by a filter, at most one part in this many of the source's time goes into searching.
const QUIET_SEARCHES: u32 = 10;
/// Before the reader gives a feed up, it asks the source again after this part of the timeout. The reported changes may
/// have been on their way.
const CONFIRMATION: u32 = 3;

/// The time limits of one reader's feeds.
#[derive(Debug)]
pub(super) struct Patience {
    timeout: Duration,
    silence: Duration,
    quiet: Duration,
    /// When the source is asked next whether it has more changes than its feed reports.
    look_at: Instant,
    /// The source had more changes at the last check.
    suspicious: bool,
}

impl Patience {
    /// `timeout` is the timeout of the connection.
    pub fn new(timeout: Duration, now: Instant) -> Self {
        let quiet = timeout * QUIET_TIMEOUTS;
        Self { timeout, silence: timeout, quiet, look_at: now + quiet, suspicious: false }
    }

    /// The silence after which a feed counts as broken.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// When to ask the source whether it has more changes than its feed reports.
    pub fn look_at(&self) -> Instant {
        self.look_at
    }

    /// The feed made progress: it sent rows, or its proper end.
    pub fn progress(&mut self, now: Instant) {
        self.silence = (self.silence / 2).max(self.timeout);
        self.set_quiet(self.quiet / 2);
        self.attend(now);
    }

    /// Restarts the quiet time, because the feed was opened, or was not read for a while.
    pub fn attend(&mut self, now: Instant) {
        self.suspicious = false;
        self.look_at = now + self.quiet;
    }

    /// A feed sent nothing at all.
    pub fn silent(&mut self) {
        self.silence = (self.silence * 2).min(LONGEST_SILENCE.max(self.timeout));
    }

    /// Records the source's answer. Returns whether to give the feed up, because it omits changes that the source has.
    pub fn looked(&mut self, has_more: bool, now: Instant) -> bool {
        if !has_more {
            self.attend(now);
            return false;
        }
        if !self.suspicious {
            self.suspicious = true;
            self.look_at = now + self.timeout / CONFIRMATION;
            return false;
        }
        // If the next feed does not help either, the one after it gets more time.
        self.set_quiet(self.quiet * 2);
        self.attend(now);
        true
    }

    /// The source needed `took` to search all of its changes. The longer pause limits its time for searches.
    pub fn searched(&mut self, took: Duration, now: Instant) {
        self.set_quiet(took * QUIET_SEARCHES);
        self.attend(now);
    }

    fn set_quiet(&mut self, quiet: Duration) {
        let shortest = self.timeout * QUIET_TIMEOUTS;
        self.quiet = quiet.clamp(shortest, LONGEST_QUIET.max(shortest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_grows_while_nothing_comes_and_shrinks_when_something_does() {
        let start = Instant::now();
        let mut patience = Patience::new(30 * SECOND, start);
        for expected in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            patience.silent();
            assert_eq!(patience.silence(), expected * SECOND);
        }
        for expected in [1800, 900, 450, 225] {
            patience.progress(start);
            assert_eq!(patience.silence(), expected * SECOND);
        }
        for _ in 0..5 {
            patience.progress(start);
        }
        assert_eq!(patience.silence(), 30 * SECOND);
    }

    #[test]
    fn a_quiet_feed_is_given_up_only_if_the_source_says_twice_that_it_has_more() {
        let start = Instant::now();
        let mut patience = Patience::new(30 * SECOND, start);
        assert_eq!(patience.look_at() - start, 60 * SECOND);
        assert!(!patience.looked(true, start));
        assert_eq!(patience.look_at() - start, 10 * SECOND);
        // A row in between: the changes were on their way.
        patience.progress(start);
        assert!(!patience.looked(true, start));
        assert!(!patience.looked(false, start));
        assert!(!patience.looked(true, start));
        assert!(patience.looked(true, start));
        // The new feed did not help: the next one gets more time.
        assert_eq!(patience.look_at() - start, 120 * SECOND);
        patience.progress(start);
        assert_eq!(patience.look_at() - start, 60 * SECOND);
    }

    #[test]
    fn slow_searches_are_repeated_less_often() {
        let start = Instant::now();
        let mut patience = Patience::new(30 * SECOND, start);
        for (took, pause) in [(1, 60), (60, 600), (3_600, 3_600)] {
            patience.searched(took * SECOND, start);
            assert_eq!(patience.look_at() - start, pause * SECOND);
        }
    }
}
