//! The thread that brings full memtables to the base, and used segments back to the log.
//!
//! At most one memtable is on its way; when the next one is full before, the committer waits. That bounds
//! memory and the log: two memtables, three segments.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::base::Base;
use super::folder::at;
use super::memtable::Memtable;
use super::view::Tables;
use super::wal::Segment;
use super::{Shared, count};
use crate::{Error, Result};

/// A memtable that changes no more, and the files of the log that can go once it is in the base.
pub(super) struct Frozen {
    pub(super) version: u64,
    pub(super) memtable: Arc<Memtable>,
    pub(super) files: Vec<PathBuf>,
}

/// What the committer and the thread tell each other.
#[derive(Default)]
pub(super) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Waiting, or on its way.
    frozen: Option<Frozen>,
    /// The segment after the one that takes records.
    spare: Option<Segment>,
    failed: Option<Error>,
    closed: bool,
}

impl Checkpoints {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no memtable is on its way, and returns the next segment.
    pub(super) fn next_segment(&self) -> Result<Segment> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.frozen.is_none()
                && let Some(spare) = state.spare.take()
            {
                return Ok(spare);
            }
            state = self.wait(state);
        }
    }

    /// Hands over a memtable.
    pub(super) fn start(&self, frozen: Frozen) {
        self.state().frozen = Some(frozen);
        self.changed.notify_all();
    }

    /// Lets the thread end, after the checkpoint that it is at.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }
}

/// The thread's own state.
pub(super) struct Checkpointer {
    pub(super) shared: Arc<Shared>,
    pub(super) base: Base,
    /// The folder of the log.
    pub(super) log: PathBuf,
    /// The number of the next spare segment.
    pub(super) next_number: u64,
    /// Files of the log that nobody needs any more.
    pub(super) used: Vec<PathBuf>,
}

impl Checkpointer {
    /// Makes checkpoints until the store is closed.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        let checkpoints = &shared.checkpoints;
        loop {
            let mut state = checkpoints.state();
            while state.frozen.is_none() && state.spare.is_some() && !state.closed {
                state = checkpoints.wait(state);
            }
            if state.closed {
                return;
            }
            let frozen = state
                .frozen
                .as_ref()
                .map(|frozen| (frozen.version, frozen.memtable.clone(), frozen.files.clone()));
            let needs_spare = state.spare.is_none();
            drop(state);

            let done = frozen.map(|(version, memtable, files)| {
                self.bring(version, &memtable).map(|()| self.used.extend(files))
            });
            let spare = if needs_spare { self.spare().map(Some) } else { Ok(None) };
            let mut state = checkpoints.state();
            match (done.transpose(), spare) {
                (Ok(done), Ok(spare)) => {
                    if done.is_some() {
                        state.frozen = None;
                    }
                    if spare.is_some() {
                        state.spare = spare;
                    }
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::error!(%error, "the store cannot write a checkpoint");
                    state.failed = Some(error);
                    drop(state);
                    checkpoints.changed.notify_all();
                    return;
                }
            }
            drop(state);
            checkpoints.changed.notify_all();
        }
    }

    /// Writes a memtable to the base, and lets new snapshots find it there.
    fn bring(&self, version: u64, memtable: &Memtable) -> Result<()> {
        self.base.checkpoint(version, memtable)?;
        let base = Arc::new(self.base.view()?);
        self.shared.replace_tables(|tables| Tables { frozen: None, base, ..tables.clone() });
        count(&self.shared.counters.checkpoints, 1);
        Ok(())
    }

    /// The next segment: a used file if there is one. All other used ones are deleted.
    fn spare(&mut self) -> Result<Segment> {
        let old = self.used.pop();
        for path in self.used.drain(..) {
            std::fs::remove_file(&path).map_err(|error| at(&path, &error))?;
        }
        let number = self.next_number;
        self.next_number += 1;
        Segment::create(&self.log, number, old.as_deref()).map_err(|error| at(&self.log, &error))
    }
}

impl Drop for Checkpointer {
    /// Whether closed or panicked: the committer does not wait for a thread that is gone.
    fn drop(&mut self) {
        let mut state = self.shared.checkpoints.state();
        state.failed.get_or_insert_with(|| Error::Unavailable("checkpoints have ended".into()));
        drop(state);
        self.shared.checkpoints.changed.notify_all();
    }
}
