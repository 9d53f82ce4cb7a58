//! The thread that writes full memtables to the base, and recycles used segments of the log.
//!
//! At most one memtable is being written. If the next one is full before this is done, the committer waits. That limits
//! memory and the log: two memtables, three segments.
//!
//! The thread retries a failure for as long as the store is open: it reopens the base and repeats the checkpoint. Meanwhile the
//! committer receives the reason why there is no next segment. Acknowledged writes are safe in the log.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use super::base::Base;
use super::disk::{DiskFile, DiskFolder, at};
use super::health::Patience;
use super::memtable::Memtable;
use super::view::Tables;
use super::wal::Segment;
use crate::sync::Mutex;
use crate::{Error, Result};

/// The pause between two attempts to write the log.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pause between two attempts at a checkpoint. Each failed attempt also fails the reads at that moment.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(1);

/// A memtable that no longer changes, and the files of the log that are free once it is in the base.
pub(super) struct Frozen {
    pub(super) version: u64,
    pub(super) memtable: Arc<Memtable>,
    pub(super) files: Vec<DiskFile>,
    /// The first segment of the log from then on.
    pub(super) next: u64,
}

/// The state that the committer and the thread share.
#[derive(Default)]
pub(super) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The memtable that waits or is being written.
    frozen: Option<Frozen>,
    /// The segment after the one that receives records.
    spare: Option<Segment>,
    /// A read has failed, so the base must be reopened.
    broken: bool,
    /// The error of the latest attempt, if it failed.
    failed: Option<Error>,
    closed: bool,
}

/// The work of one attempt.
struct Work {
    frozen: Option<(u64, Arc<Memtable>, u64)>,
    needs_spare: bool,
}

impl Checkpoints {
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no memtable is being written, and returns the next segment.
    ///
    /// # Errors
    /// The reason why there is no segment now. The thread tries again.
    pub(super) fn next_segment(&self) -> Result<Segment> {
        let mut state = self.state.lock();
        loop {
            if state.frozen.is_none()
                && let Some(spare) = state.spare.take()
            {
                drop(state);
                self.changed.notify_all();
                return Ok(spare);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.wait(state);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Passes a memtable to the thread.
    pub(super) fn start(&self, frozen: Frozen) {
        self.change(|state| state.frozen = Some(frozen));
    }

    /// Requests that the base is reopened, after a read has failed.
    pub(super) fn mend(&self) {
        self.change(|state| state.broken = true);
    }

    /// Tells the thread to end after the current checkpoint.
    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Waits for work. Returns `None` once the store is closed.
    fn next_work(&self) -> Option<Work> {
        let mut state = self.state.lock();
        while state.frozen.is_none() && state.spare.is_some() && !state.broken && !state.closed {
            state = self.wait(state);
        }
        let frozen = state.frozen.as_ref();
        let frozen = frozen.map(|frozen| (frozen.version, frozen.memtable.clone(), frozen.next));
        let work = Work { frozen, needs_spare: state.spare.is_none() };
        (!state.closed).then_some(work)
    }

    /// Waits before the next attempt, unless the store is closed.
    fn pause(&self) {
        // A read that has failed meanwhile does not wait.
        let open = |state: &mut State| !state.closed && !state.broken;
        drop(self.changed.wait_timeout_while(self.state.lock(), CHECKPOINT_PAUSE, open));
    }
}

pub(super) struct Checkpointer {
    pub(super) shared: Arc<Shared>,
    pub(super) base: Base,
    pub(super) log: DiskFolder,
    /// The segments that the base requires.
    pub(super) segments: std::ops::RangeInclusive<u64>,
    /// Files of the log that are no longer needed.
    pub(super) used: Vec<DiskFile>,
    pub(super) patience: Patience,
}

impl Checkpointer {
    /// Writes checkpoints until the store is closed.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        while let Some(work) = shared.checkpoints.next_work() {
            let attempt = self.attempt(work);
            let failed = attempt.as_ref().err().cloned();
            shared.checkpoints.change(|state| state.failed = failed);
            match attempt {
                Ok(()) => self.patience.works(),
                Err(error) => {
                    self.patience.bear(&error, "the store cannot write a checkpoint", &shared);
                    // Reads can then continue meanwhile. If this fails, the next attempt starts with it.
                    drop(self.mend());
                    shared.checkpoints.pause();
                }
            }
        }
    }

    /// Reopens the base if it has failed.
    fn mend(&mut self) -> Result<()> {
        self.shared.checkpoints.state.lock().broken = false;
        if self.base.has_failed() {
            let reopened = self.base.reopen();
            if self.base.is_readable() {
                self.show(false)?;
            }
            reopened?;
        }
        Ok(())
    }

    fn attempt(&mut self, work: Work) -> Result<()> {
        self.mend()?;
        if let Some((version, memtable, next)) = work.frozen {
            self.write_to_base(version, &memtable, next)?;
            if let Some(frozen) = self.shared.checkpoints.state.lock().frozen.take() {
                self.used.extend(frozen.files);
            }
        }
        if work.needs_spare {
            let spare = self.spare()?;
            self.shared.checkpoints.state.lock().spare = Some(spare);
        }
        Ok(())
    }

    /// Writes a memtable to the base, and makes new snapshots read it there.
    fn write_to_base(&mut self, version: u64, memtable: &Memtable, next: u64) -> Result<()> {
        // Damaged data is not overwritten, because it may have to be examined.
        self.shared.health.check()?;
        // It may already be there: the error may have come after all was written.
        let stored = self.base.stored()?;
        if stored.version < version || stored.segments.is_none_or(|segments| *segments.start() < next) {
            self.base.checkpoint(version, memtable, next)?;
        }
        self.segments = next..=*self.segments.end();
        self.show(true)?;
        self.shared.stats.checkpoints.add(1);
        Ok(())
    }

    /// Makes new snapshots read the current base, without the frozen memtable if the base now has its rows.
    fn show(&self, has_frozen: bool) -> Result<()> {
        let base = Arc::new(self.base.view()?);
        self.shared.replace_tables(|tables| {
            let frozen = tables.frozen.clone().filter(|_| !has_frozen);
            Tables { frozen, base, ..tables.clone() }
        });
        Ok(())
    }

    /// The next segment, from a used file if there is one. Deletes all other used files.
    fn spare(&mut self) -> Result<Segment> {
        while self.used.len() > 1
            && let Some(file) = self.used.last()
        {
            std::fs::remove_file(file.path()).map_err(|error| at(file.path(), &error))?;
            self.used.pop();
        }
        let number = self.segments.end() + 1;
        let mut old = self.used.pop();
        let made = Segment::create(&self.log, number, &mut old);
        self.used.extend(old);
        let segment = made.map_err(|error| at(self.log.path(), &error))?;
        let segments = *self.segments.start()..=number;
        if let Err(error) = self.base.demand(&segments) {
            self.used.push(segment.into_file());
            return Err(error);
        }
        self.segments = segments;
        Ok(segment)
    }
}

impl Drop for Checkpointer {
    /// On close or panic: the committer must not wait for a thread that has ended.
    fn drop(&mut self) {
        self.shared.checkpoints.change(|state| {
            state.failed.get_or_insert_with(|| Error::Unavailable("checkpoints have ended".into()));
        });
        if std::thread::panicking() {
            self.shared.end("the thread of the store's checkpoints has panicked");
        }
    }
}
