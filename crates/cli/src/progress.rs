//! The progress of a replication on stderr: a bar on a terminal, or else a line every few seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turnwise_replicator::Stats;

const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// The time over which the displayed rate is averaged, because documents arrive in batches and would make it jump.
const RATE_MEMORY: Duration = Duration::from_secs(5);

/// Shows the progress until it is finished.
pub(crate) struct Progress {
    started: Instant,
    end: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Progress {
    pub(crate) fn start(stats: watch::Receiver<Stats>, continuous: bool) -> Self {
        let end = CancellationToken::new();
        let started = Instant::now();
        let task = if std::io::stderr().is_terminal() {
            tokio::spawn(bar(stats, continuous, end.clone()))
        } else {
            tokio::spawn(lines(stats, end.clone()))
        };
        Progress { started, end, task }
    }

    /// Removes the display and returns the elapsed time.
    pub(crate) async fn finish(self) -> Duration {
        self.end.cancel();
        // An error of the display does not matter.
        let _ = self.task.await;
        self.started.elapsed()
    }
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

async fn bar(stats: watch::Receiver<Stats>, continuous: bool, end: CancellationToken) {
    let bar = ProgressBar::no_length();
    let template = if continuous { "{spinner} {msg}" } else { "{wide_bar} {percent:>3}%  {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    let mut rate = Rate::new();
    let mut ticks = tokio::time::interval(BAR_INTERVAL);
    loop {
        tokio::select! {
            () = end.cancelled() => break,
            _ = ticks.tick() => {}
        }
        let stats = stats.borrow().clone();
        let per_second = rate.update(stats.docs_written);
        if let Some(pending) = stats.changes_pending {
            bar.set_length(stats.revisions_checked + pending);
            bar.set_position(stats.revisions_checked);
        }
        bar.set_message(line(&stats, per_second));
        bar.tick();
    }
    bar.finish_and_clear();
}

async fn lines(stats: watch::Receiver<Stats>, end: CancellationToken) {
    let mut rate = Rate::new();
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(LINE_INTERVAL) => {}
        }
        let stats = stats.borrow().clone();
        let per_second = rate.update(stats.docs_written);
        tell!("{}", line(&stats, per_second));
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
