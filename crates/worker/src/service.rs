//! How services run: until they are stopped, and past errors of the store.

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_queue::Result;
use turnwise_store::{Store, Watch};

use crate::times::ERROR_PAUSE;

/// The work of a service, which ends at its next `await` once it is stopped. Boxed, so that the crates that await it do not compile it
/// again.
pub(crate) fn until_stopped(
    stop: CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    })
}

/// Repeats a pass that processes all work in the store. Each pass returns a watch, and the next pass begins when it fires. After a
/// failed pass, the next one begins after a pause.
pub(crate) async fn keep_up<Pass>(store: &Store, on_error: &str, pass: impl Fn() -> Pass)
where
    Pass: Future<Output = Result<Watch>>,
{
    loop {
        match pass().await {
            Ok(more) => more.await,
            Err(error) => {
                tracing::error!(%error, "{on_error}: tries again");
                store.runtime().sleep(ERROR_PAUSE).await;
            }
        }
    }
}
