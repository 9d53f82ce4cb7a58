//! One run of a replication: from its checkpoint to its end.
//!
//! The changes reader, the batches in flight, the checkpoint being written and the clock are all futures of one task, polled
//! by one loop ([`run`]): a run that is dropped leaves nothing behind, and an idle one costs one future. [`account`] keeps the
//! books: what checkpoints, snapshots and the report say.

mod account;
mod park;
mod run;

use std::time::Duration;

use futures::future;

use crate::Context;
use crate::checkpoint::Checkpoints;
use crate::copy::Copier;
use crate::database::{self, Info};
use crate::error::{Error, Side};
use crate::http::Peer;
use crate::report::Report;
use crate::spec::Replication;
use crate::stats::Tally;

use account::Account;
use run::Run;

/// When a run is stopped or has failed, batches in flight have this long to end: a job that is rotated out again and again
/// still gets a large attachment across, and no peer has an upload broken off without need.
const GRACE: Duration = Duration::from_secs(3);
/// A run has nothing to do once no change has come for this long: those that were written together have all arrived.
const QUIET: Duration = Duration::from_secs(1);
/// While there is no checkpoint to write, both databases are looked at once in so many intervals of checkpoints: five minutes.
const IDLE_INTERVALS: u32 = 10;
/// How often a run starts over because a database was created anew; beyond it the job's own backoff is the better place.
const STARTS_OVER: usize = 3;
/// And the last checkpoint of such a run has this long. Together they leave room in the ten seconds of a shutdown.
const LAST_CHECKPOINT: Duration = Duration::from_secs(3);

/// Runs `replication` until it is done (one-shot), stopped, or fails.
///
/// The future is the whole run: dropping it ends the run at once, without a checkpoint.
///
/// # Errors
/// Told by [`Error`]: whether it is worth another try, and what to tell the user. What was copied until then is
/// remembered in a checkpoint, if the peers are well enough to take one.
pub async fn replicate(replication: &Replication, context: &Context) -> Result<Report, Error> {
    let mut tally = Tally::default();
    for starts_over in 0.. {
        let found = tokio::select! {
            found = Found::look(replication, context) => found?,
            () = context.stop.cancelled() => return Ok(Report::stopped_before_it_began()),
        };
        let (source, target) = (found.source.clone(), found.target.clone());
        let copier = Copier::new(source, target, replication, &found.target_info, tally);
        let mut checkpoints = found.checkpoints;
        if starts_over > 0
            && let Some(checkpoints) = &mut checkpoints
        {
            // They may have been written when the database had been replaced already.
            checkpoints.distrust();
        }
        let account = Account::new(replication, &copier.tally, checkpoints.as_ref(), &found.info)
            .after(context.before.as_ref());
        let run = Run::new(replication, context, &copier, account, checkpoints);
        match run.run(found.source, found.info).await {
            Err(error) if error.is_replaced() && starts_over < STARTS_OVER => tracing::warn!("{error}"),
            ended => return ended,
        }
        // What was done was done.
        tally = copier.tally;
    }
    unreachable!("the last start ends with its result")
}

/// The two peers and what they say before anything is copied.
struct Found {
    source: Peer,
    target: Peer,
    info: Info,
    target_info: Info,
    /// `None` if the run is to use none.
    checkpoints: Option<Checkpoints>,
}

impl Found {
    async fn look(replication: &Replication, context: &Context) -> Result<Self, Error> {
        let source = Peer::new(Side::Source, replication, &context.client);
        let target = source.beside(Side::Target, replication, &context.client);
        let id = database::replication_id(replication, &context.client, &context.server_uuid);
        let (id, info, target_info) =
            future::try_join3(id, database::info(&source), database::open_target(&target, replication))
                .await?;
        let checkpoints = if replication.use_checkpoints {
            Some(Checkpoints::find([(&source, &info), (&target, &target_info)], &id.base).await?)
        } else {
            None
        };
        Ok(Self { source, target, info, target_info, checkpoints })
    }
}
