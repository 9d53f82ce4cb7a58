//! The errors of a job's runs.

use std::fmt;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use super::ERROR;
use crate::encoding::{decode, encode};
use crate::job::{MAX_REASON_BYTES, bounded_reason};
use crate::{Job, Keyspace, Result, reads, reason_class};

pub use crate::names::MAX_CLASS_BYTES;
/// Longest message that is kept, in bytes; longer ones are cut.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Longest trace that is kept, in bytes. Of longer ones, the middle is left out: languages differ in which end is the error's.
pub const MAX_TRACE_BYTES: usize = 16 << 10;
/// The most rows of errors that a job may have: those that are kept, and one more.
const MAX_ROWS: usize = 1_002;

/// What went wrong in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunError {
    /// The message.
    pub message: String,
    /// The class of the error, as its language names it: `ValueError`.
    pub class: Option<String>,
    /// Where it was raised: the text of a trace.
    pub trace: Option<String>,
}

impl From<String> for RunError {
    fn from(message: String) -> Self {
        RunError { message, ..RunError::default() }
    }
}

impl From<&str> for RunError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

/// Class and message.
impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.class {
            Some(class) if self.message.is_empty() => f.write_str(class),
            Some(class) => write!(f, "{class}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl RunError {
    /// The reason in the history: class and message on one line, and no more than its first 1,000 bytes.
    pub(crate) fn reason(&self) -> String {
        match self.class {
            Some(_) => bounded_reason(&self.to_string()),
            None => bounded_reason(&self.message),
        }
    }

    /// What this error has in common with others, if it states its class: the class, and where its own program raised it.
    pub(crate) fn failure_class(&self) -> Option<String> {
        let class = self.class.as_deref()?;
        let frame = self.trace.as_deref().and_then(own_frame);
        let text = frame.map_or_else(|| class.to_owned(), |frame| format!("{class} in {frame}"));
        Some(reason_class::of(&text))
    }

    /// Whether the history says all of it.
    fn is_plain(&self) -> bool {
        self.class.is_none() && self.trace.is_none() && self.message.len() <= MAX_REASON_BYTES
    }
}

/// The innermost frame of a trace that is not in a library, as `function (file)`, in the form of Python, JavaScript or Java.
fn own_frame(trace: &str) -> Option<String> {
    let is_own = |line: &&str| {
        let libraries =
            ["site-packages", "dist-packages", "/lib/python", "node_modules", "node:", "<frozen "];
        !libraries.iter().any(|library| line.contains(library))
    };
    let file_of = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned();
    // Python states the innermost call last.
    let python = trace.lines().map(str::trim).filter(|line| line.starts_with("File \"")).rfind(is_own);
    if let Some(line) = python {
        let file = file_of(line.strip_prefix("File \"")?.split('"').next()?);
        let function = line.rsplit_once(", in ").map(|(_, function)| function.trim());
        return Some(function.map_or_else(|| file.clone(), |function| format!("{function} ({file})")));
    }
    // The others state it first: `at function (file:line:column)`, or `at file:line:column`.
    let line = trace.lines().filter_map(|line| line.trim().strip_prefix("at ")).find(|line| is_own(line))?;
    let (function, place) = match line.split_once(" (").or_else(|| line.split_once('(')) {
        Some((function, place)) => (Some(function), place.trim_end_matches(')')),
        None => (None, line),
    };
    let file = file_of(place.trim_end_matches(|c: char| c.is_ascii_digit() || c == ':'));
    Some(function.map_or_else(|| file.clone(), |function| format!("{function} ({file})")))
}

/// An error that a job has kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptError {
    /// When the run ended, in µs.
    pub at_us: i64,
    /// The number of the attempt.
    pub attempt: u32,
    /// See [`RunError::class`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// See [`RunError::message`].
    pub message: String,
    /// See [`RunError::trace`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// Keeps an error of which the history does not say all: the first one, and the `most` latest.
pub(crate) async fn keep(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    error: &RunError,
    most: usize,
) -> Result<()> {
    if error.is_plain() {
        return Ok(());
    }
    let (job_type, id) = (&job.job_type, &job.id);
    let kept = match job.has_output {
        true => reads::rows(tx, keys.output_of(job_type, id, ERROR), MAX_ROWS).await?,
        false => Vec::new(),
    };
    let last = kept.last().map(|(key, _)| keys.parse_output(key)).transpose()?;
    let number = last.map_or(0, |number| number + 1);
    let row = KeptError {
        at_us: job.changed_us,
        attempt: job.attempts,
        class: error.class.as_deref().map(|class| cut(class, MAX_CLASS_BYTES)),
        message: cut(&error.message, MAX_MESSAGE_BYTES),
        trace: error.trace.as_deref().map(without_middle),
    };
    tx.set(keys.output_row(job_type, id, ERROR, number), encode(&row))?;
    // The oldest of the latest ones; the first stays.
    for (key, _) in kept.iter().skip(1).take((kept.len() + 1).saturating_sub(most + 1)) {
        tx.clear(key.clone())?;
    }
    job.has_output = true;
    Ok(())
}

/// The errors that a job has kept, newest first. Adds no read conflict.
#[boxed]
pub async fn errors(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Vec<KeptError>> {
    if !job.has_output {
        return Ok(Vec::new());
    }
    let read = |_: &Bytes, value: &Bytes| decode("error of a job", value);
    let mut kept = reads::list(tx, keys.output_of(&job.job_type, &job.id, ERROR), MAX_ROWS, read).await?;
    kept.reverse();
    Ok(kept)
}

/// Text of several lines without other control characters, cut at a character's border.
pub(super) fn cut(text: &str, most: usize) -> String {
    let mut text = without_controls(text);
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - '…'.len_utf8()));
        text.push('…');
    }
    text
}

fn without_controls(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', " ")
}

fn without_middle(trace: &str) -> String {
    let trace = without_controls(trace);
    if trace.len() <= MAX_TRACE_BYTES {
        return trace;
    }
    // Room for the line that states how much is left out.
    let half = (MAX_TRACE_BYTES - 64) / 2;
    let (begin, end) = (trace.floor_char_boundary(half), trace.ceil_char_boundary(trace.len() - half));
    format!("{}\n… {} bytes are left out …\n{}", &trace[..begin], end - begin, &trace[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(class: &str, trace: &str) -> String {
        let error = RunError { message: "m".into(), class: Some(class.into()), trace: Some(trace.into()) };
        error.failure_class().unwrap()
    }

    #[test]
    fn failures_of_one_place_in_a_program_have_one_class() {
        let python = |line: u32, id: u32| {
            format!(
                "Traceback (most recent call last):\n  File \"/srv/app/worker.py\", line 9, in main\n    run()\n  \
                 File \"/srv/app/mail.py\", line {line}, in send_welcome\n    smtp.send({id})\n  \
                 File \"/usr/lib/python3.11/smtplib.py\", line 700, in send\n    raise\nValueError: no {id}"
            )
        };
        assert_eq!(class("ValueError", &python(31, 5)), "ValueError in send_welcome (mail.py)");
        assert_eq!(class("ValueError", &python(31, 5)), class("ValueError", &python(77, 6)));
        let node = "TypeError: x\n    at Socket.emit (node:events:513:28)\n    at send (/app/node_modules/m/i.js:1:2)\n    \
                    at sendWelcome (/app/mail.js:31:7)\n    at main (/app/worker.js:9:1)";
        assert_eq!(class("TypeError", node), "TypeError in sendWelcome (mail.js)");
        let java = "java.lang.IllegalStateException: x\n\tat com.acme.Mail.send(Mail.java:31)\n\tat Main.main(Main.java:1)";
        assert_eq!(
            class("IllegalStateException", java),
            "IllegalStateException in com.acme.Mail.send (Mail.java)"
        );
        for trace in ["", "at ", "File \"", "at (", "no frames", "  at x:1:2"] {
            assert!(class("E", trace).starts_with('E'), "{trace}");
        }
        assert_eq!(RunError::from("boom").failure_class(), None);
    }

    #[test]
    fn what_is_kept_is_bounded_at_the_borders_of_characters() {
        let error = RunError { message: "é\n".repeat(9_000), class: Some("É".repeat(300)), trace: None };
        assert!(error.reason().len() <= MAX_REASON_BYTES && !error.reason().contains('\n'));
        for (text, most) in [
            (cut(&error.message, MAX_MESSAGE_BYTES), MAX_MESSAGE_BYTES),
            (without_middle(&"aé".repeat(99_999)), MAX_TRACE_BYTES),
        ] {
            assert!(text.len() <= most && text.len() > most - 100 && text.contains('…'), "{}", text.len());
        }
        assert_eq!(cut("a\u{1b}[1m\tb\n", 99), "a [1m\tb\n");
        assert_eq!(without_middle("short\n"), "short\n");
    }
}
