//! Many clients and workers during all kinds of faults, and the verdict at the end.
//!
//! Run it with `cargo xtask chaos`, which builds what it runs.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use turnwise_lab_chaos::{Engine, Options, Part};

const USAGE: &str = "\
cargo xtask chaos [OPTION]...
  Many clients and workers of one node (embedded) or two (etcd, FoundationDB), with random faults: kill -9 of nodes, workers and the store's
  servers, a full disk, few descriptors, clocks that jump, copies of the store that everything goes on with. Beside them: webhooks whose
  receivers are slow, silent, dead and flaky, bulk operations with patterns, a limit of requests, and gateways that cut, lose and refuse answers;
  schedules, unique keys, groups, rates and graphs, each of whose promises is checked against the events of the server and its last state.
  Healthy webhooks must be prompt, and bulk operations must do what they say. In the end every job
  that was acknowledged must be in its one right end, no two runs may have held it at the same time, and `turnwise store check` must
  find nothing. Otherwise the exit status is 1, and logs, ledger and store are kept.

  --store ENGINE         embedded (default), etcd, or foundationdb
  --minutes N            how long jobs and faults go on (10)
  --seed N               all jobs and faults follow from it (1)
  --clients N            clients that add jobs (32)
  --workers N            workers that run them (32), beside those of the nodes, and processes of `turnwise work`
  --rate N               jobs that are added in a second (60; 20 on a store that nodes share: its servers need the same cores)
  --tenants N            tenants that they are charged to (1000)
  --settle SECONDS       in the end: how long it may take until the next job ends (60)
  --without PART,…       leave out: webhooks, bulk, limits, gateways, gzip, waits, features
  --faults NAME,…        these faults alone, for example KillNode,FullDisk
  --log LEVEL            the nodes' --log (info)
  --turnwise FILE        the binary (target/release/turnwise, built by the command)
  --start-foundationdb PROGRAM
                         PROGRAM DIR PORT ssd runs a FoundationDB in the foreground, and makes DIR/ready and DIR/fdb.cluster
  --debug-build          debug builds of everything (read by the command)";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match parse(arguments.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut terminated = signal(SignalKind::terminate()).expect("signals can be handled");
    let done = tokio::select! {
        done = turnwise_lab_chaos::run(options) => done,
        // All started processes end with this one, and its disk is unmounted.
        _ = tokio::signal::ctrl_c() => Err(vec!["interrupted".to_owned()]),
        _ = terminated.recv() => Err(vec!["terminated".to_owned()]),
    };
    match done {
        Ok(()) => {
            println!("all holds");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            broken.iter().for_each(|broken| println!("BROKEN: {broken}"));
            ExitCode::FAILURE
        }
    }
}

/// Jobs that are added in a second on a store that nodes share.
const SHARED_RATE: f64 = 20.0;

/// Parses the program's arguments. `Err` states what is wrong with them.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::new(PathBuf::from("target/release/turnwise"), Engine::Embedded);
    let (mut store, mut foundationdb, mut rate) = ("embedded".to_owned(), None, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{name} {value}: expected a number"));
        let count = || value.parse::<u64>().map_err(|_| format!("{name} {value}: expected a whole number"));
        let size = || usize::try_from(count()?.max(1)).map_err(|error| error.to_string());
        match name.as_str() {
            "--store" => store = value,
            "--minutes" => options.seconds = (number()? * 60.0) as u64,
            "--seed" => options.seed = count()?,
            "--clients" => options.clients = size()?,
            "--workers" => options.workers = size()?,
            "--rate" => rate = Some(number()?.max(0.1)),
            "--tenants" => options.tenants = count()?.max(1),
            "--settle" => options.settle_seconds = count()?,
            "--faults" => options.faults = value.split(',').map(str::to_owned).collect(),
            "--without" => {
                for name in value.split(',') {
                    let without = Part::named(name)?;
                    options.parts.retain(|part| *part != without);
                }
            }
            "--log" => options.log = value,
            "--turnwise" => options.turnwise = PathBuf::from(value),
            "--start-foundationdb" => foundationdb = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    options.engine = match store.as_str() {
        "embedded" => Engine::Embedded,
        "etcd" => Engine::Etcd,
        "foundationdb" => {
            Engine::Foundationdb(foundationdb.ok_or("foundationdb needs --start-foundationdb")?)
        }
        other => return Err(format!("--store {other}: expected embedded, etcd or foundationdb")),
    };
    let usual = if options.engine == Engine::Embedded { options.jobs_per_second } else { SHARED_RATE };
    options.jobs_per_second = rate.unwrap_or(usual);
    Ok(options)
}
