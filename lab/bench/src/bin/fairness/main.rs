//! What one tenant's many jobs cost the others, in turnwise and in other job servers.
//!
//! Run it with `cargo xtask bench fairness`, which builds what it measures; `cargo xtask bench --setup` installs the other servers.
//! A workload states which tenants add which jobs. A program for each server adds and runs them, and writes when each job was added,
//! started and ended; everything else is computed here, in the same way for all.

mod contender;
mod measure;
mod model;
mod options;
mod plot;
mod record;
mod report;
mod turnwise;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use contender::Contender;
use measure::{Measures, measure};
use options::{Options, USAGE};
use plot::Series;
use turnwise_lab_bench::{empty, remove};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((word, rest)) = arguments.split_first()
        && word == "turnwise"
    {
        turnwise::main(&turnwise_arguments(rest));
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let done = Options::parse(arguments.into_iter()).map_err(|error| format!("{error}\n{USAGE}"));
    match done.and_then(|options| compare(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn turnwise_arguments(words: &[String]) -> turnwise::Arguments {
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)).unwrap_or_else(|| panic!("{name} is expected"))
    };
    turnwise::Arguments {
        port: value("--port").parse().expect("--port is a number"),
        workload: PathBuf::from(value("--workload")),
        out: PathBuf::from(value("--out")),
    }
}

fn compare(options: &Options) -> Result<(), String> {
    let mut contenders = Vec::new();
    for contender in Contender::ALL.into_iter().filter(|contender| options.wants(*contender)) {
        match contender.missing(options) {
            None => contenders.push(contender),
            Some(reason) => {
                println!("{} is left out: {reason} (cargo xtask bench --setup)", contender.name());
            }
        }
    }
    let workloads = workload::all(options.backlog);
    for workload in workloads.iter().filter(|workload| options.wants_workload(&workload.name)) {
        report::print_head(workload);
        let mut results: Vec<(Contender, Vec<Measures>)> =
            contenders.iter().map(|contender| (*contender, Vec::new())).collect();
        let mut lines: Vec<(Contender, Series)> = Vec::new();
        for round in 0..options.rounds {
            for turn in 0..contenders.len() {
                // Each contender comes first once, so that none always follows the same one.
                let index = (round + turn) % contenders.len();
                let contender = contenders[index];
                if let Some(reason) = contender.refuses(workload) {
                    if round == 0 {
                        println!("  {} is left out: {reason}", contender.name());
                    }
                    continue;
                }
                let dir = empty(&options.dir.join(contender.key()))?;
                let jobs = contender.run(options, &dir, workload)?;
                remove(&dir)?;
                let measures = measure(workload, &jobs);
                report::print_run(contender, &(round + 1).to_string(), workload, &measures);
                results[index].1.push(measures);
                if round == 0 {
                    lines.push((contender, plot::series(workload, &jobs)));
                }
            }
        }
        if options.rounds > 1 {
            report::print_medians(workload, &results);
        }
        if let Some(folder) = &options.svg {
            plot::draw(folder, workload, &lines)?;
        }
    }
    Ok(())
}
