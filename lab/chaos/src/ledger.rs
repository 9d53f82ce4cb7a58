//! What clients and workers know: which jobs were acknowledged, which worker held them when, and how they ended.
//!
//! Two claims of a job must never be live at the same time. Two observations prove that they are:
//! - a worker whose last heartbeat is recent loses its job, or its lock, to another worker;
//! - the server accepts a write that was *sent* after another run had received the job.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The highest number of findings that are kept.
const MAX_FINDINGS: usize = 50;
/// The highest number of findings of one kind, where a kind can occur thousands of times.
const MAX_OF_KIND: u64 = 3;

/// What the worker does with a job, which determines how the job must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It completes, immediately or after a while.
    Done,
    /// It fails permanently.
    Failing,
    /// It crashes until its attempts are used up.
    Crashing,
    /// It crashes once or twice, and then completes.
    Flaky,
    /// A process of `turnwise work`, or of the server (`command`), which exits with 0.
    Process,
    /// The same with exit code 65: it fails permanently.
    FailingProcess,
}

impl Kind {
    pub fn end(self) -> &'static str {
        match self {
            Kind::Done | Kind::Flaky | Kind::Process => "completed",
            Kind::Failing | Kind::Crashing | Kind::FailingProcess => "failed",
        }
    }

    /// Whether its worker is one of [`workers`](super::workers), which return the run's number as the result.
    pub fn is_told(self) -> bool {
        matches!(self, Kind::Done | Kind::Flaky)
    }
}

/// One registration of a worker, until its end.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// When the last acknowledged heartbeat was sent.
    heard: Mutex<Option<Instant>>,
}

impl Life {
    pub fn is_heard(&self, sent: Option<Instant>) {
        *lock(&self.heard) = sent;
    }

    /// How long ago the last acknowledged heartbeat was sent, if it is not longer than this.
    pub fn heard_within(&self, within: Duration) -> Option<Duration> {
        lock(&self.heard).map(|sent| sent.elapsed()).filter(|ago| *ago < within)
    }

    fn is_healthy(&self, within: Duration) -> bool {
        self.heard_within(within).is_some()
    }
}

/// A job that was added, or may have been added.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub kind: Kind,
    pub acknowledged: bool,
    /// When its client stopped repeating the request without knowing whether the job was added.
    pub given_up: Option<Instant>,
    /// The request that added the job, and its number of jobs. Either all or none of them exist. The number is 0 if the
    /// request may need several transactions.
    pub batch: (u64, usize),
    /// How often the job was added again, or may have been.
    pub again: u32,
    /// The requests that add it again and have no answer yet: the job may begin again at any moment.
    pub adding_again: u32,
    /// Whether a client tried to cancel it.
    pub cancel_tried: bool,
    /// When a client's cancellation was acknowledged.
    pub cancelled: Option<Instant>,
    /// Its dependencies, and for each whether the job is cancelled if that one does not complete.
    pub after: Vec<(String, bool)>,
    /// The resources that no other run may hold at the same time. They include the job's key.
    pub exclusive: Vec<String>,
    /// A bucket and its limit.
    pub limit: Option<(String, usize)>,
    /// The numbers of the runs that reported its completion.
    pub told: Vec<u64>,
    /// Whether a run has reported an end that ends the job.
    pub end_sent: bool,
    /// The number of acknowledged final ends.
    pub ends: u32,
}

impl Entry {
    pub fn new(kind: Kind, key: &str) -> Entry {
        Entry {
            kind,
            acknowledged: false,
            given_up: None,
            batch: (0, 0),
            again: 0,
            adding_again: 0,
            cancel_tried: false,
            cancelled: None,
            after: Vec::new(),
            exclusive: vec![key.to_owned()],
            limit: None,
            told: Vec::new(),
            end_sent: false,
            ends: 0,
        }
    }
}

/// A run that may still be active.
#[derive(Debug)]
struct Run {
    job: String,
    claim: String,
    life: std::sync::Arc<Life>,
    /// When its end was first sent.
    end_sent: Option<Instant>,
    /// When another run received something that this run held.
    superseded: Option<(Instant, String)>,
    counted: bool,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<String, Entry>,
    /// For each held resource, the run that holds it.
    holds: HashMap<String, u64>,
    /// For each bucket, the runs in it.
    limited: HashMap<String, HashSet<u64>>,
    runs: HashMap<u64, Run>,
    next_run: u64,
    /// Jobs that are not known to have ended.
    open: VecDeque<String>,
    findings: Vec<String>,
    /// How often each kind of finding occurred.
    kinds: BTreeMap<String, u64>,
}

/// The combined knowledge of all clients and workers.
pub(super) struct Ledger {
    state: Mutex<State>,
    file: Mutex<BufWriter<File>>,
    begun: Instant,
    /// A worker with a heartbeat within this time cannot have been removed.
    safe: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

impl Ledger {
    /// A ledger with a log of all runs in `file`. A worker is removed when it has sent no heartbeat for `health_timeout`.
    pub fn new(file: &Path, health_timeout: Duration) -> Self {
        let file = File::create(file).expect("the folder can be written");
        Ledger {
            state: Mutex::default(),
            file: Mutex::new(BufWriter::new(file)),
            begun: Instant::now(),
            safe: health_timeout / 2,
        }
    }

    fn log(&self, line: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        // The log helps to understand a finding. A failure to write it is no finding.
        let _ = writeln!(lock(&self.file), "{at:.3} {line}");
    }

    /// Records a violation.
    pub fn finding(&self, text: String) {
        self.log(&format!("BROKEN {text}"));
        let findings = &mut lock(&self.state).findings;
        if findings.len() < MAX_FINDINGS {
            println!("BROKEN: {text}");
            findings.push(text);
        }
    }

    /// Records a violation of a kind that may occur very often. It keeps the texts of the first ones, and counts all of them.
    pub fn repeated(&self, kind: &str, text: &str) {
        let count = {
            let mut state = lock(&self.state);
            let count = state.kinds.entry(kind.to_owned()).or_default();
            *count += 1;
            *count
        };
        if count <= MAX_OF_KIND {
            self.finding(format!("{kind}: {text}"));
        } else {
            self.log(&format!("BROKEN {kind}: {text}"));
        }
    }

    pub fn findings(&self) -> Vec<String> {
        let _ = lock(&self.file).flush();
        let state = lock(&self.state);
        let often = state.kinds.iter().filter(|(_, count)| **count > MAX_OF_KIND);
        let often = often.map(|(kind, count)| format!("{kind}: {count} times"));
        state.findings.iter().cloned().chain(often).collect()
    }

    /// Notes jobs that are about to be added.
    pub fn adding(&self, jobs: Vec<(String, Entry)>) {
        let mut state = lock(&self.state);
        for (key, entry) in jobs {
            state.open.push_back(key.clone());
            state.jobs.insert(key, entry);
        }
    }

    pub fn change<T>(&self, key: &str, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        lock(&self.state).jobs.get_mut(key).map(change)
    }

    /// The next jobs to check whose end is not known. They move behind all others.
    pub fn open(&self, count: usize) -> Vec<String> {
        let mut state = lock(&self.state);
        let count = count.min(state.open.len());
        let keys: Vec<String> = state.open.drain(..count).collect();
        state.open.extend(keys.iter().cloned());
        keys
    }

    pub fn open_count(&self) -> usize {
        lock(&self.state).open.len()
    }

    pub fn job_count(&self) -> usize {
        lock(&self.state).jobs.len()
    }

    /// Notes that jobs have ended or do not exist.
    pub fn close(&self, keys: &HashSet<String>) {
        lock(&self.state).open.retain(|key| !keys.contains(key));
    }

    /// Notes that a job that has ended may run again.
    pub fn reopen(&self, key: &str) {
        let mut state = lock(&self.state);
        if !state.open.iter().any(|open| open == key) {
            state.open.push_back(key.to_owned());
        }
    }

    /// All jobs.
    pub fn jobs(&self) -> BTreeMap<String, Entry> {
        lock(&self.state).jobs.clone()
    }

    /// Notes that a worker received a job. Returns the run's number.
    pub fn accepted(&self, job: &str, claim: &str, life: &std::sync::Arc<Life>, sent: Instant) -> u64 {
        let mut state = lock(&self.state);
        state.next_run += 1;
        let number = state.next_run;
        let run = Run {
            job: job.to_owned(),
            claim: claim.to_owned(),
            life: life.clone(),
            end_sent: None,
            superseded: None,
            counted: false,
        };
        let mut findings = Vec::new();
        match state.jobs.get(job).cloned() {
            None => findings.push(format!("{claim} was handed {job}, which no client has added")),
            Some(entry) => self.check_start(&mut state, &run, number, &entry, sent, &mut findings),
        }
        state.runs.insert(number, run);
        drop(state);
        self.log(&format!("start {job} run {number} {claim}"));
        findings.into_iter().for_each(|finding| self.finding(finding));
        number
    }

    fn check_start(
        &self,
        state: &mut State,
        run: &Run,
        number: u64,
        entry: &Entry,
        sent: Instant,
        findings: &mut Vec<String>,
    ) {
        let Run { job, claim, .. } = run;
        if entry.again == 0 && entry.cancelled.is_some_and(|at| at < sent) {
            findings.push(format!("{claim} was handed {job}, whose cancelling was acknowledged before"));
        }
        // A job that was added again or retried has no dependencies.
        let after = if entry.again == 0 { entry.after.as_slice() } else { &[] };
        for (before, _) in after {
            // For other kinds, a server may know the end before any client does.
            let has_known_end = |entry: &Entry| {
                matches!(entry.kind, Kind::Done | Kind::Flaky | Kind::Failing)
                    && entry.after.iter().all(|(_, cancels)| !cancels)
            };
            let open = |entry: &Entry| has_known_end(entry) && !entry.end_sent && !entry.cancel_tried;
            if state.jobs.get(before).is_some_and(open) {
                findings.push(format!("{claim} was handed {job}, and {before} has not ended"));
            }
        }
        for held in &entry.exclusive {
            let Some(other) = state.holds.insert(held.clone(), number) else { continue };
            let Some(other) = state.runs.get_mut(&other).filter(|other| other.end_sent.is_none()) else {
                continue;
            };
            other.superseded = Some((Instant::now(), format!("{held} for {job} under {claim}")));
            if other.life.is_healthy(self.safe) {
                findings.push(format!(
                    "{claim} was handed {job} with {held}, which {} holds under {}, whose worker was heard a moment ago",
                    other.job, other.claim
                ));
            }
        }
        if let Some((name, limit)) = &entry.limit {
            let mut running = state.limited.remove(name).unwrap_or_default();
            running.retain(|other| {
                state.runs.get(other).is_some_and(|run| run.end_sent.is_none() && run.superseded.is_none())
            });
            running.insert(number);
            let live = running.iter().filter_map(|other| state.runs.get(other));
            let live = 1 + live.filter(|run| run.life.is_healthy(self.safe)).count();
            if live > *limit {
                findings.push(format!("{live} jobs run under concurrency:{limit}:{name}, {job} among them"));
            }
            state.limited.insert(name.clone(), running);
        }
    }

    /// Notes that a run is about to report its end. `last` if this ends the job.
    pub fn ending(&self, number: u64, end: &str, last: bool) {
        let mut state = lock(&self.state);
        let State { runs, jobs, holds, .. } = &mut *state;
        let Some(run) = runs.get_mut(&number) else { return };
        run.end_sent.get_or_insert_with(Instant::now);
        if let Some(entry) = jobs.get_mut(&run.job) {
            for held in &entry.exclusive {
                if holds.get(held) == Some(&number) {
                    holds.remove(held);
                }
            }
            entry.end_sent |= last;
            if end == "completed" && !entry.told.contains(&number) {
                entry.told.push(number);
            }
        }
        let line = format!("end {} run {number} {}: {end}", run.job, run.claim);
        drop(state);
        self.log(&line);
    }

    /// Notes that a write of a run was accepted. `sent` is when it was first sent, `end` how the run ended, and `answer`
    /// holds the job's state.
    pub fn took(&self, number: u64, sent: Instant, end: Option<&str>, answer: &Value) {
        let mut state = lock(&self.state);
        let State { runs, jobs, .. } = &mut *state;
        let Some(run) = runs.get_mut(&number) else { return };
        let mut findings = Vec::new();
        let sent = if end.is_some() { run.end_sent.unwrap_or(sent) } else { sent };
        if let Some((at, to)) = run.superseded.as_ref().filter(|(at, _)| *at < sent) {
            findings.push(format!(
                "a write of {} under {} was accepted {:?} after it had lost {to}",
                run.job,
                run.claim,
                at.elapsed()
            ));
        }
        let counts = end.is_some() && answer["state"].as_str() == end && !run.counted;
        if let Some(entry) = jobs.get_mut(&run.job).filter(|_| counts) {
            run.counted = true;
            entry.ends += 1;
            if entry.ends > 1 + entry.again {
                let (ends, again) = (entry.ends, entry.again);
                findings
                    .push(format!("{} has ended {ends} times, and was added again {again} times", run.job));
            }
        }
        drop(state);
        findings.into_iter().for_each(|finding| self.finding(finding));
    }

    /// Forgets a run whose end has been answered.
    pub fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        // A run that never reported its end is kept: it may hold what another run receives.
        if state.runs.get(&number).is_some_and(|run| run.end_sent.is_some()) {
            state.runs.remove(&number);
        }
    }
}
