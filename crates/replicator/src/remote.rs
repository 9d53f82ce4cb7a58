//! A CouchDB server as the watchers of databases use it: requests through the connections, sessions, limits and egress rules of
//! replications, its feed of database updates, and the sequences of its databases.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::Method;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use turnwise_outbound::{Answer, Client, Error, Fault, Peer, PeerSettings, Request};

use crate::Seq;
use crate::json_stream::{Shape, Splitter};
use crate::query::{Query, encode, heartbeat_ms};
use crate::upstream::Address;

/// The largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 64 << 20;
/// The descriptions of a hundred databases are short.
const INFO_BYTES: usize = 8 << 20;
/// The largest row of the updates, which are short.
const UPDATE_BYTES: usize = 64 << 10;
/// Names per request.
const NAMES: usize = 1_000;
/// The most databases whose sequences one request returns: servers accept no more.
pub const MAX_SEQS: usize = 100;
/// Concurrent requests, where each database needs one.
const AT_ONCE: usize = 8;

/// A server. Cheap to clone.
#[derive(Clone)]
pub struct Remote(pub(crate) Peer);

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// The description of a database.
#[derive(Deserialize)]
struct Info {
    update_seq: Seq,
}

impl Remote {
    /// The server with this address, on the connections of `client`.
    pub fn new(address: &Address, settings: &PeerSettings, client: &Client) -> Remote {
        Remote(address.peer(settings, client))
    }

    /// Sends a request once, and reads its JSON answer. `path` is relative to the server, percent-encoded, with its query. With `silence`, the
    /// answer may begin only after so long: the request does not count against the connections of the server.
    ///
    /// # Errors
    /// Those of the server, and of the way to it.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        silence: Option<Duration>,
    ) -> Result<Value, Error> {
        let mut request = Request::new(method, path);
        if let Some(body) = body {
            request = request.json(body.to_string());
        }
        if let Some(silence) = silence {
            request = request.uncounted().silence(silence);
        }
        self.0.send(&request).await?.json(ANSWER_BYTES).await
    }

    /// Reads JSON once. `path` is as in [`Remote::request`].
    ///
    /// # Errors
    /// Those of [`Remote::request`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.0.send(&Request::get(path)).await?.json(ANSWER_BYTES).await
    }

    /// The same; `None` if the answer has more than `most_bytes`.
    ///
    /// # Errors
    /// Those of [`Remote::request`].
    pub async fn get_up_to<T: DeserializeOwned>(
        &self,
        path: &str,
        most_bytes: usize,
    ) -> Result<Option<T>, Error> {
        self.0.send(&Request::get(path)).await?.json_up_to(most_bytes).await
    }

    /// Reads a short answer.
    async fn info<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.0.send(&Request::get(path)).await?.json(INFO_BYTES).await
    }

    /// A page of the names of databases, and where the next one begins: `from` of the next call.
    ///
    /// # Errors
    /// Those of [`Remote::request`].
    pub async fn databases(&self, from: Option<String>) -> Result<(Vec<String>, Option<String>), Error> {
        let mut query = Query::of([("limit", &NAMES.to_string())]);
        if let Some(from) = &from {
            // The start key comes again: a server that supports `skip` may not support `startkey`, and the other way round.
            query.add("startkey", &json!(from).to_string());
        }
        let request = Request::get(query.on("_all_dbs")).uncounted();
        let names: Vec<String> = self.0.send(&request).await?.json(ANSWER_BYTES).await?;
        // A server without pages has returned everything.
        let next = names.iter().max().filter(|last| names.len() == NAMES && Some(*last) > from.as_ref());
        let next = next.cloned();
        Ok((names, next))
    }

    /// The current position of the feed of updates.
    ///
    /// # Errors
    /// The server offers no such feed, or does not answer.
    pub async fn position(&self) -> Result<Seq, Error> {
        #[derive(Deserialize)]
        struct Now {
            last_seq: Seq,
        }
        Ok(self.info::<Now>("_db_updates?feed=normal&since=now&limit=1").await?.last_seq)
    }

    /// The feed of updates from this position on, without an end.
    ///
    /// # Errors
    /// The server offers no such feed, or does not answer.
    pub async fn updates(&self, since: &Seq) -> Result<Updates, Error> {
        Updates::open(&self.0, &since.to_query()).await
    }

    /// The update sequences of up to [`MAX_SEQS`] databases. A database that is missing in the result does not exist, or cannot be read.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn seqs(&self, databases: &[&str]) -> Result<HashMap<String, Seq>, Error> {
        #[derive(Deserialize)]
        struct Line {
            key: String,
            info: Option<Info>,
        }
        let request = Request::post("_dbs_info", json!({ "keys": databases }).to_string());
        let answer = match self.0.send(&request).await {
            Ok(answer) => answer,
            // One broken database may cause an error for all.
            Err(error) if error.is_refusal() || error.status() == Some(500) => {
                return self.seqs_one_by_one(databases).await;
            }
            Err(error) => return Err(error),
        };
        let lines: Vec<Line> = answer.json(INFO_BYTES).await?;
        Ok(lines.into_iter().filter_map(|line| Some((line.key, line.info?.update_seq))).collect())
    }

    async fn seqs_one_by_one(&self, databases: &[&str]) -> Result<HashMap<String, Seq>, Error> {
        let names: Vec<String> = databases.iter().map(|name| (*name).to_owned()).collect();
        let ask = |name: String| {
            let server = self.clone();
            async move {
                match server.info::<Info>(&format!("{}/", encode(&name))).await {
                    Ok(info) => Ok(Some((name, info.update_seq))),
                    // This response concerns one database only; the others are still asked.
                    Err(error) if error.status().is_some() => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        let mut answers = stream::iter(names).map(ask).buffer_unordered(AT_ONCE);
        let (mut found, mut answered, mut silent) = (HashMap::new(), false, Vec::new());
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(seq) => {
                    answered = true;
                    found.extend(seq);
                }
                Err(error) => silent.push(error),
            }
        }
        // If none of several databases responds, the server is the cause.
        match silent.pop() {
            Some(error) if !answered && !silent.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Whether a database has changed since then. Errors count as a change: no error of one database may end the comparison of all
    /// others, and the database's job reports the error.
    pub async fn has_changed(&self, database: &str, since: &Seq) -> bool {
        #[derive(Deserialize)]
        struct Changes {
            results: Vec<IgnoredAny>,
        }
        let query = Query::of([("limit", "1"), ("since", &since.to_query())]);
        let changes = self.info::<Changes>(&query.on(&format!("{}/_changes", encode(database)))).await;
        changes.map_or(true, |changes| !changes.results.is_empty())
    }
}

/// A database that has changed, or the end of the feed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Update {
    /// The database; `None` at the end of the feed.
    #[serde(rename = "db_name")]
    pub database: Option<Box<str>>,
    /// The position of the feed.
    pub seq: Option<Seq>,
    /// The position at the end of the feed.
    pub last_seq: Option<Seq>,
}

/// An open feed of updates.
pub struct Updates {
    answer: Answer,
    splitter: Splitter,
}

impl Updates {
    /// Opens the feed of a server after the position `since`.
    pub(crate) async fn open(server: &Peer, since: &str) -> Result<Updates, Error> {
        let heartbeat = heartbeat_ms(server.timeout());
        let query = Query::of([("feed", "continuous"), ("heartbeat", &heartbeat), ("since", since)]);
        let answer = server.send(&Request::get(query.on("_db_updates")).uncounted().feed()).await?;
        Ok(Updates { answer, splitter: Splitter::new(Shape::Lines, UPDATE_BYTES) })
    }

    /// Waits for a piece of the feed, and passes its updates to `each`; a heartbeat has none. Returns whether the feed goes on.
    ///
    /// # Errors
    /// The feed broke off, or is no such feed, or `each` has rejected an update.
    pub async fn next(&mut self, mut each: impl FnMut(Update) -> Result<(), String>) -> Result<bool, Error> {
        let Some(piece) = self.answer.chunk().await? else { return Ok(false) };
        let parsed = self.splitter.push(&piece, |text| -> Result<(), String> {
            each(serde_json::from_slice(text).map_err(|error| error.to_string())?)
        });
        parsed.map(|()| true).map_err(|cause| self.answer.malformed(cause))
    }

    /// The feed has ended. `is_complete`: it has stated its last position.
    ///
    /// # Errors
    /// It was cut: if the end of the connection ends the body, a cut response looks like a complete one.
    pub(crate) fn finish(self, is_complete: bool) -> Result<(), Error> {
        let cause = match self.splitter.finish() {
            Ok(_) if is_complete => return Ok(()),
            Ok(_) => "there was no `last_seq`".to_owned(),
            Err(cause) => cause.to_string(),
        };
        Err(self.answer.fault(Fault::BrokeOff(cause)))
    }
}
