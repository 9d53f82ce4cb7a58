//! The replicators, and how each is started.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwise_testkit::{Database, Peer, client, peers_folder, process};

use crate::cost::Cost;
use crate::documents;
use crate::turnwise::Turnwise;

/// A replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// `turnwise replicate`.
    Turnwise,
    /// A document of a `_replicator` database of `turnwise serve`.
    Serve,
    PouchDb,
    /// The target server's own replicator. Its CPU time is part of the target's.
    CouchDb,
    /// No replicator: reads the source's changes, as fast as it sends them.
    Feed,
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise",
            Self::Serve => "serve",
            Self::PouchDb => "PouchDB",
            Self::CouchDb => "CouchDB",
            Self::Feed => "_changes",
        }
    }

    /// Copies one database, one-shot, with these further fields of the replication.
    pub async fn copy(
        self,
        binary: &Path,
        target: &Peer,
        (from, to): (&Database, &Database),
        fields: &[(&str, Value)],
    ) -> Cost {
        match self {
            Self::Turnwise => {
                let mut command = Command::new(binary);
                command.args(["replicate", from.url(), to.url()]);
                for (name, value) in fields {
                    command.arg("--option").arg(format!("{name}={value}"));
                }
                run(command).await
            }
            Self::Serve => serve(binary, std::iter::once((from, to)), fields).await,
            Self::PouchDb => run(pouchdb([(from, to)])).await,
            Self::CouchDb => {
                let start = Instant::now();
                let mut request = json!({ "source": from.url(), "target": to.url() });
                for (name, value) in fields {
                    request[*name] = value.clone();
                }
                let answer =
                    client().post(format!("{}/_replicate", target.url())).json(&request).send().await;
                let answer = answer.expect("the target server answers");
                let status = answer.status();
                let text = answer.text().await.expect("the target server answers");
                assert!(status.is_success(), "_replicate answered {status} {text}");
                Cost { seconds: start.elapsed().as_secs_f64(), ..Cost::default() }
            }
            Self::Feed => {
                let start = Instant::now();
                let url = format!("{}/_changes?style=all_docs", from.url());
                let mut answer = client().get(url).send().await.expect("the source server answers");
                while answer.chunk().await.expect("the source server answers").is_some() {}
                Cost { seconds: start.elapsed().as_secs_f64(), ..Cost::default() }
            }
        }
    }

    /// Copies many databases, as documents of a `_replicator` database if the replicator supports these.
    pub async fn copy_many(
        self,
        binary: &Path,
        target: &Peer,
        sources: &[Database],
        targets: &[Database],
    ) -> Cost {
        let pairs = || sources.iter().zip(targets);
        match self {
            Self::Turnwise | Self::Serve => serve(binary, pairs(), &[]).await,
            Self::PouchDb => run(pouchdb(pairs())).await,
            Self::CouchDb => {
                let replicator = target.create("bench%2F_replicator").await;
                // The server finds a new replicator database through its feed of all databases.
                tokio::time::sleep(Duration::from_secs(1)).await;
                let seconds = documents::replicate(&replicator, pairs(), &[]).await;
                replicator.delete().await;
                Cost { seconds, ..Cost::default() }
            }
            Self::Feed => unreachable!("it is measured with one database"),
        }
    }
}

/// Copies databases as documents of a `_replicator` database of `turnwise serve`.
async fn serve<'a>(
    binary: &Path,
    pairs: impl Iterator<Item = (&'a Database, &'a Database)>,
    fields: &[(&str, Value)],
) -> Cost {
    let server = Turnwise::start(binary).await;
    let replicator = Database::at(format!("{}/_replicator", server.url()));
    let before = process::cpu_seconds(server.process());
    let seconds = documents::replicate(&replicator, pairs, fields).await;
    let cpu_seconds = before.zip(process::cpu_seconds(server.process()));
    Cost {
        seconds,
        cpu_seconds: cpu_seconds.map(|(before, after)| after - before),
        peak_mb: process::peak_memory_mb(server.process()),
        ..Cost::default()
    }
}

fn pouchdb<'a>(pairs: impl IntoIterator<Item = (&'a Database, &'a Database)>) -> Command {
    let mut command = Command::new("node");
    command.arg(peers_folder().join("replicate.mjs"));
    command.args(pairs.into_iter().flat_map(|(from, to)| [from.url(), to.url()]));
    command
}

/// Runs a replicator's process. The seconds come from its own output, if it states them.
async fn run(command: Command) -> Cost {
    let run = tokio::task::spawn_blocking(|| process::run(command)).await.expect("the replicator succeeds");
    let account = serde_json::from_str::<Value>(&run.output).ok();
    let seconds = account.and_then(|account| account["seconds"].as_f64()).unwrap_or(run.seconds);
    Cost { seconds, cpu_seconds: Some(run.cpu_seconds), peak_mb: Some(run.peak_mb), ..Cost::default() }
}
