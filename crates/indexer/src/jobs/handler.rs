//! One run: builds an index by queries, and parks until its database changes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use http::Method;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;
use turnwise_replicator::{Seq, encode};
use turnwise_store::Runtime;
use turnwise_worker::{JobContext, JobHandler, Outcome};

use super::index::token;
use super::{Building, Built, Index, Indexing, Info, Server};
use crate::build::{left, queries};
use crate::database::{Database, Error, design_path};
use crate::{Kind, is_automatic};

/// The time between two reports of how far a build is.
const LOOK: Duration = Duration::from_secs(1);
/// How often a build begins anew because its design document has changed meanwhile. The change then wakes the job, too.
const MAX_BEGINS: usize = 3;
/// The passes of a build: each lets one copy of each shard have what it lacked, and the others follow.
const MAX_PASSES: usize = 20;
/// The passes of a build while each is short: with writes all the time, some change is always left.
const MAX_SHORT_PASSES: usize = 3;
/// See [`MAX_SHORT_PASSES`].
const SHORT_PASS: Duration = Duration::from_secs(1);
/// The most failures of queries one after the other without any progress.
const MAX_FAILURES: u32 = 3;
/// The pause after the first one; it doubles with each.
const PAUSE: Duration = Duration::from_millis(500);
/// How many builds in a row the server may interrupt by being down. With the next one, the job backs off: the build itself may be the cause.
const MAX_INTERRUPTED: u32 = 3;
/// The most search indexes of a design document whose sizes are added.
const MAX_SIZES: usize = 20;

/// Runs indexing jobs.
pub struct Handler {
    /// The servers.
    pub indexing: Indexing,
    /// The clock.
    pub runtime: Arc<dyn Runtime>,
}

/// Why there is nothing to build: the result of the job, which ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Gone {
    /// The server is not indexed any more.
    Server,
    /// The database does not exist, or is not indexed any more.
    Database,
    /// The design document does not exist, or has no indexes of this kind.
    Design,
    /// The design document has `autoupdate: false`.
    Autoupdate,
}

/// Why an index was not built.
enum Unbuilt {
    Gone(Gone),
    Failed(Error),
}

impl From<Error> for Unbuilt {
    fn from(error: Error) -> Self {
        Unbuilt::Failed(error)
    }
}

impl Handler {
    async fn index(&self, job: &JobContext, index: &Index, info: &mut Info) -> Outcome {
        let gone = |gone: Gone| Outcome::completed(&serde_json::json!({ "gone": gone }));
        let Some(server) = self.indexing.server(&index.server) else { return gone(Gone::Server) };
        if !self.indexing.settings().want(&index.database) {
            return gone(Gone::Database);
        }
        let built = self.build(job, server, index, info).await;
        info.building = None;
        let outcome = match built {
            Err(Unbuilt::Gone(what)) => gone(what),
            Ok((built, seq)) => {
                (info.built, info.error, info.interrupted) = (Some(built), None, 0);
                Outcome::Parked { at: index.place(), token: token(Some(&seq)) }
            }
            Err(Unbuilt::Failed(error)) if error.is_wrong_design() => Outcome::Failed(error.to_string()),
            Err(Unbuilt::Failed(error)) => {
                let is_down = error.is_no_answer()
                    && info.interrupted < MAX_INTERRUPTED
                    && server.remote.get::<Value>("").await.is_err();
                info.error = Some(error.to_string());
                if is_down {
                    info.interrupted += 1;
                    Outcome::Parked { at: index.place(), token: token(None) }
                } else {
                    info.interrupted = 0;
                    Outcome::Crashed(error.to_string())
                }
            }
        };
        job.report(info);
        outcome
    }

    /// Builds an index. Returns the sequence that the database had at the beginning: the index has everything that was written before.
    async fn build(
        &self,
        job: &JobContext,
        server: &Server,
        index: &Index,
        info: &mut Info,
    ) -> Result<(Built, Seq), Unbuilt> {
        let database = Database::of(&server.remote, &index.database);
        let no_database = |error: Error| match error.is_missing() {
            true => Unbuilt::Gone(Gone::Database),
            false => Unbuilt::Failed(error),
        };
        for _ in 0..MAX_BEGINS {
            let began_us = self.runtime.now_us();
            let seq = Seq::from(&database.get("").await.map_err(no_database)?["update_seq"]);
            let design = database.design(&index.design).await.map_err(no_database)?;
            let design = design.ok_or(Unbuilt::Gone(Gone::Design))?;
            if !is_automatic(&design) {
                return Err(Unbuilt::Gone(Gone::Autoupdate));
            }
            let indexes = index.kind.indexes(&design);
            if indexes.is_empty() {
                return Err(Unbuilt::Gone(Gone::Design));
            }
            let queries = queries(&database, &index.design, &design, &[index.kind]).await?;
            let build = Build { handler: self, job, server, index, database: &database, queries: &queries };
            if let Some((changes, took)) = build.passes(info).await? {
                let built = Built {
                    began_us,
                    ended_us: self.runtime.now_us(),
                    took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                    changes,
                    seq: seq.number().unwrap_or_default(),
                    size_bytes: size_bytes(&database, index, &indexes).await,
                };
                return Ok((built, seq));
            }
            tracing::debug!(job = job.job.id, "the design document has changed; building anew");
        }
        Err(Unbuilt::Failed(Error::Incomplete(
            format!("_design/{}", index.design),
            "the server does not find its indexes, or it changes all the time".to_owned(),
        )))
    }
}

/// The passes of a build.
struct Build<'a> {
    handler: &'a Handler,
    job: &'a JobContext,
    server: &'a Server,
    index: &'a Index,
    database: &'a Database,
    queries: &'a [String],
}

impl Build<'_> {
    /// Makes passes until nothing is left. Returns how many changes the index lacked, and how long the server built; `None` if the design
    /// document has changed meanwhile.
    async fn passes(&self, info: &mut Info) -> Result<Option<(u64, Duration)>, Error> {
        let changes = self.left().await?;
        let (mut failures, mut least, mut short, mut took) = (0, changes, 0, Duration::ZERO);
        for _ in 0..MAX_PASSES {
            info.building = Some(Building { done: 0, total: changes, ends_us: None });
            self.job.report(info);
            let turn = self.server.pace.turn().await;
            let began = Instant::now();
            let asked = self.ask(info).await;
            let pass = began.elapsed();
            drop(turn);
            took += pass;
            match asked {
                Ok(true) => failures = 0,
                Ok(false) => return Ok(None),
                Err(error) if error.may_pass() && failures < MAX_FAILURES => {
                    failures += 1;
                    self.handler.runtime.sleep(PAUSE * 2_u32.pow(failures)).await;
                    let left = self.left().await?;
                    if left < least {
                        (least, failures) = (left, 0);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            short += usize::from(pass <= SHORT_PASS);
            if short >= MAX_SHORT_PASSES || self.left().await? == 0 {
                return Ok(Some((changes, took)));
            }
        }
        Ok(Some((changes, took)))
    }

    async fn left(&self) -> Result<u64, Error> {
        match self.index.kind {
            Kind::Views | Kind::Mango => left(self.database, &self.index.design).await,
            Kind::Search | Kind::Nouveau => Ok(0),
        }
    }

    /// Asks all queries, and reports how far the server is. Returns whether all indexes exist.
    async fn ask(&self, info: &mut Info) -> Result<bool, Error> {
        let asked =
            try_join_all(self.queries.iter().map(|query| self.database.send(Method::GET, query, None, true)));
        let mut asked = std::pin::pin!(asked);
        loop {
            tokio::select! {
                asked = &mut asked => return Ok(asked?.iter().all(Option::is_some)),
                () = self.handler.runtime.sleep(LOOK) => {}
            }
            if let Some(building) = self.server.tasks.of(&self.index.database, &self.index.design) {
                info.building = Some(building);
                self.job.report(info);
            }
        }
    }
}

/// The size of an index on the disk, in bytes; 0 if the server does not tell.
async fn size_bytes(database: &Database, index: &Index, indexes: &[String]) -> u64 {
    let path = design_path(&index.design);
    let info = match index.kind {
        Kind::Views | Kind::Mango => {
            let info = database.get(&format!("{path}/_info")).await.unwrap_or_default();
            return info["view_index"]["sizes"]["file"].as_u64().unwrap_or(0);
        }
        Kind::Search => "_search_info",
        Kind::Nouveau => "_nouveau_info",
    };
    let mut bytes = 0;
    for name in indexes.iter().take(MAX_SIZES) {
        let info: Value = database.get(&format!("{path}/{info}/{}", encode(name))).await.unwrap_or_default();
        bytes += info["search_index"]["disk_size"].as_u64().unwrap_or(0);
    }
    bytes
}

#[async_trait]
impl JobHandler for Handler {
    async fn run(&self, job: JobContext) -> Outcome {
        let index: Index = match serde_json::from_str(job.options.get()) {
            Ok(index) => index,
            Err(error) => return Outcome::Failed(format!("its options name no index: {error}")),
        };
        let mut info = Info::of(job.job.info.as_deref());
        let stop = job.stop.clone();
        tokio::select! {
            biased;
            outcome = self.index(&job, &index, &mut info) => outcome,
            () = stop.cancelled() => Outcome::Stopped,
        }
    }
}
