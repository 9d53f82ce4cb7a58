//! Tables and ratios.

use crate::contender::{Contender, Phase, Run};

/// All runs of one mode: by contender, in the order of the rounds.
pub type Runs = Vec<(Contender, Vec<Run>)>;

/// The middle number, or the mean of the two middle ones.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    let last = numbers.len().checked_sub(1)?;
    Some((numbers[last / 2] + numbers[numbers.len() / 2]) / 2.0)
}

/// Prints the head of a table of throughputs. CPU times are those of the program, and of its server.
pub fn print_head(title: &str) {
    println!("\n{title}");
    println!(
        "  {:<22}{:>7} |{:>10}{:>12} |{:>12}{:>12} |{:>12}{:>12} |{:>19}",
        "",
        "round",
        "adds/s",
        "CPU us",
        "processed/s",
        "CPU us",
        "end to end/s",
        "CPU us",
        "latency p50, p99 ms"
    );
}

/// Prints one line of the table.
pub fn print_run(contender: Contender, round: &str, run: &Run) {
    let part = |phase: Option<Phase>, width: usize| match phase {
        Some(Phase { jobs_per_s, cpu_us_per_job, server_cpu_us_per_job }) => {
            let cpu = format!("{cpu_us_per_job:.0} + {server_cpu_us_per_job:.0}");
            format!("{jobs_per_s:>width$.0}{cpu:>12}")
        }
        None => format!("{:>width$}{:>12}", "-", "-"),
    };
    let latency = run.latency.map_or("-".to_owned(), |latency| {
        format!("{:.2}, {:.2}", latency.p50_us / 1e3, latency.p99_us / 1e3)
    });
    let (add, process, both) = (part(run.add, 10), part(run.process, 12), part(run.both, 12));
    println!("  {:<22}{round:>7} |{add} |{process} |{both} |{latency:>19}", contender.name());
    for note in &run.notes {
        println!("      {note}");
    }
}

/// Prints the medians of all rounds, and turnwise's ratios to the others: the median of the rounds' ratios.
pub fn print_summary(runs: &Runs) {
    for (contender, runs) in runs {
        print_run(*contender, "median", &middle(runs));
    }
    let ours = runs.iter().filter(|(contender, _)| contender.is_turnwise());
    let theirs = || runs.iter().filter(|(contender, _)| !contender.is_turnwise());
    for ((first, own), (contender, theirs)) in ours.flat_map(|own| theirs().map(move |their| (own, their))) {
        let ratio = |phase: fn(&Run) -> Option<Phase>, of: fn(Phase) -> f64| {
            let ratios =
                own.iter().zip(theirs).filter_map(|(own, their)| Some(of(phase(own)?) / of(phase(their)?)));
            median(ratios.collect()).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        let speed = |phase| ratio(phase, |phase| phase.jobs_per_s);
        println!(
            "  {} against {}: {} times the adds/s, {} times processed, {} times from add to finished, with {} times the CPU",
            first.name(),
            contender.name(),
            speed(|run| run.add),
            speed(|run| run.process),
            speed(|run| run.both),
            ratio(|run| run.both, Phase::all_cpu_us_per_job),
        );
    }
}

/// The median of each value.
fn middle(runs: &[Run]) -> Run {
    let phase = |phase: fn(&Run) -> Option<Phase>| {
        let phases: Vec<Phase> = runs.iter().filter_map(phase).collect();
        Some(Phase {
            jobs_per_s: median(phases.iter().map(|phase| phase.jobs_per_s).collect())?,
            cpu_us_per_job: median(phases.iter().map(|phase| phase.cpu_us_per_job).collect())?,
            server_cpu_us_per_job: median(phases.iter().map(|phase| phase.server_cpu_us_per_job).collect())?,
        })
    };
    let latencies: Vec<_> = runs.iter().filter_map(|run| run.latency).collect();
    let latency = |part: fn(&crate::contender::Latency) -> f64| median(latencies.iter().map(part).collect());
    let latency = latency(|latency| latency.p50_us)
        .zip(latency(|latency| latency.p99_us))
        .map(|(p50_us, p99_us)| crate::contender::Latency { p50_us, p99_us });
    Run {
        add: phase(|run| run.add),
        process: phase(|run| run.process),
        both: phase(|run| run.both),
        latency,
        notes: Vec::new(),
    }
}
