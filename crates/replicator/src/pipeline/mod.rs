//! One run of a replication: from its checkpoint to its end.
//!
//! The changes reader, the batches in flight, the checkpoint being written and the clock are all futures of one task, polled
//! by one loop ([`run`]): a run that is dropped leaves nothing behind, and an idle one costs one future. [`account`] keeps the
//! books: what checkpoints, snapshots and the report say.

mod account;
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

use account::Account;
use run::Run;

/// When a run is stopped or has failed, batches in flight have this long to end: a job that is rotated out again and again
/// still gets a large attachment across, and no peer has an upload broken off without need.
const GRACE: Duration = Duration::from_secs(3);
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
    let found = tokio::select! {
        found = Found::look(replication, context) => found?,
        () = context.stop.cancelled() => return Ok(Report::stopped_before_it_began()),
    };
    let copier =
        Copier::new(found.source.clone(), found.target.clone(), replication, found.target_info.is_pouchdb());
    let account = Account::new(replication, &copier.tally, found.checkpoints.as_ref(), &found.info);
    Run::new(replication, context, &copier, account, found.checkpoints).run(found.source, found.info).await
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
        let target = Peer::new(Side::Target, replication, &context.client);
        let id = database::replication_id(replication, &context.client, &context.server_uuid);
        let (id, info, target_info) =
            future::try_join3(id, database::info(&source), database::open_target(&target, replication))
                .await?;
        let checkpoints = if replication.use_checkpoints {
            Some(Checkpoints::find(&source, &target, &id.base).await?)
        } else {
            None
        };
        Ok(Self { source, target, info, target_info, checkpoints })
    }
}
