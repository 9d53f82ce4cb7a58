//! Whether what was built is still there.
//!
//! CouchDB writes an index to the disk five seconds after a build. If the server crashes before that, or closes the database because too
//! many are open, the index is again as it was last written, although its database has not changed since. So an index is looked at once more
//! after its job has parked, until it is on the disk; one that lacks something then is built again. A watcher that starts looks at all of them.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::Value;
use tokio::time::Instant;
use turnwise_outbound::Error;
use turnwise_queue::parking::ParkedJob;
use turnwise_replicator::encode;

use super::Summary;
use super::dirty::Since;
use super::watch::Watcher;
use crate::Kind;
use crate::database::design_path;

/// When an index is looked at after its job has parked.
const FIRST_LOOK: Duration = Duration::from_secs(7);
/// When it is looked at again if it is not on the disk then.
const NEXT_LOOK: Duration = Duration::from_secs(3);
/// Indexes that are looked at at the same time.
const AT_ONCE: usize = 4;

impl Watcher<'_> {
    /// Looks at the indexes of jobs that have just parked, later.
    pub(super) fn verify_later(&self, parked: &[ParkedJob]) {
        let mut built = self.built();
        for job in parked {
            built.mark(&job.id, Since::Unknown, Instant::now() + FIRST_LOOK);
        }
    }

    /// Looks at the indexes of these jobs, and wakes those whose indexes have lost something.
    pub(super) async fn verify(&self, ids: Vec<(Box<str>, Since)>) -> Result<(), Error> {
        let looks: Vec<BoxFuture<'_, Result<(), Error>>> =
            ids.iter().map(|(id, _)| self.verify_one(id).boxed()).collect();
        let done = stream::iter(looks).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await;
        if done.is_err() {
            let mut built = self.built();
            for (id, since) in &ids {
                built.mark(id, *since, Instant::now());
            }
        }
        done.map(drop)
    }

    async fn verify_one(&self, id: &str) -> Result<(), Error> {
        let job = self.service.jobs.job(id).await;
        // A job that runs or will run finds out by itself.
        let Some((at, Summary { index, .. })) =
            job.as_ref().and_then(|job| Some((job.parked()?.clone(), Summary::of(job)?)))
        else {
            return Ok(());
        };
        if !matches!(index.kind, Kind::Views | Kind::Mango) {
            return Ok(());
        }
        let path = format!("{}/{}/_info", encode(&index.database), design_path(&index.design));
        let info = match self.server.remote.get::<Value>(&path).await {
            Ok(info) => info,
            // Its design document or its database is gone, and the feed tells that, too.
            Err(error) if error.concerns_one_request() => return Ok(()),
            Err(error) => return Err(error),
        };
        let info = &info["view_index"];
        if info["updates_pending"]["total"].as_u64().unwrap_or(0) == 0 {
            if info["waiting_commit"] == true {
                self.built().mark(id, Since::Unknown, Instant::now() + NEXT_LOOK);
            }
        } else if !self.is_marked(&index.database) {
            tracing::debug!(job = id, "the server has lost a part of an index: it is built again");
            let lost = ParkedJob { at, id: id.to_owned(), token: String::new() };
            self.service.jobs.record(&[lost], &[]).await;
        }
        Ok(())
    }
}
