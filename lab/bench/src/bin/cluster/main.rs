//! Jobs that do nothing, run by one, two and three nodes on one shared store.
//!
//! Run it with `cargo xtask bench cluster`. A node is a process of this program ([`node`]): a worker with a handler that does nothing, and
//! submitters, with their own store handle. This process starts the stores ([`backend`]) and the nodes ([`fleet`]), sends orders, and reads
//! the queue until every end is recorded.

mod backend;
mod fleet;
mod node;
mod options;
mod queue;
mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use backend::Backend;
use fleet::{Fleet, Order};
use options::{Options, USAGE};
use report::{Ceiling, Latency, Run, Runs};
use turnwise_testkit::process::machine_cpu_seconds;

/// A tenth of the jobs runs before the measurement, so that every node has its worker and its connections.
const WARM_UP_PART: usize = 10;
/// How long jobs are added while the latency is measured, in seconds.
const LATENCY_S: f64 = 5.0;
/// How long the speed of the store alone is measured.
const CEILING_TIME: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if arguments.first().is_some_and(|word| word == "node") {
        runtime.block_on(node::main(&arguments[1..]));
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(arguments.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<(), String> {
    let mut measured = 0;
    for kind in backend::Kind::ALL.into_iter().filter(|kind| options.wants(kind.key())) {
        match kind.missing().await {
            None => {
                measure_kind(options, kind).await?;
                measured += 1;
            }
            Some(reason) => println!("{} is left out: {reason}", kind.name()),
        }
    }
    if measured == 0 { Err("nothing was measured".to_owned()) } else { Ok(()) }
}

async fn measure_kind(options: &Options, kind: backend::Kind) -> Result<(), String> {
    println!("\n{}: {}", kind.name(), kind.description());
    println!(
        "{} jobs, {} in a transaction, {} submitters over all nodes; latency from a job's acknowledgement to its start, at half speed",
        options.jobs, options.batch, options.submitters
    );
    report::print_head();
    let mut runs: Runs = options.nodes.iter().map(|nodes| (*nodes, Vec::new())).collect();
    let mut ceilings = Vec::new();
    for round in 0..options.rounds {
        let ceiling = measure_ceiling(options, kind).await?;
        report::print_ceiling(&ceiling);
        ceilings.push(ceiling);
        for turn in 0..runs.len() {
            // Each number of nodes comes first once, so that none always follows the same one.
            let index = (round + turn) % options.nodes.len();
            let run = measure_run(options, kind, options.nodes[index], round).await?;
            report::print_run(options.nodes[index], &(round + 1).to_string(), &run);
            runs[index].1.push(run);
        }
    }
    report::print_summary(&runs, &ceilings);
    Ok(())
}

/// The speed of the machine and the store without a queue.
async fn measure_ceiling(options: &Options, kind: backend::Kind) -> Result<Ceiling, String> {
    let fsyncs_per_s = turnwise_lab_bench::disk::fsyncs_per_s(&std::env::temp_dir());
    let [fsyncs_per_s, _] = fsyncs_per_s.map_err(|error| error.to_string())?;
    let backend = Backend::start(kind).await?;
    let store = queue::open(&backend.url("ceiling")).await?;
    let (cpu, begin) = (backend.cpu_seconds(), Instant::now());
    let writes = (0..options.submitters).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut commits = 0;
            while begin.elapsed() < CEILING_TIME {
                queue::put(&store, writer).await;
                commits += 1;
            }
            commits
        })
    });
    let mut commits = 0;
    for write in writes.collect::<Vec<_>>() {
        commits += write.await.map_err(|error| error.to_string())?;
    }
    let (seconds, commits) = (begin.elapsed().as_secs_f64(), f64::from(commits));
    let store_cpu_us = (backend.cpu_seconds() - cpu) / commits * 1e6;
    queue::clear(&store).await;
    Ok(Ceiling { fsyncs_per_s, commits_per_s: commits / seconds, store_cpu_us })
}

async fn measure_run(
    options: &Options,
    kind: backend::Kind,
    nodes: usize,
    round: usize,
) -> Result<Run, String> {
    let backend = Backend::start(kind).await?;
    let prefix = format!("round-{round}-nodes-{nodes}");
    let store = queue::open(&backend.url(&prefix)).await?;
    let fleet = Fleet::start(&backend.url_text(&prefix), nodes, options).await?;
    let jobs = options.jobs;
    let mut end = jobs / WARM_UP_PART;
    fleet.order(Order::Add { first: 0, jobs: end, batch: options.batch }).await?;
    queue::ended(&store, end).await;

    fleet.order(Order::Reset).await?;
    let cpu = || (fleet.cpu_seconds(), backend.cpu_seconds(), machine_cpu_seconds());
    let ((nodes_cpu, store_cpu, machine), begin) = (cpu(), Instant::now());
    fleet.order(Order::Add { first: end, jobs, batch: options.batch }).await?;
    let added_s = begin.elapsed().as_secs_f64();
    end += jobs;
    queue::ended(&store, end).await;
    let seconds = begin.elapsed().as_secs_f64();
    let (nodes_cpu_later, store_cpu_later, machine_later) = cpu();
    let counters = fleet.counters().await?;
    let (per_job, machine_s) = (1e6 / jobs as f64, machine_later.0 + machine_later.1 - machine.0 - machine.1);
    let mut run = Run {
        seconds,
        jobs,
        jobs_per_s: jobs as f64 / seconds,
        adds_per_s: jobs as f64 / added_s,
        nodes_cpu_us: (nodes_cpu_later - nodes_cpu) * per_job,
        store_cpu_us: (store_cpu_later - store_cpu) * per_job,
        cores: machine_s / seconds,
        busy: (machine_later.0 - machine.0) / machine_s,
        counters,
        latency: None,
    };

    fleet.order(Order::Reset).await?;
    let rate = run.jobs_per_s / 2.0;
    let jobs = ((rate * LATENCY_S) as usize).max(nodes * 10);
    fleet.order(Order::Rate { first: end, jobs, per_s: rate }).await?;
    end += jobs;
    queue::ended(&store, end).await;
    run.latency = Some(Latency::of(fleet.moments().await?, jobs)?);

    queue::check(&store, end).await?;
    fleet.stop().await?;
    queue::clear(&store).await;
    Ok(run)
}
