//! The loop of services that process all work in the store and then wait for more.

use tokio_util::sync::CancellationToken;
use turnwise_queue::Result;
use turnwise_store::{Store, Watch};

use crate::times::ERROR_PAUSE;

/// Repeats a pass until it is stopped. Each pass returns a watch, and the next pass begins when it fires. After a
/// failed pass, the next one begins after a pause.
pub(crate) async fn keep_up<Pass>(
    store: &Store,
    stop: &CancellationToken,
    on_error: &str,
    pass: impl Fn() -> Pass,
) where
    Pass: Future<Output = Result<Watch>>,
{
    loop {
        let pass = async {
            match pass().await {
                Ok(more) => more.await,
                Err(error) => {
                    tracing::error!(%error, "{on_error}: tries again");
                    store.runtime().sleep(ERROR_PAUSE).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = pass => {}
        }
    }
}
