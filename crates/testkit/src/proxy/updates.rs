//! `_db_updates` and `_dbs_info` in front of a peer that supports neither: a feed of the databases that a test reports as
//! changed.
//!
//! Like CouchDB's feed, it names a database once, with its latest event, and continues from any `since`. Unlike CouchDB's,
//! it contains only the events that the test reports ([`super::FaultProxy::updated`]), so that a test can lose an event.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::connection::{After, Exchange};
use super::wire::{Framing, write_end, write_piece};

/// The heartbeat of a feed whose request states none.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// The events of a proxy's peer.
#[derive(Debug)]
pub(super) struct Updates {
    /// Each database's latest event.
    latest: Mutex<BTreeMap<String, u64>>,
    last: watch::Sender<u64>,
}

impl Default for Updates {
    fn default() -> Self {
        Updates { latest: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Updates {
    pub fn add(&self, database: &str) {
        self.last.send_modify(|last| {
            *last += 1;
            self.latest.lock().expect("no holder of this lock panics").insert(database.to_owned(), *last);
        });
    }

    /// Events after `since`, oldest first.
    fn after(&self, since: u64) -> Vec<(u64, Value)> {
        let latest = self.latest.lock().expect("no holder of this lock panics");
        let mut events: Vec<(u64, Value)> = latest
            .iter()
            .filter(|(_, seq)| **seq > since)
            .map(|(name, seq)| {
                (*seq, json!({ "db_name": name, "type": "updated", "seq": format!("{seq}-x") }))
            })
            .collect();
        events.sort_by_key(|(seq, _)| *seq);
        events
    }

    fn now(&self) -> u64 {
        *self.last.borrow()
    }
}

/// Whether the proxy responds to this path itself.
pub(super) fn answers(path: &str) -> bool {
    ["/_db_updates", "/_dbs_info"].iter().any(|own| path.split('?').next() == Some(own))
}

impl Exchange<'_> {
    /// Responds to `_db_updates` or `_dbs_info` instead of the peer.
    pub(super) async fn answer_updates(&mut self, updates: &Updates) -> io::Result<After> {
        if self.head.path.starts_with("/_dbs_info") {
            return self.answer_infos().await;
        }
        let url =
            reqwest::Url::parse(&format!("http://proxy{}", self.head.path)).map_err(io::Error::other)?;
        let parameter = |name: &str| {
            url.query_pairs().find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
        };
        let since = match parameter("since").as_deref() {
            Some("now") => updates.now(),
            Some(since) => since.split('-').next().and_then(|since| since.parse().ok()).unwrap_or(0),
            None => 0,
        };
        if parameter("feed").as_deref() != Some("continuous") {
            let results: Vec<Value> = updates.after(since).into_iter().map(|(_, event)| event).collect();
            let answer = json!({ "results": results, "last_seq": format!("{}-x", updates.now()) });
            return self.answer(200, &answer.to_string()).await;
        }
        let heartbeat = parameter("heartbeat").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        self.feed(updates, since, heartbeat.unwrap_or(HEARTBEAT)).await
    }

    async fn feed(&mut self, updates: &Updates, mut since: u64, heartbeat: Duration) -> io::Result<After> {
        self.drain().await?;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.writer.write_all(head.as_bytes()).await?;
        let mut last = updates.last.subscribe();
        let writer = &mut *self.writer;
        let events = async {
            loop {
                last.borrow_and_update();
                for (seq, event) in updates.after(since) {
                    write_piece(writer, Framing::Chunked, format!("{event}\n").as_bytes()).await?;
                    since = seq;
                }
                tokio::select! {
                    changed = last.changed() => if changed.is_err() { break },
                    () = tokio::time::sleep(heartbeat) => write_piece(writer, Framing::Chunked, b"\n").await?,
                }
            }
            write_end(writer, Framing::Chunked).await
        };
        tokio::select! {
            ended = events => ended.map(|()| After::Close),
            gone = self.reader.closed() => gone.map(|()| After::Close),
        }
    }

    async fn answer_infos(&mut self) -> io::Result<After> {
        let asked: Value = serde_json::from_slice(&self.drain().await?)?;
        let mut infos = Vec::new();
        for key in asked["keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let url = format!("http://{}/{}", self.shared.upstream, crate::encode_segment(key));
            let mut request = self.shared.client.get(url);
            if let Some(authorization) = self.head.header("authorization") {
                request = request.header("authorization", authorization);
            }
            let answer = request.send().await.map_err(io::Error::other)?;
            infos.push(match answer.status().as_u16() {
                200 => json!({ "key": key, "info": answer.json::<Value>().await.map_err(io::Error::other)? }),
                _ => json!({ "key": key, "error": "not_found" }),
            });
        }
        self.answer_drained(200, &Value::Array(infos).to_string()).await
    }
}
