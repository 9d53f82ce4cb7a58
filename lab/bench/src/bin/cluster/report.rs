//! The measured values, and their interpretation.

use std::collections::HashMap;

use turnwise_lab_bench::times::median;

/// The speed of the machine and the store without a queue.
#[derive(Debug, Clone, Copy)]
pub struct Ceiling {
    /// Blocks of 4 kB per second, synced to the disk one after the other.
    pub fsyncs_per_s: f64,
    /// Transactions of one row per second that read nothing, with as many concurrent writers as submitters.
    pub commits_per_s: f64,
    /// CPU time of the store's processes per such transaction, in µs.
    pub store_cpu_us: f64,
}

/// The store usage of all nodes together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub transactions: f64,
    pub commits: f64,
    pub conflicts: f64,
    pub gets: f64,
    pub ranges: f64,
    pub rows_read: f64,
    pub rows_written: f64,
    pub commit_us: f64,
    /// Operations that neither succeeded nor conflicted.
    pub failures: f64,
}

impl Counts {
    /// Adds the counters in a node's line.
    pub fn add(&mut self, line: &str) -> Result<(), String> {
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let own = [
            &mut self.transactions,
            &mut self.commits,
            &mut self.conflicts,
            &mut self.gets,
            &mut self.ranges,
            &mut self.rows_read,
            &mut self.rows_written,
            &mut self.commit_us,
            &mut self.failures,
        ];
        if numbers.len() != own.len() {
            return Err(format!("a node's counters are {line:?}"));
        }
        for (own, number) in own.into_iter().zip(numbers) {
            *own += number;
        }
        Ok(())
    }
}

/// The time from a job's acknowledgement to the start of its handler, on any node.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Latency {
    /// Computes the latency from lines `started NUMBER US` and `acknowledged NUMBER US`.
    pub fn of(lines: Vec<String>, jobs: usize) -> Result<Self, String> {
        let mut moments: HashMap<usize, [Option<i64>; 2]> = HashMap::new();
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [what, number, at_us] = words[..] else { return Err(format!("a node said {line:?}")) };
            let (number, at_us) = (number.parse().unwrap_or(usize::MAX), at_us.parse().ok());
            moments.entry(number).or_default()[usize::from(what == "started")] = at_us;
        }
        let wait = |pair: &[Option<i64>; 2]| Some((pair[1]? - pair[0]?).max(0) as f64);
        let mut waits: Vec<f64> = moments.values().filter_map(wait).collect();
        if waits.len() != jobs {
            return Err(format!("{} of {jobs} jobs have started", waits.len()));
        }
        waits.sort_unstable_by(f64::total_cmp);
        Ok(Latency { p50_us: waits[(jobs - 1) / 2], p99_us: waits[(jobs - 1) * 99 / 100] })
    }
}

/// One run with a number of nodes.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub seconds: f64,
    pub jobs: usize,
    /// From the first addition to the last recorded end.
    pub jobs_per_s: f64,
    /// From the first addition to the last acknowledgement, while the workers work.
    pub adds_per_s: f64,
    pub nodes_cpu_us: f64,
    pub store_cpu_us: f64,
    pub cores: f64,
    /// The part of the machine's CPU time that was used by any program.
    pub busy: f64,
    pub counters: Counts,
    pub latency: Option<Latency>,
}

/// All runs on one store: by number of nodes, in the order of the rounds.
pub type Runs = Vec<(usize, Vec<Run>)>;

pub fn print_head() {
    println!(
        "  {:>5}{:>8} |{:>8}{:>8} |{:>17} |{:>15} |{:>40} |{:>18}",
        "nodes",
        "round",
        "jobs/s",
        "adds/s",
        "latency p50, p99",
        "CPU us per job",
        "per job",
        "conflicts, ms"
    );
    println!(
        "  {:>5}{:>8} |{:>8}{:>8} |{:>17} |{:>7}{:>8} |{:>6}{:>8}{:>6}{:>7}{:>6}{:>7} |{:>18}",
        "",
        "",
        "",
        "",
        "ms",
        "nodes",
        "store",
        "begun",
        "commits",
        "gets",
        "ranges",
        "rows",
        "writes",
        "per commit"
    );
}

pub fn print_ceiling(ceiling: &Ceiling) {
    println!(
        "  (the disk alone: {:.0} fdatasync/s of 4 kB; the store alone: {:.0} transactions/s of one row, {:.0} us of its CPU each)",
        ceiling.fsyncs_per_s, ceiling.commits_per_s, ceiling.store_cpu_us
    );
}

pub fn print_run(nodes: usize, round: &str, run: &Run) {
    let latency = run.latency.map_or("-".to_owned(), |latency| {
        format!("{:.1}, {:.1}", latency.p50_us / 1e3, latency.p99_us / 1e3)
    });
    let counts = &run.counters;
    let per_job = |count: f64| count / run.jobs as f64;
    let conflicts = format!(
        "{:.1} %, {:.1}",
        counts.conflicts / counts.commits * 100.0,
        counts.commit_us / counts.commits / 1e3
    );
    println!(
        "  {nodes:>5}{round:>8} |{:>8.0}{:>8.0} |{latency:>17} |{:>7.0}{:>8.0} |{:>6.2}{:>8.2}{:>6.2}{:>7.2}{:>6.1}{:>7.1} |{conflicts:>18}",
        run.jobs_per_s,
        run.adds_per_s,
        run.nodes_cpu_us,
        run.store_cpu_us,
        per_job(counts.transactions),
        per_job(counts.commits),
        per_job(counts.gets),
        per_job(counts.ranges),
        per_job(counts.rows_read),
        per_job(counts.rows_written),
    );
    if counts.failures > 0.0 {
        println!("      {:.0} calls were too old, of unknown outcome, or not answered", counts.failures);
    }
}

/// Prints the medians of all rounds, and what limits them.
pub fn print_summary(runs: &Runs, ceilings: &[Ceiling]) {
    let ceiling = median(ceilings.iter().map(|ceiling| ceiling.commits_per_s));
    for (nodes, runs) in runs {
        print_run(*nodes, "median", &middle(runs));
    }
    for (nodes, runs) in runs {
        println!("  {nodes} nodes: {}", bound(&middle(runs), ceiling));
    }
}

/// What limited a run.
fn bound(run: &Run, ceiling: f64) -> String {
    let commits_per_s = run.counters.commits / run.seconds;
    let reached = commits_per_s / ceiling;
    let used = (run.nodes_cpu_us + run.store_cpu_us) / 1e6 * run.jobs_per_s;
    let others = (run.busy * run.cores - used).max(0.0);
    let conflicts = run.counters.conflicts / run.counters.commits;
    let cause = if run.busy > 0.9 {
        "the CPU"
    } else if conflicts > 0.2 {
        "conflicts"
    } else if reached > 0.7 {
        "the store's commits"
    } else {
        "waiting for answers, one after the other"
    };
    format!(
        "bound by {cause}: nodes and store used {used:.1} of {:.0} cores, other programs {others:.1}; {commits_per_s:.0} commits/s, {:.0} % of what the store does alone",
        run.cores,
        reached * 100.0
    )
}

/// The median of each value.
fn middle(runs: &[Run]) -> Run {
    let of = |figure: fn(&Run) -> f64| median(runs.iter().map(figure));
    let latency =
        |figure: fn(&Latency) -> f64| median(runs.iter().filter_map(|run| run.latency.as_ref()).map(figure));
    Run {
        seconds: of(|run| run.seconds),
        jobs: runs.first().map_or(0, |run| run.jobs),
        jobs_per_s: of(|run| run.jobs_per_s),
        adds_per_s: of(|run| run.adds_per_s),
        nodes_cpu_us: of(|run| run.nodes_cpu_us),
        store_cpu_us: of(|run| run.store_cpu_us),
        cores: of(|run| run.cores),
        busy: of(|run| run.busy),
        counters: Counts {
            transactions: of(|run| run.counters.transactions),
            commits: of(|run| run.counters.commits),
            conflicts: of(|run| run.counters.conflicts),
            gets: of(|run| run.counters.gets),
            ranges: of(|run| run.counters.ranges),
            rows_read: of(|run| run.counters.rows_read),
            rows_written: of(|run| run.counters.rows_written),
            commit_us: of(|run| run.counters.commit_us),
            failures: of(|run| run.counters.failures),
        },
        latency: Some(Latency {
            p50_us: latency(|latency| latency.p50_us),
            p99_us: latency(|latency| latency.p99_us),
        }),
    }
}
