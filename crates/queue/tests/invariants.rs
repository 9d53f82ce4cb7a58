//! Random histories of a few jobs and workers. After every step each job is in exactly the place that its record names, and
//! every row has its owner.

use crate::common::{FailureContext, T, check_all, json, open};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Claiming, Ending, Park};
use turnwise_queue::edit::{self, Edit};
use turnwise_queue::parking::{self, ParkedJob};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{
    After, Claim, Context, Error, Holder, Keyspace, NewJob, Parked, concurrency, dependencies, jobs, tenants,
    workers,
};
use turnwise_store::{Limits, Store, Transaction};

const JOBS: [&str; 5] = ["a", "b", "c", "d", "e"];
const TENANTS: [&str; 3] = ["x", "y", "z"];
const TAGS: [&str; 3] = ["eu", "nightly", "us"];
const WORKERS: [&str; 3] = ["u", "v", "w"];
const SEEDS: u64 = 60;
const STEPS: i64 = 150;

/// All jobs of one tenant, then of the next.
fn in_order(waiting: &[(String, usize)], most: usize) -> Vec<usize> {
    let each = waiting.iter().enumerate();
    each.flat_map(|(n, (_, jobs))| std::iter::repeat_n(n, *jobs)).take(most).collect()
}

struct Walk {
    keys: Keyspace,
    rng: StdRng,
    now_us: i64,
    /// Every claim ever made: most are stale, and must change nothing.
    claims: Vec<(String, Claim)>,
}

impl Walk {
    /// One random step. Stale claims and unknown jobs return errors, which are expected.
    async fn step(&mut self, tx: &Transaction) -> Result<(), Error> {
        self.now_us += 1;
        let id = *JOBS.choose(&mut self.rng).unwrap();
        let worker = *WORKERS.choose(&mut self.rng).unwrap();
        let at = self.at();
        let after = self.after();
        let (keys, now_us) = (&self.keys, self.now_us);
        let tenant = *TENANTS.choose(&mut self.rng).unwrap();
        match self.rng.random_range(0..32) {
            0..4 => return self.add(tx, id, after).await,
            4..9 => {
                let number = u64::try_from(now_us).unwrap();
                let claim = Claim { worker: worker.into(), number };
                let levels = Levels::default();
                match claims::claim_with(Context::new(tx, keys, T, now_us, 20), &levels, id, &claim).await? {
                    Claiming::Claimed { .. } => self.claims.push((id.into(), claim)),
                    Claiming::Limited(full) => {
                        concurrency::hold_back(tx, keys, T, id, &full.limit, None, now_us).await?;
                    }
                    Claiming::Gone | Claiming::Due | Claiming::Blocked(_) | Claiming::NoRoom => {}
                }
            }
            9..13 => {
                let Some((id, claim)) = self.claims.choose(&mut self.rng).cloned() else { return Ok(()) };
                let at = at.clone();
                let ending = match self.rng.random_range(0..6) {
                    4 | 5 => {
                        Ending::Parked(Park { at, token: now_us.to_string(), not_before_us: now_us + 20 })
                    }
                    0 => Ending::completed(json("1")),
                    1 => Ending::Failed("no".into()),
                    2 => Ending::Stopped,
                    _ => Ending::Crashed { error: "ouch".into(), retry_us: Some(now_us + 5) },
                };
                let priority = self.rng.random_bool(0.5).then(|| self.rng.random_range(-1.0..1.0));
                claims::end(Context::new(tx, keys, T, now_us, 20), &id, &claim, &ending, None, priority)
                    .await?;
            }
            13 => {
                let Some((id, claim)) = self.claims.choose(&mut self.rng).cloned() else { return Ok(()) };
                claims::update(tx, keys, T, &id, &claim, &json("{}"), now_us).await?;
            }
            14 if self.rng.random_bool(0.6) => {
                let (turn, clears) = (concurrency::Rotation::default(), self.rng.random_bool(0.7));
                concurrency::release_limited(
                    tx,
                    keys,
                    T,
                    concurrency::ReleaseOptions {
                        rotation: &turn,
                        most: 1,
                        clears,
                        tasks: &Tasks::default(),
                        now_us: 9,
                    },
                    |_, _| true,
                    in_order,
                )
                .await?;
            }
            14 => {
                claims::release_due(tx, keys, T, now_us, 2, |_| true).await?;
            }
            15 => {
                jobs::cancel(tx, keys, T, id, now_us).await?;
            }
            16 if self.rng.random_bool(0.2) => {
                jobs::prune(tx, keys, T, now_us - 10, 2, &mut Default::default()).await?;
            }
            16 => jobs::restart(tx, keys, T, id).await?,
            17 => jobs::remove(tx, keys, T, id).await?,
            18 => {
                workers::remove(Context::new(tx, keys, T, now_us, 20), worker, 100).await?;
            }
            19 | 20 => {
                // Numbers with all their digits: each must be read back exactly.
                let key = self.rng.random_bool(0.7).then(|| self.rng.random_range(-1e3..1e3) / 3.0);
                tenants::set_key(tx, keys, T, id, key).await?;
            }
            22 => {
                // The job may be parked elsewhere, or not at all.
                let parked = ParkedJob { at, id: id.to_owned(), token: String::new() };
                parking::wake(tx, keys, T, &parked, now_us).await?;
            }
            23 | 24 => {
                let parked = parking::at(tx, keys, T, &at, 10).await?;
                for job in parked {
                    // Also with an older token, which must not clear the newer mark.
                    let token = if self.rng.random_bool(0.5) { job.token.clone() } else { "old".into() };
                    parking::settle(tx, keys, T, &ParkedJob { token, ..job }).await?;
                }
            }
            26 | 27 => {
                if let Some(group) = dependencies::next_unsettled(tx, keys, None).await? {
                    dependencies::settle(tx, keys, &group, now_us).await?;
                }
                concurrency::mark_rest(tx, keys).await?;
            }
            21 => {
                tenants::no_longer_waiting(tx, keys, T, tenant).await?;
            }
            28..32 => return self.change(tx, id).await,
            _ => {
                let row = workers::Worker::new(worker, "n", now_us, 1);
                workers::register(tx, keys, T, &row)?;
            }
        }
        Ok(())
    }

    /// An edit, a hold or a release.
    async fn change(&mut self, tx: &Transaction, id: &str) -> Result<(), Error> {
        let (keys, now_us) = (&self.keys, self.now_us);
        let mut job = jobs::get(tx, keys, T, id).await?.ok_or(Error::NotFound)?;
        let holder = *[Holder::Client, Holder::Operator].choose(&mut self.rng).unwrap();
        match self.rng.random_range(0..4) {
            0 => edit::hold(tx, keys, &mut job, holder, None, now_us).await.map(drop)?,
            1 => edit::release(tx, keys, &mut job, holder, None, now_us).await.map(drop)?,
            _ => {
                let size = *[2, 20_000].choose(&mut self.rng).unwrap();
                let mut spec = job.spec.clone();
                spec.max_attempts = self.rng.random_bool(0.5).then_some(2);
                let options = self.rng.random_bool(0.5).then(|| json(&format!("\"{}\"", "y".repeat(size))));
                let priority = self.rng.random_bool(0.3).then(|| self.rng.random_range(-2..3));
                let start_us = self.rng.random_bool(0.5).then(|| now_us + self.rng.random_range(-5..6));
                let edit = Edit { spec, options, priority, start_us, note: "options".into() };
                edit::edit(tx, keys, &mut job, edit, now_us).await.map(drop)?;
            }
        }
        Ok(())
    }

    async fn add(&mut self, tx: &Transaction, id: &str, after: Vec<After>) -> Result<(), Error> {
        let tenant = *TENANTS.choose(&mut self.rng).unwrap();
        let (keys, now_us) = (&self.keys, self.now_us);
        let size = *[2, 20_000].choose(&mut self.rng).unwrap();
        let mut new = NewJob::new(T, id, json(&format!("\"{}\"", "x".repeat(size))));
        new.not_before_us = self.rng.random_bool(0.3).then_some(now_us + 5);
        new.spec.max_attempts = self.rng.random_bool(0.3).then_some(1);
        new.spec.tenant = tenant.into();
        new.spec.tags =
            TAGS.iter().filter(|_| self.rng.random_bool(0.3)).map(|tag| (*tag).to_owned()).collect();
        new.spec.continuous = self.rng.random_bool(0.5);
        if self.rng.random_bool(0.5) {
            new.after = after;
        }
        if self.rng.random_bool(0.7) {
            let (most, bucket) = (self.rng.random_range(1..3), self.rng.random_range(0..2));
            new.spec.reasons = vec![format!("concurrency:{most}:{bucket}")];
        }
        if self.rng.random_bool(0.2) {
            jobs::add_once(tx, keys, &new, now_us).await?;
        } else {
            jobs::add(tx, keys, &new, now_us).await?;
        }
        Ok(())
    }

    /// Random dependencies, on jobs that may not exist, or on the job itself.
    fn after(&mut self) -> Vec<After> {
        let jobs: Vec<&str> = JOBS.choose_multiple(&mut self.rng, 2).copied().collect();
        let mut one = |id: &str| {
            let accepted = *[DependencyEnd::Completed, DependencyEnd::Failed].choose(&mut self.rng).unwrap();
            let otherwise = *[Otherwise::Cancel, Otherwise::Free].choose(&mut self.rng).unwrap();
            After { accepted: vec![accepted], otherwise, ..After::completed(T, id) }
        };
        jobs.into_iter().map(&mut one).collect()
    }

    /// No job waits for a dependency any longer once all running and waiting jobs have ended.
    async fn run_out(&mut self, store: &Store) {
        for _ in 0..100 {
            self.now_us += 1_000;
            let (keys, now_us) = (&self.keys, self.now_us);
            let mut left = 0;
            for (n, id) in JOBS.into_iter().enumerate() {
                let tx = store.begin().await.unwrap();
                if workers::get(&tx, keys, T, "z").await.unwrap().is_none() {
                    workers::register(&tx, keys, T, &workers::Worker::new("z", "n", now_us, 1)).unwrap();
                }
                for worker in WORKERS {
                    workers::remove(Context::new(&tx, keys, T, now_us, 20), worker, 100).await.unwrap();
                }
                if let Some(mut job) = jobs::get(&tx, keys, T, id).await.unwrap() {
                    edit::release(&tx, keys, &mut job, Holder::Operator, None, now_us).await.unwrap();
                }
                claims::release_due(&tx, keys, T, now_us, 1, |_| true).await.unwrap();
                concurrency::release_limited(
                    &tx,
                    keys,
                    T,
                    concurrency::ReleaseOptions {
                        rotation: &concurrency::Rotation::default(),
                        most: 1,
                        clears: true,
                        tasks: &Tasks::default(),
                        now_us: 9,
                    },
                    |_, _| true,
                    in_order,
                )
                .await
                .unwrap();
                let claim = Claim { worker: "z".into(), number: u64::try_from(now_us).unwrap() + n as u64 };
                if claims::claim(Context::new(&tx, keys, T, now_us, 20), id, &claim).await.unwrap().is_some()
                {
                    let ending = Ending::completed(json("1"));
                    claims::end(Context::new(&tx, keys, T, now_us, 20), id, &claim, &ending, None, None)
                        .await
                        .unwrap();
                }
                if let Some(group) = dependencies::next_unsettled(&tx, keys, None).await.unwrap() {
                    dependencies::settle(&tx, keys, &group, now_us).await.unwrap();
                }
                concurrency::mark_rest(&tx, keys).await.unwrap();
                left += usize::from(
                    jobs::get(&tx, keys, T, id).await.unwrap().is_some_and(|job| !job.state().is_final()),
                );
                tx.commit().await.unwrap();
            }
            if left == 0 {
                return;
            }
        }
        panic!("some never end");
    }

    fn at(&mut self) -> Parked {
        let mut one_of = |names: [&str; 2]| (*names.choose(&mut self.rng).unwrap()).to_owned();
        Parked { group: one_of(["g", "h"]), key: one_of(["k", "l"]) }
    }

    async fn check(&self, store: &Store) {
        let tx = store.begin().await.unwrap();
        let keys = &self.keys;
        check_all(store, keys).await;
        let members: Vec<String> =
            workers::list(&tx, keys, T).await.unwrap().into_iter().map(|worker| worker.id).collect();
        for job in jobs::list(&tx, keys, T, None, 1000).await.unwrap() {
            if let Some(claim) = job.claim() {
                assert!(members.contains(&claim.worker), "{} runs on a worker that is gone", job.id);
            }
            jobs::options(&tx, keys, &job).await.unwrap();
        }
    }
}

#[tokio::test]
async fn prop_every_job_is_in_exactly_the_place_that_its_record_names() {
    for seed in 0..SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir).with_limits(Limits::SMALL);
        let rng = StdRng::seed_from_u64(seed);
        let mut walk = Walk { keys: Keyspace::default(), rng, now_us: 0, claims: Vec::new() };
        for step in 0..STEPS {
            let tx = store.begin().await.unwrap();
            match walk.step(&tx).await {
                Ok(()) => {
                    tx.commit().await.unwrap();
                }
                Err(Error::Halt | Error::NotFound | Error::Invalid { field: "after", .. }) => {}
                Err(error) => panic!("seed {seed}, step {step}: {error}"),
            }
            let _context = FailureContext(format!("seed {seed}, step {step}"));
            walk.check(&store).await;
        }
        let _context = FailureContext(format!("seed {seed}, at the end"));
        walk.run_out(&store).await;
        walk.check(&store).await;
    }
}
