//! A CouchDB server as other job types use it: requests through the connections, sessions, limits and egress rules of replications, and
//! its feed of database updates.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use turnwise_outbound::{Answer, Client, Error, Fault, FieldError, Peer, Request};

use crate::json_stream::{Shape, Splitter};
use crate::multiplex::server::{DatabaseSeq, Server};
use crate::query::encode;
use crate::upstream::Address;
use crate::{Defaults, Seq};

/// The largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 64 << 20;
/// The largest row of the updates, which are short.
const UPDATE_BYTES: usize = 64 << 10;
/// The most databases whose sequences one request returns: servers accept no more.
pub const MAX_SEQS: usize = 100;

/// A server. Cheap to clone.
#[derive(Clone)]
pub struct Remote {
    peer: Peer,
    shown: String,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Remote {
    /// The server with this address, on the connections of `client`.
    ///
    /// # Errors
    /// The address cannot be used with these defaults.
    pub fn new(address: &Address, defaults: &Defaults, client: &Client) -> Result<Remote, FieldError> {
        let peer = address.replication(defaults)?.source_server(client);
        Ok(Remote { peer, shown: address.to_string() })
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
        self.peer.send(&request).await?.json(ANSWER_BYTES).await
    }

    /// Reads JSON once. `path` is as in [`Remote::request`].
    ///
    /// # Errors
    /// Those of [`Remote::request`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.peer.send(&Request::get(path)).await?.json(ANSWER_BYTES).await
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
        self.peer.send(&Request::get(path)).await?.json_up_to(most_bytes).await
    }

    /// The path of a database.
    pub fn path(database: &str) -> String {
        encode(database)
    }

    /// The current position of the feed of updates.
    ///
    /// # Errors
    /// The server offers no such feed, or does not answer.
    pub async fn position(&self) -> Result<Seq, Error> {
        Server::at(self.peer.clone()).now().await
    }

    /// The feed of updates from this position on, without an end.
    ///
    /// # Errors
    /// The server offers no such feed, or does not answer.
    pub async fn updates(&self, since: &Seq) -> Result<Updates, Error> {
        let answer = Server::at(self.peer.clone()).updates(since).await?;
        Ok(Updates { answer, splitter: Splitter::new(Shape::Lines, UPDATE_BYTES) })
    }

    /// The update sequences of up to [`MAX_SEQS`] databases. A database that is missing in the result does not exist, or cannot be read.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn seqs(&self, databases: &[&str]) -> Result<HashMap<String, Seq>, Error> {
        let found = Server::at(self.peer.clone()).infos(databases).await?;
        let known = |(name, seq)| match seq {
            DatabaseSeq::At(seq) => Some((name, seq)),
            DatabaseSeq::NotReported => None,
        };
        Ok(found.into_iter().filter_map(known).collect())
    }

    /// Whether a database has changed since then. An error counts as a change.
    pub async fn has_changed(&self, database: &str, since: &Seq) -> bool {
        Server::at(self.peer.clone()).has_changed(database, since).await
    }
}

/// A database that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Update {
    /// The database; `None` for the end of the feed.
    #[serde(rename = "db_name")]
    pub database: Option<String>,
    /// The position of the feed.
    #[serde(alias = "last_seq")]
    pub seq: Option<Seq>,
}

/// An open feed of updates.
pub struct Updates {
    answer: Answer,
    splitter: Splitter,
}

impl Updates {
    /// The next updates; empty for a heartbeat, `None` at the end of the feed.
    ///
    /// # Errors
    /// The feed broke off, or is no such feed.
    pub async fn next(&mut self) -> Result<Option<Vec<Update>>, Error> {
        let Some(piece) = self.answer.chunk().await? else { return Ok(None) };
        let mut updates = Vec::new();
        let parsed = self.splitter.push(&piece, |text| -> Result<(), String> {
            updates.push(serde_json::from_slice(text).map_err(|error| error.to_string())?);
            Ok(())
        });
        match parsed {
            Ok(_) => Ok(Some(updates)),
            Err(cause) => Err(self.answer.fault(Fault::Malformed(cause))),
        }
    }
}
