//! The lines that the runs of a job have logged.
//!
//! *Model.* Lines are numbered, from 0 on, through all runs of the job. A row holds up to [`LINES_PER_ROW`] of them, under the number of its
//! first one. The row with the number [`HEAD`] states which lines there are, so that lines are appended without reading any.
//!
//! *Bounds.* A job keeps its last [`MAX_LOG_LINES`] lines or [`MAX_LOG_BYTES`]: the oldest rows go first, whole. So up to
//! [`LINES_PER_ROW`] lines fewer may be left.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::LOG;
use super::errors::cut;
use crate::encoding::{decode, encode};
use crate::error::corrupt;
use crate::rows::{read_job, write_job};
use crate::{Error, Keyspace, Result, reads};

/// The most lines that a job keeps.
pub const MAX_LOG_LINES: u64 = 1_000;
/// The most bytes that it keeps, as JSON.
pub const MAX_LOG_BYTES: u64 = 256 << 10;
/// The longest line, in bytes of JSON. Of a longer one, the fields are left out, and the message is cut.
pub const MAX_LINE_BYTES: usize = 8 << 10;
/// The most lines that are appended at once: no more than are kept.
pub const MAX_LINES_AT_ONCE: usize = 1_000;
/// The most lines of a row, and the most bytes unless it has one line only.
const LINES_PER_ROW: usize = 50;
const BYTES_PER_ROW: usize = 16 << 10;
/// The number of the row that states which lines there are.
const HEAD: i64 = -1;

/// How serious a line is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For the developers of the program.
    Debug,
    /// What it does.
    #[default]
    Info,
    /// Something is not as it should be.
    Warn,
    /// Something has failed.
    Error,
}

/// A line of log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was logged, in µs.
    pub at_us: i64,
    /// How serious it is.
    pub level: Level,
    /// The message: one line or more.
    pub message: String,
    /// More about it: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Box<RawValue>>,
}

impl LogLine {
    /// The line as it is stored: at most [`MAX_LINE_BYTES`].
    fn bounded(&self) -> Bytes {
        let stored = encode(self);
        if stored.len() <= MAX_LINE_BYTES {
            return stored;
        }
        // JSON may need two bytes for one, since there are no control characters but two.
        let message = cut(&self.message, MAX_LINE_BYTES / 2 - 100);
        encode(&LogLine { message, fields: None, ..self.clone() })
    }
}

/// Which lines there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    /// The number of the first line that is kept.
    first: u64,
    /// The number of the next line.
    next: u64,
    /// The size of the kept rows, in bytes.
    bytes: u64,
}

/// Whether so many lines may be appended at once.
pub(crate) fn check(lines: &[LogLine]) -> Result<()> {
    if lines.len() <= MAX_LINES_AT_ONCE {
        return Ok(());
    }
    let problem = format!("has {} lines; at most {MAX_LINES_AT_ONCE} are allowed", lines.len());
    Err(Error::Invalid { field: "log", problem })
}

/// Appends lines to the log of a job whose claim the caller has checked. Returns whether the job's record must state that it has output: the
/// caller writes the record.
pub(crate) async fn append(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    lines: &[LogLine],
) -> Result<bool> {
    if lines.is_empty() {
        return Ok(false);
    }
    let head_row = keys.output_row(job_type, id, LOG, HEAD);
    let known: Option<Head> = reads::value(tx, &head_row, "head of a log").await?;
    let mut head = known.unwrap_or_default();
    let before = (head.first, head.next);
    let stored: Vec<Bytes> = lines.iter().map(LogLine::bounded).collect();
    let mut rest = &stored[..];
    let mut rows: Vec<(u64, Bytes)> = Vec::new();
    while !rest.is_empty() {
        let mut bytes = 2;
        let fitting = rest.iter().take(LINES_PER_ROW).take_while(|line| {
            bytes += line.len() + 1;
            bytes <= BYTES_PER_ROW
        });
        let (of_row, others) = rest.split_at(fitting.count().max(1));
        let row: Bytes = [b"[".as_slice(), &of_row.join(b",".as_slice()), b"]"].concat().into();
        head.bytes += row.len() as u64;
        rows.push((head.next, row));
        head.next += of_row.len() as u64;
        rest = others;
    }
    let is_full = |head: &Head| head.next - head.first > MAX_LOG_LINES || head.bytes > MAX_LOG_BYTES;
    if is_full(&head) {
        drop_oldest(tx, keys, (job_type, id), before, &mut head, &mut rows, is_full).await?;
    }
    for (number, row) in rows {
        tx.set(row_of(keys, (job_type, id), number), row)?;
    }
    tx.set(head_row, encode(&head))?;
    Ok(known.is_none())
}

/// Drops the oldest rows until the log is within its bounds: stored ones, and then some of those that are to be written.
async fn drop_oldest(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    (first, next): (u64, u64),
    head: &mut Head,
    rows: &mut Vec<(u64, Bytes)>,
    is_full: impl Fn(&Head) -> bool,
) -> Result<()> {
    let (_, end) = keys.output_of(job_type, id, LOG);
    while is_full(head) && head.first < next {
        // One row more than is dropped: its number is the end of the row before it.
        let begin = row_of(keys, (job_type, id), head.first);
        let stored = reads::rows(tx, (begin, end.clone()), LINES_PER_ROW + 1).await?;
        let numbers = stored.iter().map(|(key, _)| number_of(keys, key)).collect::<Result<Vec<u64>>>()?;
        for (n, (_, value)) in stored.iter().enumerate().take(LINES_PER_ROW) {
            if is_full(head) {
                head.first = numbers.get(n + 1).copied().unwrap_or(next);
                head.bytes = head.bytes.saturating_sub(value.len() as u64);
            }
        }
        if stored.is_empty() {
            head.first = next;
        }
    }
    if head.first > first {
        tx.clear_range((row_of(keys, (job_type, id), first), row_of(keys, (job_type, id), head.first)))?;
    }
    let mut dropped = 0;
    for (n, (_, row)) in rows.iter().enumerate() {
        if !is_full(head) {
            break;
        }
        head.first = rows.get(n + 1).map_or(head.next, |(number, _)| *number);
        head.bytes = head.bytes.saturating_sub(row.len() as u64);
        dropped = n + 1;
    }
    rows.drain(..dropped);
    Ok(())
}

/// The number of the first line of a row.
fn number_of(keys: &Keyspace, key: &[u8]) -> Result<u64> {
    u64::try_from(keys.parse_output(key)?).map_err(|error| corrupt("key of a log", error))
}

fn row_of(keys: &Keyspace, (job_type, id): (&str, &str), number: u64) -> Bytes {
    keys.output_row(job_type, id, LOG, i64::try_from(number).unwrap_or(i64::MAX))
}

/// Appends the lines of a run that continues.
pub(crate) async fn append_to_running(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    lines: &[LogLine],
) -> Result<()> {
    if append(tx, keys, (job_type, id), lines).await?
        && let Some(mut job) = read_job(tx, keys, job_type, id).await?
        && !job.has_output
    {
        job.has_output = true;
        write_job(tx, keys, &job)?;
    }
    Ok(())
}

/// Some lines of a log.
#[derive(Debug, Clone, Default)]
pub struct LogPage {
    /// The lines, each with its number.
    pub lines: Vec<(u64, LogLine)>,
    /// The number of the first line that is kept: as many were dropped.
    pub first: u64,
    /// The number that the next line will have.
    pub next: u64,
}

/// The key whose value changes with every line.
pub fn log_row(keys: &Keyspace, job_type: &str, id: &str) -> Bytes {
    keys.output_row(job_type, id, LOG, HEAD)
}

/// Up to `limit` lines of a job's log from the number `from` on. Adds no read conflict.
pub async fn lines(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    from: u64,
    limit: usize,
) -> Result<LogPage> {
    let value = tx.get_with(&log_row(keys, job_type, id), Isolation::Snapshot).await?;
    let Some(value) = value else { return Ok(LogPage::default()) };
    let Head { first, next, .. } = decode("head of a log", &value)?;
    let mut page = LogPage { lines: Vec::new(), first, next };
    let from = from.max(first);
    if from >= next {
        return Ok(page);
    }
    // The row that has the line may begin before it.
    let (begin, end) = (row_of(keys, (job_type, id), first), row_of(keys, (job_type, id), from + 1));
    let read = RangeRead { begin: begin.clone(), end, limit: 1, reverse: true };
    let mut begin = tx.range_with(read, Isolation::Snapshot).await?.pop().map_or(begin, |(key, _)| key);
    let (_, end) = keys.output_of(job_type, id, LOG);
    loop {
        let rows = reads::rows(tx, (begin, end.clone()), LINES_PER_ROW).await?;
        for (key, value) in &rows {
            let number = number_of(keys, key)?;
            let of_row: Vec<LogLine> = decode("lines of a log", value)?;
            let numbered = (number..).zip(of_row);
            page.lines.extend(numbered.filter(|(number, _)| *number >= from));
            if page.lines.len() >= limit {
                page.lines.truncate(limit);
                return Ok(page);
            }
        }
        match rows.last() {
            Some((key, _)) if rows.len() == LINES_PER_ROW => begin = successor(key),
            _ => return Ok(page),
        }
    }
}
