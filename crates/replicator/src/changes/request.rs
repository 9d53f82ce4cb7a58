//! The reader's requests to `_changes`.

use std::time::Duration;

use turnwise_outbound::{Peer, Request};

use super::Feed;
use crate::query::Query;
use crate::seq::Seq;
use crate::spec::{Filter, Replication};

/// A feed that need not state the sequence of every row states that of each row with a multiple of this number.
const SEQ_INTERVAL: &str = "20";

/// The part that all requests of one reader share.
pub(super) struct RequestForm {
    query: Query,
    body: Option<Vec<u8>>,
}

impl RequestForm {
    pub fn new(replication: &Replication, source: &Peer, source_is_pouchdb: bool) -> Self {
        let mut query = Query::default();
        query.add("style", if replication.winning_revs_only { "main_only" } else { "all_docs" });
        query.add("heartbeat", &(source.timeout() / 3).as_millis().max(1).to_string());
        let mut body = None;
        match &replication.filter {
            None => {}
            Some(Filter::DocIds(ids)) => {
                query.add("filter", "_doc_ids");
                body = Some(serde_json::json!({ "doc_ids": ids }).to_string().into_bytes());
            }
            Some(Filter::Selector(selector)) => {
                query.add("filter", "_selector");
                let selector = serde_json::Value::Object(selector.clone());
                if source_is_pouchdb {
                    // PouchDB Server reads the selector from the query only, and crashes on one in the body.
                    query.add("selector", &selector.to_string());
                } else {
                    body = Some(serde_json::json!({ "selector": selector }).to_string().into_bytes());
                }
            }
            Some(Filter::Function { name, query_params }) => {
                query.add("filter", name);
                for (name, value) in query_params {
                    query.add_json(name, value);
                }
            }
        }
        Self { query, body }
    }

    /// The request for `feed` after `since`, with or without documents, with the sequence of every row or of some. Its
    /// response may be silent for `silence`.
    pub fn ask(
        &self,
        feed: Feed,
        since: &Seq,
        with_docs: bool,
        every_seq: bool,
        silence: Duration,
    ) -> Request {
        let mut query = Query::default();
        query.add("feed", if feed == Feed::Continuous { "continuous" } else { "normal" });
        query.append(&self.query);
        if with_docs {
            query.add("include_docs", "true");
            query.add("attachments", "false");
            query.add("att_encoding_info", "true");
        }
        if !every_seq {
            query.add("seq_interval", SEQ_INTERVAL);
        }
        query.add("since", &since.to_query());
        let path = query.on("_changes");
        let request = match &self.body {
            Some(body) => Request::post(path, body.clone()),
            None => Request::get(path),
        };
        request.uncounted().feed().silence(silence)
    }
}
