//! Concurrency limits as rows: how many jobs of a bucket run, which are limited, and which return when there is room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{T, by, json};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::filters::{self as policy, Action, Rule};
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::concurrency::{self, ReleaseOptions, ReleaseResult, Rotation, Tally};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{
    Claim, Context, Error, Keyspace, NewJob, Result, State, Terms, filters, jobs, tenants, workers,
};
use turnwise_store::{Error as StoreError, Limits, Transaction};

fn named(name: &str) -> Bucket {
    Bucket::Reason(name.into())
}

/// One job of each tenant, then the next one of each.
fn in_turn(waiting: &[(String, usize)], most: usize) -> Vec<usize> {
    let longest = waiting.iter().map(|(_, jobs)| *jobs).max().unwrap_or(0);
    let rounds = (0..longest).flat_map(|round| {
        waiting.iter().enumerate().filter(move |(_, (_, jobs))| round < *jobs).map(|(n, _)| n)
    });
    rounds.take(most).collect()
}

type World = crate::common::World<ConcurrencyLimits>;

#[derive(Default)]
struct ConcurrencyLimits;

impl World {
    /// One transaction, repeated after a conflict.
    async fn repeat<R>(&self, body: impl AsyncFn(&Transaction, &Keyspace) -> Result<R>) -> Result<R> {
        loop {
            let tx = self.tx().await;
            let done = body(&tx, &self.keys).await?;
            match tx.commit().await {
                Ok(_) => return Ok(done),
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn add(&self, id: &str, tenant: &str, reasons: &[&str], now_us: i64) {
        let mut new = NewJob::new(T, id, json("{}"));
        new.spec.tenant = tenant.into();
        new.spec.reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        self.repeat(async |tx, keys| jobs::add(tx, keys, &new, now_us).await.map(drop)).await.unwrap();
    }

    async fn claim(&self, id: &str, number: u64) -> Claiming {
        let claim = by(number);
        let (claim, levels) = (&claim, &Levels::default());
        let claiming = self.repeat(async |tx, keys| {
            claims::claim_with(Context::new(tx, keys, T, 7, 20), levels, id, claim).await
        });
        let claiming = claiming.await.unwrap();
        self.check().await;
        claiming
    }

    /// Claims a job, which becomes limited if there is no room; returns whether there is.
    async fn start(&self, id: &str, number: u64) -> bool {
        match self.claim(id, number).await {
            Claiming::Claimed { .. } => true,
            Claiming::Limited(full) => {
                let limit = &full.limit;
                let held = self
                    .repeat(async |tx, keys| concurrency::hold_back(tx, keys, T, id, limit, None, 8).await);
                assert!(held.await.unwrap());
                self.check().await;
                false
            }
            other => panic!("{other:?}"),
        }
    }

    async fn end(&self, id: &str, number: u64, ending: Ending) {
        let (claim, ending) = (&by(number), &ending);
        let ended = async |tx: &Transaction, keys: &Keyspace| {
            claims::end(Context::new(tx, keys, T, 9, 20), id, claim, ending, None, None).await
        };
        self.repeat(ended).await.unwrap();
        self.check().await;
    }

    async fn complete(&self, id: &str, number: u64) {
        self.end(id, number, Ending::completed(json("1"))).await;
    }

    async fn release(&self, most: usize) -> ReleaseResult {
        let result = self
            .repeat(async |tx, keys| {
                concurrency::release_limited(
                    tx,
                    keys,
                    T,
                    ReleaseOptions {
                        rotation: &Rotation::default(),
                        most,
                        clears: true,
                        tasks: &Tasks::default(),
                        now_us: 9,
                    },
                    |_, _| true,
                    in_turn,
                )
                .await
            })
            .await
            .unwrap();
        self.check().await;
        result
    }

    async fn running(&self, bucket: &Bucket) -> usize {
        self.repeat(async |tx, keys| concurrency::count(tx, keys, bucket).await).await.unwrap()
    }
}

#[tokio::test]
async fn a_full_bucket_limits_the_next_job_until_a_run_ends() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["a", "b", "c", "d"]) {
        world.add(id, "x", &["because", "concurrency:2:net"], n).await;
    }
    assert!(world.start("a", 1).await && world.start("b", 2).await);
    assert!(!world.start("c", 3).await && !world.start("d", 4).await);
    assert_eq!(world.running(&named("net")).await, 2);
    let held = world.get("c").await;
    let limit = Limit { bucket: named("net"), most: 2 };
    assert_eq!((held.state(), held.limited(), held.order_us()), (State::Delayed, Some(&limit), 3));
    assert_eq!(world.front("x").await, [""; 0]);
    assert_eq!(world.release(9).await.released.len(), 0, "the bucket is full");
    world.complete("a", 1).await;
    assert!(world.release(9).await.released.contains("x"));
    assert_eq!(world.front("x").await, ["c"], "one place, and the first of them");
    assert!(world.start("c", 5).await);
    assert_eq!(world.release(9).await, ReleaseResult::default());
    world.end("b", 2, Ending::Stopped).await;
    assert_eq!(world.front("x").await, ["b"], "its place was another's already: it has to ask again");
    assert!(world.release(9).await.released.contains("x"));
    assert!(world.start("d", 6).await && !world.start("b", 7).await);
    assert_eq!(world.get("d").await.buckets(), [named("net")]);
    world.complete("c", 5).await;
    world.complete("d", 6).await;
    assert_eq!(world.running(&named("net")).await, 0);
}

#[tokio::test]
async fn each_job_obeys_its_own_limit_and_all_of_its_buckets() {
    let world = World::new().await;
    world.add("one", "x", &["concurrency:1:net"], 1).await;
    for n in 0..3 {
        world.add(&format!("three{n}"), "x", &["concurrency:3:net"], 2 + n).await;
    }
    world.add("both", "x", &["concurrency:9:net", "concurrency:1:disk", "concurrency:4:net"], 8).await;
    world.add("disk", "x", &["concurrency:1:disk"], 9).await;
    assert!(world.start("three0", 1).await && world.start("three1", 2).await);
    assert!(!world.start("one", 3).await, "others of the bucket count, whatever they obey");
    assert!(world.start("disk", 4).await);
    assert!(!world.start("both", 5).await);
    assert_eq!(world.get("both").await.limited().unwrap().bucket, named("disk"));
    world.complete("disk", 4).await;
    world.release(9).await;
    assert_eq!(world.front("x").await, ["three2", "both"]);
    assert!(world.start("both", 6).await, "the third of four");
    assert_eq!(world.running(&named("net")).await, 3);
    assert!(!world.start("three2", 7).await);
    world.complete("three0", 1).await;
    world.release(9).await;
    assert_eq!(world.front("x").await, ["three2"], "and not the one that must be alone");
    world.complete("three1", 2).await;
    world.complete("both", 6).await;
    world.release(9).await;
    assert_eq!(world.front("x").await, ["one", "three2"]);
}

#[tokio::test]
async fn a_limited_job_can_be_cancelled_removed_retried_and_added_again() {
    let world = World::new().await;
    world.add("runs", "x", &["concurrency:1:net"], 1).await;
    assert!(world.start("runs", 1).await);
    for (n, id) in (2..).zip(["cancel", "remove", "retry", "again", "other"]) {
        world.add(id, "x", &["concurrency:1:net"], n).await;
        assert!(!world.start(id, u64::try_from(n).unwrap()).await);
    }
    world.repeat(async |tx, keys| jobs::cancel(tx, keys, T, "cancel", 5).await).await.unwrap();
    world.repeat(async |tx, keys| jobs::remove(tx, keys, T, "remove").await).await.unwrap();
    world.repeat(async |tx, keys| jobs::retry(tx, keys, T, "retry", 6).await).await.unwrap();
    world.check().await;
    world.add("again", "y", &["concurrency:2:net"], 7).await;
    world.add("other", "y", &[], 8).await;
    world.check().await;
    assert_eq!((world.front("x").await, world.front("y").await.len()), (vec!["retry".to_owned()], 2));
    assert!(world.start("again", 11).await && world.start("other", 12).await);
    assert!(!world.start("retry", 13).await);
    world.complete("again", 11).await;
    world.complete("runs", 1).await;
    // Returned to the queue, and removed before it starts: the next job is not missed.
    world.add("late", "x", &["concurrency:1:net"], 20).await;
    assert!(world.release(1).await.released.contains("x"));
    world.repeat(async |tx, keys| jobs::remove(tx, keys, T, "retry").await).await.unwrap();
    world.check().await;
    assert!(world.start("late", 14).await);
}

#[tokio::test]
async fn a_worker_that_dies_loses_its_places() {
    let world = World::new().await;
    for n in 0..6 {
        world.add(&format!("j{n}"), "x", &["concurrency:3:net", "concurrency:5:disk"], n).await;
    }
    for n in 0..6 {
        assert_eq!(world.start(&format!("j{n}"), 1 + n).await, n < 3);
    }
    let mut done = false;
    while !done {
        let removed =
            world.repeat(async |tx, keys| workers::remove(Context::new(tx, keys, T, 50, 20), "w", 2).await);
        done = removed.await.unwrap();
        world.check().await;
    }
    assert_eq!((world.running(&named("net")).await, world.running(&named("disk")).await), (0, 0));
    world.release(9).await;
    assert_eq!(world.front("x").await.len(), 6);
    let late = async |tx: &Transaction, keys: &Keyspace| {
        claims::end(Context::new(tx, keys, T, 60, 20), "j0", &by(1), &Ending::Stopped, None, None)
            .await
            .map(drop)
    };
    assert!(matches!(world.repeat(late).await, Err(Error::Halt)));
    world.check().await;
}

#[tokio::test]
async fn tenants_take_turns_in_a_bucket() {
    let world = World::new().await;
    world.add("runs", "x", &["concurrency:1:net"], 1).await;
    assert!(world.start("runs", 1).await);
    for n in 0..40 {
        let id = format!("many{n}");
        world.add(&id, "many", &["concurrency:1:net"], 2 + n).await;
        assert!(!world.start(&id, 100).await);
    }
    world.add("single", "single", &["concurrency:1:net"], 90).await;
    assert!(!world.start("single", 101).await);
    world.complete("runs", 1).await;
    let single_first = |waiting: &[(String, usize)], most: usize| {
        assert_eq!(waiting.iter().map(|(tenant, _)| tenant.as_str()).collect::<Vec<_>>(), ["many", "single"]);
        assert_eq!(most, 1);
        vec![1]
    };
    let release = async |tx: &Transaction, keys: &Keyspace| {
        concurrency::release_limited(
            tx,
            keys,
            T,
            ReleaseOptions {
                rotation: &Rotation::default(),
                most: 9,
                clears: true,
                tasks: &Tasks::default(),
                now_us: 9,
            },
            |_, _| true,
            single_first,
        )
        .await
    };
    assert!(world.repeat(release).await.unwrap().released.contains("single"));
    assert_eq!((world.front("single").await.len(), world.front("many").await.len()), (1, 0));
}

/// Adds a job that becomes limited.
async fn hold(world: &World, id: &str, tenant: &str, reason: &str, now_us: i64) {
    world.add(id, tenant, &[reason], now_us).await;
    assert!(!world.start(id, 1_000_000 + u64::try_from(now_us).unwrap()).await, "{id} has room");
}

#[tokio::test]
async fn each_of_150_tenants_of_a_bucket_has_its_turn() {
    const TENANTS: usize = 150;
    let world = World::new().await;
    let rotation = Rotation::default();
    world.add("first", "first", &["concurrency:1:net"], 1).await;
    assert!(world.start("first", 1).await);
    for n in 0..TENANTS * 4 {
        hold(&world, &format!("{n}"), &format!("t{:03}", n % TENANTS), "concurrency:1:net", n as i64).await;
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    let (mut running, mut number) = ("first".to_owned(), 1);
    for _ in 0..TENANTS * 2 {
        world.complete(&running, number).await;
        // The tenant with the fewest runs is first.
        let next = |waiting: &[(String, usize)], _: usize| {
            let had = |n: &usize| (runs.get(&waiting[*n].0).copied().unwrap_or(0), *n);
            (0..waiting.len()).min_by_key(had).into_iter().collect()
        };
        let release = async |tx: &Transaction, keys: &Keyspace| {
            concurrency::release_limited(
                tx,
                keys,
                T,
                ReleaseOptions {
                    rotation: &rotation,
                    most: 1,
                    clears: true,
                    tasks: &Tasks::default(),
                    now_us: 9,
                },
                |_, _| true,
                next,
            )
            .await
        };
        let result = world.repeat(release).await.unwrap();
        let tenant = result.released.first().unwrap().clone();
        running = world.front(&tenant).await.remove(0);
        number += 1;
        assert!(world.start(&running, number).await);
        *runs.entry(tenant).or_default() += 1;
    }
    let (least, most) = (runs.values().min().unwrap(), runs.values().max().unwrap());
    assert!(runs.len() == TENANTS && *least >= 1 && *most <= 3, "{runs:?}");
}

#[tokio::test]
async fn buckets_take_turns_whatever_their_names() {
    let world = World::new().await;
    let rotation = Rotation::default();
    for bucket in 0..40 {
        let reason = format!("concurrency:2:b{bucket:02}");
        for n in 0..2 {
            world.add(&format!("first{bucket}-{n}"), "x", &[&reason], 1).await;
            assert!(world.start(&format!("first{bucket}-{n}"), 1 + 2 * bucket + n).await);
        }
        for n in 0..9 {
            hold(&world, &format!("{bucket}-{n}"), &format!("t{bucket:02}"), &reason, n).await;
        }
        world.complete(&format!("first{bucket}-0"), 1 + 2 * bucket).await;
    }
    let release = async |tx: &Transaction, keys: &Keyspace| {
        let all = |waiting: &[(String, usize)], most: usize| vec![0; most.min(waiting.len())];
        concurrency::release_limited(
            tx,
            keys,
            T,
            ReleaseOptions {
                rotation: &rotation,
                most: 1,
                clears: true,
                tasks: &Tasks::default(),
                now_us: 9,
            },
            |_, _| true,
            all,
        )
        .await
    };
    let mut released: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..120 {
        for tenant in world.repeat(release).await.unwrap().released {
            *released.entry(tenant).or_default() += 1;
        }
    }
    assert_eq!(released.len(), 40, "{released:?}");
}

#[tokio::test]
async fn a_limit_that_has_room_is_found_behind_any_number_that_have_none() {
    let world = World::new().await;
    for n in 0..70 {
        world.add(&format!("runs{n}"), "x", &["concurrency:1000:net"], 1).await;
        assert!(world.start(&format!("runs{n}"), 1 + n).await);
    }
    for n in 1..=70 {
        hold(&world, &format!("{n}"), "x", &format!("concurrency:{n}:net"), n).await;
    }
    world.add("high", "x", &["concurrency:71:net"], 1).await;
    let bucket = named("net");
    let limit = Limit { bucket: bucket.clone(), most: 71 };
    let held = async |tx: &Transaction, keys: &Keyspace| {
        concurrency::hold_back(tx, keys, T, "high", &limit, None, 5).await
    };
    world.repeat(held).await.unwrap();
    assert_eq!(world.release(9).await.released.len(), 1);
    assert_eq!(world.front("x").await, ["high"]);
}

#[tokio::test]
async fn a_place_is_offered_to_the_jobs_of_any_number_of_types() {
    let world = World::new().await;
    world.add("runs", "x", &["concurrency:1:net"], 1).await;
    assert!(world.start("runs", 1).await);
    let (types, bucket) = ((0..100).map(|n| format!("type{n:03}")).collect::<Vec<_>>(), named("net"));
    let limit = Limit { bucket: bucket.clone(), most: 1 };
    for job_type in &types {
        let new = &NewJob::new(job_type, "j", json("{}"))
            .with(|spec| spec.reasons = vec!["concurrency:1:net".into()]);
        world.repeat(async |tx, keys| jobs::add(tx, keys, new, 1).await).await.unwrap();
        let held = async |tx: &Transaction, keys: &Keyspace| {
            concurrency::hold_back(tx, keys, job_type, "j", &limit, None, 5).await
        };
        assert!(world.repeat(held).await.unwrap());
        // The bucket is full: its mark is cleared.
        let result = world.repeat(async |tx, keys| {
            concurrency::release_limited(
                tx,
                keys,
                job_type,
                ReleaseOptions {
                    rotation: &Rotation::default(),
                    most: 9,
                    clears: true,
                    tasks: &Tasks::default(),
                    now_us: 9,
                },
                |_, _| true,
                |_, _| vec![],
            )
            .await
        });
        result.await.unwrap();
    }
    world.complete("runs", 1).await;
    while world.repeat(async |tx, keys| concurrency::mark_rest(tx, keys).await).await.unwrap() {}
    for job_type in &types {
        let all = |waiting: &[(String, usize)], _: usize| vec![0; waiting.len()];
        let result = world.repeat(async |tx, keys| {
            concurrency::release_limited(
                tx,
                keys,
                job_type,
                ReleaseOptions {
                    rotation: &Rotation::default(),
                    most: 9,
                    clears: true,
                    tasks: &Tasks::default(),
                    now_us: 9,
                },
                |_, _| true,
                all,
            )
            .await
        });
        assert_eq!(result.await.unwrap().released.len(), 1, "{job_type}");
    }
}

fn limiting(id: &str, limit: u32) -> Rule {
    Rule {
        id: id.into(),
        priority: 0,
        watermark_us: 0,
        when: String::new(),
        action: Action::Concurrency,
        limit: Some(limit),
        rate: None,
        note: None,
    }
}

#[tokio::test]
async fn a_filters_limit_holds_until_the_filters_change() {
    let world = World::new().await;
    for n in 0..9 {
        world.add(&format!("j{n}"), "x", &[], n).await;
    }
    let put = async |limit: u32| {
        let rule = limiting("few", limit);
        world.repeat(async |tx, keys| filters::put(tx, keys, &rule).await).await.unwrap();
        world.repeat(async |tx, keys| filters::stamp(tx, keys).await).await.unwrap().unwrap()
    };
    let start = async |id: &str, number: u64, most: u32, stamp: &[u8]| {
        let limits = policy::Limits { concurrency: limiting("few", most).concurrency(), rate: None };
        let (limit, claim, levels) = (&limits, &by(number), &Levels::default());
        let begun = async |tx: &Transaction, keys: &Keyspace| {
            let (mut tally, filter) = (Tally::default(), Some(limit));
            let claiming = claims::claim_within(
                Context::new(tx, keys, T, 7, 20),
                levels,
                &mut tally,
                filter,
                &(&Terms::default()).into(),
                id,
                claim,
            )
            .await?;
            if let Claiming::Limited(full) = &claiming {
                concurrency::hold_back(tx, keys, T, id, &full.limit, Some(stamp), 8).await?;
            }
            Ok(claiming.job().is_some())
        };
        let done = world.repeat(begun).await.unwrap();
        world.check().await;
        done
    };
    let release = async || {
        let mut after = None;
        loop {
            let from = after.clone();
            let next =
                world.repeat(async |tx, keys| concurrency::release_old(tx, keys, from.as_ref(), 2).await);
            after = next.await.unwrap();
            world.check().await;
            if after.is_none() {
                return;
            }
        }
    };
    let stamp = put(2).await;
    for n in 0..5 {
        assert_eq!(start(&format!("j{n}"), 1 + n, 2, &stamp).await, n < 2);
    }
    release().await;
    assert_eq!(world.front("x").await.len(), 4, "as long as the filters stay as they are");
    let stamp = put(4).await;
    release().await;
    assert_eq!(world.front("x").await, ["j2", "j3", "j4", "j5", "j6", "j7", "j8"]);
    for n in 2..6 {
        assert_eq!(start(&format!("j{n}"), 10 + n, 4, &stamp).await, n < 4);
    }
    let stamp = put(1).await;
    release().await;
    assert!(!start("j4", 20, 1, &stamp).await, "what runs goes on, and counts");
    assert!(world.repeat(async |tx, keys| filters::remove(tx, keys, "few").await).await.unwrap());
    release().await;
    assert_eq!(world.front("x").await, ["j4", "j5", "j6", "j7", "j8"]);
}

#[tokio::test]
async fn wrong_limits_are_refused() {
    let refused = |rule: &Rule| match filters::check(rule) {
        Err(Error::Invalid { field, problem }) => format!("{field}: {problem}"),
        other => panic!("not refused: {other:?}"),
    };
    filters::check(&limiting("a", 1_000)).unwrap();
    assert!(refused(&limiting("a", 0)).starts_with("limit: must be from 1 to 1000; a filter with `pause`"));
    assert!(refused(&limiting("a", 1_001)).starts_with("limit: must be from 1 to 1000"));
    assert!(refused(&Rule { limit: None, ..limiting("a", 1) }).starts_with("limit: is missing"));
    assert!(refused(&Rule { action: Action::Pause, ..limiting("a", 1) }).starts_with("limit: belongs to"));
    let mut new = NewJob::new(T, "a", json("{}"));
    new.spec.reasons = vec!["fine".into(), "concurrency:0:net".into()];
    let problem = new.check().unwrap_err().to_string();
    assert!(
        problem.starts_with("reason: `concurrency:0:net` is no limit: `0` is no number from 1"),
        "{problem}"
    );
}

/// A claim in a transaction that is still open.
async fn open_claim(world: &World, id: &str, number: u64) -> (Transaction, Claiming) {
    let tx = world.tx().await;
    let claiming =
        claims::claim_with(Context::new(&tx, &world.keys, T, 7, 20), &Levels::default(), id, &by(number))
            .await
            .unwrap();
    (tx, claiming)
}

#[tokio::test]
async fn a_release_that_clears_no_marks_conflicts_with_no_end() {
    for clears in [true, false] {
        let world = World::new().await;
        for (n, id) in (1..).zip(["a", "b", "c"]) {
            world.add(id, "x", &["concurrency:2:net"], n).await;
        }
        world.add("other", "x", &[], 9).await;
        assert!(world.start("a", 1).await && world.start("b", 2).await && !world.start("c", 3).await);
        // The bucket is full and marked, and one of its jobs ends while another one is claimed.
        let tx = world.tx().await;
        let (keys, levels, claim) = (&world.keys, &Levels::default(), &by(4));
        let rotation = Rotation::default();
        let result = concurrency::release_limited(
            &tx,
            keys,
            T,
            ReleaseOptions { rotation: &rotation, most: 9, clears, tasks: &Tasks::default(), now_us: 9 },
            |_, _| true,
            in_turn,
        )
        .await
        .unwrap();
        assert_eq!(result, ReleaseResult::default());
        claims::claim_with(Context::new(&tx, keys, T, 7, 20), levels, "other", claim)
            .await
            .unwrap()
            .job()
            .unwrap();
        world.complete("a", 1).await;
        assert_eq!(tx.commit().await.is_err(), clears);
        world.check().await;
        assert!(world.release(9).await.released.contains("x"));
        assert_eq!(world.release(9).await, ReleaseResult::default());
    }
}

#[tokio::test]
async fn two_claims_of_the_last_place_conflict() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        let bucket = if id == "c" { "concurrency:1:other" } else { "concurrency:1:net" };
        world.add(id, id, &[bucket], n).await;
    }
    let (one, claimed) = open_claim(&world, "a", 1).await;
    assert!(claimed.job().is_some());
    let (other, claimed) = open_claim(&world, "b", 2).await;
    assert!(claimed.job().is_some(), "it sees room");
    let (third, claimed) = open_claim(&world, "c", 3).await;
    assert!(claimed.job().is_some());
    one.commit().await.unwrap();
    assert!(matches!(other.commit().await, Err(StoreError::Conflict)));
    third.commit().await.unwrap();
    world.check().await;
}

#[tokio::test]
async fn a_job_that_is_limited_while_a_place_is_released_is_not_missed() {
    for end_first in [true, false] {
        let world = World::new().await;
        world.add("a", "x", &["concurrency:1:net"], 1).await;
        world.add("b", "x", &["concurrency:1:net"], 2).await;
        assert!(world.start("a", 1).await);
        let (holds, claiming) = open_claim(&world, "b", 2).await;
        let Claiming::Limited(full) = claiming else { panic!("{claiming:?}") };
        concurrency::hold_back(&holds, &world.keys, T, "b", &full.limit, None, 8).await.unwrap();
        let ends = world.tx().await;
        let ending = Ending::completed(json("1"));
        claims::end(Context::new(&ends, &world.keys, T, 9, 20), "a", &by(1), &ending, None, None)
            .await
            .unwrap();
        if end_first {
            ends.commit().await.unwrap();
            holds.commit().await.unwrap();
        } else {
            holds.commit().await.unwrap();
            assert!(matches!(ends.commit().await, Err(StoreError::Conflict)), "it has not seen the other");
            world.complete("a", 1).await;
        }
        world.check().await;
        assert!(world.release(9).await.released.contains("x"));
        assert!(world.start("b", 3).await);
    }
}

#[tokio::test]
async fn it_is_not_missed_either_if_jobs_of_other_types_are_limited_already() {
    for others in [&["aaa"][..], &["zzz"], &["aaa", "zzz"]] {
        let world = World::new().await;
        let (limit, keys) = (&Limit { bucket: named("net"), most: 1 }, &world.keys);
        for id in ["a", "b", "c"] {
            world.add(id, "x", &["concurrency:1:net"], 1).await;
        }
        assert!(world.start("a", 1).await);
        for other in others {
            let new = NewJob::new(other, "i", json("{}"))
                .with(|spec| spec.reasons = vec!["concurrency:1:net".into()]);
            world.repeat(async |tx, keys| jobs::add(tx, keys, &new, 1).await).await.unwrap();
            world
                .repeat(async |tx, keys| concurrency::hold_back(tx, keys, other, "i", limit, None, 8).await)
                .await
                .unwrap();
        }
        world.check().await;
        for (id, is_new) in [("b", true), ("c", false)] {
            let holds = world.tx().await;
            concurrency::hold_back(&holds, keys, T, id, limit, None, 8).await.unwrap();
            let ends = world.tx().await;
            let ending = Ending::completed(json("1"));
            claims::end(Context::new(&ends, keys, T, 9, 20), "a", &by(1), &ending, None, None).await.unwrap();
            holds.commit().await.unwrap();
            let ended = ends.commit().await;
            // With several types, the end marks none of them, and a later transaction all of them.
            let conflicts = is_new && others.len() == 1;
            assert_eq!(
                matches!(ended, Err(StoreError::Conflict)),
                conflicts,
                "the first of its type: {ended:?}"
            );
            world.check().await;
            if ended.is_ok() {
                break;
            }
        }
        world.repeat(async |tx, keys| concurrency::mark_rest(tx, keys).await).await.unwrap();
        assert!(world.release(9).await.released.contains("x"), "there is room");
        world.check().await;
    }
}

#[tokio::test]
async fn a_mark_that_is_set_again_is_not_cleared() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["a", "b"]) {
        world.add(id, "x", &["concurrency:1:net"], n).await;
    }
    assert!(world.start("a", 1).await && !world.start("b", 2).await);
    let releasing = world.tx().await;
    let nobody = |_: &[(String, usize)], _: usize| Vec::new();
    let result = concurrency::release_limited(
        &releasing,
        &world.keys,
        T,
        ReleaseOptions {
            rotation: &Rotation::default(),
            most: 9,
            clears: true,
            tasks: &Tasks::default(),
            now_us: 9,
        },
        |_, _| true,
        nobody,
    )
    .await
    .unwrap();
    assert_eq!(result, ReleaseResult::default(), "it is full");
    world.complete("a", 1).await;
    assert!(matches!(releasing.commit().await, Err(StoreError::Conflict)));
    world.check().await;
    assert!(world.release(9).await.released.contains("x"));
}

/// Eight workers claim jobs of three buckets from one queue, with limits of 1 to 4; one in ten workers dies with its jobs.
/// Never more jobs run than allowed, and in the end all have run.
#[tokio::test]
async fn many_workers_never_exceed_the_limit_of_a_bucket() {
    const JOBS: usize = 120;
    let world = Arc::new(World::with_limits(Limits::DEFAULT).await);
    let mut rng = StdRng::seed_from_u64(7);
    for n in 0..JOBS {
        let (most, bucket) = (rng.random_range(1..=4), rng.random_range(0..3));
        let reason = format!("concurrency:{most}:{bucket}");
        let also = rng.random_bool(0.2).then(|| "concurrency:3:also".to_owned());
        let reasons: Vec<&str> = std::iter::once(reason.as_str()).chain(also.as_deref()).collect();
        world.add(&format!("j{n}"), &format!("t{}", n % 3), &reasons, i64::try_from(n).unwrap()).await;
    }
    let ended = Arc::new(AtomicUsize::new(0));
    // Their transactions overlap whenever they wait for the store.
    let workers = tokio::task::LocalSet::new();
    for seed in 0..8 {
        let (world, ended) = (world.clone(), ended.clone());
        workers.spawn_local(async move { work(&world, seed, &ended, JOBS).await });
    }
    workers.await;
    world.check().await;
    let tx = world.tx().await;
    let all = jobs::list(&tx, &world.keys, T, None, JOBS).await.unwrap();
    assert!(all.iter().all(|job| job.state() == State::Completed && job.buckets().is_empty()));
}

async fn work(world: &World, seed: u64, ended: &AtomicUsize, jobs: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut life, mut number) = (0, 0);
    let mut name = format!("w{seed}.0");
    world.register(&name).await;
    let mut running: BTreeMap<u64, String> = BTreeMap::new();
    while ended.load(Ordering::SeqCst) < jobs {
        match rng.random_range(0..40) {
            0 => {
                // It dies; a neighbour removes it.
                let (dead, store) = (name.clone(), world);
                while !store
                    .repeat(async |tx, keys| {
                        workers::remove(Context::new(tx, keys, T, 50, 20), &dead, 2).await
                    })
                    .await
                    .unwrap()
                {}
                running.clear();
                life += 1;
                name = format!("w{seed}.{life}");
                world.register(&name).await;
            }
            1..20 => {
                let Some((&number, id)) = running.iter().next() else { continue };
                let (id, claim) = (id.clone(), Claim { worker: name.clone(), number });
                let ending = Ending::completed(json("1"));
                let end = async |tx: &Transaction, keys: &Keyspace| {
                    claims::end(Context::new(tx, keys, T, 9, 20), &id, &claim, &ending, None, None).await
                };
                world.repeat(end).await.unwrap();
                running.remove(&number);
                ended.fetch_add(1, Ordering::SeqCst);
            }
            _ => {
                let tenant = format!("t{}", rng.random_range(0..3));
                number += 2;
                let (first, levels) = (number, &Levels::default());
                let name = &name;
                // As a pass does: return limited jobs that have room, claim the first two, and limit those without room.
                let pass = async |tx: &Transaction, keys: &Keyspace| {
                    let all = |waiting: &[(String, usize)], most: usize| {
                        (0..waiting.len())
                            .flat_map(|n| std::iter::repeat_n(n, waiting[n].1))
                            .take(most)
                            .collect()
                    };
                    concurrency::release_limited(
                        tx,
                        keys,
                        T,
                        ReleaseOptions {
                            rotation: &Rotation::default(),
                            most: 2,
                            clears: true,
                            tasks: &Tasks::default(),
                            now_us: 9,
                        },
                        |_, _| true,
                        all,
                    )
                    .await?;
                    let (mut tally, mut claimed) = (Tally::default(), Vec::new());
                    for (n, job) in (0..).zip(tenants::front(tx, keys, T, &tenant, 2).await?) {
                        let claim = Claim { worker: name.clone(), number: first + n };
                        let id = job.id.as_str();
                        match claims::claim_within(
                            Context::new(tx, keys, T, 7, 20),
                            levels,
                            &mut tally,
                            None,
                            &(&Terms::default()).into(),
                            id,
                            &claim,
                        )
                        .await?
                        {
                            Claiming::Claimed { job, .. } => {
                                claimed.push((claim.number, job.into_fields().id))
                            }
                            Claiming::Limited(full) => {
                                concurrency::hold_back(tx, keys, T, id, &full.limit, None, 8).await?;
                            }
                            Claiming::Gone | Claiming::Due | Claiming::Blocked(_) | Claiming::NoRoom => {}
                        }
                    }
                    Ok(claimed)
                };
                running.extend(world.repeat(pass).await.unwrap());
                world.check().await;
            }
        }
        tokio::task::yield_now().await;
    }
}
