//! Times that many parts of a worker use.

use std::time::Duration;

/// The default time between two pings.
pub const DEFAULT_HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// The default time that a worker may miss its heartbeats.
pub const DEFAULT_HEALTH_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause after a transaction that failed permanently, before the loop continues.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// The duration in µs, limited to the maximum of an `i64`.
pub(crate) fn duration_us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
