//! Rates: how many jobs of a bucket start per period.
//!
//! *Model.* A filter with [`Action::Rate`](super::filters::Action::Rate) limits the starts of the jobs that it decides about: at most
//! [`Rate::at_most`] in any period of the length [`Rate::per_ms`]. With [`Rate::key`], each value of an option has a bucket of its own. A job
//! counts with the filter's [`weight`](Rate::weight). The reason `rate:100/60s:network` puts a job into the bucket `network`, which counts the
//! jobs of all filters and types that name it; each job obeys its own numbers.
//!
//! *Forces.* A count per calendar minute admits twice the limit around the turn of the minute. So the default remembers the last starts
//! ([`Algorithm::Window`]): a job starts once the start that it would be one too many with is a period old. [`Algorithm::Bucket`] remembers one
//! number instead, and admits up to twice the limit in one period after a pause, as the token buckets of many servers do.
//!
//! What counts is a start: a run that is lost, preempted or repeated has started, too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::concurrency::{Bucket, MAX_BUCKET_BYTES};
use super::condition::{Number, Value};
use crate::contention::hash;

/// The most starts per period, and the highest weight.
pub const MAX_STARTS: u32 = 10_000;
/// The shortest and the longest period: 100 ms, and 31 days.
pub const PERIODS_MS: std::ops::RangeInclusive<u64> = 100..=31 * 86_400_000;
/// The longest name of an option that is a key, in bytes.
pub const MAX_KEY_BYTES: usize = 200;

/// The beginning of a reason that states a rate.
const PREFIX: &str = "rate:";

/// How starts are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// A log of the last starts: no period has more than the limit.
    #[default]
    Window,
    /// A token bucket: it holds `at_most` tokens, and refills evenly.
    Bucket,
}

/// How many jobs may start per period.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// The most starts: 1 to [`MAX_STARTS`].
    pub at_most: u32,
    /// The length of the period, in ms ([`PERIODS_MS`]).
    pub per_ms: u64,
    /// As how many starts a job counts: 1 to `at_most`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// How starts are counted.
    #[serde(default, skip_serializing_if = "is_window")]
    pub algorithm: Algorithm,
    /// The option each of whose values has a bucket of its own: `options.customer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(weight: &u32) -> bool {
    *weight == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_window(algorithm: &Algorithm) -> bool {
    *algorithm == Algorithm::Window
}

/// A rate that a job obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// The bucket whose starts are counted.
    pub bucket: Bucket,
    /// How many may start.
    pub rate: Rate,
}

impl Rate {
    /// So many starts per period.
    pub fn new(at_most: u32, per_ms: u64) -> Rate {
        Rate { at_most, per_ms, weight: 1, algorithm: Algorithm::Window, key: None }
    }

    /// The period, in µs.
    pub fn per_us(&self) -> i64 {
        i64::try_from(self.per_ms.saturating_mul(1_000)).unwrap_or(i64::MAX)
    }

    /// Checks the numbers and the key.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_STARTS).contains(&self.at_most) {
            return Err(format!(
                "at_most must be from 1 to {MAX_STARTS}; a filter with `pause` lets none start"
            ));
        }
        if !PERIODS_MS.contains(&self.per_ms) {
            let (least, most) = (PERIODS_MS.start(), PERIODS_MS.end());
            return Err(format!("per_ms must be from {least} to {most} (31 days)"));
        }
        if !(1..=self.at_most).contains(&self.weight) {
            return Err("weight must be from 1 to at_most, or no job could ever start".to_owned());
        }
        match &self.key {
            Some(key) if key.len() > MAX_KEY_BYTES => {
                Err(format!("key has {} bytes; at most {MAX_KEY_BYTES} are allowed", key.len()))
            }
            Some(_) if self.path().is_none() => Err("key must name an option: `options.NAME`".to_owned()),
            _ => Ok(()),
        }
    }

    /// The path of the option that is the key.
    pub fn path(&self) -> Option<Vec<String>> {
        let names: Vec<String> =
            self.key.as_ref()?.strip_prefix("options.")?.split('.').map(str::to_owned).collect();
        names.iter().all(|name| !name.is_empty() && !name.contains(char::is_control)).then_some(names)
    }

    /// Between two starts of a steady token bucket, in µs, for one start.
    fn interval_us(&self) -> i64 {
        let at_most = i64::from(self.at_most.max(1));
        self.per_us() / at_most + i64::from(self.per_us() % at_most != 0)
    }

    /// Token bucket: the level is the time at which the bucket is full again. When `starts` more starts fit, in µs.
    pub fn bucket_free_us(&self, level_us: i64, starts: u32) -> i64 {
        let taken_us = self.interval_us().saturating_mul(i64::from(starts));
        // The interval is rounded up, and a full bucket has all of its tokens nevertheless.
        let full_us = self.per_us().saturating_add(i64::from(self.at_most));
        level_us.saturating_add(taken_us).saturating_sub(full_us)
    }

    /// Token bucket: the level after so many starts.
    pub fn bucket_level_us(&self, level_us: i64, starts: u32, now_us: i64) -> i64 {
        level_us.max(now_us).saturating_add(self.interval_us().saturating_mul(i64::from(starts)))
    }
}

/// The starts of a bucket: a row of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCount {
    /// How many starts there were; the number of the last one.
    pub total: u64,
    /// Starts up to this number have no rows any more.
    #[serde(default)]
    pub removed: u64,
    /// When the last one was, in µs.
    pub last_us: i64,
    /// The highest limit and the longest period, in µs, of the jobs that started.
    pub most: u32,
    /// See `most`.
    pub per_us: i64,
    /// When the token bucket is full again, in µs.
    #[serde(default)]
    pub level_us: i64,
    /// No job starts before this time, in µs.
    #[serde(default)]
    pub paused_until_us: i64,
}

/// When a job may start, as far as its rate decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStart {
    /// At this time, in µs; now, if it has passed.
    At(i64),
    /// A period after the start with this number.
    PeriodAfter(u64),
}

impl StartCount {
    /// When the `n`-th more job of this rate may start, if no rate is paused.
    pub fn next_start(&self, rate: &Rate, n: u32) -> NextStart {
        let starts = rate.weight.max(1).saturating_mul(n);
        match rate.algorithm {
            Algorithm::Bucket => NextStart::At(rate.bucket_free_us(self.level_us(rate), starts)),
            Algorithm::Window => {
                // The last start that must be a period old.
                let number = (self.total + u64::from(starts)).saturating_sub(u64::from(rate.at_most));
                match number <= self.removed {
                    true => NextStart::At(i64::MIN),
                    false => NextStart::PeriodAfter(number),
                }
            }
        }
    }

    /// When the token bucket is full again, in µs: by this rate, even if the last start has emptied it by another one.
    fn level_us(&self, rate: &Rate) -> i64 {
        self.level_us.min(self.last_us.saturating_add(rate.per_us() + i64::from(rate.at_most)))
    }

    /// Counts the starts of a job. Returns the number and the time, in µs, of the last one.
    pub fn take(&mut self, rate: &Rate, now_us: i64) -> (u64, i64) {
        let level_us = self.level_us(rate);
        let starts = rate.weight.max(1);
        self.total += u64::from(starts);
        self.last_us = self.last_us.max(now_us);
        self.most = self.most.max(rate.at_most);
        self.per_us = self.per_us.max(rate.per_us());
        self.level_us = rate.bucket_level_us(level_us, starts, now_us);
        (self.total, self.last_us)
    }
}

/// The bucket of a filter's jobs, or of those with one value of its key.
pub fn of_filter(id: &str, key: Option<&str>) -> Bucket {
    Bucket::Rate(key.map_or_else(|| id.to_owned(), |key| format!("{id}\n{key}")))
}

/// The filter and the key of a bucket's name. Without a filter, the key is the name in the jobs' reasons.
pub fn parts(name: &str) -> (Option<&str>, Option<&str>) {
    match name.split_once('\n') {
        None => (Some(name), None),
        Some((filter, key)) => (Some(filter).filter(|filter| !filter.is_empty()), Some(key)),
    }
}

/// The name of a bucket by the value of its key. All jobs without the option, or with one that is hidden, have the empty name. A long text is
/// named by its hash.
pub fn key_of(value: Option<Value>) -> String {
    let text = match value {
        None | Some(Value::Null | Value::Hidden) => String::new(),
        Some(Value::Text(text)) => text,
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(Number::Whole(number))) => number.to_string(),
        Some(Value::Number(Number::Long(is_negative, digits))) => {
            format!("{}{digits}", if is_negative { "-" } else { "" })
        }
        Some(Value::Number(Number::Double(number))) => number.to_string(),
    };
    if text.len() > MAX_BUCKET_BYTES { format!("#{:016x}", hash(&text, 0)) } else { text }
}

/// The rate that a reason states; `None` if the reason begins in another way.
///
/// # Errors
/// What is wrong with a reason that begins like a rate, and what would be right.
pub fn of_reason(reason: &str) -> Result<Option<RateLimit>, String> {
    let Some(rest) = reason.strip_prefix(PREFIX) else { return Ok(None) };
    let wrong = |problem: &str| {
        Err(format!(
            "`{reason}` is no rate: {problem}; write `{PREFIX}100/60s:name` for at most 100 in any 60 s"
        ))
    };
    let Some((stated, name)) = rest.split_once(':') else {
        return wrong("the name of the bucket is missing");
    };
    let rate = match parse(stated) {
        Ok(rate) => rate,
        Err(problem) => return wrong(&problem),
    };
    match name.len() {
        0 => wrong("the name of the bucket is empty"),
        1..=MAX_BUCKET_BYTES => Ok(Some(RateLimit { bucket: of_filter("", Some(name)), rate })),
        _ => wrong(&format!("the name of the bucket has more than {MAX_BUCKET_BYTES} bytes")),
    }
}

/// The rate that a text states: `100/60s`, with the units `ms`, `s`, `min`, `h` and `d`.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn parse(stated: &str) -> Result<Rate, String> {
    let digits = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    let parsed = stated.split_once('/').and_then(|(at_most, per)| {
        let unit = per.find(|letter: char| !letter.is_ascii_digit())?;
        let unit_ms = match &per[unit..] {
            "ms" => 1,
            "s" => 1_000,
            "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        let at_most = u32::try_from(digits(at_most)?).ok()?;
        // `100/h` is 100 per hour.
        let number = if unit == 0 { 1 } else { digits(&per[..unit])? };
        Some(Rate::new(at_most, number.checked_mul(unit_ms)?))
    });
    let rate = parsed.ok_or_else(|| format!("`{stated}` is no rate like 100/60s (ms, s, min, h or d)"))?;
    rate.check()?;
    Ok(rate)
}

/// The rate as [`parse`] reads it: `100/60s`
impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let per = Duration::from_millis(self.per_ms);
        match (per.as_secs(), per.subsec_millis()) {
            (s, 0) if s % 86_400 == 0 => write!(f, "{}/{}d", self.at_most, s / 86_400),
            (s, 0) if s % 3_600 == 0 => write!(f, "{}/{}h", self.at_most, s / 3_600),
            (s, 0) => write!(f, "{}/{s}s", self.at_most),
            _ => write!(f, "{}/{}ms", self.at_most, self.per_ms),
        }
    }
}

/// All rates that a job obeys: that of the filter that decides about it, and those of its reasons. Each bucket occurs once.
pub fn of_job(filter: Option<RateLimit>, reasons: &[String]) -> Vec<RateLimit> {
    let mut rates: Vec<RateLimit> = filter.into_iter().collect();
    for stated in reasons.iter().filter_map(|reason| of_reason(reason).ok().flatten()) {
        if rates.iter().all(|known| known.bucket != stated.bucket) {
            rates.push(stated);
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_rate_is_read_as_it_is_written() {
        for (text, at_most, per_ms) in [
            ("100/60s", 100, 60_000),
            ("5000/1h", 5_000, 3_600_000),
            ("1/1d", 1, 86_400_000),
            ("7/250ms", 7, 250),
        ] {
            let rate = parse(text).unwrap();
            assert_eq!((rate.at_most, rate.per_ms), (at_most, per_ms));
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!(parse("10/min").unwrap(), Rate::new(10, 60_000));
        for wrong in ["", "10", "10/", "/s", "0/1s", "10001/1s", "+1/1s", "1/99ms", "1/32d", "1/1w", "1/-1s"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reason_may_state_a_rate() {
        let rate = of_reason("rate:100/60s:pink bunny").unwrap().unwrap();
        assert_eq!(
            rate,
            RateLimit { bucket: of_filter("", Some("pink bunny")), rate: Rate::new(100, 60_000) }
        );
        assert_eq!(parts(rate.bucket.name()), (None, Some("pink bunny")));
        assert_eq!(of_reason("rate-limit:7:a").unwrap(), None);
        for wrong in ["rate:", "rate:100:a", "rate:100/60s", "rate:100/60s:", "rate:0/60s:a"] {
            assert!(of_reason(wrong).unwrap_err().contains("write `rate:100/60s:name`"), "{wrong}");
        }
        let reasons = ["rate:5/1s:a", "why not", "rate:3/1s:a", "rate:9/1s:b"].map(str::to_owned);
        assert_eq!(of_job(None, &reasons).len(), 2);
    }

    #[test]
    fn a_token_bucket_refills_evenly() {
        let rate = Rate { algorithm: Algorithm::Bucket, ..Rate::new(3, 1_000) };
        let (mut level_us, mut at_us) = (0, 1_000_000_000);
        let start = at_us;
        for n in 0..300 {
            at_us = at_us.max(rate.bucket_free_us(level_us, 1));
            level_us = rate.bucket_level_us(level_us, 1, at_us);
            assert_eq!(at_us == start, n < 3, "a full bucket admits three at once");
        }
        let per_us = (at_us - start) / 297;
        assert!((333_333..333_400).contains(&per_us), "{per_us}");
    }
}
