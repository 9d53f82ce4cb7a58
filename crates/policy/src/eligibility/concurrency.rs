//! Concurrency limits: how many jobs of a bucket run at the same time.
//!
//! *Model.* A bucket has a name, and contains jobs. A job starts only while fewer jobs of its bucket run than its
//! limit allows. A filter with [`Action::Concurrency`](super::filters::Action::Concurrency) is a bucket of the jobs that
//! it decides about. Clients that add jobs define buckets of their own. The reason `concurrency:7:pink bunny` puts a
//! job into the bucket `pink bunny`. It limits the running jobs of that bucket to 7, this job included.
//!
//! *Forces.* Two clients that use one name mean the same bucket, even with different numbers: all jobs of the bucket
//! count, and each job obeys its own limit. A job in several buckets needs room in all of them.
//!
//! Source: Ganeti's design document of filters for its job queue (2014). There, a name with another number is another
//! bucket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The highest limit. A check for room counts at most this many rows.
pub const MAX_LIMIT: u32 = 1_000;
/// The longest name of a bucket, in bytes.
pub const MAX_BUCKET_BYTES: usize = 128;

/// The beginning of a reason that puts a job into a bucket.
const PREFIX: &str = "concurrency:";
/// The same, as Ganeti writes it.
const OLD_PREFIX: &str = "rate-limit:";

/// A set of jobs that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// The jobs that this filter decides about.
    Filter(String),
    /// The jobs that name this bucket in a reason.
    Reason(String),
    /// The jobs of this task, which wait for a worker that takes them; with an empty name, jobs without a task.
    Task(String),
    /// The jobs whose starts are counted together ([`rate::parts`](super::rate::parts) has the parts of the name).
    Rate(String),
}

impl Bucket {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Bucket::Filter(name) | Bucket::Reason(name) | Bucket::Task(name) | Bucket::Rate(name) => name,
        }
    }
}

/// ``filter `mails` ``, ``bucket `pink bunny` ``
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bucket::Filter(name) => write!(f, "filter `{name}`"),
            Bucket::Reason(name) => write!(f, "bucket `{name}`"),
            Bucket::Task(name) => write!(f, "task `{name}`"),
            Bucket::Rate(name) => match super::rate::parts(name) {
                (Some(filter), None) => write!(f, "the rate of filter `{filter}`"),
                (Some(filter), Some(key)) => write!(f, "the rate of filter `{filter}` for `{key}`"),
                (None, key) => write!(f, "the rate `{}`", key.unwrap_or_default()),
            },
        }
    }
}

/// How many jobs of a bucket may run, for one of these jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// The bucket whose jobs are counted.
    pub bucket: Bucket,
    /// The most jobs that run at the same time, this job included: 1 to [`MAX_LIMIT`].
    pub most: u32,
}

impl Limit {
    /// Whether a job with this limit may start while `running` other jobs of its bucket run.
    pub fn admits(&self, running: usize) -> bool {
        running < self.most as usize
    }
}

/// Checks that a number can be a limit.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn check_limit(most: u32) -> Result<(), String> {
    match most {
        1..=MAX_LIMIT => Ok(()),
        0 => Err(format!("must be from 1 to {MAX_LIMIT}; a filter with `pause` lets none start")),
        _ => Err(format!("must be from 1 to {MAX_LIMIT}")),
    }
}

/// The limit that a reason states; `None` if the reason begins in another way.
///
/// # Errors
/// What is wrong with a reason that begins like a limit, and what would be right.
pub fn of_reason(reason: &str) -> Result<Option<Limit>, String> {
    let rest = reason.strip_prefix(PREFIX).or_else(|| reason.strip_prefix(OLD_PREFIX));
    let Some(rest) = rest else { return Ok(None) };
    let wrong = |problem: String| {
        Err(format!("`{reason}` is no limit: {problem}; write `{PREFIX}7:name` for at most 7 at a time"))
    };
    let Some((most, name)) = rest.split_once(':') else {
        return wrong("the name of the bucket is missing".to_owned());
    };
    let digits = !most.is_empty() && most.bytes().all(|byte| byte.is_ascii_digit());
    let most = match most.parse().ok().filter(|_| digits) {
        Some(most @ 1..=MAX_LIMIT) => most,
        _ => return wrong(format!("`{most}` is no number from 1 to {MAX_LIMIT}")),
    };
    match name.len() {
        0 => wrong("the name of the bucket is empty".to_owned()),
        bytes if bytes > MAX_BUCKET_BYTES => {
            wrong(format!("the name of the bucket has {bytes} bytes, more than {MAX_BUCKET_BYTES}"))
        }
        _ => Ok(Some(Limit { bucket: Bucket::Reason(name.to_owned()), most })),
    }
}

/// All limits that a job obeys: that of the filter that decides about it, and those of its reasons. Each bucket
/// occurs once, with the lowest of its limits.
pub fn of_job(filter: Option<Limit>, reasons: &[String]) -> Vec<Limit> {
    // A malformed limit was rejected when the job was added, or was stored by a release without concurrency limits.
    let stated = reasons.iter().filter_map(|reason| of_reason(reason).ok().flatten());
    let mut limits: Vec<Limit> = filter.into_iter().chain(stated).collect();
    limits.sort_unstable();
    limits.dedup_by(|later, first| later.bucket == first.bucket);
    limits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn limit(name: &str, most: u32) -> Limit {
        Limit { bucket: Bucket::Reason(name.to_owned()), most }
    }

    #[test]
    fn a_reason_may_state_a_limit() {
        assert_eq!(of_reason("concurrency:7:pink bunny").unwrap(), Some(limit("pink bunny", 7)));
        assert_eq!(of_reason("concurrency:1000:a:b").unwrap(), Some(limit("a:b", 1_000)));
        assert_eq!(of_reason("rate-limit:7:pink bunny").unwrap(), Some(limit("pink bunny", 7)));
        for other in ["", "because", "Rate-limit:1:a", " concurrency:1:a"] {
            assert_eq!(of_reason(other).unwrap(), None, "{other}");
        }
        let long = format!("concurrency:1:{}", "x".repeat(MAX_BUCKET_BYTES + 1));
        for (wrong, expected) in [
            ("concurrency:", "the name of the bucket is missing"),
            ("concurrency:7", "the name of the bucket is missing"),
            ("concurrency:7:", "the name of the bucket is empty"),
            ("concurrency:0:a", "`0` is no number from 1 to 1000"),
            ("concurrency:-1:a", "`-1` is no number"),
            ("concurrency:+1:a", "`+1` is no number"),
            ("concurrency: 1:a", "` 1` is no number"),
            ("concurrency:1001:a", "`1001` is no number"),
            ("concurrency:99999999999:a", "is no number"),
            ("concurrency::a", "`` is no number"),
            (long.as_str(), "has 129 bytes, more than 128"),
        ] {
            let problem = of_reason(wrong).unwrap_err();
            assert!(problem.contains(expected), "{wrong}: {problem}");
            assert!(problem.ends_with("write `concurrency:7:name` for at most 7 at a time"), "{problem}");
        }
    }

    #[test]
    fn a_job_obeys_each_bucket_once() {
        let reasons = ["concurrency:5:a", "why not", "concurrency:3:a", "concurrency:9:b", "concurrency:0:c"];
        let reasons = reasons.map(str::to_owned);
        let of_filter = Limit { bucket: Bucket::Filter("a".to_owned()), most: 2 };
        let limits = of_job(Some(of_filter.clone()), &reasons);
        assert_eq!(limits, [of_filter, limit("a", 3), limit("b", 9)]);
        assert!(limit("a", 3).admits(2) && !limit("a", 3).admits(3));
        assert!(check_limit(1).is_ok() && check_limit(1_000).is_ok());
        assert!(check_limit(0).is_err() && check_limit(1_001).is_err());
    }
}
