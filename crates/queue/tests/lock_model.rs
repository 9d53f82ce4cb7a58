//! Locks against a model. In random histories, step by step, each answer must equal a comparison with all jobs. In
//! concurrent runs, a ledger in memory records the holders at each moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{FailureContext, T, check_all, json, open};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, Mode, Request, Requests};
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::locks::{self, Asked, Held, How, LockAt, Spot};
use turnwise_queue::{
    Claim, Context, Error, Keyspace, NewJob, Result, RunKey, State, jobs, tenants, workers,
};
use turnwise_store::{Isolation, Store, Transaction};

const JOBS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const LEVELS: [&str; 3] = ["one", "two", "pool"];
const NAMES: [&str; 3] = ["x", "y", "z"];
const CAPACITY: u32 = 3;
const SEEDS: u64 = 40;
const STEPS: i64 = 200;

fn levels() -> Levels {
    serde_json::from_str(r#"[{"name":"one"},{"name":"two"},{"name":"pool","capacity":3}]"#).unwrap()
}

fn units(rng: &mut StdRng, level: &str) -> u32 {
    if level == "pool" { rng.random_range(1..=CAPACITY) } else { 1 }
}

fn some_requests(rng: &mut StdRng) -> Requests {
    let mut requests = Requests { big_lock: rng.random_bool(0.05), ..Requests::default() };
    for level in LEVELS {
        let mut names = NAMES.to_vec();
        let mut take = |rng: &mut StdRng| names.swap_remove(rng.random_range(0..names.len()));
        let shared = match rng.random_range(0..20) {
            0..2 => Request::Shared(BTreeMap::from([(take(rng).to_owned(), units(rng, level))])),
            2..9 => Request::UnknownShared,
            9 => Request::AllShared,
            _ => Request::None,
        };
        let exclusive = match rng.random_range(0..20) {
            0..2 => Request::Exclusive([take(rng).to_owned()].into()),
            2 => Request::Exclusive([take(rng).to_owned(), take(rng).to_owned()].into()),
            3..10 => Request::UnknownExclusive,
            10 if shared != Request::AllShared => Request::AllExclusive,
            _ => Request::None,
        };
        requests.levels.insert(level.to_owned(), AtLevel::new([shared, exclusive]).unwrap());
    }
    requests.levels.retain(|_, at| !at.is_none());
    requests
}

fn some_lock(rng: &mut StdRng) -> LockAt {
    let level = *LEVELS.choose(rng).unwrap();
    let mode = if rng.random_bool(0.6) { Mode::Exclusive } else { Mode::Shared };
    match rng.random_range(0..7) {
        0 => LockAt::new(Spot::whole(level), mode),
        _ => {
            let spot = Spot::resource(level, NAMES.choose(rng).unwrap());
            let units = if mode == Mode::Shared { units(rng, level) } else { 1 };
            LockAt { spot, mode, units }
        }
    }
}

/// Whether two jobs cannot hold these at the same time; ignores units.
fn excludes(one: &LockAt, other: &LockAt) -> bool {
    let same = match (&one.spot, &other.spot) {
        (one, other) if one == other => true,
        (Spot { level: Some(one), name: a }, Spot { level: Some(other), name: b }) => {
            one == other && (a.is_none() || b.is_none())
        }
        _ => false,
    };
    same && (one.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
}

fn is_counted(lock: &LockAt) -> bool {
    lock.mode == Mode::Shared && lock.spot.name.is_some() && lock.spot.level.as_deref() == Some("pool")
}

/// Whether `lock` is compatible with all of `others`.
fn goes_with<'a>(lock: &LockAt, others: impl Iterator<Item = &'a LockAt> + Clone) -> bool {
    if others.clone().any(|other| excludes(lock, other)) {
        return false;
    }
    let of_it = others.filter(|other| is_counted(other) && other.spot == lock.spot);
    !is_counted(lock) || of_it.map(|other| other.units).sum::<u32>() + lock.units <= CAPACITY
}

/// A job in the model.
#[derive(Default)]
struct Modelled {
    declares: Requests,
    claim: Option<Claim>,
    held: Vec<LockAt>,
    reserved: Option<i64>,
    /// The lock that it waits for, its ticket, and whether it holds something of that level.
    waits: Option<(LockAt, i64, bool)>,
}

/// All jobs; an answer compares a job with all others.
#[derive(Default)]
struct Model(BTreeMap<&'static str, Modelled>);

impl Model {
    fn others<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (&'static str, &'a Modelled)> + Clone + 'a {
        self.0.iter().map(|(other, job)| (*other, job)).filter(move |(other, _)| *other != id)
    }

    fn held_by_others<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a LockAt> + Clone + 'a {
        self.others(id).flat_map(|(_, job)| &job.held)
    }

    /// Whether a pending job can be claimed.
    fn is_free(&self, id: &str) -> bool {
        let job = &self.0[id];
        let Some(known) = Held::known(&job.declares) else { return true };
        let own = (job.reserved.unwrap_or(i64::MAX), id);
        let reserved =
            self.others(id).filter(|(other, job)| job.reserved.is_some_and(|at| (at, *other) < own));
        let reserved: Vec<LockAt> = reserved
            .flat_map(|(_, job)| Held::known(&job.declares).map(|held| held.locks()).unwrap_or_default())
            .collect();
        let waits = self.others(id).filter_map(|(other, job)| {
            let (lock, ticket, _) = job.waits.as_ref()?;
            ((*ticket, other) < own).then_some(lock)
        });
        let before = self.held_by_others(id).chain(&reserved).chain(waits);
        if !known.locks().iter().all(|lock| goes_with(lock, before.clone())) {
            return false;
        }
        job.declares.unknown().all(|(level, mode)| {
            let any = LockAt::new(Spot::whole(level), mode);
            reserved.iter().all(|lock| !excludes(&any, lock))
        })
    }

    /// Whether a running job can have a lock.
    fn may_have(&self, id: &str, lock: &LockAt) -> bool {
        let job = &self.0[id];
        let own = (job.waits.as_ref().map_or(i64::MAX, |(_, ticket, _)| *ticket), id);
        let inside = job.held.iter().any(|held| held.spot.level == lock.spot.level);
        let before = self.others(id).filter_map(|(other, job)| {
            let (waited, ticket, is_inside) = job.waits.as_ref()?;
            ((*ticket, other) < own && (*is_inside || !inside)).then_some(waited)
        });
        goes_with(lock, self.held_by_others(id).chain(before))
    }

    /// No deadlock: no cycle of jobs that wait for their blockers.
    fn check_waiting(&self) {
        let mut left: Vec<&str> = self.0.keys().copied().filter(|id| self.0[id].waits.is_some()).collect();
        // A job that no waiting job blocks will continue some day; remove such jobs one by one.
        loop {
            let free = left.iter().position(|id| {
                let (lock, ticket, _) = self.0[id].waits.as_ref().unwrap();
                let inside = self.0[id].held.iter().any(|held| held.spot.level == lock.spot.level);
                left.iter().filter(|other| *other != id).all(|other| {
                    let job = &self.0[other];
                    let (waited, before, is_inside) = job.waits.as_ref().unwrap();
                    let keeps =
                        |held: &LockAt| excludes(lock, held) || is_counted(lock) && held.spot == lock.spot;
                    let first = (before, other) < (ticket, id) && (*is_inside || !inside);
                    !(job.held.iter().any(keeps) || first && keeps(waited))
                })
            });
            match free {
                Some(free) => drop(left.swap_remove(free)),
                None => break,
            }
        }
        assert!(left.is_empty(), "they wait in a circle: {left:?}");
    }
}

struct Walk {
    rng: StdRng,
    keys: Keyspace,
    levels: Levels,
    now_us: i64,
    model: Model,
}

impl Walk {
    async fn step(&mut self, tx: &Transaction) -> Result<()> {
        self.now_us += 1;
        let id = *JOBS.choose(&mut self.rng).unwrap();
        let (keys, levels, now_us) = (&self.keys, &self.levels, self.now_us);
        let claim = self.model.0.get(id).and_then(|job| job.claim.clone());
        match (self.rng.random_range(0..13), claim) {
            (0..3, None) => {
                let declares = some_requests(&mut self.rng);
                let job = NewJob::new(T, id, json("{}")).with(|spec| spec.locks = declares.clone());
                jobs::add(tx, keys, &job, now_us).await?;
                let known = self.model.0.entry(id).or_default();
                if known.declares != declares {
                    *known = Modelled { declares, ..Modelled::default() };
                }
            }
            (3..7, None) => {
                let claim = Claim { worker: "w".into(), number: u64::try_from(now_us).unwrap() };
                let claiming =
                    claims::claim_with(Context::new(tx, keys, T, now_us, 20), levels, id, &claim).await?;
                match claiming {
                    Claiming::Claimed { .. } => {
                        assert!(self.model.is_free(id), "{id} was claimed");
                        let job = self.model.0.get_mut(id).unwrap();
                        job.held = Held::known(&job.declares).map(|held| held.locks()).unwrap_or_default();
                        (job.claim, job.reserved) = (Some(claim), None);
                    }
                    Claiming::Blocked(blocked) => {
                        assert!(!self.model.is_free(id), "{id} was blocked by {blocked:?}");
                    }
                    Claiming::Due => unreachable!("no job must start within a time"),
                    Claiming::Gone => assert!(!self.model.0.contains_key(id), "{id} is pending"),
                    Claiming::NoRoom => panic!("there is room"),
                    Claiming::Limited(full) => panic!("nothing is limited: {full:?}"),
                }
            }
            (7..9, None) => {
                let ticket = locks::reserve(tx, keys, T, id, now_us).await?;
                if let (Some(ticket), Some(job)) = (ticket, self.model.0.get_mut(id)) {
                    assert_eq!(job.reserved.unwrap_or(ticket), ticket);
                    job.reserved = Some(ticket);
                }
            }
            (9, None) if self.model.0.remove(id).is_some() => jobs::remove(tx, keys, T, id).await?,
            (0..7, Some(claim)) => self.ask(tx, id, &claim).await?,
            (7, Some(claim)) => {
                locks::withdraw(tx, keys, RunKey::new(T, id, &claim), now_us).await?;
                self.model.0.get_mut(id).unwrap().waits = None;
            }
            (8, Some(claim)) => {
                let lock = some_lock(&mut self.rng);
                let given_back = locks::release_some(
                    tx,
                    keys,
                    RunKey::new(T, id, &claim),
                    std::slice::from_ref(&lock.spot),
                )
                .await;
                let job = self.model.0.get_mut(id).unwrap();
                // A job that waits cannot release locks.
                assert_eq!(given_back.is_err(), job.waits.is_some());
                if given_back.is_ok() {
                    job.held.retain(|held| held.spot != lock.spot);
                }
            }
            (9..11, Some(claim)) => {
                let ending = Ending::completed(json("1"));
                claims::end(Context::new(tx, keys, T, now_us, 20), id, &claim, &ending, None, None).await?;
                jobs::remove(tx, keys, T, id).await?;
                self.model.0.remove(id);
            }
            (11, Some(_)) if self.rng.random_bool(0.1) => {
                // All of its jobs are pending again, and it registers again.
                assert!(workers::remove(Context::new(tx, keys, T, now_us, 20), "w", 99).await?);
                for job in self.model.0.values_mut().filter(|job| job.claim.is_some()) {
                    let declares = std::mem::take(&mut job.declares);
                    *job = Modelled { declares, ..Modelled::default() };
                }
                register(tx, keys, "w")?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Requests a lock, or the one that the job already waits for.
    async fn ask(&mut self, tx: &Transaction, id: &'static str, claim: &Claim) -> Result<()> {
        let (keys, levels, now_us) = (&self.keys, &self.levels, self.now_us);
        let waits = self.model.0[id].waits.as_ref().map(|(lock, ..)| lock.clone());
        let lock = waits.clone().unwrap_or_else(|| some_lock(&mut self.rng));
        let asked = match waits {
            Some(_) if self.rng.random_bool(0.5) => {
                locks::poll(tx, keys, levels, RunKey::new(T, id, claim), now_us).await?
            }
            _ => {
                match locks::request(
                    tx,
                    keys,
                    levels,
                    RunKey::new(T, id, claim),
                    std::slice::from_ref(&lock),
                    now_us,
                )
                .await
                {
                    // The job has not declared the lock.
                    Err(Error::Invalid { field: "locks", .. }) => return Ok(()),
                    asked => asked?,
                }
            }
        };
        let record = jobs::get(tx, keys, T, id).await?.unwrap();
        let held = record.held().unwrap();
        let had = self.model.0[id].held.iter().any(|had| {
            let enough = had.mode == Mode::Exclusive || lock.mode == Mode::Shared && had.units >= lock.units;
            let all = had.spot.name.is_none() && had.spot.level == lock.spot.level;
            let covers = had.spot == lock.spot && enough
                || all && (had.mode == Mode::Exclusive || lock.mode == Mode::Shared && !is_counted(&lock));
            covers && had.spot.level.is_some()
        });
        let may = had || self.model.may_have(id, &lock);
        match asked {
            Asked::Granted => {
                assert!(may, "{id} was granted {lock}");
                let job = self.model.0.get_mut(id).unwrap();
                if !had {
                    job.held.retain(|held| held.spot != lock.spot);
                    job.held.push(lock);
                }
                job.waits = None;
                assert_eq!(record.state(), State::Running);
                let mut same = (held.locks(), job.held.clone());
                same.0.sort();
                same.1.sort();
                assert_eq!(same.0, same.1);
            }
            Asked::Waits(blocked) => {
                assert!(!may, "{id} waits for {lock}, behind {blocked:?}");
                let waits = record.waits().unwrap();
                let inside = lock.spot.level.as_ref().is_some_and(|level| held.is_inside(level));
                let job = self.model.0.get_mut(id).unwrap();
                job.waits.get_or_insert((lock, waits.ticket, inside));
                assert_eq!(record.state(), State::Waiting);
            }
            Asked::OutOfOrder { blocked, .. } => {
                assert!(!may, "{id} was refused {lock}: {blocked:?}");
                assert_eq!(record.state(), State::Running);
            }
        }
        Ok(())
    }
}

fn register(tx: &Transaction, keys: &Keyspace, worker: &str) -> Result<()> {
    workers::register(tx, keys, T, &workers::Worker::new(worker, "n", 0, 9))
}

#[tokio::test]
async fn prop_locks_are_granted_as_if_every_job_were_compared_with_all_others() {
    let mut waited = 0;
    for seed in 0..SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let rng = StdRng::seed_from_u64(seed);
        let (keys, model) = (Keyspace::default(), Model::default());
        let mut walk = Walk { rng, keys, levels: levels(), now_us: 0, model };
        let tx = store.begin().await.unwrap();
        register(&tx, &walk.keys, "w").unwrap();
        tx.commit().await.unwrap();
        for step in 0..STEPS {
            let _context = FailureContext(format!("seed {seed}, step {step}"));
            let tx = store.begin().await.unwrap();
            walk.step(&tx).await.unwrap();
            tx.commit().await.unwrap();
            walk.model.check_waiting();
            check_all(&store, &walk.keys).await;
            waited += usize::from(walk.model.0.values().any(|job| job.waits.is_some()));
        }
    }
    assert!(waited > 500, "hardly anybody has waited: {waited}");
}

/// The holders at this moment, or fewer. A job is entered after the commit that grants a lock, and removed before the
/// commit that releases it.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<String, Vec<LockAt>>>);

impl Ledger {
    fn add(&self, id: &str, locks: Vec<LockAt>) {
        let mut ledger = self.0.lock().unwrap();
        for lock in &locks {
            let others = ledger.iter().filter(|(other, _)| *other != id).flat_map(|(_, held)| held);
            assert!(goes_with(lock, others), "{id} holds {lock} beside {ledger:?}");
        }
        ledger.insert(id.to_owned(), locks);
    }

    fn remove(&self, id: &str) {
        self.0.lock().unwrap().remove(id);
    }
}

struct Many {
    store: Store,
    keys: Keyspace,
    levels: Levels,
    ledger: Ledger,
    ended: AtomicU64,
    waited: AtomicU64,
    crashed: AtomicU64,
}

const MANY_JOBS: u64 = 500;
const MANY_WORKERS: u64 = 8;

impl Many {
    /// One of the first jobs in the queue, and whether it is the very first.
    async fn pick(&self, rng: &mut StdRng) -> Option<(String, bool)> {
        let tx = self.store.begin().await.unwrap();
        let front = tenants::front(&tx, &self.keys, T, "default", 10).await.unwrap();
        tokio::task::yield_now().await;
        // Also the jobs with reservations: all jobs before them in the queue may be ones that they block.
        let queued = locks::list(&tx, &self.keys, Some(&self.keys.lock_queues().0), 100).await.unwrap();
        let reserved =
            queued.into_iter().filter(|entry| entry.how == How::Reserved).map(|entry| entry.id).take(10);
        let all: Vec<String> = front.iter().map(|pending| pending.id.clone()).chain(reserved).collect();
        let chosen = all.choose(rng)?.clone();
        let is_first = front.first().is_some_and(|first| first.id == chosen);
        Some((chosen, is_first))
    }

    /// A worker that claims one job after the other until all have ended, and sometimes dies.
    async fn work(&self, name: u64) {
        let mut rng = StdRng::seed_from_u64(name);
        for life in 0_u64.. {
            let worker = &format!("worker {name}, life {life}");
            let (keys, store) = (&self.keys, &self.store);
            store.transact(|tx| async move { register(&tx, keys, worker) }).await.unwrap();
            for number in 1.. {
                if self.ended.load(SeqCst) == MANY_JOBS {
                    return;
                }
                let Some((id, is_first)) = self.pick(&mut rng).await else { continue };
                let claim = Claim { worker: worker.clone(), number };
                let (id, claim, levels) = (&id, &claim, &self.levels);
                let claiming = store
                    .transact(|tx| async move {
                        let claiming =
                            claims::claim_with(Context::new(&tx, keys, T, 7, 20), levels, id, claim).await?;
                        if matches!(claiming, Claiming::Blocked(_)) && is_first {
                            let now_us = i64::try_from(number).unwrap();
                            locks::reserve(&tx, keys, T, id, now_us).await?;
                        }
                        Ok::<_, Error>(claiming)
                    })
                    .await
                    .unwrap();
                let Claiming::Claimed { job, .. } = claiming else { continue };
                let has_locks = job.held().is_some();
                self.ledger.add(id, job.held().map(|held| held.locks()).unwrap_or_default());
                tokio::task::yield_now().await;
                if has_locks {
                    self.ask(&mut rng, id, claim).await;
                }
                if rng.random_bool(0.1) {
                    // Its runs are not ended; the worker that finds it dead gives its jobs back.
                    self.ledger.remove(id);
                    self.crashed.fetch_add(1, SeqCst);
                    let removed = store
                        .transact(|tx| async move {
                            workers::remove(Context::new(&tx, keys, T, 9, 20), worker, 9).await
                        })
                        .await;
                    assert!(removed.unwrap());
                    break;
                }
                self.ledger.remove(id);
                let ending = &Ending::completed(json("1"));
                store
                    .transact(|tx| async move {
                        claims::end(Context::new(&tx, keys, T, 9, 20), id, claim, ending, None, None).await
                    })
                    .await
                    .unwrap();
                self.ended.fetch_add(1, SeqCst);
            }
        }
    }

    /// Requests a few locks, and waits for each.
    async fn ask(&self, rng: &mut StdRng, id: &str, claim: &Claim) {
        let (keys, levels, store) = (&self.keys, &self.levels, &self.store);
        for _ in 0..rng.random_range(0..4) {
            let lock = &some_lock(rng);
            loop {
                let asked = store
                    .transact(|tx| async move {
                        let seen = tx.get_with(&keys.lock_wake(), Isolation::Snapshot).await?;
                        let locks = std::slice::from_ref(lock);
                        let asked =
                            locks::request(&tx, keys, levels, RunKey::new(T, id, claim), locks, 8).await?;
                        let job = jobs::get(&tx, keys, T, id).await?.unwrap();
                        Ok::<_, Error>((asked, seen, job.held().unwrap().locks()))
                    })
                    .await;
                match asked {
                    Ok((Asked::Granted, _, held)) => {
                        self.ledger.add(id, held);
                        break;
                    }
                    Ok((Asked::Waits(_), seen, _)) => {
                        self.waited.fetch_add(1, SeqCst);
                        store.watch(keys.lock_wake(), seen).await.unwrap().await;
                    }
                    Ok((Asked::OutOfOrder { .. }, ..)) | Err(Error::Invalid { field: "locks", .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_jobs_exclude_each_other_and_all_of_them_end() {
    let dir = tempfile::tempdir().unwrap();
    let many = Arc::new(Many {
        store: open(&dir),
        keys: Keyspace::default(),
        levels: levels(),
        ledger: Ledger::default(),
        ended: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        crashed: AtomicU64::new(0),
    });
    let mut rng = StdRng::seed_from_u64(7);
    for n in 0..MANY_JOBS {
        let locks = some_requests(&mut rng);
        let job = &NewJob::new(T, &format!("job {n:03}"), json("{}")).with(|spec| spec.locks = locks);
        let keys = &many.keys;
        many.store.transact(|tx| async move { jobs::add(&tx, keys, job, 5).await }).await.unwrap();
    }
    let work = (0..MANY_WORKERS).map(|name| {
        let many = many.clone();
        tokio::spawn(async move { many.work(name).await })
    });
    let work: Vec<_> = work.collect();
    let all = async {
        for worker in work {
            worker.await.unwrap();
        }
    };
    // Far more than it takes: a deadlock would wait forever.
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("some wait in a circle");
    check_all(&many.store, &many.keys).await;
    let tx = many.store.begin().await.unwrap();
    assert_eq!(locks::list(&tx, &many.keys, None, 9).await.unwrap(), []);
    for job in jobs::list(&tx, &many.keys, T, None, 1_000).await.unwrap() {
        assert_eq!(job.state(), State::Completed, "{}", job.id);
    }
    assert!(many.waited.load(SeqCst) > 0 && many.crashed.load(SeqCst) > 0);
}
