//! The outcome of a simulation, for people.

use super::{Compared, Scenario, SchemeResults};
use crate::report::{many, percent};

/// One line that describes the simulation.
pub fn headline(scenario: &Scenario, compared: &Compared) -> String {
    let cluster = &scenario.cluster;
    format!(
        "{}: {} on {}; {} on {} in {}, {}",
        scenario.name,
        many(compared.jobs, "job"),
        many(compared.slots, "slot"),
        many(cluster.instances.usize(), "instance"),
        many(cluster.nodes.usize(), "node"),
        many(cluster.groups.usize(), "group"),
        many(scenario.tasks.len(), "task"),
    )
}

/// The head of the table of [`rows`].
pub const HEAD: [&str; 9] =
    ["SCHEME", "MAKESPAN", "OF BOUND", "MEAN WAIT", "MEDIAN", "P99", "LONGEST", "WASTED SLOTS", "SLOTS WORK"];

/// A line per scheme, times in seconds; then the bound.
pub fn rows(compared: &Compared) -> Vec<[String; 9]> {
    let bound = &compared.bound;
    let row = |outcome: &SchemeResults| {
        let of_bound = if bound.makespan_s > 0.0 { outcome.makespan_s / bound.makespan_s } else { 1.0 };
        [
            outcome.scheme.to_string(),
            seconds(outcome.makespan_s),
            percent(of_bound),
            seconds(outcome.mean_wait_s),
            seconds(outcome.median_wait_s),
            seconds(outcome.p99_wait_s),
            seconds(outcome.longest_wait_s),
            format!("{} slot·s", seconds(outcome.wasted_slot_s)),
            percent(outcome.slots_working),
        ]
    };
    let (makespan, wait) = (seconds(bound.makespan_s), seconds(bound.mean_wait_s));
    let last = ["bound", &makespan, "100%", &wait, "-", "-", "-", "-", "-"].map(str::to_owned);
    compared.outcomes.iter().map(row).chain([last]).collect()
}

/// The figures that the table omits.
pub fn figures(compared: &Compared) -> String {
    let bound = &compared.bound;
    let mut text = format!(
        "Times are in s. No schedule ends before the bound of {}, or has a mean wait below the bound of {}.",
        bound.makespan_by, bound.mean_wait_by
    );
    for outcome in &compared.outcomes {
        let busiest = outcome.busiest_lock.as_deref().unwrap_or("none");
        text += &format!(
            "\n{}: waited inside {} s, locks used {} of the time that they were held, busiest lock {busiest} ({} of the time).",
            outcome.scheme,
            seconds(outcome.waited_inside_s),
            percent(outcome.locks_used),
            percent(outcome.busiest_lock_held),
        );
    }
    text
}

/// A table of mean waits by task, in seconds, with a column for each scheme: its head and its lines. `None`
/// unless all schemes were simulated.
pub fn by_task(compared: &Compared) -> Option<([&'static str; 7], Vec<[String; 7]>)> {
    let outcomes = <&[SchemeResults; 5]>::try_from(compared.outcomes.as_slice()).ok()?;
    let [a, b, c, d, e] = outcomes.each_ref().map(|outcome| outcome.scheme.name());
    let row = |n: usize| {
        let of = &outcomes[0].tasks[n];
        let [a, b, c, d, e] = outcomes.each_ref().map(|outcome| seconds(outcome.tasks[n].mean_wait_s));
        [of.name.clone(), of.jobs.to_string(), a, b, c, d, e]
    };
    let rows = (0..outcomes[0].tasks.len()).map(row).collect();
    Some((["TASK", "JOBS", a, b, c, d, e], rows))
}

fn seconds(s: f64) -> String {
    match s {
        ..10.0 => format!("{s:.2}"),
        ..100.0 => format!("{s:.1}"),
        _ => format!("{s:.0}"),
    }
}
