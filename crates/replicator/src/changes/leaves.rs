//! The leaf revisions that the target has already, for runs that have nearly nothing to copy.
//!
//! A run without a checkpoint asks about every revision. `_revs_diff` finds documents by id, but neighbouring changes are
//! far apart by id, so CouchDB reads other parts of its file for each: 100,000 documents cost 6.6 CPU seconds. A row of
//! `_changes` costs a quarter of that. So once the target turns out to have nearly everything, the run reads the target's
//! `_changes`, and keeps a hash of each row. Meanwhile the source's feed is closed, because both servers may be one machine.
//! A change of the source whose document has exactly the same leaves in the target is then not asked about; all others are
//! asked about as before. A revision disappears from a database only by a purge, so what the target had, it still has.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout, timeout_at};
use turnwise_outbound::{Error, Fault, Peer, beginning};

use super::request::RequestForm;
use super::{Change, Envelope, Feed, ROW_BYTES, Row};
use crate::database::Info;
use crate::json_stream::{Shape, Splitter};
use crate::seq::Seq;
use crate::spec::Replication;

/// The target's feed is read once it had at least nine tenths of this many revisions that came one after the other.
const TELLING: u64 = 4_000;
/// Documents of the smallest source for which that is worthwhile. A smaller one takes a second in any case.
const LEAST_DOCUMENTS: u64 = 20_000;
/// The target's feed is not read if one side has more than this many documents for each one of the other.
const MOST_PER_DOCUMENT: u64 = 2;
/// The source's feed waits for at most this long.
const LONGEST: Duration = Duration::from_secs(600);
/// The most rows that all runs of a process keep, 8 bytes for each.
const MOST_ROWS: u32 = 8_000_000;

static ROOM: Semaphore = Semaphore::const_new(MOST_ROWS as usize);

/// The leaves of the target's documents, if this run has read them.
#[derive(Debug, Default)]
pub(crate) struct TargetLeaves {
    /// Revisions in the latest batches, of which the target had nearly all.
    present: AtomicU64,
    phase: watch::Sender<Phase>,
    /// With a random key, so that nobody can make up documents with equal hashes.
    hasher: RandomState,
    hashes: OnceLock<Hashes>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is not known yet whether the target has nearly everything.
    #[default]
    Unknown,
    /// It has, and its feed is read.
    Reading,
    /// The feed has been read, or will not be.
    Over,
}

#[derive(Debug)]
struct Hashes {
    /// Of each document's id and leaves, in ascending order.
    sorted: Vec<u64>,
    _room: SemaphorePermit<'static>,
}

impl TargetLeaves {
    /// Notes how many of a batch's revisions the target lacked.
    pub fn learn(&self, revisions: u64, missing: u64) {
        if missing.saturating_mul(10) > revisions {
            self.present.store(0, Ordering::Relaxed);
        } else if self.present.fetch_add(revisions, Ordering::Relaxed) + revisions >= TELLING {
            self.phase.send_if_modified(|phase| {
                let begins = *phase == Phase::Unknown;
                if begins {
                    *phase = Phase::Reading;
                }
                begins
            });
        }
    }

    /// Whether the target's feed is read now.
    pub(super) fn are_read(&self) -> bool {
        *self.phase.borrow() == Phase::Reading
    }

    /// Waits while the target's feed is read.
    pub(super) async fn until_read(&self) {
        // The sender lives as long as this.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Reading).await;
    }

    /// Whether the target is known to have exactly these leaves of a document.
    pub(super) fn have(&self, id: &RawValue, leaves: &[Change<'_>]) -> bool {
        self.hashes.get().is_some_and(|known| known.sorted.binary_search(&self.hash(id, leaves)).is_ok())
    }

    fn hash(&self, id: &RawValue, leaves: &[Change<'_>]) -> u64 {
        let mut revs: Vec<&str> = leaves.iter().map(|leaf| leaf.rev.get()).collect();
        revs.sort_unstable();
        self.hasher.hash_one((id.get(), revs))
    }

    /// Waits until the target has had nearly all of a run's revisions, and reads its leaves. Returns without them if they
    /// are not worthwhile for this run, or cannot be read. `start` is where the run begins.
    pub async fn read(&self, target: &Peer, replication: &Replication, infos: (&Info, &Info), start: &Seq) {
        let (on_source, on_target) = (infos.0.documents(), infos.1.documents());
        let is_worthwhile = replication.filter.is_none()
            && start.number() == Some(0)
            && on_source >= LEAST_DOCUMENTS
            && on_target <= on_source.saturating_mul(MOST_PER_DOCUMENT)
            && on_source <= on_target.saturating_mul(MOST_PER_DOCUMENT)
            && !infos.1.is_pouchdb();
        if let Some(rows) = u32::try_from(on_target).ok().filter(|_| is_worthwhile) {
            let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Reading).await;
            self.read_rows(target, replication, rows).await;
        }
        self.phase.send_replace(Phase::Over);
    }

    async fn read_rows(&self, target: &Peer, replication: &Replication, rows: u32) {
        let Ok(room) = ROOM.try_acquire_many(rows) else {
            tracing::debug!(rows, "other replications have the memory for the target's revisions");
            return;
        };
        let Ok(read) = timeout(LONGEST, self.hashes(target, replication, rows as usize)).await else {
            tracing::debug!(limit = ?LONGEST, "the target's changes take too long to read");
            return;
        };
        match read {
            Ok(sorted) => {
                tracing::debug!(rows = sorted.len(), "the target's revisions are known");
                let _ = self.hashes.set(Hashes { sorted, _room: room });
            }
            Err(error) => tracing::debug!(%error, "the target's changes cannot be read"),
        }
    }

    /// Reads the target's feed to its end, up to `most` rows.
    async fn hashes(&self, target: &Peer, replication: &Replication, most: usize) -> Result<Vec<u64>, Error> {
        let form = RequestForm::new(replication, target, false);
        let silence = target.timeout();
        let mut answer = target.send(&form.ask(Feed::Normal, &Seq::zero(), false, false, silence)).await?;
        let mut splitter = Splitter::new(Shape::Array, ROW_BYTES);
        let mut hashes = Vec::with_capacity(most);
        // A feed may be dead behind its heartbeats, so only rows count.
        let mut silent_at = Instant::now() + silence;
        loop {
            let piece = match timeout_at(silent_at, answer.chunk()).await {
                Ok(piece) => piece?,
                Err(_) => return Err(answer.fault(Fault::Silent(silence))),
            };
            let Some(piece) = piece else { break };
            let parsed = splitter.push(&piece, |text| -> Result<(), String> {
                let row: Row<'_> = serde_json::from_slice(text)
                    .map_err(|error| format!("{error} in {}", beginning(text)))?;
                silent_at = Instant::now() + silence;
                if let Some(id) = row.id
                    && hashes.len() < most
                {
                    hashes.push(self.hash(id, &row.changes));
                }
                Ok(())
            });
            parsed.map_err(|cause| answer.malformed(cause))?;
            answer.rest(splitter.is_at_rest());
        }
        let envelope = splitter.finish().map_err(|cause| answer.fault(Fault::BrokeOff(cause.to_string())))?;
        Envelope::last_seq(&envelope, &answer)?;
        hashes.sort_unstable();
        Ok(hashes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn only_a_document_with_exactly_the_same_leaves_is_known() {
        let leaves = TargetLeaves::default();
        let (id, other) = (raw(r#""a""#), raw(r#""b""#));
        let (one, two) = (raw(r#""1-x""#), raw(r#""2-y""#));
        let (one, two) = (|| Change { rev: &one }, || Change { rev: &two });
        assert!(!leaves.have(&id, &[one()]), "nothing is known before the feed was read");
        let sorted = vec![leaves.hash(&id, &[one(), two()])];
        leaves.hashes.set(Hashes { sorted, _room: ROOM.try_acquire().unwrap() }).unwrap();
        assert!(leaves.have(&id, &[one(), two()]) && leaves.have(&id, &[two(), one()]));
        assert!(!leaves.have(&id, &[one()]) && !leaves.have(&id, &[two()]) && !leaves.have(&id, &[]));
        assert!(!leaves.have(&other, &[one(), two()]));
    }

    #[test]
    fn the_feed_is_wanted_after_thousands_of_revisions_that_the_target_had() {
        let leaves = TargetLeaves::default();
        leaves.learn(3_000, 0);
        leaves.learn(500, 51);
        leaves.learn(3_000, 300);
        assert!(!leaves.are_read());
        leaves.learn(1_000, 0);
        assert!(leaves.are_read());
        leaves.phase.send_replace(Phase::Over);
        leaves.learn(9_000, 0);
        assert!(!leaves.are_read(), "they are read at most once");
    }
}
