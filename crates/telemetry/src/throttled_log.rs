//! Lines of the log that a stranger causes: at most one in a second of each kind, with the number of those left out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// The lines of one kind.
pub struct ThrottledLog(Mutex<State>);

struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl ThrottledLog {
    /// No line yet.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> ThrottledLog {
        ThrottledLog(Mutex::new(State { last: None, left_out: 0 }))
    }

    /// Whether to write a line now: the number of lines that were left out before it.
    pub fn line(&self) -> Option<u64> {
        self.line_at(Instant::now())
    }

    fn line_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_second_tells_of_the_others() {
        let (log, start) = (ThrottledLog::new(), Instant::now());
        let at = |ms| log.line_at(start + Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(1_001), at(2_500)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
