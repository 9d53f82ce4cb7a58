//! How long a feed may say nothing, and how long it may have nothing to say.
//!
//! The model: a feed is *silent* when not even heartbeats come, and *quiet* when heartbeats come and no rows. Silence means
//! a broken connection, or a server that is busy searching and sends nothing meanwhile (older ones do while a filter finds
//! nothing). Quiet means that there is nothing new, or that the server's reader of changes has died behind the
//! heartbeats. Neither can be told from here, so both are tried again, and each try that has not helped doubles the time
//! until the next one: a server that is merely slow is not restarted for ever. What helps halves it again.

use std::time::Duration;

use tokio::time::Instant;

/// Longer than this nobody waits for a sign of life.
const LONGEST_SILENCE: Duration = Duration::from_secs(60 * 60);
/// And a quiet feed is looked after at least this often.
const LONGEST_QUIET: Duration = Duration::from_secs(60 * 60);
/// A feed is looked after once it has been quiet for so many times the connection's timeout: a minute.
const QUIET_TIMEOUTS: u32 = 2;
/// Where the last search by a filter has taken long, at most one part in so many of the source's time goes into searching.
const QUIET_SEARCHES: u32 = 10;
/// Before a feed is taken for dead the source is asked again, after this part of the timeout: what it has named as new may
/// have been on its way.
const CONFIRMATION: u32 = 3;

/// The time limits of one reader's feeds.
#[derive(Debug)]
pub(super) struct Patience {
    timeout: Duration,
    silence: Duration,
    quiet: Duration,
    /// When the source is asked next whether it has more than its feed says.
    look_at: Instant,
    /// The last time it was asked it had.
    suspicious: bool,
}

impl Patience {
    /// `timeout` is the connection's.
    pub fn new(timeout: Duration, now: Instant) -> Self {
        let quiet = timeout * QUIET_TIMEOUTS;
        Self { timeout, silence: timeout, quiet, look_at: now + quiet, suspicious: false }
    }

    /// Silence after which a feed has broken.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// When the source is to be asked whether it has more than its feed says.
    pub fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Something has come of the feed: rows, or its proper end.
    pub fn progress(&mut self, now: Instant) {
        self.silence = (self.silence / 2).max(self.timeout);
        self.set_quiet(self.quiet / 2);
        self.attend(now);
    }

    /// From now on the feed is attended to: it was opened, or nobody has read it for a while.
    pub fn attend(&mut self, now: Instant) {
        self.suspicious = false;
        self.look_at = now + self.quiet;
    }

    /// Nothing at all has come of a feed.
    pub fn silent(&mut self) {
        self.silence = (self.silence * 2).min(LONGEST_SILENCE.max(self.timeout));
    }

    /// The source has been asked. Answers whether the feed is to be given up: it has said nothing of what the source has.
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
        // Should the next feed not help, the one after it gets more time.
        self.set_quiet(self.quiet * 2);
        self.attend(now);
        true
    }

    /// The source has searched all of its changes for so long. It is not to spend its time with that.
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
        // A row in between: it was on its way.
        patience.progress(start);
        assert!(!patience.looked(true, start));
        assert!(!patience.looked(false, start));
        assert!(!patience.looked(true, start));
        assert!(patience.looked(true, start));
        // It did not help: more time for the next one.
        assert_eq!(patience.look_at() - start, 120 * SECOND);
        patience.progress(start);
        assert_eq!(patience.look_at() - start, 60 * SECOND);
    }

    #[test]
    fn what_takes_long_is_searched_seldom() {
        let start = Instant::now();
        let mut patience = Patience::new(30 * SECOND, start);
        for (took, pause) in [(1, 60), (60, 600), (3_600, 3_600)] {
            patience.searched(took * SECOND, start);
            assert_eq!(patience.look_at() - start, pause * SECOND);
        }
    }
}
