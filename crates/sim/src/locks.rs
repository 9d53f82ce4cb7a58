//! The invariants of locks, checked at every commit. [`turnwise_queue::check`] checks that rows and records agree. This
//! module compares every job with every other one, by rules of its own.
//!
//! - No two jobs hold locks that exclude each other, and no more units are held than exist.
//! - A job takes a lock with its claim, or because its run requested it. It loses the lock with the claim, or because its
//!   run gave it back.
//! - A job that takes a lock does not overtake jobs before it in the lock's queue. With its claim, it overtakes no
//!   reservation. Later, it overtakes no waiting run, unless that run might wait for it.
//! - No run waits for a lock that comes before one that it holds, and no jobs wait in a cycle.
//!
//! The module also knows which locks are free, and since when, for [`crate::liveness`].

use std::collections::{BTreeMap, BTreeSet};

use turnwise_policy::predictive_queue::locks::{Levels, Mode};
use turnwise_queue::check::Row;
use turnwise_queue::locks::{Held, HolderRow, LockAt, QueueRow, Spot};
use turnwise_queue::{Claim, Job};

use crate::broken::{Broken, ensure};
use crate::core::Stats;
use crate::ledger::JobKey;
use crate::model::JobRows;
use crate::rows::RowChange;

/// What the checker knows about locks.
pub struct Locks {
    levels: Levels,
    held: BTreeMap<(Spot, Mode, JobKey), HolderRow>,
    queued: BTreeMap<(Spot, i64, JobKey), QueueRow>,
    /// The locks that runs have requested, and those that they have given back.
    asked: BTreeSet<(Claim2, Spot)>,
    given_back: BTreeSet<(Claim2, Spot)>,
    /// Jobs that wait for locks, before their claims or during their runs, and since when the locks are free, in µs since
    /// the world began.
    free_since_us: BTreeMap<JobKey, i64>,
}

/// A claim as a key.
type Claim2 = (String, u64);

fn key(claim: &Claim) -> Claim2 {
    (claim.worker.clone(), claim.number)
}

/// The effects of one commit on locks.
#[derive(Default)]
pub struct Touched {
    taken: Vec<(JobKey, LockAt, HolderRow)>,
    released: Vec<(JobKey, LockAt, HolderRow)>,
    entered: BTreeSet<(Spot, i64, JobKey)>,
    left: bool,
}

impl Touched {
    fn any(&self) -> bool {
        self.left || !(self.taken.is_empty() && self.released.is_empty() && self.entered.is_empty())
    }
}

/// A job that wants a lock.
struct Wanter<'a> {
    job: &'a JobKey,
    lock: &'a LockAt,
    /// Its ticket, if it has one.
    ticket: Option<i64>,
    /// Whether it holds a lock of the level; `None` for a claim.
    inside: Option<bool>,
}

/// Whether two locks are on the same resource, or one covers all resources of a level that the other is in.
fn meets(one: &Spot, other: &Spot) -> bool {
    one == other
        || one.level.is_some() && one.level == other.level && (one.name.is_none() || other.name.is_none())
}

impl Locks {
    /// A state without locks.
    pub fn new(levels: Levels) -> Self {
        Locks {
            levels,
            held: BTreeMap::new(),
            queued: BTreeMap::new(),
            asked: BTreeSet::new(),
            given_back: BTreeSet::new(),
            free_since_us: BTreeMap::new(),
        }
    }

    /// Notes that a run requests a lock.
    pub fn ask(&mut self, claim: &Claim, spot: &Spot) {
        self.asked.insert((key(claim), spot.clone()));
    }

    /// Notes that a run gives a lock back.
    pub fn give_back(&mut self, claim: &Claim, spot: &Spot) {
        self.given_back.insert((key(claim), spot.clone()));
    }

    /// Whether a claim holds enough to cover a lock.
    pub fn holds(&self, job: &JobKey, claim: &Claim, lock: &LockAt) -> bool {
        let counted = self.capacity(&lock.spot).is_some();
        self.held.iter().any(|((spot, mode, holder), row)| {
            let covers = *spot == lock.spot && (*mode == Mode::Exclusive || row.units >= lock.units)
                || spot.name.is_none() && meets(spot, &lock.spot) && (*mode == Mode::Exclusive || !counted);
            let mode_does = *mode == Mode::Exclusive || lock.mode == Mode::Shared;
            holder == job && row.claim == *claim && covers && mode_does
        })
    }

    /// Since when the locks that a waiting job wants are free, if they are.
    pub fn free_since_us(&self, job: &JobKey) -> Option<i64> {
        self.free_since_us.get(job).copied()
    }

    /// The rows that are left, as text.
    pub fn left(&self) -> Vec<String> {
        let held = self.held.keys().map(|key| format!("{key:?}"));
        held.chain(self.queued.keys().map(|key| format!("{key:?}"))).collect()
    }

    fn capacity(&self, spot: &Spot) -> Option<u32> {
        let level = self.levels.position(spot.level.as_deref()?)?;
        self.levels.capacity(level, spot.name.as_deref()?)
    }

    /// Notes a changed row. Returns whether it is a row about locks.
    pub fn observe(
        &mut self,
        row: &Row,
        change: &RowChange,
        touched: &mut Touched,
    ) -> Result<bool, serde_json::Error> {
        match row {
            Row::Lock(job, spot, mode) => {
                let at = (spot.clone(), *mode, job.clone());
                if let Some(row) = self.held.remove(&at) {
                    let lock = LockAt { spot: spot.clone(), mode: *mode, units: row.units };
                    touched.released.push((job.clone(), lock, row));
                }
                if let Some(value) = &change.new {
                    let row: HolderRow = serde_json::from_slice(value)?;
                    let lock = LockAt { spot: spot.clone(), mode: *mode, units: row.units };
                    touched.taken.push((job.clone(), lock, row.clone()));
                    self.held.insert(at, row);
                }
            }
            Row::LockQueue(job, spot, ticket) => {
                let at = (spot.clone(), *ticket, job.clone());
                touched.left |= self.queued.remove(&at).is_some();
                if let Some(value) = &change.new {
                    self.queued.insert(at.clone(), serde_json::from_slice(value)?);
                    touched.entered.insert(at);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the effects of a commit. `jobs` are the jobs that it changed, with their records before it.
    pub fn check(
        &mut self,
        touched: &Touched,
        jobs: &BTreeMap<JobKey, Option<Job>>,
        known: &BTreeMap<JobKey, JobRows>,
        count: impl FnOnce(&dyn Fn(&mut Stats)),
    ) -> Result<(), Broken> {
        if !touched.any() {
            return Ok(());
        }
        let is = |job: &JobKey| known.get(job).and_then(|rows| rows.record.as_ref());
        let was = |job: &JobKey| jobs.get(job).and_then(Option::as_ref).or_else(|| is(job));
        for (job, lock, row) in &touched.taken {
            self.check_taken(job, lock, row, (was(job), is(job)), touched)?;
        }
        for (job, lock, row) in &touched.released {
            self.check_released(job, lock, row, (was(job), is(job)), touched)?;
        }
        for (spot, ticket, job) in &touched.entered {
            self.check_entered(spot, *ticket, job, is(job))?;
        }
        self.check_circles()?;
        let is_new = |(job, lock, _): &&(JobKey, LockAt, HolderRow)| {
            !touched.released.iter().any(|(other, was, _)| (other, was) == (job, lock))
        };
        let taken = touched.taken.iter().filter(is_new).count() as u64;
        let waits = |at: &&(Spot, i64, JobKey)| self.queued[*at].waits.is_some();
        let waited = touched.entered.iter().filter(waits).count() as u64;
        let reserved: BTreeSet<&JobKey> =
            touched.entered.iter().filter(|at| !waits(at)).map(|(_, _, job)| job).collect();
        count(&|stats| {
            stats.locks += taken;
            stats.waits += waited;
            stats.reservations += reserved.len() as u64;
        });
        Ok(())
    }

    fn check_taken(
        &self,
        job: &JobKey,
        lock: &LockAt,
        row: &HolderRow,
        (was, is): (Option<&Job>, Option<&Job>),
        touched: &Touched,
    ) -> Result<(), Broken> {
        let story = || format!("{job:?} takes {lock} under {:?}", row.claim);
        let replaced =
            touched.released.iter().find(|(other, was, _)| (other, &was.spot) == (job, &lock.spot));
        if let Some((_, before, row_before)) = replaced {
            ensure(row_before.claim == row.claim, "a lock changes hands only when it is free", story)?;
            if before == lock {
                // The row describes the job differently, but the lock is the same.
                return Ok(());
            }
        }
        ensure(
            is.is_some_and(|is| is.claim() == Some(&row.claim)),
            "a lock is taken under the claim that holds the job",
            story,
        )?;
        let goes_on = was.is_some_and(|was| was.claim() == Some(&row.claim));
        let asked = self.asked.contains(&(key(&row.claim), lock.spot.clone()));
        ensure(!goes_on || asked, "a run takes no lock that it has not asked for", story)?;
        let others = |(spot, mode, other): &&(Spot, Mode, JobKey)| {
            let excludes = *mode == Mode::Exclusive || lock.mode == Mode::Exclusive;
            // An exclusive big lock excludes all other locks.
            let alone = *mode == Mode::Exclusive && spot.level.is_none()
                || lock.mode == Mode::Exclusive && lock.spot.level.is_none();
            other != job && (alone || excludes && meets(spot, &lock.spot))
        };
        if let Some(other) = self.held.keys().find(others) {
            return Err((
                "nobody holds what does not go with another's",
                format!("{} but {other:?}", story()),
            ));
        }
        if let Some(most) = self.capacity(&lock.spot).filter(|_| lock.mode == Mode::Shared) {
            let units = self.shared(&lock.spot).map(|(_, units)| units).sum::<u32>();
            ensure(units <= most, "no more units are held than exist", || {
                format!("{units} of {most}: {}", story())
            })?;
        }
        let inside = match (goes_on, &lock.spot.level) {
            (false, _) => None,
            (true, None) => Some(true),
            (true, Some(level)) => {
                let before = was.and_then(|was| was.held()).is_some_and(|held| held.is_inside(level));
                let of_level = |(other, other_lock, _): &&(JobKey, LockAt, HolderRow)| {
                    other == job && other_lock.spot.level.as_ref() == Some(level)
                };
                Some(before || touched.taken.iter().filter(of_level).count() > 1)
            }
        };
        let ticket = was.and_then(|was| match (goes_on, &was.waits()) {
            (false, _) => was.reserved(),
            (true, Some(waits)) if waits.lock.spot == lock.spot => Some(waits.ticket),
            (true, _) => None,
        });
        let wanter = Wanter { job, lock, ticket, inside };
        let before: Vec<_> = self
            .stands_before(&wanter)
            // Entries of this commit came after the lock was taken.
            .filter(|at| !touched.entered.contains(*at))
            .collect();
        let invariant = match goes_on {
            true => "who comes first is served first",
            false => "a reservation is kept",
        };
        let against = before
            .iter()
            .find(|at| lock.mode == Mode::Exclusive || self.queued[**at].mode == Mode::Exclusive);
        if let Some(other) = against {
            return Err((invariant, format!("{} but {other:?} {:?}", story(), self.queued[*other])));
        }
        if let Some(most) = self.capacity(&lock.spot).filter(|_| lock.mode == Mode::Shared) {
            let first = before.iter().filter(|at| at.0 == lock.spot).map(|at| self.queued[*at].units);
            let units = self.shared(&lock.spot).map(|(_, units)| units).sum::<u32>() + first.sum::<u32>();
            ensure(units <= most, invariant, || format!("{} but {before:?}", story()))?;
        }
        if goes_on || lock.spot.level.is_some() {
            return Ok(());
        }
        // For the parts of a claim that are not known yet, all reservations count.
        let unknown = is.into_iter().flat_map(unknown).find_map(|lock| {
            let wanter = Wanter { job, lock: &lock, ticket, inside: None };
            let mut before = self.stands_before(&wanter).filter(|at| {
                let row = &self.queued[*at];
                let against = lock.mode == Mode::Exclusive || row.mode == Mode::Exclusive;
                row.waits.is_none() && against && !touched.entered.contains(*at)
            });
            before.next().map(|at| format!("{lock}: {at:?}"))
        });
        ensure(unknown.is_none(), invariant, || format!("{}, perhaps {unknown:?}", story()))
    }

    /// The shared units of a resource, by holder.
    fn shared<'a>(&'a self, spot: &'a Spot) -> impl Iterator<Item = (&'a JobKey, u32)> {
        let of_it = self.held.iter().filter(move |((at, mode, _), _)| at == spot && *mode == Mode::Shared);
        of_it.map(|((_, _, job), row)| (job, row.units))
    }

    /// The queue entries before a job that wants a lock, if their locks meet that lock.
    fn stands_before<'a>(
        &'a self,
        wanter: &'a Wanter<'a>,
    ) -> impl Iterator<Item = &'a (Spot, i64, JobKey)> + 'a {
        let Wanter { job, lock, ticket, inside } = wanter;
        let before = move |((spot, at, other), row): &(&(Spot, i64, JobKey), &QueueRow)| {
            let first = ticket.is_none_or(|own| (*at, other) < (own, job));
            let binds = match (inside, &row.waits) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(inside), Some(waiter)) => waiter.inside || !inside,
            };
            other != *job && first && binds && meets(spot, &lock.spot)
        };
        self.queued.iter().filter(before).map(|(at, _)| at)
    }

    /// A lock is released with its claim, because its run gave it back, or because the job takes more of the same resource.
    fn check_released(
        &self,
        job: &JobKey,
        lock: &LockAt,
        row: &HolderRow,
        (was, is): (Option<&Job>, Option<&Job>),
        touched: &Touched,
    ) -> Result<(), Broken> {
        let story = || format!("{job:?} loses {lock} under {:?}", row.claim);
        let held = was.is_some_and(|was| was.claim() == Some(&row.claim));
        ensure(held, "a lock is released with its claim", story)?;
        let goes_on = is.is_some_and(|is| is.claim() == Some(&row.claim));
        let replaced = touched.taken.iter().any(|(other, is, _)| (other, &is.spot) == (job, &lock.spot));
        let given_back = self.given_back.contains(&(key(&row.claim), lock.spot.clone()));
        ensure(!goes_on || replaced || given_back, "a run keeps a lock until it releases it or ends", story)
    }

    fn check_entered(&self, spot: &Spot, ticket: i64, job: &JobKey, is: Option<&Job>) -> Result<(), Broken> {
        let row = &self.queued[&(spot.clone(), ticket, job.clone())];
        let story = || format!("{job:?} waits for {spot} with {ticket}: {row:?}");
        let Some(waiter) = &row.waits else { return Ok(()) };
        let asked = self.asked.contains(&(key(&waiter.claim), spot.clone()));
        ensure(asked, "a run waits for no lock that it has not asked for", story)?;
        let last =
            self.queued.keys().filter(|(at, _, other)| at == spot && other != job).map(|at| at.1).max();
        ensure(last.is_none_or(|last| last < ticket), "a new entry of a queue is its last", || {
            format!("{}, behind {last:?}", story())
        })?;
        let place = |spot: &Spot| spot.level.as_deref().map(|level| self.levels.position(level));
        let is_below = |held: &LockAt| match (&held.spot.level, &held.spot.name) {
            (None, _) => spot.level.is_some(),
            (Some(_), None) => place(&held.spot) < place(spot),
            (Some(_), name) => (place(&held.spot), name) < (place(spot), &spot.name),
        };
        let held = is.and_then(|is| is.held()).map(Held::locks).unwrap_or_default();
        let above = held.iter().find(|held| !is_below(held));
        ensure(above.is_none(), "no run waits for a lock that comes before one that it holds", || {
            format!("{}, and holds {above:?}", story())
        })
    }

    /// The jobs that keep a job from a lock: holders of locks that exclude it, and jobs before it in the queue.
    fn keepers<'a>(&'a self, wanter: &Wanter<'a>) -> BTreeSet<JobKey> {
        let Wanter { job, lock, .. } = wanter;
        let excludes = |mode: Mode| mode == Mode::Exclusive || lock.mode == Mode::Exclusive;
        let holders = self
            .held
            .keys()
            .filter(|(spot, mode, other)| other != *job && excludes(*mode) && meets(spot, &lock.spot))
            .map(|(_, _, other)| other.clone());
        let before: Vec<_> = self.stands_before(wanter).collect();
        let first = before.iter().filter(|at| excludes(self.queued[**at].mode)).map(|at| at.2.clone());
        let mut keepers: BTreeSet<JobKey> = holders.chain(first).collect();
        if let Some(most) = self.capacity(&lock.spot).filter(|_| lock.mode == Mode::Shared) {
            let sharers: Vec<_> = self.shared(&lock.spot).filter(|(other, _)| other != job).collect();
            let first: Vec<_> = before.iter().filter(|at| at.0 == lock.spot).collect();
            let used = sharers.iter().map(|(_, units)| units).sum::<u32>()
                + first.iter().map(|at| self.queued[**at].units).sum::<u32>();
            if used + lock.units > most {
                keepers.extend(sharers.into_iter().map(|(other, _)| other.clone()));
                keepers.extend(first.into_iter().map(|at| at.2.clone()));
            }
        }
        keepers
    }

    /// No jobs wait in a cycle.
    fn check_circles(&self) -> Result<(), Broken> {
        let mut keepers: BTreeMap<&JobKey, BTreeSet<JobKey>> = BTreeMap::new();
        for ((spot, ticket, job), row) in &self.queued {
            let Some(waiter) = &row.waits else { continue };
            let lock = LockAt { spot: spot.clone(), mode: row.mode, units: row.units };
            let wanter = Wanter { job, lock: &lock, ticket: Some(*ticket), inside: Some(waiter.inside) };
            keepers.insert(job, self.keepers(&wanter));
        }
        // A run that no waiting run blocks continues some day. If these are removed repeatedly, the rest waits in a cycle,
        // or for one.
        loop {
            let free: Vec<&JobKey> = keepers
                .iter()
                .filter(|(_, by)| !by.iter().any(|other| keepers.contains_key(other)))
                .map(|(job, _)| *job)
                .collect();
            if free.is_empty() {
                break;
            }
            for job in free {
                keepers.remove(job);
            }
        }
        ensure(keepers.is_empty(), "no runs wait in a cycle", || format!("{keepers:#?}"))
    }

    /// Updates which jobs could have the locks that they wait for, after a commit.
    pub fn look<'a>(
        &mut self,
        touched: &Touched,
        touched_jobs: impl Iterator<Item = &'a JobKey>,
        known: &BTreeMap<JobKey, JobRows>,
        now_us: i64,
    ) {
        let keys: Vec<&JobKey> = match touched.any() {
            true => known.keys().collect(),
            // For other jobs, nothing has changed.
            false => touched_jobs.collect(),
        };
        for key in keys {
            let job = known.get(key).and_then(|rows| rows.record.as_ref());
            if job.is_some_and(|job| self.could_have(key, job)) {
                self.free_since_us.entry(key.clone()).or_insert(now_us);
            } else {
                self.free_since_us.remove(key);
            }
        }
    }

    /// Whether a job waits for locks, before or during its claim, that are free.
    fn could_have(&self, key: &JobKey, job: &Job) -> bool {
        if let Some(waits) = &job.waits() {
            let inside = self.queued.get(&(waits.lock.spot.clone(), waits.ticket, key.clone()));
            let inside = inside.and_then(|row| row.waits.as_ref()).is_some_and(|waiter| waiter.inside);
            let ticket = Some(waits.ticket);
            let wanter = Wanter { job: key, lock: &waits.lock, ticket, inside: Some(inside) };
            return self.keepers(&wanter).is_empty();
        }
        if job.locks.is_none() || job.state() != turnwise_queue::State::Pending {
            return false;
        }
        let wants = Held::known(&job.locks).map(|held| held.locks()).unwrap_or_default();
        let ticket = job.reserved();
        let known = wants
            .iter()
            .all(|lock| self.keepers(&Wanter { job: key, lock, ticket, inside: None }).is_empty());
        let reserved = unknown(job).any(|lock| {
            let wanter = Wanter { job: key, lock: &lock, ticket, inside: None };
            self.stands_before(&wanter).any(|at| {
                let row = &self.queued[at];
                row.waits.is_none() && (lock.mode == Mode::Exclusive || row.mode == Mode::Exclusive)
            })
        });
        // Waiting runs come before claims, even before claims with reservations: the pass counts what they wait for as held.
        let passed = wants.iter().any(|lock| {
            self.queued.iter().any(|((spot, ..), row)| {
                let modes = [row.mode, lock.mode].contains(&Mode::Exclusive);
                row.waits.is_some() && meets(spot, &lock.spot) && (modes || self.capacity(spot).is_some())
            })
        });
        known && !reserved && !passed
    }
}

/// The locks that a job may want at levels where it declares an unknown resource.
fn unknown(job: &Job) -> impl Iterator<Item = LockAt> {
    job.locks.unknown().map(|(level, mode)| LockAt::new(Spot::whole(level), mode))
}
