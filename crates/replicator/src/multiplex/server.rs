//! The requests to a source's server: whether it offers `_db_updates`, what has changed, and the sequences of databases.

use std::collections::HashMap;

use futures::stream::{self, StreamExt};
use serde::Deserialize;
use turnwise_outbound::{Answer, Client, Error, Peer, Request, Side};

use crate::query::{Query, encode};
use crate::seq::Seq;

use crate::Replication;

/// The descriptions of a hundred databases are short.
const INFO_BYTES: usize = 8 * 1024 * 1024;
/// Concurrent requests, where each database needs one.
const AT_ONCE: usize = 8;

/// A server, with the URL and login of one replication's source.
#[derive(Clone)]
pub(crate) struct Server(Peer);

/// The sequence of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseSeq {
    /// The current sequence.
    At(Seq),
    /// Not reported: the database does not exist, denies access, or is broken. Its job's own run finds out.
    NotReported,
}

impl Server {
    /// The server of a replication's source.
    pub fn of(replication: &Replication, client: &Client) -> Self {
        let source = replication.source.server();
        let (settings, secrets) = (replication.peer_settings(), replication.secrets());
        Server(Peer::new(Side::Source, &source, &settings, secrets, client))
    }

    /// The server whose root this peer is.
    pub fn at(root: Peer) -> Self {
        Server(root)
    }

    /// The current position of the feed. Fails if there is no such feed.
    pub async fn now(&self) -> Result<Seq, Error> {
        #[derive(Deserialize)]
        struct Now {
            last_seq: Seq,
        }
        let request = Request::get("_db_updates?feed=normal&since=now&limit=1");
        Ok(self.0.send(&request).await?.json::<Now>(INFO_BYTES).await?.last_seq)
    }

    /// The endless feed from this position on.
    pub async fn updates(&self, since: &Seq) -> Result<Answer, Error> {
        let mut query = Query::default();
        query.add("feed", "continuous");
        query.add("heartbeat", &(self.0.timeout() / 3).as_millis().max(1).to_string());
        query.add("since", &since.to_query());
        self.0.send(&Request::get(query.on("_db_updates")).uncounted().feed()).await
    }

    /// The sequences of these databases. At most a hundred, because servers accept no more in one request.
    pub async fn infos(&self, names: &[&str]) -> Result<HashMap<String, DatabaseSeq>, Error> {
        #[derive(Deserialize)]
        struct Line {
            key: String,
            info: Option<Info>,
        }
        #[derive(Deserialize)]
        struct Info {
            update_seq: Seq,
        }
        let body = serde_json::json!({ "keys": names }).to_string().into_bytes();
        let answer = match self.0.send(&Request::post("_dbs_info", body)).await {
            Ok(answer) => answer,
            // One broken database may cause an error for all.
            Err(error) if error.is_refusal() || error.status() == Some(500) => {
                return self.one_by_one(names).await;
            }
            Err(error) => return Err(error),
        };
        let lines: Vec<Line> = answer.json(INFO_BYTES).await?;
        let found = |line: Line| {
            (line.key, line.info.map_or(DatabaseSeq::NotReported, |info| DatabaseSeq::At(info.update_seq)))
        };
        Ok(lines.into_iter().map(found).collect())
    }

    async fn one_by_one(&self, names: &[&str]) -> Result<HashMap<String, DatabaseSeq>, Error> {
        #[derive(Deserialize)]
        struct Info {
            update_seq: Seq,
        }
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let ask = |name: String| {
            let peer = self.0.clone();
            async move {
                let found = match peer.send(&Request::get(format!("{}/", encode(&name)))).await {
                    Ok(answer) => match answer.json::<Info>(INFO_BYTES).await {
                        Ok(info) => DatabaseSeq::At(info.update_seq),
                        Err(error) => return (name, Err(error)),
                    },
                    // This response concerns one database only; the others are still asked.
                    Err(error) if error.status().is_some() => DatabaseSeq::NotReported,
                    Err(error) => return (name, Err(error)),
                };
                (name, Ok(found))
            }
        };
        let mut answers = stream::iter(names).map(ask).buffer_unordered(AT_ONCE);
        let mut found = HashMap::new();
        let mut silent = Vec::new();
        while let Some((name, answer)) = answers.next().await {
            match answer {
                Ok(at) => drop(found.insert(name, at)),
                Err(error) => silent.push((name, error)),
            }
        }
        // If none of several databases responds, the server is the cause.
        if found.is_empty() && silent.len() > 1 {
            return silent.pop().map_or(Ok(found), |(_, error)| Err(error));
        }
        found.extend(silent.into_iter().map(|(name, _)| (name, DatabaseSeq::NotReported)));
        Ok(found)
    }

    /// Whether a database has changed since then. Errors count as a change: no error of one database may end the
    /// comparison of all others, and the job's run reports the error.
    pub async fn has_changed(&self, name: &str, since: &Seq) -> bool {
        #[derive(Deserialize)]
        struct Changes {
            results: Vec<serde::de::IgnoredAny>,
        }
        let mut query = Query::default();
        query.add("limit", "1");
        query.add("since", &since.to_query());
        let request = Request::get(query.on(&format!("{}/_changes", encode(name))));
        let Ok(answer) = self.0.send(&request).await else { return true };
        answer.json::<Changes>(INFO_BYTES).await.map_or(true, |changes| !changes.results.is_empty())
    }
}
