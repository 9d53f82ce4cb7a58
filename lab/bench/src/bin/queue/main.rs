//! Jobs that do nothing, run by turnwise and by other job servers, all of them durable.
//!
//! Run it with `cargo xtask bench queue`, which builds what it measures; `cargo xtask bench --setup` installs the other servers. Every
//! contender is a separate program that adds and runs the jobs: this program for turnwise, `lab/peers/*.mjs` and `lab/peers/apalis` for the
//! others.

mod backlog;
mod contender;
mod in_process;
mod options;
mod over_http;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use contender::{Contender, Run, Task};
use options::{Options, USAGE};
use report::Runs;
use turnwise_lab_bench::{disk, empty, remove};

/// The number of jobs per transaction, if jobs are added in batches.
const BATCH: usize = 100;
/// A single submitter waits for every fsync, so it gets only this fraction of the jobs.
const LONE_PART: usize = 10;
/// How long jobs are added while the latency is measured, in seconds.
const LATENCY_S: f64 = 3.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((word, rest)) if word == "in-process" => {
            in_process::main(in_process_arguments(rest));
            return ExitCode::SUCCESS;
        }
        Some((word, rest)) if word == "over-http" => {
            over_http::main(over_http_arguments(rest));
            return ExitCode::SUCCESS;
        }
        Some((word, rest)) if word == "backlog" => {
            backlog::main(rest);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let done = Options::parse(arguments.into_iter()).map_err(|error| format!("{error}\n{USAGE}"));
    match done.and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn value<'a>(words: &'a [String], name: &str) -> Option<&'a String> {
    words.iter().position(|word| word == name).and_then(|n| words.get(n + 1))
}

fn number<T: std::str::FromStr>(words: &[String], name: &str) -> Option<T> {
    value(words, name).and_then(|word| word.parse().ok())
}

fn in_process_arguments(words: &[String]) -> in_process::Arguments {
    in_process::Arguments {
        dir: PathBuf::from(value(words, "--dir").expect("--dir is expected")),
        jobs: number(words, "--jobs").expect("--jobs is expected"),
        submitters: number(words, "--submitters").expect("--submitters is expected"),
        batch: number(words, "--batch").expect("--batch is expected"),
        rate: number(words, "--rate"),
    }
}

fn over_http_arguments(words: &[String]) -> over_http::Arguments {
    over_http::Arguments {
        port: number(words, "--port").expect("--port is expected"),
        jobs: number(words, "--jobs").expect("--jobs is expected"),
        submitters: number(words, "--submitters").expect("--submitters is expected"),
        batch: number(words, "--batch").expect("--batch is expected"),
        rate: number(words, "--rate"),
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let mut contenders = Vec::new();
    for contender in Contender::ALL.into_iter().filter(|contender| options.wants(contender.key())) {
        match contender.missing(options) {
            None => {
                println!("{}: {}", contender.name(), contender.durability());
                contenders.push(contender);
            }
            Some(reason) => {
                println!("{} is left out: {reason} (cargo xtask bench --setup)", contender.name())
            }
        }
    }
    let Options { jobs, submitters, .. } = *options;
    let one = Task { jobs, submitters, batch: 1, rate: None };
    let lone = Task { jobs: jobs / LONE_PART, submitters: 1, ..one };
    let batch = Task { batch: BATCH, ..one };
    if options.wants_mode("one") {
        let latency = options.wants_mode("latency");
        throughput(
            options,
            &contenders,
            &format!("{submitters} submitters, one job per transaction"),
            one,
            latency,
        )?;
    }
    if options.wants_mode("lone") {
        throughput(options, &contenders, "one submitter, one job per transaction", lone, false)?;
    }
    if options.wants_mode("batch") {
        throughput(
            options,
            &contenders,
            &format!("{submitters} submitters, {BATCH} jobs per transaction"),
            batch,
            false,
        )?;
    }
    if options.backlog > 0 && options.wants("backlog") {
        let dir = empty(&options.dir.join("backlog"))?;
        backlog::measure(&dir, options.backlog)?;
        remove(&dir)?;
    }
    Ok(())
}

/// Measures all contenders in one mode, in turns. With `latency`, also measures the latency of each one at half its own end-to-end rate.
fn throughput(
    options: &Options,
    contenders: &[Contender],
    title: &str,
    task: Task,
    latency: bool,
) -> Result<(), String> {
    report::print_head(&format!("{title}, {} jobs", task.jobs));
    let mut runs: Runs = contenders.iter().map(|contender| (*contender, Vec::new())).collect();
    for round in 0..options.rounds {
        print_disk(options)?;
        for turn in 0..contenders.len() {
            // Each contender comes first once, so that none always follows the same one.
            let index = (round + turn) % contenders.len();
            let contender = contenders[index];
            let mut run = run(options, contender, task)?;
            if let (true, Some(both)) = (latency && contender.tells_latency(), run.both) {
                let rate = both.jobs_per_s / 2.0;
                let jobs = (rate * LATENCY_S) as usize;
                run.latency =
                    self::run(options, contender, Task { rate: Some(rate), jobs: jobs.max(100), ..task })?
                        .latency;
            }
            report::print_run(contender, &(round + 1).to_string(), &run);
            runs[index].1.push(run);
        }
    }
    report::print_summary(&runs);
    Ok(())
}

fn run(options: &Options, contender: Contender, task: Task) -> Result<Run, String> {
    let dir = empty(&options.dir.join(contender.key()))?;
    let run = contender.run(options, &dir, task)?;
    remove(&dir)?;
    Ok(run)
}

fn print_disk(options: &Options) -> Result<(), String> {
    let dir = empty(&options.dir)?;
    let [small, large] = disk::fsyncs_per_s(&dir).map_err(|error| error.to_string())?;
    println!("  (the disk alone: {small:.0} fdatasync/s of 4 kB, {large:.0} of 64 kB)");
    Ok(())
}
