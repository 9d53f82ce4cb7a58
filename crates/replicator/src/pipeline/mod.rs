//! One run of a replication, from its checkpoint to its end.
//!
//! One task runs the changes reader, the batches in flight, the checkpoint writer and the clock as futures, which one
//! loop polls ([`run`]). Dropping a run therefore leaves nothing behind, and an idle run costs one future. [`account`]
//! tracks the progress, for checkpoints, snapshots and the report.

mod account;
mod park;
mod run;

use std::time::Duration;

use futures::future;
use futures::future::BoxFuture;

use crate::Context;
use crate::checkpoint::{Checkpoints, Start};
use crate::copy::Copier;
use crate::database::{self, Info};
use crate::error::Error;
use crate::report::Report;
use crate::spec::Replication;
use crate::stats::Tally;

use account::Account;
use run::Run;
use turnwise_outbound::{Peer, Side};

/// When a run is stopped or has failed, batches in flight have this long to end. A job that is preempted repeatedly can
/// thus still copy a large attachment, and peers see no needless broken uploads.
const GRACE: Duration = Duration::from_secs(3);
/// A run is idle once no change has come for this long, so that changes that were written together have all arrived.
const QUIET: Duration = Duration::from_secs(1);
/// Without a checkpoint to write, both databases are verified once in this many checkpoint intervals, but at the latest
/// after [`VERIFY_AFTER`].
const IDLE_INTERVALS: u32 = 10;
/// See [`IDLE_INTERVALS`]. It costs one request to each side. 500 idle runs send 17 requests per second to each side.
const VERIFY_AFTER: Duration = Duration::from_secs(30);
/// A continuous run that could not read everything goes on for this many checkpoint intervals once it has read the rest: five
/// minutes, which is more than `health_threshold`, so that its error is no consecutive one. The next run asks again.
const INCOMPLETE_INTERVALS: u32 = 10;
/// The next run reads all changes after the checkpoint, which this one has passed. It may spend a tenth of its time on that.
const INCOMPLETE_READS: u32 = 10;
/// How often a run starts over because a database was replaced. Beyond that, the job's backoff is the better place to wait.
const STARTS_OVER: usize = 3;
/// Time limit of the last checkpoint of a stopped or failed run. With [`GRACE`] it stays well within the ten seconds of
/// a shutdown.
const LAST_CHECKPOINT: Duration = Duration::from_secs(3);

/// Runs `replication` until it is done (one-shot), stopped, or fails.
///
/// The future is the whole run: dropping it ends the run immediately, without a checkpoint.
///
/// # Errors
/// [`Error`] states whether a retry may help, and holds the message for the user. If the peers still accept a
/// checkpoint, it records what was copied until then.
pub fn replicate<'a>(
    replication: &'a Replication,
    context: &'a Context,
) -> BoxFuture<'a, Result<Report, Error>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(async move {
        let mut tally = Tally::default();
        for starts_over in 0.. {
            let peers = tokio::select! {
                peers = Peers::open(replication, context) => peers?,
                () = context.stop.cancelled() => return Ok(Report::stopped_before_it_began()),
            };
            let (source, target) = (peers.source.clone(), peers.target.clone());
            let copier = Copier::new(source, target, replication, &peers.target_info, tally);
            let mut checkpoints = peers.checkpoints;
            if starts_over > 0
                && let Some(checkpoints) = &mut checkpoints
            {
                // The checkpoints may have been written when the database had already been replaced.
                checkpoints.start = Start::default();
            }
            let account = Account::new(replication, &copier.tally, checkpoints.as_ref(), &peers.info)
                .after(context.before.as_ref());
            let run = Run { replication, context, copier: &copier, account, checkpoints };
            match run.run(peers.source, (peers.info, peers.target_info)).await {
                Err(error) if error.is_replaced() && starts_over < STARTS_OVER => tracing::warn!("{error}"),
                ended => return ended,
            }
            // The counters keep the work that was done.
            tally = copier.tally;
            tally.unread.clear();
        }
        unreachable!("the last start ends with its result")
    })
}

/// The two peers, and their descriptions before anything is copied.
struct Peers {
    source: Peer,
    target: Peer,
    info: Info,
    target_info: Info,
    /// `None` if the run uses no checkpoints.
    checkpoints: Option<Checkpoints>,
}

impl Peers {
    async fn open(replication: &Replication, context: &Context) -> Result<Self, Error> {
        let source = replication.peer(Side::Source, &context.client);
        tokio::select! {
            opened = Self::find(&source, replication, context) => opened,
            error = source.too_slow(), if !replication.continuous => Err(error.into()),
        }
    }

    async fn find(source: &Peer, replication: &Replication, context: &Context) -> Result<Self, Error> {
        let target = replication.peer_beside(source, Side::Target, &context.client);
        let id = database::replication_id(replication, &context.client, &context.server_uuid);
        let (id, info, target_info) =
            future::try_join3(id, database::info(source), database::open_target(&target, replication))
                .await?;
        let checkpoints = if replication.settings.use_checkpoints {
            Some(Checkpoints::find([(source, &info), (&target, &target_info)], &id.base).await?)
        } else {
            None
        };
        Ok(Self { source: source.clone(), target, info, target_info, checkpoints })
    }
}
