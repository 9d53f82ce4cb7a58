//! What everything in one world shares: its clock, its random numbers, its trace, and the first violation.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::rng::SeededRng;
use crate::rows::RowChange;
use crate::trace::{Event, Site, Trace, written};

/// When the world begins, in µs since the epoch. The value is arbitrary.
pub const EPOCH_US: i64 = 1_700_000_000_000_000;

/// The maximum of requests to the store in a world: a hundred times as many as a large world needs.
const MAX_REQUESTS: u64 = 50_000_000;

/// A violation of an invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The invariant, as a name.
    pub invariant: &'static str,
    /// What happened, with the rows.
    pub story: String,
}

/// Counts of what happened in a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions that were committed.
    pub commits: u64,
    /// Conflicts, both real and injected.
    pub conflicts: u64,
    /// Commits whose outcome the process did not learn.
    pub unknown: u64,
    /// How many of these took effect after the process had received the error.
    pub late: u64,
    /// Operations that were refused because the store could not be reached.
    pub unavailable: u64,
    /// Nodes that crashed.
    pub crashes: u64,
    /// Nodes that were paused.
    pub pauses: u64,
    /// Nodes that were shut down cleanly.
    pub shutdowns: u64,
    /// Runs of handlers.
    pub runs: u64,
    /// Jobs that reached a final state.
    pub ends: u64,
    /// Workers that another process removed.
    pub removals: u64,
    /// Locks that were taken.
    pub locks: u64,
    /// Runs that waited for a lock.
    pub waits: u64,
    /// Jobs that reserved their locks.
    pub reservations: u64,
    /// Jobs that were added with dependencies.
    pub dependents: u64,
    /// Jobs that were cancelled because of a dependency.
    pub refused: u64,
    /// Jobs that filters paused.
    pub paused: u64,
    /// Jobs that were limited, because a bucket had no room.
    pub held_back: u64,
    /// Jobs that filters rejected.
    pub rejected: u64,
    /// Runs that read their inputs.
    pub given: u64,
    /// Additions that found another job with their unique key.
    pub found: u64,
}

impl Stats {
    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Stats) {
        let Stats {
            commits,
            conflicts,
            unknown,
            late,
            unavailable,
            crashes,
            pauses,
            shutdowns,
            runs,
            ends,
            removals,
            locks,
            waits,
            reservations,
            dependents,
            refused,
            paused,
            held_back,
            rejected,
            given,
            found,
        } = other;
        self.commits += commits;
        self.conflicts += conflicts;
        self.unknown += unknown;
        self.late += late;
        self.unavailable += unavailable;
        self.crashes += crashes;
        self.pauses += pauses;
        self.shutdowns += shutdowns;
        self.runs += runs;
        self.ends += ends;
        self.removals += removals;
        self.locks += locks;
        self.waits += waits;
        self.reservations += reservations;
        self.dependents += dependents;
        self.refused += refused;
        self.paused += paused;
        self.held_back += held_back;
        self.rejected += rejected;
        self.given += given;
        self.found += found;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { commits, conflicts, unknown, late, unavailable, .. } = self;
        let Stats { crashes, pauses, shutdowns, runs, ends, removals, .. } = self;
        let Stats { locks, waits, reservations, dependents, refused, .. } = self;
        let Stats { paused, held_back, rejected, given, found, .. } = self;
        write!(
            f,
            "{commits} commits, {conflicts} conflicts, {unknown} unknown outcomes ({late} happened later), {unavailable} refused, \
             {crashes} crashes, {pauses} pauses, {shutdowns} shutdowns, {removals} removals, {runs} runs, {ends} ends"
        )?;
        if *locks > 0 {
            write!(f, ", {locks} locks, {waits} waits for locks, {reservations} reservations")?;
        }
        if *dependents > 0 {
            write!(f, ", {dependents} waited for others, {refused} of them in vain")?;
        }
        if paused + held_back + rejected > 0 {
            write!(f, ", {paused} paused, {held_back} held back, {rejected} rejected")?;
        }
        if given + found > 0 {
            write!(f, ", {given} read their inputs, {found} found their unique keys taken")?;
        }
        Ok(())
    }
}

/// The shared core of one world.
pub struct Core {
    /// The random numbers for the world's own decisions.
    pub rng: SeededRng,
    begun: Instant,
    trace: Mutex<Trace>,
    stats: Mutex<Stats>,
    violation: Mutex<Option<Violation>>,
    /// Notified at the first violation.
    pub failed: Notify,
    /// Whether faults happen.
    chaos: AtomicBool,
    /// Whether clients start nothing new.
    ending: AtomicBool,
    /// Requests to the store so far.
    requests: AtomicU64,
    /// The end of the last disturbance so far, in µs since the world began.
    disturbed_until_us: AtomicU64,
}

impl Core {
    /// The core of the world of `seed`, which begins now, on the clock of the surrounding runtime.
    pub fn new(seed: u64, keep_trace: bool) -> Arc<Self> {
        Arc::new(Core {
            rng: SeededRng::new(seed),
            begun: Instant::now(),
            trace: Mutex::new(Trace::new(keep_trace)),
            stats: Mutex::default(),
            violation: Mutex::default(),
            failed: Notify::new(),
            chaos: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            disturbed_until_us: AtomicU64::new(0),
        })
    }

    /// How long the world has existed, in µs.
    pub fn elapsed_us(&self) -> i64 {
        i64::try_from(self.begun.elapsed().as_micros()).expect("no world lasts that long")
    }

    /// True time, in µs since the epoch.
    pub fn now_us(&self) -> i64 {
        EPOCH_US + self.elapsed_us()
    }

    /// Notes an event.
    pub fn note(&self, site: Site, what: &'static str, text: impl Into<String>) {
        let event = Event { at_us: self.elapsed_us(), site, what, text: text.into(), rows: Vec::new() };
        lock(&self.trace).note(event);
    }

    /// Notes a commit.
    pub fn note_commit(&self, site: Site, text: String, changes: &[RowChange]) {
        self.count(|stats| stats.commits += 1);
        let event = Event { at_us: self.elapsed_us(), site, what: "commits", text, rows: written(changes) };
        lock(&self.trace).note(event);
    }

    /// Changes a count.
    pub fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut lock(&self.stats));
    }

    /// The counts so far.
    pub fn stats(&self) -> Stats {
        *lock(&self.stats)
    }

    /// The hash of the trace so far, and the lines that are kept.
    pub fn trace(&self) -> (u64, Vec<String>) {
        let trace = lock(&self.trace);
        (trace.hash(), trace.lines())
    }

    /// Reports a violation, which ends the world. Only the first one is kept, because the next ones may follow from it.
    pub fn violated(&self, invariant: &'static str, story: impl Into<String>) {
        let mut first = lock(&self.violation);
        if first.is_none() {
            *first = Some(Violation { invariant, story: story.into() });
            self.failed.notify_one();
        }
    }

    /// The first violation.
    pub fn violation(&self) -> Option<Violation> {
        lock(&self.violation).clone()
    }

    /// Counts a request to the store. A caller that requests without end, so that time never passes, is blocked forever.
    pub async fn request(&self) {
        if self.requests.fetch_add(1, Relaxed) > MAX_REQUESTS {
            self.violated(
                "a world comes to its end",
                format!("{MAX_REQUESTS} requests were made to the store"),
            );
            pending::<()>().await;
        }
    }

    /// Whether faults happen now.
    pub fn is_chaos(&self) -> bool {
        self.chaos.load(Relaxed)
    }

    /// Turns faults on or off.
    pub fn set_chaos(&self, chaos: bool) {
        self.chaos.store(chaos, Relaxed);
        self.disturb(Duration::ZERO);
    }

    /// Whether clients start nothing new.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// Makes clients start nothing new.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// Notes a disturbance that lasts from now on for `duration`.
    pub fn disturb(&self, duration: Duration) {
        let until_us = self.elapsed_us() as u64 + duration.as_micros() as u64;
        self.disturbed_until_us.fetch_max(until_us, Relaxed);
    }

    /// When the last disturbance ended or will end, in µs since the world began.
    pub fn calm_since_us(&self) -> i64 {
        self.disturbed_until_us.load(Relaxed) as i64
    }
}

/// Locks a mutex that only one thread uses.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
