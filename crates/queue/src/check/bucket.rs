//! Invariants of the rows of buckets.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_policy::eligibility::concurrency::Bucket;

use super::{Finding, IndexRow, Invariant, Row};
use crate::Keyspace;
use crate::concurrency::BucketRow;
use crate::rates::StartCount;

/// The buckets of a snapshot: their running jobs, their limited jobs, and their marks.
#[derive(Debug, Default)]
pub struct BucketTally(BTreeMap<Bucket, InBucket>);

#[derive(Debug, Default)]
struct InBucket {
    running: u64,
    /// The highest limit of the running jobs.
    most: u32,
    /// The types of the limited jobs, each with the highest limit.
    waiting: BTreeMap<String, u32>,
    marked: BTreeSet<String>,
    /// It must still be marked for some types.
    unmarked: bool,
    count: Option<StartCount>,
    /// The starts that have rows, each with its time.
    starts: BTreeMap<u64, i64>,
}

impl BucketTally {
    /// Enters a row, if it is about a bucket.
    pub fn enter(&mut self, row: &Row, value: &Bytes) {
        match row {
            Row::InBucket(_, bucket) => {
                let bucket = self.0.entry(bucket.clone()).or_default();
                bucket.running += 1;
                if let Ok(BucketRow { most, .. }) = serde_json::from_slice(value) {
                    bucket.most = bucket.most.max(most);
                }
            }
            Row::Index((job_type, _), IndexRow::Limited(place)) => {
                let bucket = self.0.entry(place.limit.bucket.clone()).or_default();
                let most = bucket.waiting.entry(job_type.clone()).or_default();
                *most = place.limit.most.max(*most);
            }
            Row::Roomy(job_type, bucket) => {
                self.0.entry(bucket.clone()).or_default().marked.insert(job_type.clone());
            }
            Row::StartCount(name) => {
                let bucket = self.0.entry(Bucket::Rate(name.clone())).or_default();
                bucket.count = serde_json::from_slice(value).ok();
            }
            Row::Start(name, until) => {
                let bucket = self.0.entry(Bucket::Rate(name.clone())).or_default();
                bucket.starts.extend(serde_json::from_slice::<i64>(value).ok().map(|at_us| (*until, at_us)));
            }
            Row::Unmarked(bucket) => self.0.entry(bucket.clone()).or_default().unmarked = true,
            _ => {}
        }
    }

    /// The violations.
    pub fn finish(self, keys: &Keyspace) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (bucket, InBucket { running, most, waiting, marked, unmarked, count, starts }) in self.0 {
            let count = count.unwrap_or_default();
            let is_counted = |until: u64| (count.removed + 1..=count.total).contains(&until);
            let times: Vec<i64> = starts.values().copied().chain([count.last_us]).collect();
            if !starts.keys().all(|until| is_counted(*until)) || !times.is_sorted() {
                let problem = format!("{} starts are counted, and the rows of {bucket} differ", count.total);
                findings.push(Finding::new(
                    Invariant::StartsCounted,
                    &keys.start_count(bucket.name()),
                    problem,
                ));
            }
            // The last of these jobs to start obeyed its limit, and no job has started since.
            if running > u64::from(most) {
                let problem =
                    format!("{running} jobs of {bucket} run, and the highest of their limits is {most}");
                findings.push(Finding::new(Invariant::BucketHolds, &keys.bucket_holders(&bucket).0, problem));
            }
            for (job_type, most) in waiting {
                if u64::from(most) > running && !unmarked && !marked.contains(&job_type) {
                    let key = match &bucket {
                        Bucket::Rate(name) => keys.roomy_at(&job_type, 0, name),
                        _ => keys.roomy_entry(&job_type, &bucket),
                    };
                    let problem =
                        format!("{running} of at most {most} jobs of {bucket} run, and jobs are limited");
                    findings.push(Finding::new(Invariant::BucketMarked, &key, problem));
                }
            }
        }
        findings
    }
}
