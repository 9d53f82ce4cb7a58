//! How far a command is, on stderr: a bar on a terminal, or else a line every few seconds.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tokio::sync::watch;
use turnwise_replicator::Stats;

const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two lines, where stderr is no terminal.
pub(crate) const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// The time over which the displayed rate is averaged, because documents arrive in batches and would make it jump.
const RATE_MEMORY: Duration = Duration::from_secs(5);

/// How a bar looks, once it is known how much there is.
pub(crate) const BAR: &str = "{wide_bar} {percent:>3}%  {msg}";

/// How far a command is.
pub(crate) struct Shown {
    pub line: String,
    /// What is done, and how much there is, if that is known.
    pub part: Option<(u64, u64)>,
}

/// Shows how far a command is, until this is dropped.
pub(crate) async fn show(
    line_interval: Duration,
    bar_template: &str,
    mut look: impl FnMut() -> Shown,
) -> Infallible {
    if !std::io::stderr().is_terminal() {
        loop {
            tokio::time::sleep(line_interval).await;
            tell!("{}", look().line);
        }
    }
    let bar = Bar(ProgressBar::no_length());
    let mut is_wide = None;
    loop {
        let Shown { line, part } = look();
        let template = if part.is_some() { bar_template } else { "{spinner} {msg}" };
        if is_wide.replace(part.is_some()) != Some(part.is_some())
            && let Ok(style) = ProgressStyle::with_template(template)
        {
            bar.0.set_style(style.progress_chars("━╸ "));
        }
        if let Some((done, all)) = part {
            bar.0.set_length(all);
            bar.0.set_position(done);
        }
        bar.0.set_message(line);
        bar.0.tick();
        tokio::time::sleep(BAR_INTERVAL).await;
    }
}

/// A progress bar that is removed from the terminal when it is dropped.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Shows how far a replication is, until this is dropped.
pub(crate) async fn show_replication(stats: watch::Receiver<Stats>, continuous: bool) -> Infallible {
    let mut rate = Rate::new();
    let look = || {
        let stats = stats.borrow().clone();
        let per_second = rate.update(stats.docs_written);
        let pending = stats.changes_pending.filter(|_| !continuous);
        let part = pending.map(|pending| (stats.revisions_checked, stats.revisions_checked + pending));
        Shown { line: line(&stats, per_second), part }
    };
    show(LINE_INTERVAL, BAR, look).await
}

/// Documents per second, smoothed.
struct Rate {
    started: Instant,
    at: Instant,
    documents: u64,
    per_second: f64,
}

impl Rate {
    fn new() -> Self {
        let now = Instant::now();
        Rate { started: now, at: now, documents: 0, per_second: 0.0 }
    }

    fn update(&mut self, documents: u64) -> f64 {
        let now = Instant::now();
        let passed = (now - self.at).as_secs_f64().max(0.001);
        let newest = documents.saturating_sub(self.documents) as f64 / passed;
        // An exponentially weighted mean; at the beginning, the mean of all samples so far.
        let memory = RATE_MEMORY.min(now - self.started).as_secs_f64().max(passed);
        self.per_second += (newest - self.per_second) * (passed / memory).min(1.0);
        (self.at, self.documents) = (now, documents);
        self.per_second
    }
}

/// `12,345 documents  6.2 MB  2,345/s  50,000 pending  ETA 21 seconds`
fn line(stats: &Stats, per_second: f64) -> String {
    let mut line = format!(
        "{} documents  {}  {}/s",
        HumanCount(stats.docs_written),
        human_bytes(stats.bytes_written),
        HumanCount(per_second.round() as u64),
    );
    if let Some(pending) = stats.changes_pending {
        line += &format!("  {} pending", HumanCount(pending));
        if pending > 0 && per_second >= 1.0 {
            line +=
                &format!("  ETA {:#}", HumanDuration(Duration::from_secs_f64(pending as f64 / per_second)));
        }
    }
    line
}

/// Bytes in decimal units (powers of 1000), as for disks and networks.
pub(crate) fn human_bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}
