//! What services have in common that do all there is to do, and wait for more.

use tokio_util::sync::CancellationToken;
use turnwise_queue::Result;
use turnwise_store::{Store, Watch};

use crate::incarnation::ERROR_PAUSE;

/// Makes one pass after the other until it is stopped: each as soon as what the one before returned says that there is more, or, when it
/// failed, after a pause.
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
