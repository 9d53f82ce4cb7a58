//! What happened to each job, as the programs write it: a line per job, `STREAM ADDED STARTED ENDED`, times in ms since the
//! beginning, `-` for what did not happen.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// A job.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The stream that it belongs to, by its number in the workload.
    pub stream: usize,
    /// When the server acknowledged it; 0 if that was before the beginning.
    pub added_ms: Option<f64>,
    /// When its handler started.
    pub started_ms: Option<f64>,
    /// When its handler ended.
    pub ended_ms: Option<f64>,
}

impl Job {
    /// A job that is about to be added.
    pub fn new(stream: usize) -> Job {
        Job { stream, added_ms: None, started_ms: None, ended_ms: None }
    }
}

/// Writes the jobs to a file.
pub fn write(file: &Path, jobs: &[Job]) -> io::Result<()> {
    let mut text = String::new();
    for Job { stream, added_ms, started_ms, ended_ms } in jobs {
        let _ = write!(text, "{stream}");
        for time in [added_ms, started_ms, ended_ms] {
            let _ = match time {
                Some(ms) => write!(text, " {ms:.3}"),
                None => write!(text, " -"),
            };
        }
        text.push('\n');
    }
    std::fs::write(file, text)
}

/// Reads the jobs that a program has written. `Err` states what is wrong with the file.
pub fn read(file: &Path) -> Result<Vec<Job>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let line = |line: &str| {
        let mut words = line.split(' ');
        let stream = words.next()?.parse().ok()?;
        let mut time = || match words.next()? {
            "-" => Some(None),
            ms => ms.parse().ok().map(Some),
        };
        Some(Job { stream, added_ms: time()?, started_ms: time()?, ended_ms: time()? })
    };
    text.lines()
        .map(|text| line(text).ok_or_else(|| format!("{}: not a job: {text}", file.display())))
        .collect()
}
