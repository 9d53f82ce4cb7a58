//! Invariants of locks: of one job's rows, and of the rows of a level.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Mode;

use super::{Finding, Invariant, JobKey, JobRows, Row};
use crate::locks::{Held, HolderRow, LockAt, Spot, pending_value};
use crate::{Job, Keyspace};

/// Checks what the rows of a job's locks say, where its record names them.
pub(super) fn check_locks(
    keys: &Keyspace,
    key: &JobKey,
    job: &Job,
    rows: &JobRows,
    found: &mut impl FnMut(&[u8], String),
) {
    // Even a run that may want locks later holds the big one.
    if job.run().is_some_and(|run| run.held.is_none() && !job.locks.is_none()) {
        let problem =
            format!("it is {:?}, declares locks, and holds none, not even the big lock", job.state());
        found(&keys.job(&key.0, &key.1), problem);
    }
    let pending = job.index_row();
    if let Some(value) = rows.places.get(&pending).filter(|_| job.is_pending())
        && *value != pending_value(job)
    {
        found(&pending.key(keys, key), "its locks differ from those of the record".to_owned());
    }
    let held = held(job);
    for ((spot, mode), row) in rows.locks.iter().filter(|(lock, _)| held.contains(*lock)) {
        let name = keys.lock_holder(spot, *mode, &key.0, &key.1);
        let told = row.all.as_ref().map(|all| (&all.locks, &all.held, all.waits.as_ref()));
        let waits = job.waits().map(|waits| &waits.lock);
        if job.claim() != Some(&row.claim) {
            found(&name, "it has another claim than the record".to_owned());
        } else if *spot == Spot::BIG_LOCK && told != job.held().map(|held| (&job.locks, held, waits)) {
            found(&name, "its data differ from the record".to_owned());
        }
    }
    for (place, lock) in job.queued() {
        let Some(row) = rows.queued.get(&place) else { continue };
        let claim = row.waits.as_ref().map(|waiter| &waiter.claim);
        if claim != job.claim() || (row.mode, row.units) != (lock.mode, lock.units) {
            let name = keys.lock_queue_entry(&place.0, place.1, &key.0, &key.1);
            found(&name, "its data differ from the record".to_owned());
        }
    }
}

/// The locks that a record names.
pub(super) fn held(job: &Job) -> BTreeSet<(Spot, Mode)> {
    job.held().into_iter().flat_map(Held::locks).map(|lock| (lock.spot, lock.mode)).collect()
}

impl Job {
    /// The entries in queues of locks that the record names, each with its ticket.
    pub fn queued(&self) -> BTreeMap<(Spot, i64), LockAt> {
        let reserved = self.reserved().into_iter().flat_map(|ticket| {
            let locks = Held::known(&self.locks).map(|held| held.locks()).unwrap_or_default();
            locks.into_iter().map(move |lock| ((lock.spot.clone(), ticket), lock))
        });
        let waits = self.waits().into_iter();
        let waits = waits.map(|waits| ((waits.lock.spot.clone(), waits.ticket), waits.lock.clone()));
        reserved.chain(waits).collect()
    }

    /// The value of its pending row.
    pub fn pending_value(&self) -> Bytes {
        pending_value(self)
    }
}

/// Checks the holders of one level after the other, in the order of their keys. The exclusive holders of a level come before
/// the shared ones, and the whole level before its resources. Keeps the exclusive holders of one level.
#[derive(Debug, Default)]
pub struct LockTally {
    level: Option<Option<String>>,
    /// The exclusive holder of the whole level.
    whole: Option<JobKey>,
    /// The exclusive holders of its resources.
    exclusive: BTreeMap<String, JobKey>,
    /// The resource whose shared holders are being read.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: Option<String>,
    units: u64,
    /// The largest capacity under which one of them was granted; `None` if one of them was not counted.
    capacity: Option<u32>,
    key: Bytes,
}

impl LockTally {
    /// Enters a row; rows must come in the order of their keys. Only rows of holders count.
    pub fn enter(&mut self, key: &Bytes, row: &Row, value: &[u8]) -> Vec<Finding> {
        let Row::Lock(job, Spot { level, name }, mode) = row else { return Vec::new() };
        let Ok(holder) = serde_json::from_slice::<HolderRow>(value) else { return Vec::new() };
        let mut findings = Vec::new();
        if self.level.as_ref() != Some(level) {
            findings.extend(self.finish());
            *self = LockTally { level: Some(level.clone()), ..LockTally::default() };
        }
        let named = match name {
            Some(name) => self.exclusive.get(name),
            None => self.exclusive.values().find(|other| *other != job),
        };
        if let Some(other) = self.whole.as_ref().into_iter().chain(named).find(|other| *other != job) {
            let problem =
                format!("job {:?} of type {:?} holds a lock that excludes this one", other.1, other.0);
            findings.push(Finding::new(Invariant::LockExcludes, key, problem));
        }
        match (mode, name) {
            (Mode::Exclusive, Some(name)) => drop(self.exclusive.insert(name.clone(), job.clone())),
            (Mode::Exclusive, None) => self.whole = Some(job.clone()),
            (Mode::Shared, _) => findings.extend(self.share(key, name, &holder)),
        }
        findings
    }

    fn share(&mut self, key: &Bytes, name: &Option<String>, holder: &HolderRow) -> Option<Finding> {
        let (units, capacity) = (u64::from(holder.units), holder.capacity);
        match &mut self.shared {
            Some(shared) if shared.name == *name => {
                shared.units += units;
                shared.capacity = shared.capacity.zip(capacity).map(|(one, other)| one.max(other));
                None
            }
            shared => {
                let before = shared.replace(Shared { name: name.clone(), units, capacity, key: key.clone() });
                before.and_then(Shared::check)
            }
        }
    }

    /// Call this after the last row.
    pub fn finish(&mut self) -> Option<Finding> {
        self.shared.take().and_then(Shared::check)
    }
}

impl Shared {
    /// The last holder to take units found room under the capacity at that time. Since then, units have only been released.
    fn check(self) -> Option<Finding> {
        let most = self.capacity.filter(|most| self.units > u64::from(*most))?;
        let problem = format!("{} units are held, and the capacity was at most {most}", self.units);
        Some(Finding::new(Invariant::LockCapacity, &self.key, problem))
    }
}
