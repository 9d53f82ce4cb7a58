//! `turnwise locks`: the jobs that hold locks or wait for them.

use turnwise_client::protocol::locking::BIG_LOCK;
use turnwise_client::protocol::{LockWeight, UnknownLocks, WhyLocks};
use turnwise_client::{ListLocks, Lock, LockMode, Locker};

use crate::Failure;
use crate::table::PagesArgs;
use crate::units::ago;

#[derive(clap::Args)]
#[command(after_help = "\
For each lock, the list shows the jobs that hold it, then the jobs that wait for it or have reserved it, oldest first. (all) means \
the whole level. Every job that locks anything shares the big lock. The list shows these shared locks only with --level big_lock.

Examples:
  turnwise locks --level instance --name web1
  turnwise locks --json | jq -r '.[] | select(.how == \"waits\") | .id'")]
pub(crate) struct Args {
    /// Only locks of this level; big_lock for the big lock, which precedes all levels
    #[arg(long)]
    level: Option<String>,
    /// Only resources with this name, at any level
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    rows: PagesArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Args { level, name, rows } = args;
    let lockers = rows.server.client()?.locks(ListLocks { level, name, page: rows.page() });
    let head = ["LEVEL", "NAME", "MODE", "HOW", "TYPE", "JOB", "TENANT", "SINCE"];
    let more = "There may be more rows: raise --limit, or select with --level and --name.";
    rows.print(lockers, "locks", head, row, more).await
}

fn row(locker: &Locker) -> [String; 8] {
    let lock = &locker.lock;
    [
        lock.level.clone(),
        lock.name.clone().unwrap_or_else(|| "(all)".to_owned()),
        mode(lock.mode, lock.units),
        locker.how.as_str().to_owned(),
        locker.job_type.clone().unwrap_or_default(),
        locker.id.clone().unwrap_or_default(),
        locker.tenant.clone().unwrap_or_else(|| "another tenant".to_owned()),
        ago(locker.since_us),
    ]
}

/// The lines of `why` about a job's locks.
pub(crate) fn lines(locked: &WhyLocks) -> Vec<(&'static str, String)> {
    let mut lines = vec![("declares", locked.declared.to_string())];
    for unknown in &locked.unknown {
        let UnknownLocks { level, mode, because, line, step, .. } = unknown;
        let step = step.map(|step| format!(", step {step}")).unwrap_or_default();
        let line = line.map(|line| format!(", line {line} of the catalogue")).unwrap_or_default();
        let mode = self::mode(*mode, 1);
        lines.push(("unknown", format!("{level} ({mode}): {because}{step}{line}")));
    }
    if !locked.held.is_empty() {
        lines.push(("holds", locked.held.iter().map(named).collect::<Vec<_>>().join(", ")));
    }
    lines.extend(locked.wanted.iter().map(|lock| ("wants", named(lock))));
    for by in &locked.by {
        let job = match (&by.job_type, &by.id) {
            (Some(job_type), Some(id)) => format!("{job_type}/{id}"),
            _ => "another tenant's job".to_owned(),
        };
        let told = format!("{job} {} {}", by.how.as_str(), named(&by.lock));
        lines.push(("by", format!("{told} for {}", ago(by.since_us))));
    }
    lines.extend(locked.by_more.then(|| ("by", "…".to_owned())));
    lines.extend(locked.reserved_us.map(|us| ("reserved", format!("its locks, for {}", ago(us)))));
    lines.extend(locked.weight.iter().map(|weight| ("weight", weighed(weight))));
    lines
}

/// `2 after 10 of 30 ticks, line 5: 4 = 1 + 3 (instance); zero in 7m`.
fn weighed(weight: &LockWeight) -> String {
    let LockWeight { base, levels, total, age, line, aging_ticks, aged, nothing_us, .. } = weight;
    let levels = levels.iter().map(|at| format!(" + {} ({})", short(at.weight), at.level));
    let sum: String = levels.collect();
    let nothing = match aged {
        0.0 => format!("zero for {}", ago(*nothing_us)),
        _ => format!("zero {}", ago(*nothing_us)),
    };
    let aged = short(*aged);
    let line = if *line == 0 { String::new() } else { format!(", line {line}") };
    format!(
        "{aged} after {age} of {aging_ticks} ticks{line}: {} = {}{sum}; {nothing}",
        short(*total),
        short(*base)
    )
}

/// A number with up to three decimal places.
fn short(number: f64) -> String {
    ((number * 1e3).round() / 1e3).to_string()
}

/// `instance/web1 (exclusive)`, `all of node (shared)`.
fn named(lock: &Lock) -> String {
    let mode = mode(lock.mode, lock.units);
    match &lock.name {
        Some(name) => format!("{}/{name} ({mode})", lock.level),
        None if lock.level == BIG_LOCK => format!("{BIG_LOCK} ({mode})"),
        None => format!("all of {} ({mode})", lock.level),
    }
}

/// `exclusive`, `shared`, `shared 3`.
fn mode(mode: LockMode, units: u32) -> String {
    match (mode, units) {
        (LockMode::Exclusive, _) => "exclusive".to_owned(),
        (LockMode::Shared, 1) => "shared".to_owned(),
        (LockMode::Shared, units) => format!("shared {units}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_row_names_the_lock_and_who_has_it() {
        let locker = |level: &str, name: Option<&str>, mode: &str, units: u32, how: &str| -> Locker {
            let mut lock = serde_json::json!({ "level": level, "mode": mode, "units": units });
            lock["name"] = name.into();
            serde_json::from_value(
                serde_json::json!({ "lock": lock, "how": how, "type": "cluster", "id": "m",
                "tenant": "acme", "since_us": i64::MAX, "something_new": 1 }),
            )
            .unwrap()
        };
        let shown = |locker: Locker| row(&locker)[..7].join(" ");
        assert_eq!(
            shown(locker("disk", Some("nvme0"), "shared", 3, "waits")),
            "disk nvme0 shared 3 waits cluster m acme"
        );
        assert_eq!(
            shown(locker("node", None, "exclusive", 1, "reserved")),
            "node (all) exclusive reserved cluster m acme"
        );
        assert_eq!(mode(LockMode::Shared, 1), "shared");
    }
}
