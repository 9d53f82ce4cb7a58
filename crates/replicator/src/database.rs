//! The two databases before anything is copied: that they are there, and what they say of themselves.

use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Error, Fault, Side};
use crate::http::{Client, Peer, Request};
use crate::query::{Query, doc_path};
use crate::replication_id::{self, ReplicationId};
use crate::seq::Seq;
use crate::spec::{Filter, Replication};

/// A database's own description is short, also on a cluster of many shards.
const INFO_BYTES: usize = 1024 * 1024;
/// A design document may hold a whole application.
const DESIGN_DOC_BYTES: usize = 64 * 1024 * 1024;

/// What `GET /db` tells.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Info {
    /// The last change.
    #[serde(default)]
    pub update_seq: Seq,
    /// PouchDB's name of its storage; CouchDB has none.
    backend_adapter: Option<IgnoredAny>,
    adapter: Option<IgnoredAny>,
}

impl Info {
    /// Whether this is PouchDB Server, which needs some requests in another form.
    pub fn is_pouchdb(&self) -> bool {
        self.backend_adapter.is_some() || self.adapter.is_some()
    }
}

/// Reads a database's description; fails if there is no such database.
pub(crate) async fn info(peer: &Peer) -> Result<Info, Error> {
    peer.json(&Request::get(""), INFO_BYTES).await
}

/// Reads the target's description, and creates it before if it is not there and the replication asks for that.
///
/// It is not created on trust: a user who may write to a database need not be one who may create it.
pub(crate) async fn open_target(target: &Peer, replication: &Replication) -> Result<Info, Error> {
    match info(target).await {
        Err(error) if error.status() == Some(404) && replication.create_target => {
            create(target, replication).await?;
            info(target).await
        }
        result => result,
    }
}

async fn create(target: &Peer, replication: &Replication) -> Result<(), Error> {
    let mut query = Query::default();
    for (name, value) in &replication.create_target_params {
        query.add(name, value);
    }
    let request = Request::new(Method::PUT, query.on(""));
    match target.json::<IgnoredAny>(&request, INFO_BYTES).await {
        // Somebody else was faster.
        Err(error) if error.status() == Some(412) => Ok(()),
        result => result.map(|_| ()),
    }
}

/// How many changes there are after `since`, if the source knows.
pub(crate) async fn pending(source: Peer, info: Info, since: Seq) -> Option<u64> {
    if info.is_pouchdb() {
        return Some(info.update_seq.number()?.saturating_sub(since.number()?));
    }
    #[derive(Deserialize)]
    struct Pending {
        pending: Option<u64>,
    }
    let mut query = Query::default();
    query.add("limit", "0");
    query.add("since", &since.to_query());
    // Only a progress bar depends on it: no retries, and no error.
    let answer = source.send(&Request::get(query.on("_changes"))).await.ok()?;
    answer.json::<Pending>(INFO_BYTES).await.ok()?.pending
}

/// The source text of the replication's filter function, where its id depends on it.
///
/// # Errors
/// If the source does not answer, or has no such function.
pub async fn filter_code(replication: &Replication, client: &Client) -> Result<Option<String>, Error> {
    let Some(Filter::Function { name, .. }) = &replication.filter else {
        return Ok(None);
    };
    if !replication_id::needs_filter_code(replication) {
        return Ok(None);
    }
    let (design, function) = name.split_once('/').expect("checked when it was parsed");
    let source = Peer::new(Side::Source, replication, client);
    let request = Request::get(doc_path(&format!("_design/{design}")));
    let doc: serde_json::Value = source.json(&request, DESIGN_DOC_BYTES).await?;
    match doc["filters"][function].as_str() {
        Some(code) => Ok(Some(code.to_owned())),
        None => {
            let problem =
                Fault::Unexpected(format!("the design document has no filter function `{function}`"));
            Err(source.fault(Method::GET, &doc_path(&format!("_design/{design}")), problem))
        }
    }
}

/// The replication's id: the job's name, and that of its checkpoints. Asks the source for the code of a filter
/// function, if there is one; otherwise it talks to nobody.
///
/// # Errors
/// Those of [`filter_code`].
pub async fn replication_id(
    replication: &Replication,
    client: &Client,
    server_uuid: &str,
) -> Result<ReplicationId, Error> {
    let code = filter_code(replication, client).await?;
    Ok(replication_id::full(replication, server_uuid, code.as_deref()))
}
