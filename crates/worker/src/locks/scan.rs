//! A scan of all waiting jobs, for those that can start behind more blocked ones than a window holds.
//!
//! *Model.* The pending rows of a type are read page by page, in key order, a few pages per pass, until all were read.
//! Jobs that could start with the locks of that moment are kept: they are the front of the following passes, in fair
//! order. The claims check the locks, as always.
//!
//! *Cost.* Passes scan only if nothing in the longest window can start and there is more behind it. The next scan
//! begins only after a job has become pending or a lock was released. It also waits for [`PAUSE_US_PER_ROW`] for each
//! row of the last scan. That limits the part of a worker's time that scans take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

/// Rows per read.
const PAGE: usize = 1_000;
/// Pages that one pass reads.
const PAGES: usize = 4;
/// The maximum number of jobs that are kept. The scan then ends, and the next one continues behind it.
const MAX_FOUND: usize = 2_000;
/// The maximum number of kept jobs of one tenant, so that a tenant with many jobs leaves room for others.
const MAX_OF_TENANT: usize = 100;
/// The pause after a scan, for each of its rows, in µs. Reading and comparing a row takes about 10 µs.
const PAUSE_US_PER_ROW: i64 = 50;

/// The scans of a job type, as one claimant makes them.
#[derive(Default)]
pub(crate) struct Scan(Mutex<State>);

#[derive(Default)]
struct State {
    /// The current scan.
    current: Option<CurrentScan>,
    last: LastScan,
    /// Where the next scan begins; at the first row, if the last scan has read the last row.
    from: Option<Bytes>,
}

/// The values that change when a job becomes pending, and when a lock is released.
pub(crate) type Stamps = (Option<Bytes>, Option<Bytes>);

struct CurrentScan {
    /// Their values at its beginning.
    stamps: Stamps,
    from: Option<Bytes>,
    rows: usize,
    /// It began at the first row, and has kept all that could start.
    is_whole: bool,
    of_tenant: BTreeMap<String, usize>,
    found: Vec<(String, Pending)>,
}

#[derive(Default)]
struct LastScan {
    /// The jobs that could start, without those that were tried.
    found: Vec<(String, Pending)>,
    /// While the stamps are equal to these, another scan would find nothing; `None` if it might.
    exhausted: Option<Stamps>,
    /// When it ended, in µs, and when the next one may begin.
    pause: Option<(i64, i64)>,
}

/// The result of a pass's part of a scan.
pub(crate) enum ScanResult {
    /// These jobs could start, each with its tenant. The caller must [forget](Scan::forget) those that it has tried.
    Found(Vec<(String, Pending)>),
    /// The next pass continues the scan.
    Unfinished,
    /// Nothing can start now. With a time, in µs: the next scan begins then.
    Nothing(Option<i64>),
}

impl Scan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a scan has found, or continues the scan. `startable` returns which of the given jobs could start.
    pub async fn find(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        stamps: &Stamps,
        now_us: i64,
        startable: impl Fn(&[&Pending]) -> BTreeSet<String>,
    ) -> Result<ScanResult> {
        let mut current = {
            let mut state = self.state();
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
                    CurrentScan::new(stamps.clone(), state.from.take())
                }
            }
        };
        for _ in 0..PAGES {
            let (page, next) = tenants::page(tx, keys, job_type, current.from.take(), PAGE).await?;
            let jobs: Vec<&Pending> = page.iter().map(|(_, pending)| pending).collect();
            let startable = startable(&jobs);
            current.keep(page, &startable);
            current.from = next;
            if current.from.is_none() || current.found.len() >= MAX_FOUND {
                return Ok(self.state().ends(current, now_us));
            }
        }
        self.state().current = Some(current);
        Ok(ScanResult::Unfinished)
    }

    /// Removes the jobs that were tried. Whether they run depends on a commit: if any were removed, the next scan
    /// searches for them again. Returns when, in µs.
    pub fn forget(&self, tried: &BTreeSet<String>) -> Option<i64> {
        let mut state = self.state();
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
        let CurrentScan { stamps, from, rows, is_whole, found, .. } = current;
        let pause_us = i64::try_from(rows).unwrap_or(i64::MAX).saturating_mul(PAUSE_US_PER_ROW);
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
    fn new(stamps: Stamps, from: Option<Bytes>) -> Self {
        let is_whole = from.is_none();
        CurrentScan { stamps, from, rows: 0, is_whole, of_tenant: BTreeMap::new(), found: Vec::new() }
    }

    fn keep(&mut self, page: Vec<(String, Pending)>, startable: &BTreeSet<String>) {
        self.rows += page.len();
        for (tenant, pending) in page.into_iter().filter(|(_, pending)| startable.contains(&pending.id)) {
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
