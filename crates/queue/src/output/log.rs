//! The lines that the runs of a job have logged.
//!
//! *Model.* Lines are numbered, from 0 on, through all runs of the job. A row holds up to [`LINES_PER_ROW`] of them, under the number of its
//! first one, compressed with LZ4 (lines repeat each other, and what they take is written to the disk twice). A head states which lines there are, so that lines are appended without reading any. The heads of all jobs are one range, so
//! that the logs of a tenant are added up without reading jobs or lines.
//!
//! *Bounds.* A job keeps its last [`MAX_LOG_LINES`] lines or [`MAX_LOG_BYTES`], not compressed: the oldest rows go first, whole. So up to
//! [`LINES_PER_ROW`] lines fewer may be left. What the jobs of a tenant keep together is bounded from outside ([`log_sizes`], [`drop_lines`]): a
//! counter that each append changed would make all jobs of a tenant conflict.

use std::borrow::Cow;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use lz4_flex::block::{compress_prepend_size, decompress, uncompressed_size};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::key::successor;
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::LOG;
use super::errors::cut;
use crate::encoding::{decode, encode};
use crate::error::corrupt;
use crate::keyspace::behind;
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
/// The most lines of a row, and its most bytes as JSON.
const LINES_PER_ROW: usize = 50;
const BYTES_PER_ROW: usize = 16 << 10;
/// A row that begins with this byte has its length, and itself compressed. Others are JSON.
const COMPRESSED: u8 = 1;
/// What a row is called in an error.
const LINES: &str = "lines of a log";
/// The number that stands for the head among the rows of a log: its row is elsewhere.
pub(crate) const HEAD: i64 = -1;

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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    /// The number of the first line that is kept.
    first: u64,
    /// The number of the next line.
    next: u64,
    /// The size of the kept rows, in bytes.
    bytes: u64,
    /// The tenant of the job.
    tenant: String,
    /// When the last line was appended, in µs.
    at_us: i64,
}

/// The head of a job's log.
async fn head(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    isolation: Isolation,
) -> Result<Option<Head>> {
    let value = tx.get_with(&keys.log_head(job_type, id), isolation).await?;
    value.map(|value| decode("head of a log", &value)).transpose()
}

/// Whether so many lines may be appended at once.
pub(crate) fn check(lines: &[LogLine]) -> Result<()> {
    if lines.len() <= MAX_LINES_AT_ONCE {
        return Ok(());
    }
    let problem = format!("has {} lines; at most {MAX_LINES_AT_ONCE} are allowed", lines.len());
    Err(Error::Invalid { field: "log", problem })
}

/// Appends lines to the log of a job of this tenant, whose claim the caller has checked. Returns whether the job's record must state that it has output: the
/// caller writes the record.
pub(crate) async fn append(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    tenant: &str,
    lines: &[LogLine],
    now_us: i64,
) -> Result<bool> {
    if lines.is_empty() {
        return Ok(false);
    }
    let known = head(tx, keys, (job_type, id), Isolation::Serializable).await?;
    let is_first = known.is_none();
    let mut head = known.unwrap_or_default();
    (head.tenant, head.at_us) = (tenant.to_owned(), now_us);
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
        let row = [b"[".as_slice(), &of_row.join(b",".as_slice()), b"]"].concat();
        head.bytes += row.len() as u64;
        rows.push((head.next, compressed(row)));
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
    tx.set(keys.log_head(job_type, id), encode(&head))?;
    Ok(is_first)
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
                head.bytes = head.bytes.saturating_sub(json(value)?.len() as u64);
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
        head.bytes = head.bytes.saturating_sub(json(row)?.len() as u64);
        dropped = n + 1;
    }
    rows.drain(..dropped);
    Ok(())
}

/// The value of a row of lines.
fn compressed(row: Vec<u8>) -> Bytes {
    let mut value = vec![COMPRESSED];
    value.extend(compress_prepend_size(&row));
    if value.len() < row.len() { value.into() } else { row.into() }
}

/// The lines of a row, as JSON.
fn json(value: &[u8]) -> Result<Cow<'_, [u8]>> {
    let Some(rest) = value.strip_prefix(&[COMPRESSED]) else { return Ok(Cow::Borrowed(value)) };
    let (length, rest) = uncompressed_size(rest).map_err(|error| corrupt(LINES, error))?;
    if length > BYTES_PER_ROW {
        return Err(corrupt(LINES, format!("they state {length} bytes")));
    }
    decompress(rest, length).map(Cow::Owned).map_err(|error| corrupt(LINES, error))
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
    tenant: &str,
    lines: &[LogLine],
    now_us: i64,
) -> Result<()> {
    if append(tx, keys, (job_type, id), tenant, lines, now_us).await?
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
    keys.log_head(job_type, id)
}

/// Up to `limit` lines of a job's log from the number `from` on. Adds no read conflict.
#[boxed]
pub async fn lines(
    tx: &Transaction,
    keys: &Keyspace,
    (job_type, id): (&str, &str),
    from: u64,
    limit: usize,
) -> Result<LogPage> {
    let known = head(tx, keys, (job_type, id), Isolation::Snapshot).await?;
    let Some(Head { first, next, .. }) = known else { return Ok(LogPage::default()) };
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
            let of_row: Vec<LogLine> = decode(LINES, &json(value)?)?;
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

/// How much a job's log has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSize {
    /// The job's type.
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: String,
    /// The size of its lines, in bytes.
    pub bytes: u64,
    /// When the last line was appended, in µs.
    pub at_us: i64,
}

/// Calls `each` with the log of each job that has lines, after the job `after` if given, by type and id. Reads `page` rows at a time, and
/// stops after `most`: then it returns the last job. Adds no read conflict.
pub async fn log_sizes(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<(&str, &str)>,
    bounds: (usize, usize),
    mut each: impl FnMut(LogSize),
) -> Result<Option<(String, String)>> {
    let after = after.map(|(job_type, id)| keys.log_head(job_type, id));
    let read = |key: &Bytes, value: &Bytes| {
        let (job_type, id) = keys.parse_log_head(key)?;
        let Head { bytes, tenant, at_us, .. } = decode("head of a log", value)?;
        if bytes > 0 {
            each(LogSize { job_type, id, tenant, bytes, at_us });
        }
        Ok(())
    };
    let last = reads::each(tx, behind(keys.log_heads(), after), bounds, read).await?;
    Ok(last.map(|last| keys.parse_log_head(&last)).transpose()?)
}

/// Drops all lines of a log that is still as it was seen. Its next lines keep their numbers. Returns whether it was.
#[boxed]
pub async fn drop_lines(tx: &Transaction, keys: &Keyspace, seen: &LogSize) -> Result<bool> {
    let (job, head_row) =
        ((seen.job_type.as_str(), seen.id.as_str()), keys.log_head(&seen.job_type, &seen.id));
    let known: Option<Head> = reads::value(tx, &head_row, "head of a log").await?;
    let Some(head) = known.filter(|head| (head.at_us, head.bytes) == (seen.at_us, seen.bytes)) else {
        return Ok(false);
    };
    tx.clear_range((row_of(keys, job, head.first), row_of(keys, job, head.next)))?;
    tx.set(head_row, encode(&Head { first: head.next, bytes: 0, ..head }))?;
    Ok(true)
}
