//! `turnwise simulate`: simulates the scheduling policy on a described workload.

use std::error::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use turnwise_simulate::locks::Scheme;
use turnwise_simulate::report::{self, Report};
use turnwise_simulate::{Described, Policy, Results, Scenario, locks, plot, scenario};

use crate::input::open;
use crate::{Failure, table};

#[derive(clap::Args)]
#[command(after_help = "examples/scenarios/ has scenarios to start from.")]
pub(crate) struct Args {
    /// The scenario's file; - for stdin
    scenario: PathBuf,
    /// The policies to use, not the scenario's, with commas between them: virtual_time, rfc, rfc_whole, round_robin or fifo; for jobs that lock: fifo,
    /// aging, predictive, best_wait or best_makespan (by default all of these)
    #[arg(long, value_delimiter = ',', value_name = "POLICY")]
    policy: Vec<Named>,
    /// Run all policies, and compare them
    #[arg(long, conflicts_with = "policy")]
    compare: bool,
    /// Draw each tenant's slots over time into this file; for jobs that lock, their waiting times and the number of running jobs
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the figures as JSON: an object, or an array of objects for several policies
    #[arg(long)]
    json: bool,
    /// Print all tenants; for jobs that lock, all tasks
    #[arg(long)]
    all: bool,
}

impl Args {
    /// Writes a picture into the file that `--svg` names, if it does.
    fn draw(&self, picture: impl FnOnce() -> Result<String, Box<dyn Error>>) -> anyhow::Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        let svg = picture().map_err(|error| anyhow!("cannot draw: {error}"))?;
        std::fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))
    }
}

/// The name of a policy, for either kind of scenario: `fifo` is a name in both.
#[derive(Debug, Clone)]
struct Named(String);

impl FromStr for Named {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match (Policy::from_str(name), Scheme::from_str(name)) {
            (Err(policies), Err(schemes)) => Err(format!("{policies}; {schemes}")),
            _ => Ok(Named(name.to_owned())),
        }
    }
}

/// The requested policies, for a scenario of this kind.
fn chosen<P: FromStr<Err = String>>(named: &[Named]) -> Result<Vec<P>, anyhow::Error> {
    named
        .iter()
        .map(|Named(name)| name.parse().map_err(|error: String| anyhow!("--policy: {error}")))
        .collect()
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let shown = args.scenario.display();
    let text = read(&args.scenario).with_context(|| format!("cannot read {shown}"))?;
    match Described::parse(&text).map_err(|error| anyhow!("{shown}: {error}"))? {
        Described::Tenants(scenario) => tenants(&args, &scenario),
        Described::Locks(scenario) => jobs_with_locks(&args, &scenario),
    }
}

fn jobs_with_locks(args: &Args, scenario: &locks::Scenario) -> Result<(), Failure> {
    let shown = args.scenario.display();
    let mut schemes: Vec<Scheme> = chosen(&args.policy)?;
    if schemes.is_empty() {
        schemes = Scheme::ALL.to_vec();
    }
    let compared = locks::run(scenario, &schemes).map_err(|error| anyhow!("{shown}: {error}"))?;
    args.draw(|| locks::plot::svg(&scenario.name, &compared))?;
    if args.json {
        return crate::say_json(&compared);
    }
    introduce(&locks::report::headline(scenario, &compared), &scenario.about);
    table::print(locks::report::HEAD, &locks::report::rows(&compared));
    say!("");
    if let (true, Some((head, rows))) = (args.all, locks::report::by_task(&compared)) {
        say!("Mean wait by task:");
        table::print(head, &rows);
        say!("");
    }
    say!("{}", locks::report::figures(&compared));
    Ok(())
}

fn tenants(args: &Args, scenario: &Scenario) -> Result<(), Failure> {
    let shown = args.scenario.display();
    let policies = match args {
        Args { compare: true, .. } => Policy::ALL.to_vec(),
        Args { policy, .. } if policy.is_empty() => vec![scenario.policy],
        Args { policy, .. } => chosen(policy)?,
    };
    let begun = Instant::now();
    let outcomes: Result<Vec<Results>, _> =
        policies.into_iter().map(|policy| turnwise_simulate::run(scenario, policy)).collect();
    let outcomes = outcomes.map_err(|error| anyhow!("{shown}: {error}"))?;
    let took = begun.elapsed();
    args.draw(|| plot::svg(&scenario.name, &outcomes))?;
    match (args.json, outcomes.as_slice()) {
        (true, [outcome]) => crate::say_json(&Report::of(outcome)),
        (true, outcomes) => crate::say_json(&outcomes.iter().map(Report::of).collect::<Vec<_>>()),
        (false, outcomes) => {
            say(scenario, outcomes, args.all, took);
            Ok(())
        }
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    // Reads one byte more than allowed, so that a file that is too large is noticed.
    std::io::read_to_string(open(file)?.take(scenario::MAX_FILE_BYTES as u64 + 1))
}

/// Says what was simulated.
fn introduce(headline: &str, about: &str) {
    say!("{headline}");
    if !about.trim().is_empty() {
        say!("{}", about.trim());
    }
    say!("");
}

fn say(scenario: &Scenario, outcomes: &[Results], all: bool, took: Duration) {
    let Some(first) = outcomes.first() else { return };
    introduce(&report::headline(scenario, first), &scenario.about);
    if outcomes.len() > 1 {
        table::print(report::COMPARED_HEAD, &report::compared(outcomes));
        say!("");
    }
    if let Ok(outcomes) = <&[Results; Policy::ALL.len()]>::try_from(outcomes) {
        say!("Slots per tenant, on average while it was present:");
        let (head, rows) = report::side_by_side(outcomes, all);
        table::print(head, &rows);
    } else {
        for outcome in outcomes {
            say!("{}", outcome.policy);
            table::print(report::HEAD, &report::rows(outcome, all));
            say!("{}\n", report::figures(outcome));
        }
    }
    for outcome in outcomes.iter().filter(|of| !of.schedules.is_empty() || !of.rates.is_empty()) {
        say!("Schedules and rates with {}:", outcome.policy);
        if !outcome.schedules.is_empty() {
            table::print(report::SCHEDULES_HEAD, &report::schedules(outcome));
        }
        if !outcome.rates.is_empty() {
            table::print(report::RATES_HEAD, &report::rates(outcome));
        }
        say!("");
    }
    if let Some(hidden) = report::not_shown(first, all) {
        say!("{hidden}");
    }
    let cycles = first.cycles as f64 * outcomes.len() as f64;
    let seconds = took.as_secs_f64().max(1e-9);
    say!("Simulated in {seconds:.2} s, {:.0} cycles/s.", cycles / seconds);
}
