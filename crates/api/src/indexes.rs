//! `GET /v1/indexes`: the indexes of CouchDB servers that turnwise keeps up to date.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::Deserialize;
use turnwise_indexer::Kind;
use turnwise_indexer::jobs::{Info, JOB_TYPE, Summary};
use turnwise_protocol::{Index, IndexBuilding, IndexBuilt, IndexKind, Indexes, names};
use turnwise_queue::{Job, State as JobState, jobs as rows};
use turnwise_replicator::MAX_SEQS;
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::Result;
use super::extract::{Call, Params, Shown, check_stated};
use super::list::{Cursor, check_limit, default_limit};
use super::position_text;
use super::responses::Common;
use super::view::{self, same};

/// Number of jobs that one request reads. If it needs more, its page is short, and the next page continues.
const MAX_LOOKED_AT: usize = 5_000;
/// Number of jobs that one transaction reads.
const BATCH: usize = 200;
/// How long the servers may take to tell the sequences of their databases.
const SEQS_TIMEOUT: Duration = Duration::from_secs(3);

/// The parameters of a listing of indexes.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct IndexesParams {
    /// Only indexes of this server.
    #[param(value_type = Option<names::Name>, nullable = false)]
    pub server: Option<String>,
    /// Only indexes of this database.
    #[param(value_type = Option<names::Name>, nullable = false)]
    pub database: Option<String>,
    /// Only indexes of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    pub tenant: Option<String>,
    /// Only indexes whose jobs are in this state.
    #[param(inline, nullable = false)]
    pub state: Option<turnwise_protocol::State>,
    /// Maximum number of indexes in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, pattern = r"^(indexing|sealed)/[^\u0000-\u001f\u007f-\u009f]{0,8000}$")]
    pub after: Option<String>,
}

/// List indexes
///
/// The indexes of the CouchDB servers in `[indexing] servers`, of tenants that the sender may read. The servers are asked how far their databases
/// are; if one does not answer within some seconds, its indexes have no `changes_behind`. A page may be short or empty although more follow.
#[utoipa::path(
    get, path = "/indexes", tag = "indexes", operation_id = "list_indexes", params(IndexesParams),
    responses((status = 200, body = Indexes, description = "A page of indexes."), Common),
)]
pub(super) async fn list_indexes(call: Call, Params(query): Params<IndexesParams>) -> Result<Shown<Indexes>> {
    indexes(&call.app, &call.caller, query).await.map(Shown)
}

/// A page of indexes, of those that the caller may read.
pub async fn indexes(app: &App, caller: &Caller, params: IndexesParams) -> Result<Indexes> {
    check_limit(params.limit)?;
    for (what, name) in
        [("server", &params.server), ("database", &params.database), ("tenant", &params.tenant)]
    {
        check_stated(name, |name| names::check_name(what, name))?;
    }
    let after = position_text::read(app, caller, params.after.clone()).await?;
    let mut after = after.as_deref().map(Cursor::parse).transpose()?.map(|cursor| cursor.id);
    let (mut page, mut looked_at, mut next) = (Vec::new(), 0, None);
    'pages: loop {
        let tx = app.store.begin().await?;
        let batch = rows::list(&tx, &app.keys, JOB_TYPE, after.as_deref(), BATCH).await?;
        let exhausted = batch.len() < BATCH;
        looked_at += batch.len();
        for job in batch {
            after = Some(job.id.clone());
            if caller.reads(&job.tenant)
                && params.selects(&job)
                && let Some(summary) = Summary::of(&job)
            {
                let report = match job.state().is_claimed() {
                    true => rows::active_report(&tx, &app.keys, &job).await?.and_then(|active| active.info),
                    false => None,
                };
                let info = Info::of(report.as_deref().or(job.info.as_deref()));
                page.push(index(job, summary, info));
            }
            if page.len() >= params.limit {
                next = after;
                break 'pages;
            }
        }
        if exhausted {
            break;
        }
        if looked_at >= MAX_LOOKED_AT {
            next = after;
            break;
        }
    }
    measure(app, &mut page).await;
    let next = next.map(|id| Cursor { job_type: JOB_TYPE.to_owned(), id }.text());
    Ok(Indexes { indexes: page, next: position_text::shown(app, caller, next).await? })
}

impl IndexesParams {
    fn selects(&self, job: &Job) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        // What has ended without an error is an index that is gone.
        job.state() != JobState::Completed
            && is(&self.tenant, &job.tenant)
            && self.state.is_none_or(|state| view::state(job) == state)
            && Summary::of(job).is_some_and(|Summary { index, .. }| {
                is(&self.server, &index.server) && is(&self.database, &index.database)
            })
    }
}

fn index(job: Job, summary: Summary, info: Info) -> Index {
    let kind = same!(summary.index.kind, Kind => IndexKind: Views Mango Search Nouveau);
    let built = info.built.map(|built| IndexBuilt {
        began_us: built.began_us,
        ended_us: built.ended_us,
        took_ms: built.took_ms,
        changes: built.changes,
        seq: built.seq,
        size_bytes: built.size_bytes,
    });
    let building = info.building.filter(|_| job.state().is_claimed());
    Index {
        server: summary.index.server,
        database: summary.index.database,
        design: summary.index.design,
        kind,
        state: view::state(&job),
        parked: job.parked().is_some(),
        changes_behind: None,
        seconds_behind: None,
        built,
        building: building.map(|now| IndexBuilding {
            done: now.done,
            total: now.total,
            ends_us: now.ends_us,
        }),
        error: job.reason().map(str::to_owned).or(info.error),
        tenant: job.tenant.clone(),
        id: job.id.clone(),
    }
}

/// Asks the servers how far their databases are, and fills in how far the indexes are behind.
async fn measure(app: &App, page: &mut [Index]) {
    let mut databases: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for index in page.iter() {
        databases.entry(&index.server).or_default().insert(&index.database);
    }
    let mut seqs: HashMap<(String, String), u64> = HashMap::new();
    let asked = async {
        for (server, names) in &databases {
            let Some(remote) = app.indexing.remote(server) else { continue };
            let names: Vec<&str> = names.iter().copied().collect();
            for names in names.chunks(MAX_SEQS) {
                // The next server may answer.
                let Ok(found) = remote.seqs(names).await else { break };
                let known = |(name, seq): (String, turnwise_replicator::Seq)| {
                    Some((((*server).to_owned(), name), seq.number()?))
                };
                seqs.extend(found.into_iter().filter_map(known));
            }
        }
    };
    let in_time = tokio::time::timeout(SEQS_TIMEOUT, asked).await.is_ok();
    tracing::trace!(in_time, "asked how far databases are");
    let now_us = app.now_us();
    for index in page {
        let Some(seq) = seqs.get(&(index.server.clone(), index.database.clone())) else { continue };
        let built = index.built.as_ref();
        let behind = seq.saturating_sub(built.map_or(0, |built| built.seq));
        index.changes_behind = Some(behind);
        index.seconds_behind = match (behind, built) {
            (0, _) => Some(0),
            (_, Some(built)) => u64::try_from(now_us.saturating_sub(built.began_us) / 1_000_000).ok(),
            (_, None) => None,
        };
    }
}
