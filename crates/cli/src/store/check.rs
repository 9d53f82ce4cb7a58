//! `turnwise store check`: runs a check, and prints its findings.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use indicatif::HumanCount;
use serde_json::json;
use turnwise_admin::check::{Progress, Report, check};

use super::open::{StoreArgs, open_to_read};
use crate::Failure;
use crate::progress::{BAR, LINE_INTERVAL, Shown, show};

#[derive(clap::Args)]
#[command(after_help = "\
The check reads every row, and repairs nothing. A store on etcd or FoundationDB may be in use. The check then reads rows that seem \
wrong again, with all related rows, in one transaction, so that a job that moves meanwhile is no finding. It sees each job in one \
snapshot, but not the whole store in one snapshot.

For an embedded store, stop the server first. The check compares every page and every record of the log with its checksum. It \
writes nothing, so the disk may be read-only.

Examples:
  turnwise store check embedded:/var/lib/turnwise
  turnwise store check etcd://10.0.0.1,10.0.0.2,10.0.0.3/turnwise --json

Exit codes: 0 all invariants hold, 1 there are findings or the check failed, 2 wrong usage.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let url = args.store.url()?;
    let store = open_to_read("URL", &url).await?;
    let progress = Progress::default();
    let (begun, mut signals) = (Instant::now(), crate::StopSignals::listen());
    let done = tokio::select! {
        done = check(&store, url.is_shared(), &progress) => done.map_err(|error| anyhow!("not checked: {error}")),
        () = signals.next() => Err(anyhow!("interrupted")),
        never = show(LINE_INTERVAL, BAR, || shown(&progress)) => match never {},
    };
    let report = done?;
    match args.json {
        true => crate::say_json(&as_json(&report))?,
        false => print(&report, begun.elapsed()),
    }
    match (report.found, report.undecided.len()) {
        (0, 0) => Ok(()),
        (0, _) => Err(anyhow!("some rows could not be checked").into()),
        (found, _) => Err(anyhow!("{} findings", HumanCount(found)).into()),
    }
}

fn print(report: &Report, elapsed: Duration) {
    for finding in &report.findings {
        say!("{}", finding.key);
        say!("  must hold: {}", finding.invariant.holds());
        say!("  but:       {}", finding.problem);
        say!("  it means:  {}", finding.invariant.means());
        say!("  to do:     {}", finding.invariant.remedy());
    }
    let listed = report.findings.len() as u64;
    if report.found > listed {
        say!("… and {} more findings", HumanCount(report.found - listed));
    }
    for undecided in &report.undecided {
        say!("Undecided: {undecided}.");
    }
    let families: Vec<String> =
        report.families.iter().map(|(family, rows)| format!("{family} {}", HumanCount(*rows))).collect();
    say!(
        "{} rows in {:.1} s ({}); {} jobs, workers, types and documents examined.",
        HumanCount(report.rows()),
        elapsed.as_secs_f64(),
        families.join(", "),
        HumanCount(report.examined),
    );
    if report.found == 0 && report.undecided.is_empty() {
        say!("All invariants hold.");
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            let key: serde_json::Value = serde_json::from_str(&finding.key).unwrap_or_default();
            json!({
                "key": key,
                "invariant": finding.invariant.holds(),
                "problem": finding.problem,
                "meaning": finding.invariant.means(),
                "remedy": finding.invariant.remedy(),
            })
        })
        .collect();
    json!({
        "rows": report.families,
        "findings": findings,
        "found": report.found,
        "examined": report.examined,
        "undecided": report.undecided,
    })
}

/// What was done so far.
fn shown(progress: &Progress) -> Shown {
    let line = format!(
        "{} rows read, {} jobs, workers, types and documents examined",
        HumanCount(progress.rows.load(Ordering::Relaxed)),
        HumanCount(progress.examined.load(Ordering::Relaxed))
    );
    Shown { line, part: None }
}
