//! Tables.

use crate::contender::Contender;
use crate::measure::{Measures, Waits};
use crate::workload::Workload;

/// With more streams than this, their parts are not printed.
const MOST_PARTS: usize = 4;

/// Prints the head of a workload's table.
pub fn print_head(workload: &Workload) {
    println!("\n{}: {} ({} slots, {} s)", workload.name, workload.title, workload.slots, workload.seconds);
    println!(
        "  {:<27}{:>7}{:>10}{:>10}{:>10}{:>10}{:>9}{:>11}{:>8}{:>9}",
        "", "round", "p50 ms", "p95 ms", "p99 ms", "unstarted", "Jain", "deviation", "idle", "jobs/s"
    );
}

/// Prints one line of the table.
pub fn print_run(contender: Contender, round: &str, workload: &Workload, measures: &Measures) {
    let Measures { waits, jain, deviation, idle, ended_per_s, parts } = measures;
    let waits = match waits {
        Some(Waits { p50, p95, p99, unstarted }) => {
            format!("{p50:>10.1}{p95:>10.1}{p99:>10.1}{unstarted:>10}")
        }
        None => format!("{:>10}{:>10}{:>10}{:>10}", "-", "-", "-", "-"),
    };
    let jain = jain.map_or("-".to_owned(), |jain| format!("{jain:.4}"));
    let deviation = deviation.map_or("-".to_owned(), |deviation| format!("{:.1}%", deviation * 100.0));
    println!(
        "  {:<27}{round:>7}{waits}{jain:>9}{deviation:>11}{:>7.1}%{ended_per_s:>9.0}",
        contender.name(),
        idle * 100.0
    );
    if parts.len() <= MOST_PARTS {
        let streams = workload.streams.iter().zip(parts);
        let parts: Vec<String> =
            streams.map(|(stream, part)| format!("{} {:.1}%", stream.tenant, part * 100.0)).collect();
        println!("      of all run time: {}", parts.join(", "));
    }
}

/// Prints the medians of all rounds.
pub fn print_medians(workload: &Workload, results: &[(Contender, Vec<Measures>)]) {
    for (contender, rounds) in results {
        let Some(first) = rounds.first() else { continue };
        let of = |value: fn(&Measures) -> Option<f64>| median(rounds.iter().filter_map(value).collect());
        let wait = |value: fn(&Waits) -> f64| {
            median(rounds.iter().filter_map(|m| m.waits.as_ref().map(value)).collect())
        };
        let waits = first.waits.map(|_| Waits {
            p50: wait(|waits| waits.p50).unwrap_or(0.0),
            p95: wait(|waits| waits.p95).unwrap_or(0.0),
            p99: wait(|waits| waits.p99).unwrap_or(0.0),
            unstarted: wait(|waits| waits.unstarted as f64).unwrap_or(0.0) as usize,
        });
        let part =
            |n: usize| median(rounds.iter().map(|measures| measures.parts[n]).collect()).unwrap_or(0.0);
        let medians = Measures {
            waits,
            jain: of(|measures| measures.jain),
            deviation: of(|measures| measures.deviation),
            idle: of(|measures| Some(measures.idle)).unwrap_or(0.0),
            ended_per_s: of(|measures| Some(measures.ended_per_s)).unwrap_or(0.0),
            parts: (0..first.parts.len()).map(part).collect(),
        };
        print_run(*contender, "median", workload, &medians);
    }
}

/// The middle number, or the mean of the two middle ones.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    let last = numbers.len().checked_sub(1)?;
    Some((numbers[last / 2] + numbers[numbers.len() / 2]) / 2.0)
}
