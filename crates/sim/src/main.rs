//! Runs worlds. `--seed N` runs one of them, and prints the end of its trace; `--seeds N [--from M]` runs many. `--mutants`
//! shows that mistakes are caught.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use turnwise_sim::core::Stats;
use turnwise_sim::mutate;
use turnwise_sim::world::{Report, quiet_panics, run};

const USAGE: &str = "\
usage: sim --seed N [--trace]      runs one world; with the end of its trace, or all of it
       sim --seeds N [--from M]    runs the worlds of the seeds M (0) to M + N - 1, up to the first that fails
       sim --mutants [NAME]...     runs up to 1,000 worlds of each mutant (or of those named): each must be caught
From seed 1000000 on the worlds have jobs that lock, from seed 2000000 on jobs that may not run at once,
from seed 3000000 on an operator who quiets and drains workers, and from seed 4000000 on schedules.";

enum Command {
    One { seed: u64, whole: bool },
    Many { count: u64, from: u64 },
    Mutants { names: Vec<String> },
}

fn command(words: &[&str]) -> Option<Command> {
    let number = |word: &str| word.parse::<u64>().ok();
    Some(match words {
        ["--seed", seed] => Command::One { seed: number(seed)?, whole: false },
        ["--seed", seed, "--trace"] => Command::One { seed: number(seed)?, whole: true },
        ["--seeds", count] => Command::Many { count: number(count)?, from: 0 },
        ["--seeds", count, "--from", from] => Command::Many { count: number(count)?, from: number(from)? },
        ["--mutants", names @ ..] => {
            Command::Mutants { names: names.iter().map(|name| (*name).to_owned()).collect() }
        }
        _ => return None,
    })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some(command) = command(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    quiet_panics();
    match command {
        Command::One { seed, whole } => one(seed, whole),
        Command::Many { count, from } => many(count, from),
        Command::Mutants { names } => mutate::run(&names),
    }
}

fn one(seed: u64, whole: bool) -> ExitCode {
    let report = run(seed, whole);
    if whole || report.violation.is_none() {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    println!("seed {seed}: {}, trace {:016x}, {:?}", report.stats, report.hash, report.lasted);
    finish(seed, &report)
}

fn finish(seed: u64, report: &Report) -> ExitCode {
    let Some(violation) = &report.violation else { return ExitCode::SUCCESS };
    println!("\nthe end of the trace of seed {seed}:");
    let tail = report.trace.len().saturating_sub(100);
    report.trace[tail..].iter().for_each(|line| println!("{line}"));
    println!("\nseed {seed} breaks: {}\n{}", violation.invariant, violation.story);
    println!("\nreplay it: cargo xtask sim --seed {seed} [--trace]");
    ExitCode::FAILURE
}

fn many(count: u64, from: u64) -> ExitCode {
    let begun = Instant::now();
    let next = AtomicU64::new(from);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Stats::default());
    let failed: Mutex<Option<(u64, Report)>> = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let report = run(seed, false);
                    total.lock().unwrap_or_else(PoisonError::into_inner).add(&report.stats);
                    if report.violation.is_some() {
                        stop.store(true, Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // Keeps the failure with the lowest seed, whichever thread finished first.
                        if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                            *failed = Some((seed, report));
                        }
                    }
                    let done = done.fetch_add(1, Relaxed) + 1;
                    if done.is_multiple_of(100) {
                        let rate = done as f64 / begun.elapsed().as_secs_f64();
                        eprintln!("{done} of {count} seeds, {rate:.1} seeds/s");
                    }
                }
            });
        }
    });
    let (seconds, done) = (begun.elapsed().as_secs_f64(), done.into_inner());
    println!("{done} seeds in {seconds:.1} s, {:.1} seeds/s on {threads} threads", done as f64 / seconds);
    println!("{}", total.into_inner().unwrap_or_else(PoisonError::into_inner));
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((seed, report)) => finish(seed, &report),
        None => ExitCode::SUCCESS,
    }
}
