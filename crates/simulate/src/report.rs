//! The results of a simulation, for people and for programs.

use serde::Serialize;

use turnwise_policy::eligibility::rate::Rate;

use crate::results::{RateResults, Results, ScheduleResults, TenantResults};
use crate::scenario::Scenario;

/// The most tenants that a table shows, unless the caller asks for all.
pub const SHOWN: usize = 24;

/// An outcome with the figures that follow from it: what `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Jain's index of received/entitled over backlogged tenants.
    pub jain: f64,
    /// The largest `|received / entitled − 1|` among them.
    pub largest_deviation: f64,
    /// The longest wait of all jobs.
    pub longest_wait_cycles: f64,
    /// Busy slot time divided by all slot time.
    pub utilisation: f64,
    /// Busy slot time divided by what the jobs could have used.
    pub utilisation_of_possible: f64,
    /// The outcome itself.
    #[serde(flatten)]
    pub outcome: &'a Results,
}

impl<'a> Report<'a> {
    /// The report of an outcome.
    pub fn of(outcome: &'a Results) -> Self {
        Report {
            jain: outcome.jain(),
            largest_deviation: outcome.largest_deviation(),
            longest_wait_cycles: outcome.longest_wait_cycles(),
            utilisation: outcome.utilisation(),
            utilisation_of_possible: outcome.utilisation_of_possible(),
            outcome,
        }
    }
}

/// One line that describes the simulation.
pub fn headline(scenario: &Scenario, outcome: &Results) -> String {
    let seconds = outcome.interval_ms as f64 / 1e3;
    let jobs: u64 = outcome.tenants.iter().map(|tenant| tenant.jobs).sum();
    let begins = scenario.begins.map_or_else(String::new, |begins| format!(" from {begins}"));
    format!(
        "{}: {}, churn {}, {} of {seconds} s{begins}, {} of {}",
        scenario.name,
        many(outcome.slots, "slot"),
        outcome.churn,
        many(outcome.cycles as usize, "cycle"),
        many(jobs as usize, "job"),
        many(outcome.tenants.len(), "tenant"),
    )
}

/// The head of the table of [`rows`].
pub const HEAD: [&str; 8] =
    ["TENANT", "SHARES", "JOBS", "ENTITLED", "RECEIVED", "RATIO", "LONGEST WAIT", "STARTS"];

/// A line per tenant: its average slots while it had jobs, and waits in cycles. Of more than [`SHOWN`] tenants, these
/// are the ones furthest from their entitlement, unless `all` is set.
pub fn rows(outcome: &Results, all: bool) -> Vec<[String; 8]> {
    let row = |tenant: &TenantResults| {
        [
            tenant.name.clone(),
            tenant.shares.to_string(),
            tenant.jobs.to_string(),
            slots(entitled_slots(tenant)),
            slots(tenant.slots()),
            ratio(tenant),
            format!("{:.1}", tenant.longest_wait_cycles),
            tenant.starts.to_string(),
        ]
    };
    shown(&[outcome], all).into_iter().map(|n| row(&outcome.tenants[n])).collect()
}

/// How many tenants the table omits, if any.
pub fn not_shown(outcome: &Results, all: bool) -> Option<String> {
    let hidden = outcome.tenants.len().saturating_sub(SHOWN);
    (hidden > 0 && !all)
        .then(|| format!("and {hidden} more that are closer to their entitlement (--all shows them)"))
}

/// The figures below the table.
pub fn figures(outcome: &Results) -> String {
    let free = match outcome.idle_slot_passes {
        0 => "never".to_owned(),
        times => format!("{times} times"),
    };
    format!(
        "Jain's index {:.4} over {}, largest deviation {}, longest wait {:.1} cycles, slots busy {}, a slot free while a job waited: {free}.",
        outcome.jain(),
        many(outcome.backlogged().count(), "backlogged tenant"),
        percent(outcome.largest_deviation()),
        outcome.longest_wait_cycles(),
        percent(outcome.utilisation()),
    )
}

/// The head of the table of [`schedules`].
pub const SCHEDULES_HEAD: [&str; 7] =
    ["SCHEDULE", "TENANT", "FIRES", "MOVED", "SKIPPED", "CANCELLED", "LONGEST DELAY"];

/// A line per schedule: how often it fired, how many of these fires a change of clocks has moved, and the longest time from
/// a fire to the start of its job.
pub fn schedules(outcome: &Results) -> Vec<[String; 7]> {
    let row = |of: &ScheduleResults| {
        [
            of.name.clone(),
            of.tenant.clone(),
            of.fires.to_string(),
            of.moved.to_string(),
            of.skipped.to_string(),
            of.cancelled.to_string(),
            format!("{:.1} s", of.longest_delay_ms as f64 / 1e3),
        ]
    };
    outcome.schedules.iter().map(row).collect()
}

/// The head of the table of [`rates`].
pub const RATES_HEAD: [&str; 5] = ["RATE", "AT MOST", "HIGHEST USE", "STARTS", "REASON TO WAIT"];

/// A line per rate: the most starts of a bucket in any period, and the part of the time in which a job waited because of it.
pub fn rates(outcome: &Results) -> Vec<[String; 5]> {
    let row = |of: &RateResults| {
        [
            of.name.clone(),
            Rate::new(of.at_most, of.per_ms).to_string(),
            of.highest_use.to_string(),
            of.starts.to_string(),
            format!("{} of the time", percent(of.reason_share)),
        ]
    };
    outcome.rates.iter().map(row).collect()
}

/// The head of the table of [`compared`].
pub const COMPARED_HEAD: [&str; 6] =
    ["POLICY", "JAIN", "LARGEST DEVIATION", "LONGEST WAIT", "SLOTS BUSY", "FREE WHILE WAITED"];

/// A line per policy.
pub fn compared(outcomes: &[Results]) -> Vec<[String; 6]> {
    let row = |outcome: &Results| {
        [
            outcome.policy.to_string(),
            format!("{:.4}", outcome.jain()),
            percent(outcome.largest_deviation()),
            format!("{:.1}", outcome.longest_wait_cycles()),
            percent(outcome.utilisation()),
            outcome.idle_slot_passes.to_string(),
        ]
    };
    outcomes.iter().map(row).collect()
}

/// A line per tenant, with its average slots under each of five policies while it had jobs.
pub fn side_by_side(outcomes: &[Results; 5], all: bool) -> ([&'static str; 8], Vec<[String; 8]>) {
    let [a, b, c, d, e] = outcomes.each_ref().map(|outcome| outcome.policy.name());
    let row = |n: usize| {
        let tenant = &outcomes[0].tenants[n];
        let [a, b, c, d, e] = outcomes.each_ref().map(|outcome| slots(outcome.tenants[n].slots()));
        [tenant.name.clone(), tenant.shares.to_string(), slots(entitled_slots(tenant)), a, b, c, d, e]
    };
    let outcomes: Vec<&Results> = outcomes.iter().collect();
    let rows = shown(&outcomes, all).into_iter().map(row).collect();
    (["TENANT", "SHARES", "ENTITLED", a, b, c, d, e], rows)
}

/// The indices of the tenants to show, in their order: those with the largest deviation in any outcome.
fn shown(outcomes: &[&Results], all: bool) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..outcomes[0].tenants.len()).collect();
    if numbers.len() > SHOWN && !all {
        let worst = |n: usize| {
            let deviations = outcomes.iter().map(|outcome| (outcome.tenants[n].ratio() - 1.0).abs());
            deviations.fold(0.0, f64::max)
        };
        numbers.sort_by(|a, b| worst(*b).total_cmp(&worst(*a)).then(a.cmp(b)));
        numbers.truncate(SHOWN);
        numbers.sort_unstable();
    }
    numbers
}

fn entitled_slots(tenant: &TenantResults) -> f64 {
    tenant.entitled / tenant.present_cycles.max(f64::MIN_POSITIVE)
}

fn slots(slots: f64) -> String {
    match slots {
        ..0.1 => format!("{slots:.4}"),
        ..10.0 => format!("{slots:.3}"),
        _ => format!("{slots:.2}"),
    }
}

fn ratio(tenant: &TenantResults) -> String {
    match tenant.entitled > 0.0 {
        true => format!("{:.3}", tenant.ratio()),
        false => "-".into(),
    }
}

pub(crate) fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent < 9.995 => format!("{percent:.2}%"),
        percent if percent < 99.95 => format!("{percent:.1}%"),
        percent => format!("{percent:.0}%"),
    }
}

pub(crate) fn many(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, run};

    fn scenario(tenants: usize) -> Scenario {
        let text = format!(
            "name = 'x'\nslots = 10\nchurn = 2\ncycles = 100\n[[tenants]]\nname = 'b'\nshares = 300\njobs = 50\n\
             [[tenants]]\nname = 'a'\njobs = 50\ncount = {tenants}\n"
        );
        Scenario::parse(&text).unwrap()
    }

    #[test]
    fn a_table_has_a_line_per_tenant() {
        let scenario = scenario(1);
        let outcome = run(&scenario, Policy::VirtualTime).unwrap();
        assert_eq!(
            headline(&scenario, &outcome),
            "x: 10 slots, churn 2, 100 cycles of 60 s, 100 jobs of 2 tenants"
        );
        let rows = rows(&outcome, false);
        assert_eq!(rows[0][..6], ["b", "300", "50", "7.500", "7.500", "1.000"]);
        assert_eq!(rows[1][..6], ["a", "100", "50", "2.500", "2.500", "1.000"]);
        assert_eq!(not_shown(&outcome, false), None);
        assert!(figures(&outcome).starts_with("Jain's index 1.0000 over 2 backlogged tenants"));
        assert!(figures(&outcome).ends_with("slots busy 100%, a slot free while a job waited: never."));
    }

    #[test]
    fn schedules_and_rates_have_a_line_each() {
        let text = "name = 'x'\nslots = 9\nchurn = 0\ncycles = 90\nbegins = '2026-03-29T01:00:00+01:00'
            rates = [{ name = 'r', at_most = 2, per_ms = 600_000 }]
            [[tenants]]\nname = 't'\njobs = []
            schedules = [{ name = 's', count = 4, cron = '30 2 * * *', zone = 'Europe/Berlin', run_ms = 5, rate = 'r' }]";
        let scenario = Scenario::parse(text).unwrap();
        let outcome = run(&scenario, Policy::VirtualTime).unwrap();
        assert!(
            headline(&scenario, &outcome).ends_with("of 60 s from 2026-03-29T00:00:00Z, 4 jobs of 1 tenant")
        );
        assert_eq!(schedules(&outcome), [["s", "t", "4", "4", "0", "0", "600.0 s"]]);
        assert_eq!(rates(&outcome), [["r", "2/600s", "2", "4", "11.1% of the time"]]);
    }

    #[test]
    fn of_many_tenants_the_worst_treated_are_shown() {
        let scenario = scenario(99);
        let outcomes = Policy::ALL.map(|policy| run(&scenario, policy).unwrap());
        assert_eq!(rows(&outcomes[4], false).len(), SHOWN);
        assert_eq!(rows(&outcomes[4], true).len(), 100);
        assert_eq!(
            not_shown(&outcomes[4], false).unwrap(),
            "and 76 more that are closer to their entitlement (--all shows them)"
        );
        let (head, rows) = side_by_side(&outcomes, false);
        assert_eq!(head[2..], ["ENTITLED", "virtual_time", "rfc", "rfc_whole", "round_robin", "fifo"]);
        // First in, first out gives all slots to the first tenant.
        assert_eq!((rows[0][0].as_str(), rows[0][7].as_str()), ("b", "10.00"));
        assert_eq!(compared(&outcomes).len(), 5);
    }

    #[test]
    fn percentages_have_as_many_digits_as_help() {
        assert_eq!(
            [0.000_01, 0.02, 0.1234, 0.9999, 7.1].map(percent),
            ["0.00%", "2.00%", "12.3%", "100%", "710%"]
        );
    }
}
