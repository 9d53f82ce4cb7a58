//! Waiting for what nothing announces.

use std::fmt::Debug;
use std::time::Duration;

/// Longer than any step of a test takes on a machine that is busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until what `look` returns is `good`, and returns it. `what` states what is waited for.
///
/// # Panics
/// It is not good within [`PATIENCE`]. The message has what was seen last.
pub async fn until<T: Debug>(what: &str, mut look: impl AsyncFnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    let mut last = None;
    let looking = async {
        while !good(last.insert(look().await)) {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, looking).await;
    match last {
        Some(seen) if reached.is_ok() => seen,
        last => panic!("waited for {} s until {what}, and saw last: {last:?}", PATIENCE.as_secs()),
    }
}
