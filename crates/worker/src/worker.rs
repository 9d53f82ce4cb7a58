//! A worker's public interface: its start and shutdown.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use turnwise_queue::{Keyspace, Result, clock};
use turnwise_store::{Runtime, Store};

use crate::incarnation::{End, Incarnation};
use crate::locks::LockWake;
use crate::membership::{check_health_times, join, remove_predecessors};
use crate::options::{Options, Tunables};
use crate::record::RunEnds;
use crate::run::Shared;
use crate::times::ERROR_PAUSE;
use crate::{JobHandler, Live};

/// A shutdown takes at most this much longer than the handlers' two grace periods. Another worker, or the next process,
/// recovers jobs that are still claimed then.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(3);

/// A running worker. Dropping it ends it and its runs immediately, like a crash; [`Worker::shutdown`] stops it cleanly.
pub struct Worker {
    stop: CancellationToken,
    task: JoinHandle<()>,
    runtime: Arc<dyn Runtime>,
    tunables: Live<Tunables>,
    /// The maximum duration of a shutdown.
    patience: Duration,
}

impl Worker {
    /// Registers and starts to work. If the store is exclusive, first gives back the jobs of dead predecessors.
    ///
    /// # Errors
    /// `Invalid` for a health interval that is too long for its timeout.
    pub fn start<'a>(
        store: Store,
        keys: Keyspace,
        job_type: &'a str,
        handler: Arc<dyn JobHandler>,
        options: Options,
    ) -> BoxFuture<'a, Result<Worker>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            check_health_times(options.health_interval, options.health_timeout)?;
            clock::compare(&store, &keys).await?;
            if options.exclusive {
                remove_predecessors(&store, &keys, job_type, &options).await?;
            }
            let id = join(&store, &keys, job_type, &options).await?;
            Ok(Worker::registered(store, keys, job_type, handler, options, id))
        })
    }

    /// Starts a worker under an id that is already registered.
    pub(crate) fn registered(
        store: Store,
        keys: Keyspace,
        job_type: &str,
        handler: Arc<dyn JobHandler>,
        options: Options,
        id: String,
    ) -> Worker {
        let job_type = job_type.to_owned();
        let recorder = RunEnds::default();
        let tunables = Live::from(options.tunables.clone());
        let lock_wake = LockWake::new(store.clone(), keys.clone());
        let shared = Arc::new(Shared {
            store,
            keys,
            job_type,
            handler,
            options,
            tunables: tunables.clone(),
            recorder,
            lock_wake,
        });
        let stop = CancellationToken::new();
        let runtime = shared.store.runtime().clone();
        let patience = shared.options.stop_grace.saturating_mul(2).saturating_add(SHUTDOWN_MARGIN);
        let task = tokio::spawn(incarnations(shared, id, stop.clone()));
        Worker { stop, task, runtime, tunables, patience }
    }

    /// The settings that may change while it runs.
    pub fn tunables(&self) -> &Live<Tunables> {
        &self.tunables
    }

    /// Stops every job, gives all of them back, and removes the worker's rows. Returns when that is done, or after two
    /// grace periods and 3 s even if a handler or the store hangs.
    #[boxed]
    pub async fn shutdown(mut self) {
        let deadline = self.runtime.sleep(self.patience);
        self.stop.cancel();
        tokio::select! {
            biased;
            ended = &mut self.task => if let Err(error) = ended {
                tracing::error!(%error, "the worker's loop ended badly");
            },
            () = deadline => {
                tracing::error!("the worker could not leave in time: its jobs are recovered once it is found dead");
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs one incarnation after the other: a worker that was removed registers again under a new id.
async fn incarnations(shared: Arc<Shared>, mut id: String, stop: CancellationToken) {
    loop {
        let mut incarnation = Incarnation::new(shared.clone(), id);
        let span = tracing::error_span!("worker", worker = %incarnation.id, job_type = shared.job_type);
        match incarnation.work(&stop).instrument(span).await {
            End::Stopped => return incarnation.leave().await,
            End::Removed => {
                tracing::warn!(worker = %incarnation.id, "removed from the membership: starts over under a new id");
                incarnation.halt().await;
            }
        }
        id = loop {
            match shared.join().await {
                Ok(id) => break id,
                Err(error) => tracing::error!(%error, "cannot register"),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.store.runtime().sleep(ERROR_PAUSE) => {}
            }
        };
    }
}
