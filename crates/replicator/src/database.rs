//! The preparation of a run: checks that both databases exist, and reads their descriptions.

use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use turnwise_outbound::{Client, Error, Fault, Peer, Request, Side};

use crate::query::{Query, doc_path};
use crate::replication_id::{self, ReplicationId};
use crate::seq::Seq;
use crate::spec::{Filter, Replication};

/// A database's description is short, also on a cluster with many shards.
const INFO_BYTES: usize = 1024 * 1024;
/// A design document may hold a whole application.
const DESIGN_DOC_BYTES: usize = 64 * 1024 * 1024;

/// The response of `GET /db`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Info {
    /// The sequence of the last change.
    #[serde(default)]
    pub update_seq: Seq,
    #[serde(default)]
    instance_start_time: serde_json::Value,
    doc_count: Option<u64>,
    #[serde(default)]
    doc_del_count: u64,
    /// PouchDB's name of its storage; CouchDB has none.
    backend_adapter: Option<IgnoredAny>,
    adapter: Option<IgnoredAny>,
}

impl Info {
    /// Whether nothing has ever been written to the database, so that it lacks every document and revision.
    pub fn is_empty(&self) -> bool {
        self.doc_count == Some(0) && self.doc_del_count == 0 && self.update_seq.number() == Some(0)
    }

    /// The number of documents, deleted ones included: the number of rows of its changes feed.
    pub fn documents(&self) -> u64 {
        self.doc_count.unwrap_or(0).saturating_add(self.doc_del_count)
    }

    /// Whether this is PouchDB Server, which needs some requests in another form.
    pub fn is_pouchdb(&self) -> bool {
        self.backend_adapter.is_some() || self.adapter.is_some()
    }

    /// When the database was created, in seconds, if the server states it.
    ///
    /// Since CouchDB 3.3, `instance_start_time` has this meaning. Before 3.3 it was always `"0"`. Before 2.0 it held
    /// the microseconds at which the database was last opened. PouchDB Server returns the milliseconds of its own
    /// start. Only the length of the value distinguishes these forms.
    pub fn created(&self) -> Option<u64> {
        let text = self.instance_start_time.as_str()?;
        text.parse().ok().filter(|_| (9..=11).contains(&text.len()))
    }

    /// Whether this describes another database than `before`, under the same name. `None`: the descriptions do not show it.
    pub fn is_another_than(&self, before: &Self) -> Option<bool> {
        match (before.created(), self.created()) {
            (Some(before), Some(now)) => Some(before != now),
            // A database does not lose updates. The number of a cluster is no proof: it sums over the shard copies that
            // responded, which count differently.
            _ => match (before.update_seq.plain(), self.update_seq.plain()) {
                (Some(before), Some(now)) if now < before => Some(true),
                _ => None,
            },
        }
    }
}

/// Reads a database's description; fails if the database does not exist.
pub(crate) async fn info(peer: &Peer) -> Result<Info, Error> {
    peer.json(&Request::get(""), INFO_BYTES).await
}

/// Reads a database's description in one attempt.
pub(crate) async fn info_once(peer: &Peer) -> Result<Info, Error> {
    peer.send(&Request::get("")).await?.json(INFO_BYTES).await
}

/// Reads the target's description. If the database does not exist and the replication asks for it, creates it first.
///
/// The read comes first: a user who may write to a database is not always allowed to create it.
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
        // Another client created it first.
        Err(error) if error.status() == Some(412) => Ok(()),
        result => result.map(|_| ()),
    }
}

/// The number of changes after `since`, if the source reports it.
pub(crate) async fn pending(source: Peer, info: Info, since: Seq) -> Option<u64> {
    if info.is_pouchdb() {
        return Some(info.update_seq.number()?.saturating_sub(since.number()?));
    }
    // Only a progress bar depends on the number, so there are no retries and no error.
    ask_pending(&source, &since).await.ok()?
}

/// The number of changes after `since` that a CouchDB reports.
async fn ask_pending(source: &Peer, since: &Seq) -> Result<Option<u64>, Error> {
    #[derive(Deserialize)]
    struct Pending {
        pending: Option<u64>,
    }
    let query = Query::of([("limit", "0"), ("since", &since.to_query())]);
    let answer = source.send(&Request::get(query.on("_changes"))).await?;
    Ok(answer.json::<Pending>(INFO_BYTES).await?.pending)
}

/// Whether the source has changes after `since`, of any documents; `None` if it does not report it.
pub(crate) async fn has_more(source: &Peer, is_pouchdb: bool, since: &Seq) -> Result<Option<bool>, Error> {
    if is_pouchdb {
        let update_seq = info_once(source).await?.update_seq;
        return Ok(Some(update_seq.number() > since.number()));
    }
    Ok(ask_pending(source, since).await?.map(|pending| pending > 0))
}

/// The source text of the replication's filter function, if the replication id depends on it.
///
/// # Errors
/// If the source does not respond, or has no such function.
pub async fn filter_code(replication: &Replication, client: &Client) -> Result<Option<String>, Error> {
    let Some(Filter::Function { name, .. }) = &replication.filter else {
        return Ok(None);
    };
    if !replication_id::needs_filter_code(replication) {
        return Ok(None);
    }
    let (design, function) = name.split_once('/').expect("checked when it was parsed");
    let source = replication.peer(Side::Source, client);
    let path = doc_path(&format!("_design/{design}"));
    let doc: serde_json::Value = source.json(&Request::get(&*path), DESIGN_DOC_BYTES).await?;
    match doc["filters"][function].as_str() {
        Some(code) => Ok(Some(code.to_owned())),
        None => {
            let problem =
                Fault::Unexpected(format!("the design document has no filter function `{function}`"));
            Err(source.fault(Method::GET, &path, problem))
        }
    }
}

/// The replication id, which names the job and its checkpoints. Reads the code of a filter function from the source, if
/// there is one; otherwise it sends no request.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn info(started: &str, update_seq: serde_json::Value) -> Info {
        serde_json::from_value(json!({ "instance_start_time": started, "update_seq": update_seq })).unwrap()
    }

    #[test]
    fn only_the_creation_time_distinguishes_databases() {
        let cases = [
            (("1795297690", 7), ("1795297690", 9), Some(false)),
            (("1795297690", 7), ("1795299999", 7), Some(true)),
            // An upgrade to a version that reports the time, and the downgrade.
            (("0", 7), ("1795297690", 7), None),
            (("1795297690", 7), ("0", 7), None),
            // A restart, where the value is the time at which the database was opened.
            (("1795297690123456", 7), ("1795299999123456", 7), None),
            (("1795297908712", 7), ("1795299999712", 8), None),
            (("0", 7), ("0", 7), None),
            (("0", 7), ("0", 6), None),
        ];
        for ((started, seq), (started_now, seq_now), another) in cases {
            let opaque = |seq: u64| json!(format!("{seq}-x"));
            let (before, now) = (info(started, opaque(seq)), info(started_now, opaque(seq_now)));
            assert_eq!(now.is_another_than(&before), another, "{before:?} {now:?}");
        }
        // A number that does not come from a cluster never decreases.
        let (before, now) = (info("0", json!(7)), info("0", json!(6)));
        assert_eq!(now.is_another_than(&before), Some(true));
        assert_eq!(before.is_another_than(&now), None);
    }
}
