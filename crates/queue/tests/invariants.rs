//! Random histories of a few jobs and workers: after every step each job is in exactly one place, the one that
//! its record names, and nothing belongs to no job.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::value::RawValue;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::{Claim, Error, Keyspace, NewJob, check, jobs, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Isolation, Limits, RangeRead, Store, Transaction, runtime};

const T: &str = "test";
const JOBS: [&str; 5] = ["a", "b", "c", "d", "e"];
const WORKERS: [&str; 3] = ["u", "v", "w"];
const SEEDS: u64 = 60;
const STEPS: i64 = 150;

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

struct Walk {
    keys: Keyspace,
    rng: StdRng,
    now_us: i64,
    /// Every claim ever made: most are stale, and must change nothing.
    claims: Vec<(String, Claim)>,
}

impl Walk {
    /// One random step. Stale claims and unknown jobs answer errors; those are part of the game.
    async fn step(&mut self, tx: &Transaction) -> Result<(), Error> {
        self.now_us += 1;
        let id = *JOBS.choose(&mut self.rng).unwrap();
        let worker = *WORKERS.choose(&mut self.rng).unwrap();
        let (keys, now_us) = (&self.keys, self.now_us);
        match self.rng.random_range(0..20) {
            0..4 => {
                let size = *[2, 20_000].choose(&mut self.rng).unwrap();
                let mut new = NewJob::new(T, id, json(&format!("\"{}\"", "x".repeat(size))));
                new.not_before_us = self.rng.random_bool(0.3).then_some(now_us + 5);
                new.max_attempts = self.rng.random_bool(0.3).then_some(1);
                if self.rng.random_bool(0.2) {
                    jobs::add_once(tx, keys, &new, now_us).await?;
                } else {
                    jobs::add(tx, keys, &new, now_us).await?;
                }
            }
            4..9 => {
                let number = u64::try_from(now_us).unwrap();
                let claim = Claim { worker: worker.into(), number };
                if claims::claim(tx, keys, T, id, &claim, now_us, 20).await?.is_some() {
                    self.claims.push((id.into(), claim));
                }
            }
            9..13 => {
                let Some((id, claim)) = self.claims.choose(&mut self.rng).cloned() else { return Ok(()) };
                let ending = match self.rng.random_range(0..4) {
                    0 => Ending::Completed(json("1")),
                    1 => Ending::Failed("no".into()),
                    2 => Ending::Stopped,
                    _ => Ending::Crashed { reason: "ouch".into(), crashes: 1, not_before_us: now_us + 5 },
                };
                claims::end(tx, keys, T, &id, &claim, &ending, None, now_us, 20).await?;
            }
            13 => {
                let Some((id, claim)) = self.claims.choose(&mut self.rng).cloned() else { return Ok(()) };
                claims::update(tx, keys, T, &id, &claim, &json("{}"), now_us).await?;
            }
            14 => {
                claims::release_due(tx, keys, T, now_us, 2, |_| true).await?;
            }
            15 => {
                jobs::cancel(tx, keys, T, id, now_us).await?;
            }
            16 if self.rng.random_bool(0.2) => {
                jobs::prune(tx, keys, T, now_us - 10, 2).await?;
            }
            16 => jobs::restart(tx, keys, T, id).await?,
            17 => jobs::remove(tx, keys, T, id).await?,
            18 => {
                workers::remove(tx, keys, T, worker, 100, now_us, 20).await?;
            }
            _ => {
                let row = workers::Worker::new(worker, "n", now_us, 1);
                workers::register(tx, keys, T, &row)?;
            }
        }
        Ok(())
    }

    async fn check(&self, store: &Store) {
        let tx = store.begin().await.unwrap();
        let keys = &self.keys;
        let everything =
            RangeRead { begin: Bytes::new(), end: b"\xff"[..].into(), limit: 10_000, reverse: false };
        let rows = tx.range_with(everything, Isolation::Snapshot).await.unwrap();
        assert_eq!(check::check_rows(keys, &rows), []);
        let members: Vec<String> =
            workers::list(&tx, keys, T).await.unwrap().into_iter().map(|worker| worker.id).collect();
        for job in jobs::list(&tx, keys, T, None, 1000).await.unwrap() {
            if let Some(claim) = &job.claim {
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
        let options = Options { durable: false, ..Options::default() };
        let engine = Embedded::open_with(dir.path(), options).unwrap();
        let store = Store::new(engine, Arc::new(runtime::System)).with_limits(Limits::SMALL);
        let rng = StdRng::seed_from_u64(seed);
        let mut walk = Walk { keys: Keyspace::default(), rng, now_us: 0, claims: Vec::new() };
        for step in 0..STEPS {
            let tx = store.begin().await.unwrap();
            match walk.step(&tx).await {
                Ok(()) => {
                    tx.commit().await.unwrap();
                }
                Err(Error::Halt | Error::NotFound) => {}
                Err(error) => panic!("seed {seed}, step {step}: {error}"),
            }
            let _place = Place(format!("seed {seed}, step {step}"));
            walk.check(&store).await;
        }
    }
}

/// Says where a check failed.
struct Place(String);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}
