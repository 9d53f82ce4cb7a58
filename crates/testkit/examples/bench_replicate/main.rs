//! turnwise beside PouchDB's own replicator (and CouchDB's, where there is one), between the same two servers.
//!
//! Run it with `cargo xtask bench replicate`, which builds what it measures.

mod options;

use std::process::{Command, ExitCode};
use std::time::Instant;

use options::{Options, USAGE};
use serde_json::{Value, json};
use turnwise_testkit::{Database, Dataset, Peer, client, compare, peers_folder, process};

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replicator {
    Turnwise,
    PouchDb,
    /// The target server's own `_replicate`; its CPU time is the target's.
    CouchDb,
}

impl Replicator {
    fn name(self) -> &'static str {
        match self {
            Self::Turnwise => "turnwise",
            Self::PouchDb => "PouchDB",
            Self::CouchDb => "CouchDB",
        }
    }
}

/// What one replication cost, or several on average. What cannot be seen from here is `None`.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    seconds: f64,
    cpu_seconds: Option<f64>,
    peak_mb: Option<f64>,
    source_cpu_seconds: Option<f64>,
    target_cpu_seconds: Option<f64>,
}

impl Cost {
    fn mean(costs: &[Self]) -> Self {
        let mean = |field: fn(&Self) -> Option<f64>| {
            Some(costs.iter().map(field).sum::<Option<f64>>()? / costs.len() as f64)
        };
        Self {
            seconds: mean(|cost| Some(cost.seconds)).unwrap_or_default(),
            cpu_seconds: mean(|cost| cost.cpu_seconds),
            peak_mb: mean(|cost| cost.peak_mb),
            source_cpu_seconds: mean(|cost| cost.source_cpu_seconds),
            target_cpu_seconds: mean(|cost| cost.target_cpu_seconds),
        }
    }

    fn print(&self, round: &str, replicator: Replicator, documents: usize) {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        println!(
            "{round:<6}{:<10}{:>12.0}{:>10.2}{:>10}{:>10}{:>14}{:>14}",
            replicator.name(),
            documents as f64 / self.seconds,
            self.seconds,
            number(self.cpu_seconds),
            number(self.peak_mb),
            number(self.source_cpu_seconds),
            number(self.target_cpu_seconds)
        );
    }

    /// This cost beside `other`'s.
    fn print_ratio(&self, other: &Self, name: &str) {
        let ratio = |mine: Option<f64>, others: Option<f64>| Some(mine? / others?);
        print!("turnwise against {name}: {:.2} times the documents/s", other.seconds / self.seconds);
        if let Some(ratio) = ratio(self.cpu_seconds, other.cpu_seconds) {
            print!(", {ratio:.2} times the CPU seconds");
        }
        if let Some(ratio) = ratio(self.peak_mb, other.peak_mb) {
            print!(", {ratio:.2} times the memory");
        }
        println!();
    }
}

/// The two servers and the database that is copied.
struct Bench {
    options: Options,
    source: Peer,
    target: Peer,
    from: Database,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(arguments.into_iter()) {
        Ok(options) => {
            measure(options).await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

async fn measure(options: Options) {
    let source = peer(options.source.as_deref()).await;
    let target = peer(options.target.as_deref()).await;
    let from = source.create("bench-source").await;
    let dataset = Dataset { attachments: options.attachments, ..Dataset::plain(options.documents) };
    let loaded = dataset.load(&from).await;
    println!(
        "{} documents, {} attachments ({} MB); {} rounds",
        loaded.documents,
        loaded.attachments,
        loaded.attachment_bytes >> 20,
        options.rounds
    );
    let mut replicators = vec![Replicator::Turnwise, Replicator::PouchDb];
    let greeting = Database::at(format!("{}/x", target.url())).server_greeting().await;
    if greeting.get("couchdb").is_some() {
        replicators.push(Replicator::CouchDb);
    }

    let bench = Bench { options, source, target, from };
    println!(
        "{:<6}{:<10}{:>12}{:>10}{:>10}{:>10}{:>14}{:>14}",
        "round", "by", "documents/s", "seconds", "CPU s", "peak MB", "source CPU s", "target CPU s"
    );
    let mut costs = vec![Vec::new(); replicators.len()];
    for round in 0..bench.options.rounds {
        // Each begins once, so that none always finds the servers as another left them.
        for turn in 0..replicators.len() {
            let index = (round + turn) % replicators.len();
            let cost = bench.replicate(replicators[index], round).await;
            cost.print(&(round + 1).to_string(), replicators[index], bench.options.documents);
            costs[index].push(cost);
        }
    }
    let means: Vec<Cost> = costs.iter().map(|costs| Cost::mean(costs)).collect();
    for (replicator, mean) in replicators.iter().zip(&means) {
        mean.print("mean", *replicator, bench.options.documents);
    }
    for (replicator, mean) in replicators.iter().zip(&means).skip(1) {
        means[0].print_ratio(mean, replicator.name());
    }
}

async fn peer(url: Option<&str>) -> Peer {
    match url {
        Some(url) => Peer::external(url),
        None => Peer::start().await,
    }
}

impl Bench {
    /// One replication into a new database, which is compared with the source and deleted again.
    async fn replicate(&self, replicator: Replicator, round: usize) -> Cost {
        let to = self.target.create(&format!("bench-{}-{round}", replicator.name().to_lowercase())).await;
        let servers = [&self.source, &self.target].map(server_process);
        let before = servers.map(|process| process.and_then(process::cpu_seconds));
        let mut cost = match replicator {
            Replicator::Turnwise => {
                let mut command = Command::new(&self.options.turnwise);
                command.args(["replicate", self.from.url(), to.url()]);
                run(command).await
            }
            Replicator::PouchDb => {
                let mut command = Command::new("node");
                command.arg(peers_folder().join("replicate.mjs")).args([self.from.url(), to.url()]);
                run(command).await
            }
            Replicator::CouchDb => self.replicate_by_target(&to).await,
        };
        let after = servers.map(|process| process.and_then(process::cpu_seconds));
        let spent = |server: usize| Some(after[server]? - before[server]?);
        (cost.source_cpu_seconds, cost.target_cpu_seconds) = (spent(0), spent(1));

        if let Err(differences) = compare(&self.from, &to).await {
            let first = &differences[0];
            panic!("{} left {} differences; the first: {first}", replicator.name(), differences.len());
        }
        to.delete().await;
        cost
    }

    async fn replicate_by_target(&self, to: &Database) -> Cost {
        let start = Instant::now();
        let request = json!({ "source": self.from.url(), "target": to.url() });
        let answer = client().post(format!("{}/_replicate", self.target.url())).json(&request).send().await;
        let answer = answer.expect("the target server answers");
        let status = answer.status();
        let text = answer.text().await.expect("the target server answers");
        assert!(status.is_success(), "_replicate answered {status} {text}");
        Cost { seconds: start.elapsed().as_secs_f64(), ..Cost::default() }
    }
}

/// Runs a replicator's process. The seconds are its own account, if it gives one.
async fn run(command: Command) -> Cost {
    let run = tokio::task::spawn_blocking(|| process::run(command)).await.expect("the replicator succeeds");
    let account = serde_json::from_str::<Value>(&run.output).ok();
    let seconds = account.and_then(|account| account["seconds"].as_f64()).unwrap_or(run.seconds);
    Cost { seconds, cpu_seconds: Some(run.cpu_seconds), peak_mb: Some(run.peak_mb), ..Cost::default() }
}

/// The server's process, if it runs on this machine.
fn server_process(peer: &Peer) -> Option<u32> {
    peer.process_id().or_else(|| {
        let port = peer.url().rsplit(':').next()?.parse().ok()?;
        process::listener(port)
    })
}
