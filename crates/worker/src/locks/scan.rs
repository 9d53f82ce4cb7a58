//! A scan of all pending jobs: it finds jobs that can start behind more blocked jobs than a window holds.
//!
//! *Model.* Passes read all pending rows of a type, in key order, a few pages per pass. A scan keeps the jobs that
//! could start with the current locks. When it has ended, the next passes claim from these jobs, in the order of fair
//! share. The claims check the locks, as always.
//!
//! *Cost.* Passes scan only if no job in the largest window can start and there are more jobs behind it. The next scan
//! begins only after a job has become pending or a lock was released. It also waits for [`PAUSE`] times as long as the last
//! scan took. That limits the part of a worker's time that scans take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

use crate::sync::lock;
/// The number of rows per read.
const PAGE: usize = 1_000;
/// The number of pages that one pass reads; fewer from a slow store.
const PAGES: usize = 16;
/// The maximum number of jobs that a scan keeps. It then ends, and the next scan continues behind it.
const MAX_FOUND: usize = 2_000;
/// The maximum number of kept jobs of one tenant, so that a tenant with many jobs leaves room for others.
const MAX_OF_TENANT: usize = 100;
/// The pause after a scan, as a multiple of the time that the scan took.
const PAUSE: i64 = 4;
/// The shortest and the longest pause for each row of the scan, in µs. Reading and comparing a row takes about 1 µs. On a
/// shared store, most of a scan's time is no work of this process.
const PAUSE_US_PER_ROW: (i64, i64) = (2, 50);

/// The scans of a job type, as one claimant makes them.
#[derive(Default)]
pub(crate) struct Scan(Mutex<State>);

#[derive(Default)]
struct State {
    /// The scan that passes continue, if it has not ended.
    current: Option<CurrentScan>,
    last: LastScan,
    /// Where the next scan begins; at the first row, if the last scan has read the last row.
    from: Option<Bytes>,
}

/// The values that change when a job becomes pending, and when a lock is released.
pub(crate) type Stamps = (Option<Bytes>, Option<Bytes>);

/// A scan that has not ended.
#[derive(Default)]
struct CurrentScan {
    /// The stamps at its beginning.
    stamps: Stamps,
    from: Option<Bytes>,
    rows: usize,
    /// The time that it has taken, in µs.
    took_us: i64,
    /// Whether it began at the first row, and has kept all jobs that could start.
    is_whole: bool,
    of_tenant: BTreeMap<String, usize>,
    found: Vec<(String, Pending)>,
}

/// The result of the last scan that has ended.
#[derive(Default)]
struct LastScan {
    /// The jobs that could start, without the jobs that passes have tried since.
    found: Vec<(String, Pending)>,
    /// While the stamps have these values, another scan would find no job; `None` if it might find one.
    exhausted: Option<Stamps>,
    /// When it ended, in µs, and when the next one may begin.
    pause: Option<(i64, i64)>,
}

/// The result of a pass's part of a scan.
pub(crate) enum ScanResult {
    /// The jobs that could start, each with its tenant. The caller must [forget](Scan::forget) the jobs that it has
    /// tried.
    Found(Vec<(String, Pending)>),
    /// The next pass continues the scan.
    Unfinished,
    /// No job can start now. With the time when the next scan may begin, in µs; `None` if it must wait for a change.
    Nothing(Option<i64>),
}

impl Scan {
    /// Returns the jobs that a scan has found, or continues the scan. `is_free` returns whether no running job blocks a job
    /// with these locks, and `startable` which of the given jobs could start.
    pub async fn find(
        &self,
        (tx, keys, job_type): (&Transaction, &Keyspace, &str),
        stamps: &Stamps,
        now_us: i64,
        elapsed_us: impl Fn() -> i64,
        is_free: impl Fn(&Requests) -> bool,
        startable: impl Fn(&[&Pending]) -> BTreeSet<String>,
    ) -> Result<ScanResult> {
        let begun_us = elapsed_us();
        let mut current = {
            let mut state = lock(&self.0);
            if !state.last.found.is_empty() {
                return Ok(ScanResult::Found(state.last.found.clone()));
            }
            match state.current.take() {
                Some(current) => current,
                None if state.last.exhausted.as_ref() == Some(stamps) => {
                    return Ok(ScanResult::Nothing(None));
                }
                None => {
                    let pause = state.last.pause.filter(|(from, to)| (*from..*to).contains(&now_us));
                    if let Some((_, again_us)) = pause {
                        return Ok(ScanResult::Nothing(Some(again_us)));
                    }
                    let from = state.from.take();
                    let (stamps, is_whole) = (stamps.clone(), from.is_none());
                    CurrentScan { stamps, from, is_whole, ..CurrentScan::default() }
                }
            }
        };
        for _ in 0..PAGES {
            let page = tenants::page(tx, keys, job_type, current.from.take(), PAGE, &is_free).await?;
            let jobs: Vec<&Pending> = page.jobs.iter().map(|(_, pending)| pending).collect();
            let startable = startable(&jobs);
            current.rows += page.rows;
            current.keep(page.jobs, &startable);
            current.from = page.next;
            if current.from.is_none() || current.found.len() >= MAX_FOUND {
                current.took_us += elapsed_us().saturating_sub(begun_us);
                return Ok(lock(&self.0).ends(current, now_us));
            }
            if !tx.has_time() {
                break;
            }
        }
        current.took_us += elapsed_us().saturating_sub(begun_us);
        lock(&self.0).current = Some(current);
        Ok(ScanResult::Unfinished)
    }

    /// Removes the jobs that were tried. Whether they run depends on a commit. So if any job was removed, a further
    /// scan follows without waiting for a change. Returns when it may begin, in µs.
    pub fn forget(&self, tried: &BTreeSet<String>) -> Option<i64> {
        let mut state = lock(&self.0);
        let before = state.last.found.len();
        state.last.found.retain(|(_, pending)| !tried.contains(&pending.id));
        if state.last.found.len() < before {
            state.last.exhausted = None;
        }
        state.last.pause.map(|(_, again_us)| again_us).filter(|_| state.last.exhausted.is_none())
    }
}

impl State {
    fn ends(&mut self, current: CurrentScan, now_us: i64) -> ScanResult {
        let CurrentScan { stamps, from, rows, took_us, is_whole, found, .. } = current;
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        let (shortest, longest) = PAUSE_US_PER_ROW;
        let pause_us =
            took_us.saturating_mul(PAUSE).clamp(rows.saturating_mul(shortest), rows.saturating_mul(longest));
        let again_us = now_us.saturating_add(pause_us);
        let is_whole = is_whole && from.is_none();
        self.from = from;
        self.last = LastScan {
            found: found.clone(),
            exhausted: is_whole.then_some(stamps),
            pause: Some((now_us, again_us)),
        };
        match found.is_empty() {
            true => ScanResult::Nothing((!is_whole).then_some(again_us)),
            false => ScanResult::Found(found),
        }
    }
}

impl CurrentScan {
    fn keep(&mut self, jobs: Vec<(String, Pending)>, startable: &BTreeSet<String>) {
        for (tenant, pending) in jobs.into_iter().filter(|(_, pending)| startable.contains(&pending.id)) {
            let kept = self.of_tenant.entry(tenant.clone()).or_default();
            if *kept == MAX_OF_TENANT {
                self.is_whole = false;
                continue;
            }
            *kept += 1;
            self.found.push((tenant, pending));
        }
    }
}
