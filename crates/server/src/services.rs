//! The services of a server: its parts that run until it stops.

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The pause before a service restarts after a panic.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// The services that have started, in order. Dropping them stops them at once.
pub(crate) struct Services {
    stop: CancellationToken,
    running: Vec<(&'static str, AbortOnDropHandle<()>)>,
}

impl Services {
    /// No services yet. All stop when `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Services { stop, running: Vec::new() }
    }

    /// What stops them.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a service, and restarts it after a panic. Its data is in the store, so it can continue from there.
    pub fn add<Part, Run>(
        &mut self,
        name: &'static str,
        part: Part,
        run: impl Fn(Part, CancellationToken) -> Run + Send + 'static,
    ) where
        Part: Clone + Send + 'static,
        Run: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        let task = async move {
            while !stop.is_cancelled() {
                if let Err(error) =
                    AbortOnDropHandle::new(tokio::spawn(run(part.clone(), stop.clone()))).await
                {
                    tracing::error!(%error, part = name, "a part of the server panicked; it restarts");
                }
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
        };
        self.once(name, task);
    }

    /// Starts a service that ends with the server, and does not restart.
    pub fn once(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.running.push((name, AbortOnDropHandle::new(tokio::spawn(task))));
    }

    /// Returns when all have ended.
    pub async fn ended(self) {
        let ended = self.running.into_iter().map(|(name, task)| async move {
            if let Err(error) = task.await {
                tracing::error!(%error, part = name, "a part of the server panicked");
            }
        });
        futures::future::join_all(ended).await;
    }
}
