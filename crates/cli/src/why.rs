//! `turnwise why`: why a job is in its state and place, and when it is expected to start or end.

use std::fmt::Write as _;

use anyhow::anyhow;
use indicatif::HumanCount;
use turnwise_client::{Before, DocumentWhy, Expected, Position, State, Why};

use crate::remote::ServerArgs;
use crate::tenants::{plural, run_time, signed_time};
use crate::units::ago;
use crate::{Failure, locks};

#[derive(clap::Args)]
#[command(after_help = "\
A replication can be named by its id or by its document.

Examples:
  turnwise why mail mail-17
  turnwise why replication 5b1c…+continuous
  turnwise why --document orders
  turnwise why --document acme/_replicator/orders --json | jq -r .reason")]
pub(crate) struct Args {
    /// The job's type
    #[arg(value_name = "TYPE")]
    job_type: Option<String>,
    /// The job's id
    id: Option<String>,
    /// The document of a replication: its id, or DATABASE/ID if it is not in _replicator
    #[arg(long, value_name = "DOCUMENT", conflicts_with_all = ["job_type", "id"])]
    document: Option<String>,
    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.server.client()?;
    match (args.document, args.job_type, args.id) {
        (Some(document), _, _) => {
            let (db, id) = place_of(&document);
            let why = client.why_document(db, id).await?;
            if args.json {
                return crate::say_json(&why);
            }
            say!("{}", document_text(&why).trim_end());
        }
        (None, Some(job_type), Some(id)) => {
            let why = client.why(&job_type, &id).await?;
            if args.json {
                return crate::say_json(&why);
            }
            say!("{}", text(&why).trim_end());
        }
        _ => return Err(Failure::Usage(anyhow!("give the TYPE and ID of a job, or --document"))),
    }
    Ok(())
}

/// Parses `ID`, `_replicator/ID` or `prefix/_replicator/ID`; document ids may contain slashes.
fn place_of(document: &str) -> (&str, &str) {
    const NAME: &str = "_replicator";
    if let Some(id) = document.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('/')) {
        return (NAME, id);
    }
    match document.split_once("/_replicator/") {
        Some((prefix, id)) => (&document[..prefix.len() + 1 + NAME.len()], id),
        None => (NAME, document),
    }
}

fn document_text(why: &DocumentWhy) -> String {
    if let Some(job) = &why.job {
        return text(job);
    }
    let mut text = format!("{}\n\n", why.sentence);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:9}  {value}");
    };
    line("document", &format!("{} in {}", why.doc_id, why.database));
    line("reason", why.reason.as_str());
    if let Some(error) = &why.error {
        line("error", error);
    }
    text
}

/// The sentence, and a line for each further field.
fn text(why: &Why) -> String {
    let mut text = format!("{}\n\n", why.sentence);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:9}  {value}");
    };
    let state = why.state.as_str();
    line("state", format!("{state} for {} ({})", ago(why.since_us), why.reason.as_str()));
    if why.priority != 0 {
        line("priority", why.priority.to_string());
    }
    let tenant = &why.tenant;
    let mut standing = vec![format!("{} shares", tenant.shares)];
    standing.extend(tenant.deficit_us.map(|us| match us {
        0.. => format!("{} below its share", signed_time(us)),
        _ => format!("{} above its share", run_time(us.unsigned_abs())),
    }));
    standing.push(format!("{} running", tenant.running));
    standing.push(format!("{} waiting", HumanCount(tenant.pending)));
    standing.push(format!("recent run time {}", run_time(tenant.usage_us)));
    line("tenant", format!("{}: {}", tenant.tenant, standing.join(", ")));
    if let Some(Position { in_tenant, in_tenant_more, overall, overall_more }) = why.place {
        let (in_tenant, overall) = (position(in_tenant, in_tenant_more), position(overall, overall_more));
        line("position", format!("{in_tenant} in its tenant's queue, {overall} in its type's queue"));
    }
    if !why.before.is_empty() {
        let mut before: Vec<String> = why.before.iter().map(behind).collect();
        before.extend(why.before_more.then(|| "…".to_owned()));
        line("behind", before.join(", "));
    }
    for after in &why.after {
        let state = after.state.map_or("removed", State::as_str);
        line("after", format!("{}/{} ({state})", after.job_type, after.id));
    }
    if let Some(locked) = &why.locks {
        for (name, value) in locks::lines(locked) {
            line(name, value);
        }
    }
    if let Some(capacity) = why.capacity {
        let workers = plural(capacity.workers, "worker", "workers");
        let quiet = match capacity.quiet {
            0 => String::new(),
            quiet => format!(", and {quiet} quiet"),
        };
        line("slots", format!("{} of {} taken, {workers}{quiet}", capacity.running, capacity.slots));
    }
    if let Some(worker) = &why.worker {
        let node = why.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        line("worker", format!("{worker}{node}"));
    }
    if why.crashes > 0 {
        line("crashes", format!("{} in a row", why.crashes));
    }
    if let Some(error) = &why.error {
        line("error", error.clone());
    }
    match &why.expected {
        Some(Expected { at_us, earliest, basis }) => {
            let at = ago(*at_us);
            let at = match (at.strip_prefix("in "), earliest) {
                (Some(time), true) => format!("in {time} at the earliest"),
                (Some(time), false) => format!("in about {time}"),
                (None, _) => "about now".to_owned(),
            };
            line("expected", format!("{at}: {basis}"));
        }
        None if why.place.is_some() => line("expected", "unknown".to_owned()),
        None => {}
    }
    text
}

/// `60th` for a job behind 59 other ones, `after 10000` if even more precede it.
fn position(preceding: usize, more: bool) -> String {
    let place = preceding + 1;
    let suffix = match (place % 10, place % 100) {
        (1, teen) if teen != 11 => "st",
        (2, teen) if teen != 12 => "nd",
        (3, teen) if teen != 13 => "rd",
        _ => "th",
    };
    if more { format!("after {preceding}") } else { format!("{place}{suffix}") }
}

/// `29 jobs of beta (100 shares)`.
fn behind(before: &Before) -> String {
    let Before { tenant, shares, jobs, jobs_more } = before;
    let jobs = match jobs_more {
        true => format!("{jobs}+ jobs"),
        false => plural(*jobs, "job", "jobs"),
    };
    format!("{jobs} of {tenant} ({shares} shares)")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_document_is_named_with_or_without_its_database() {
        assert_eq!(place_of("orders"), ("_replicator", "orders"));
        assert_eq!(place_of("a/b"), ("_replicator", "a/b"));
        assert_eq!(place_of("_replicator/a/b"), ("_replicator", "a/b"));
        assert_eq!(place_of("acme/_replicator/orders"), ("acme/_replicator", "orders"));
        assert_eq!(place_of("x/y/_replicator/a/b"), ("x/y/_replicator", "a/b"));
    }

    #[test]
    fn a_waiting_job_is_told_with_its_place_and_its_tenant() {
        let why: Why = serde_json::from_value(serde_json::json!({
            "type": "mail", "id": "m", "state": "pending", "reason": "behind_its_tenant",
            "sentence": "Waits for its turn.", "since_us": 0, "crashes": 0,
            "tenant": { "type": "mail", "tenant": "acme", "shares": 200, "service_us": 0, "usage_us": 41_000_000,
                "deficit_us": -1_500_000, "running": 3, "pending": 10_000 },
            "place": { "in_tenant": 16, "in_tenant_more": false, "overall": 21, "overall_more": false },
            "before": [{ "tenant": "beta", "shares": 100, "jobs": 5, "jobs_more": false }],
            "capacity": { "workers": 1, "slots": 4, "running": 4 },
            "expected": null, "something_new": 1
        }))
        .unwrap();
        let text = text(&why);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Waits for its turn.");
        assert!(lines[2].starts_with("state      pending for ") && lines[2].ends_with("(behind_its_tenant)"));
        assert_eq!(
            lines[3..],
            [
                "tenant     acme: 200 shares, 1.5s above its share, 3 running, 10,000 waiting, recent run time 41s",
                "position   17th in its tenant's queue, 22nd in its type's queue",
                "behind     5 jobs of beta (100 shares)",
                "slots      4 of 4 taken, 1 worker",
                "expected   unknown",
            ]
        );
        let locks = serde_json::json!({
            "declared": { "instance": { "exclusive": ["web1"] } },
            "unknown": [
                { "level": "node", "mode": "exclusive", "because": "its option \"node\" is missing", "option": "node", "line": 12, "step": 2 },
                { "level": "network", "mode": "shared", "because": "so" },
            ],
            "held": [{ "level": "node", "mode": "shared", "units": 3 }],
            "wanted": { "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 },
            "by": [{ "lock": { "level": "instance", "name": "web1", "mode": "exclusive", "units": 1 }, "how": "holds",
                "type": "cluster", "id": "m", "tenant": "acme", "since_us": i64::MAX }],
            "by_more": true, "reserved_us": i64::MAX,
            "weight": { "base": 1.0, "levels": [{ "level": "instance", "weight": 3.0 }], "total": 4.0, "age": 15, "line": 5,
                "tick_ms": 30_000, "aging_ticks": 30, "aged": 4.0 / 3.0, "nothing_us": i64::MAX }
        });
        let locked = Why { locks: Some(serde_json::from_value(locks).unwrap()), ..why.clone() };
        let text = self::text(&locked);
        let lines: Vec<&str> =
            text.lines().skip(6).map(|line| line.split(" in ").next().unwrap()).take(10).collect();
        assert_eq!(
            lines,
            [
                r#"declares   {"instance":{"exclusive":["web1"]}}"#,
                r#"unknown    node (exclusive): its option "node" is missing, step 2, line 12 of the catalogue"#,
                "unknown    network (shared): so",
                "holds      all of node (shared 3)",
                "wants      instance/web1 (exclusive)",
                "by         cluster/m holds instance/web1 (exclusive) for",
                "by         …",
                "reserved   its locks, for",
                "weight     1.333 after 15 of 30 ticks, line 5: 4 = 1 + 3 (instance); zero",
                "slots      4 of 4 taken, 1 worker",
            ]
        );
        let expected = |at_us: i64, earliest| {
            let expected = Some(Expected { at_us, earliest, basis: "so".to_owned() });
            let text = self::text(&Why { expected, ..why.clone() });
            text.lines().last().unwrap().to_owned()
        };
        assert_eq!(expected(0, false), "expected   about now: so");
        let positions = [0, 1, 2, 3, 10, 11, 12, 20, 100, 110].map(|n| position(n, false));
        assert_eq!(positions, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th"]);
        assert_eq!(position(10_000, true), "after 10000");
        let (early, about) = (expected(i64::MAX, true), expected(i64::MAX, false));
        assert!(early.starts_with("expected   in ") && early.ends_with(" at the earliest: so"), "{early}");
        assert!(about.starts_with("expected   in about "), "{about}");
    }
}
