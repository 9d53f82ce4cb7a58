//! `turnwise store copy`: runs a copy, and prints its progress and its result.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use turnwise_admin::copy::{Copy, Progress};
use turnwise_store::runtime;

use crate::Failure;
use crate::progress::human_bytes;

const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// `turnwise store copy`
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
        never = show(&progress) => match never {},
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

/// Shows the progress until it is dropped: a bar on a terminal, or else a line every few seconds.
async fn show(progress: &Progress) -> std::convert::Infallible {
    let begun = Instant::now();
    if !std::io::stderr().is_terminal() {
        loop {
            tokio::time::sleep(LINE_INTERVAL).await;
            tell!("{}", line(progress, begun.elapsed()));
        }
    }
    let bar = Bar(ProgressBar::no_length());
    let (spinner, wide) = ("{spinner} {msg}", "{wide_bar} {percent:>3}%  {msg}");
    let style = |template| ProgressStyle::with_template(template).map(|style| style.progress_chars("━╸ "));
    if let Ok(style) = style(spinner) {
        bar.0.set_style(style);
    }
    let mut is_wide = false;
    loop {
        tokio::time::sleep(BAR_INTERVAL).await;
        let compared = progress.compared.load(Ordering::Relaxed);
        if compared > 0 {
            if let (false, Ok(style)) = (is_wide, style(wide)) {
                bar.0.set_style(style);
                is_wide = true;
            }
            bar.0.set_length(progress.copied.load(Ordering::Relaxed).max(compared));
            bar.0.set_position(compared);
        }
        bar.0.set_message(line(progress, begun.elapsed()));
        bar.0.tick();
    }
}

/// A progress bar that is removed from the terminal when it is dropped.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// `12,345 rows  6.2 MB  2,345/s`, or another line for another phase.
fn line(progress: &Progress, elapsed: Duration) -> String {
    let [copied, bytes, compared, watched] =
        [&progress.copied, &progress.bytes, &progress.compared, &progress.watched]
            .map(|number| number.load(Ordering::Relaxed));
    if compared > 0 {
        return format!("{} of {} rows compared", HumanCount(compared), HumanCount(copied));
    }
    if copied == 0 && watched > 0 {
        return "checking whether the source is in use".to_owned();
    }
    let per_second = copied as f64 / elapsed.as_secs_f64().max(0.001);
    format!(
        "{} rows  {}  {}/s",
        HumanCount(copied),
        human_bytes(bytes),
        HumanCount(per_second.round() as u64)
    )
}
