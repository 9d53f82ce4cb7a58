//! Compares turnwise with PouchDB's own replicator (and with CouchDB's, if available), between the same two servers.
//!
//! Run it with `cargo xtask bench replicate`, which builds what it measures. The replicators take turns, so that other programs on the
//! machine slow all of them equally. The results are the ratios of the medians.

mod contender;
mod cost;
mod documents;
mod options;
mod turnwise;
mod work;

use std::process::ExitCode;

use contender::Contender;
use cost::Cost;
use options::{Kind, Options, USAGE};
use serde_json::Value;
use turnwise_testkit::{Database, Peer, process};
use work::Work;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(arguments.into_iter()) {
        Ok(options) => {
            Bench::start(options).await.measure().await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The two servers, and the replicators between them.
struct Bench {
    options: Options,
    source: Peer,
    target: Peer,
    contenders: Vec<Contender>,
}

impl Bench {
    async fn start(options: Options) -> Self {
        let source = peer(options.source.as_deref()).await;
        let target = peer(options.target.as_deref()).await;
        let mut contenders = vec![Contender::Turnwise, Contender::Serve, Contender::PouchDb];
        let greeting = Database::at(format!("{}/x", target.url())).server_greeting().await;
        if greeting.get("couchdb").is_some() {
            contenders.push(Contender::CouchDb);
        }
        if !options.only.is_empty() {
            contenders.retain(|contender| options.only.contains(&contender.name().to_lowercase()));
        }
        Self { options, source, target, contenders }
    }

    async fn measure(&self) {
        for &kind in &self.options.kinds {
            let work = Work::load(kind, &self.options, &self.source).await;
            if kind == Kind::Again {
                let target = self.target.create("bench-again").await;
                let pair = (&work.sources[0], &target);
                let fields = [("use_checkpoints", Value::Bool(false))];
                Contender::Turnwise.copy(&self.options.turnwise, &self.target, pair, &fields).await;
                self.measure_work(&work, Some(&target)).await;
                target.delete().await;
            } else {
                self.measure_work(&work, None).await;
            }
            for source in &work.sources {
                source.delete().await;
            }
        }
    }

    /// `filled` is a target that has everything.
    async fn measure_work(&self, work: &Work, filled: Option<&Database>) {
        let amount = work.amount();
        let mut contenders = self.contenders.clone();
        if filled.is_some() || !work.fields().is_empty() {
            // Its replicator always uses checkpoints here, and copies everything.
            contenders.retain(|contender| *contender != Contender::PouchDb);
        }
        if work.kind == Kind::Databases {
            // turnwise copies them as documents of a server in any case.
            contenders.retain(|contender| *contender != Contender::Serve);
        }
        if filled.is_some() {
            contenders.push(Contender::Feed);
        }
        println!("\n{}; {} rounds in turns", work.describe(), self.options.rounds);
        Cost::print_head(amount);
        let mut costs = vec![Vec::new(); contenders.len()];
        for round in 0..self.options.rounds {
            // Each contender comes first once, so that none always finds the servers as the same other one left them.
            for turn in 0..contenders.len() {
                let index = (round + turn) % contenders.len();
                let cost = self.replicate(work, contenders[index], filled, round).await;
                cost.print(&(round + 1).to_string(), contenders[index].name(), amount);
                costs[index].push(cost);
            }
        }
        let medians: Vec<Cost> = costs.iter().map(|costs| Cost::median(costs)).collect();
        for (contender, median) in contenders.iter().zip(&medians) {
            median.print("median", contender.name(), amount);
        }
        let Some(turnwise) = contenders.iter().position(|&it| it == Contender::Turnwise) else { return };
        for (contender, median) in contenders.iter().zip(&medians) {
            if *contender != Contender::Turnwise {
                medians[turnwise].print_ratio(median, contender.name(), amount);
            }
        }
    }

    /// Runs one replication, into new databases unless one is given. Compares these with the sources, and deletes them.
    async fn replicate(
        &self,
        work: &Work,
        contender: Contender,
        filled: Option<&Database>,
        round: usize,
    ) -> Cost {
        let mut targets: Vec<Database> = filled.into_iter().cloned().collect();
        for nth in targets.len()..work.sources.len() {
            let name = format!("bench-{}-{round}-{nth}", contender.name().to_lowercase());
            targets.push(self.target.create(&name).await);
        }
        let servers = [&self.source, &self.target].map(server_process);
        let before = servers.map(|process| process.and_then(process::cpu_seconds));
        let binary = &self.options.turnwise;
        let mut cost = if work.kind == Kind::Databases {
            contender.copy_many(binary, &self.target, &work.sources, &targets).await
        } else {
            let mut fields = work.fields();
            if filled.is_some() {
                fields.push(("use_checkpoints", Value::Bool(false)));
            }
            contender.copy(binary, &self.target, (&work.sources[0], &targets[0]), &fields).await
        };
        let after = servers.map(|process| process.and_then(process::cpu_seconds));
        let spent = |server: usize| Some(after[server]? - before[server]?);
        (cost.source_cpu_seconds, cost.target_cpu_seconds) = (spent(0), spent(1));

        // The first copy of each contender is compared leaf by leaf, which takes longer than the copy.
        work.check(&targets, round > 0, contender.name()).await;
        if filled.is_none() {
            for target in targets {
                target.delete().await;
            }
        }
        cost
    }
}

async fn peer(url: Option<&str>) -> Peer {
    match url {
        Some(url) => Peer::external(url),
        None => Peer::start().await,
    }
}

/// The server's process, if it runs on this machine.
fn server_process(peer: &Peer) -> Option<u32> {
    peer.process_id().or_else(|| {
        let port = peer.url().rsplit(':').next()?.parse().ok()?;
        process::listener(port)
    })
}
