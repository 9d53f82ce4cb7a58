//! The report of a process: as JSON, within the queue's limit for results.

use nix::sys::signal::Signal;
use serde::Serialize;

use crate::{Cause, Exit, FAILED_EXIT_CODE, Finished};

/// The size of a report without its two texts, and of the lines that state how much is missing, with some reserve.
const FRAME_BYTES: usize = 512;
/// Characters of stderr's last line that a reason includes.
const REASON_CHARS: usize = 400;

/// A process that has ended, as a job's result or progress shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its exit code, if it ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Its stdout. If bytes are missing, a line in the middle states how many.
    pub stdout: String,
    /// Its stderr, likewise.
    pub stderr: String,
    /// The number of bytes that it wrote to stdout.
    pub stdout_bytes: u64,
    /// The number of bytes that it wrote to stderr.
    pub stderr_bytes: u64,
    /// Whether part of stdout or stderr is missing.
    pub truncated: bool,
    /// Whether U+FFFD replaces bytes in stdout or stderr that are not UTF-8.
    pub lossy: bool,
    /// How long it ran.
    pub seconds: f64,
}

impl Report {
    /// A report of at most `max_bytes` as JSON.
    pub fn new(finished: &Finished, max_bytes: usize) -> Report {
        let Finished { exit, stdout, stderr, duration, .. } = finished;
        let budget = max_bytes.saturating_sub(FRAME_BYTES);
        // Each text may use the space that the other one does not need.
        let half = budget / 2;
        let err = stderr.text(half.max(budget.saturating_sub(stdout.cost())));
        let out = stdout.text(half.max(budget.saturating_sub(stderr.cost())));
        let (exit_code, signal) = match *exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal_name(signal))),
        };
        Report {
            exit_code,
            signal,
            truncated: out.truncated || err.truncated,
            lossy: out.lossy || err.lossy,
            stdout: out.text,
            stderr: err.text,
            stdout_bytes: stdout.total(),
            stderr_bytes: stderr.total(),
            seconds: (duration.as_secs_f64() * 1_000.0).round() / 1_000.0,
        }
    }
}

/// The end of a job, derived from the end of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Exit code 0.
    Completed,
    /// Exit code 65: not retried.
    Failed(String),
    /// Any other end: retried.
    Crashed(String),
    /// The caller stopped it.
    Stopped,
}

impl Verdict {
    /// Derives the end of the job.
    pub fn new(finished: &Finished) -> Verdict {
        let said = finished.stderr.last_line().map(|line| match line.char_indices().nth(REASON_CHARS) {
            Some((end, _)) => format!(": {}…", &line[..end]),
            None => format!(": {line}"),
        });
        let said = said.unwrap_or_default();
        match (finished.cause, finished.exit) {
            (Cause::Stopped, _) => Verdict::Stopped,
            (Cause::TimedOut, _) => {
                let after = finished.duration.as_secs_f64();
                Verdict::Crashed(format!("timeout: it was ended after {after:.1} s{said}"))
            }
            (Cause::Own, Exit::Code(0)) => Verdict::Completed,
            (Cause::Own, Exit::Code(code @ FAILED_EXIT_CODE)) => {
                Verdict::Failed(format!("exit code {code}{said}"))
            }
            (Cause::Own, Exit::Code(code)) => Verdict::Crashed(format!("exit code {code}{said}")),
            (Cause::Own, Exit::Signal(signal)) => {
                Verdict::Crashed(format!("killed by {}{said}", signal_name(signal)))
            }
        }
    }
}

/// The name of a signal, such as `SIGTERM`.
fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}
