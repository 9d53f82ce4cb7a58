//! `turnwise store copy`: runs a copy, and prints its progress and its result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use indicatif::HumanCount;
use turnwise_admin::copy::{Copy, Progress};
use turnwise_store::runtime;

use crate::Failure;
use crate::progress::{BAR, LINE_INTERVAL, Shown, human_bytes, show};

#[derive(clap::Args)]
#[command(after_help = "\
Stop all servers and workers that use either store first. The command refuses to copy a source that is in use. To detect this, it \
takes the lock of an embedded store, or watches the health counters of a shared store's workers for one health timeout.

After the copy, the command reads both stores again and compares them row by row. It prints the number of rows and their SHA-256: \
equal stores have equal checksums.

To resume an interrupted copy, run the command again: it does not write equal rows again. No server starts on the target until the \
copy is complete.

Put URLs with a password into TURNWISE_FROM and TURNWISE_TO, not on the command line.

Examples:
  turnwise store copy embedded:/var/lib/turnwise etcd://10.0.0.1,10.0.0.2,10.0.0.3/turnwise
  turnwise store copy etcd://10.0.0.1/turnwise embedded:/backup/turnwise

Exit codes: 0 copied and equal, 1 failed or interrupted, 2 wrong usage.")]
pub(crate) struct Args {
    /// The store to copy: embedded:DIR, etcd://host:port,…/prefix or fdb:CLUSTER_FILE[/prefix]
    #[arg(env = "TURNWISE_FROM", hide_env_values = true)]
    from: String,
    /// The target: an empty store, or an unfinished copy of the same store
    #[arg(env = "TURNWISE_TO", hide_env_values = true)]
    to: String,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (from, to) = (super::open::parse("FROM", &args.from)?, super::open::parse("TO", &args.to)?);
    if from.to_string() == to.to_string() {
        return Err(Failure::Usage(anyhow!("FROM and TO are the same store")));
    }
    let source = super::open::open_to_read("FROM", &from).await?;
    let target = turnwise_store::open_with(&to, Arc::new(runtime::System), super::open::seal()).await;
    let target = target.map_err(|error| super::open::cannot_open("TO", &to, &error))?;
    let progress = Arc::new(Progress::default());
    let copy = Copy {
        source,
        from: from.to_string(),
        source_is_shared: from.is_shared(),
        target,
        progress: progress.clone(),
    };
    let (begun, mut signals) = (Instant::now(), crate::StopSignals::listen());
    let done = tokio::select! {
        done = copy.run() => done.map_err(|error| anyhow!("not copied: {error}")),
        () = signals.next() => Err(anyhow!("interrupted; run the same command again to resume")),
        never = show(LINE_INTERVAL, BAR, || shown(&progress, begun.elapsed())) => match never {},
    };
    let report = done?;
    let seconds = begun.elapsed().as_secs_f64();
    say!(
        "Copied {} rows ({}) in {seconds:.1} s, {:.0}/s{}. All rows are equal in both stores.",
        HumanCount(report.rows),
        human_bytes(report.bytes),
        report.rows as f64 / seconds.max(0.001),
        if report.resumed {
            format!(", {} of them written by this run", HumanCount(report.written))
        } else {
            String::new()
        },
    );
    say!("sha256 {}", report.checksum);
    Ok(())
}

/// `12,345 rows  6.2 MB  2,345/s`, or another line for another phase.
fn shown(progress: &Progress, elapsed: Duration) -> Shown {
    let [copied, bytes, compared, watched] =
        [&progress.copied, &progress.bytes, &progress.compared, &progress.watched]
            .map(|number| number.load(Ordering::Relaxed));
    if compared > 0 {
        let line = format!("{} of {} rows compared", HumanCount(compared), HumanCount(copied));
        return Shown { line, part: Some((compared, copied.max(compared))) };
    }
    let per_second = (copied as f64 / elapsed.as_secs_f64().max(0.001)).round() as u64;
    let line = match copied == 0 && watched > 0 {
        true => "checking whether the source is in use".to_owned(),
        false => {
            format!("{} rows  {}  {}/s", HumanCount(copied), human_bytes(bytes), HumanCount(per_second))
        }
    };
    Shown { line, part: None }
}
