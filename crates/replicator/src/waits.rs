//! What the services and runs of a node share: how they wait, and how they end.

use std::time::Duration;

use futures::future::{self, BoxFuture};
use tokio_util::sync::CancellationToken;
use turnwise_store::{Runtime, Store, Transaction};

/// The pause after an error of the store.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// The first pause after a server has failed; it doubles with each consecutive failure.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest of these pauses.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The shortest interval between two openings of a feed that ends immediately each time.
pub(crate) const SHORTEST_FEED: Duration = Duration::from_secs(1);

/// The pause after a failure that follows on so many others.
pub(crate) fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}

/// Waits for a future; without one, forever.
pub(crate) async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

/// Does the work of a service, which never ends by itself, until `stop` is cancelled.
///
/// Boxed, so that the crates that await it do not compile it again.
pub(crate) fn until_stopped(
    stop: CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        stop.run_until_cancelled(work).await;
    })
}

/// Sleeps for about this long, so that nodes that started together, or lost the same server, do not all go on at the same time.
pub(crate) async fn sleep_about(runtime: &dyn Runtime, about: Duration) {
    let part = runtime.random() % 1_000;
    runtime.sleep(about.mul_f64(0.75 + part as f64 / 2_000.0)).await;
}

/// Runs a transaction until it succeeds. `problem` says what cannot be done meanwhile.
pub(crate) async fn tried<T, F, Fut>(store: &Store, problem: &str, transaction: F) -> T
where
    F: Fn(Transaction) -> Fut,
    Fut: Future<Output = turnwise_queue::Result<T>>,
{
    loop {
        match store.transact(&transaction).await {
            Ok(done) => return done,
            Err(error) => tracing::error!(%error, "{problem}; retrying"),
        }
        store.runtime().sleep(ERROR_PAUSE).await;
    }
}
