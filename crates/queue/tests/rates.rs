//! Rates as rows: no period has more starts than its limit, and limited jobs return when there is a place.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};

use crate::common::{T, json, rows_in};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use turnwise_policy::eligibility::concurrency::Limit;
use turnwise_policy::eligibility::condition::Value;
use turnwise_policy::eligibility::filters::{Action, Limits, Rule};
use turnwise_policy::eligibility::rate::{Algorithm, Rate, RateLimit, key_of, of_filter};
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::concurrency::{self, Full, ReleaseOptions, ReleaseResult, Rotation, Tally};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{Context, Error, Keyspace, NewJob, Result, Terms, filters, jobs, rates, tenants};
use turnwise_store::{Error as StoreError, Limits as StoreLimits, Transaction};

/// Some time: the first µs of a test.
const NOW_US: i64 = 1_700_000_000_000_000;
const SECOND: i64 = 1_000_000;

type World = crate::common::World<Rates>;

#[derive(Default)]
struct Rates;

/// What a pass does.
#[derive(Debug, Default)]
struct Passed {
    /// The ids of the jobs that start.
    started: Vec<String>,
    /// When the next pass is useful.
    next_us: Option<i64>,
}

/// A filter with a rate.
fn rule(rate: Rate) -> Rule {
    Rule {
        id: "api".into(),
        priority: 0,
        watermark_us: 0,
        when: String::new(),
        action: Action::Rate,
        limit: None,
        rate: Some(rate),
        note: None,
    }
}

/// The limits of that filter for a job, by the value of its key.
fn of(rate: &Rate, key: Option<&str>) -> Limits {
    let rate = RateLimit { bucket: of_filter("api", key), rate: rate.clone() };
    Limits { concurrency: None, rate: Some(rate) }
}

/// Starts up to this many of the first jobs in one transaction, as a pass does; `None` after a conflict.
async fn try_pass(
    world: &World,
    worker: &str,
    limits: &(impl Fn(&str) -> Limits + Sync),
    most: usize,
    now_us: i64,
    mine: bool,
) -> Result<Option<Passed>> {
    let (tx, keys) = (world.tx().await, &world.keys);
    let (rotation, tasks, levels) = (Rotation::default(), Tasks::default(), Levels::default());
    let options = ReleaseOptions { rotation: &rotation, most, clears: true, tasks: &tasks, now_us };
    let in_order = |waiting: &[(String, usize)], most: usize| {
        waiting
            .iter()
            .enumerate()
            .flat_map(|(n, (_, jobs))| std::iter::repeat_n(n, *jobs))
            .take(most)
            .collect()
    };
    let released = concurrency::release_limited(&tx, keys, T, options, |_, _| mine, in_order).await?;
    let mut passed = Passed { next_us: released.next_us, ..Passed::default() };
    let mut tally = Tally::default();
    for job in tenants::front(&tx, keys, T, "x", 500).await? {
        if passed.started.len() == most || !tx.has_room() {
            break;
        }
        let context = Context::new(&tx, keys, T, now_us, 20);
        let (claim, limits) = (world.next_claim(worker), limits(&job.id));
        let terms = Terms::default();
        match claims::claim_within(
            context,
            &levels,
            &mut tally,
            Some(&limits),
            &(&terms).into(),
            &job.id,
            &claim,
        )
        .await?
        {
            Claiming::Claimed { .. } => passed.started.push(job.id),
            Claiming::Limited(full) => {
                concurrency::hold_back_until(&tx, keys, T, &job.id, &full, None, now_us).await?;
                let at_us = full.rate.map(|(_, at_us)| at_us);
                passed.next_us = passed.next_us.into_iter().chain(at_us).min();
            }
            other => panic!("{other:?}"),
        }
    }
    match tx.commit().await {
        Ok(_) => Ok(Some(passed)),
        Err(StoreError::Conflict) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns jobs to the queue, and starts none.
async fn release(tx: &Transaction, keys: &Keyspace, most: usize, now_us: i64) -> Result<ReleaseResult> {
    let (rotation, tasks) = (Rotation::default(), Tasks::default());
    let options = ReleaseOptions { rotation: &rotation, most, clears: true, tasks: &tasks, now_us };
    concurrency::release_limited(tx, keys, T, options, |_, _| true, |_, most| vec![0; most]).await
}

impl World {
    async fn add(&self, id: &str, reasons: &[&str], now_us: i64) {
        let mut new = NewJob::new(T, id, json("{}"));
        new.spec.tenant = "x".into();
        new.spec.reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await.map(drop)).await;
    }

    async fn add_all(&self, count: usize) {
        let ids: Vec<String> = (0..count).map(|n| format!("j{n:05}")).collect();
        for (n, ids) in ids.chunks(10).enumerate() {
            self.unchecked(async |tx, keys| {
                for id in ids {
                    let mut new = NewJob::new(T, id, json("{}"));
                    new.spec.tenant = "x".into();
                    jobs::add(tx, keys, &new, NOW_US - 1_000 + n as i64).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
        }
    }

    async fn pass(&self, limits: &Limits, most: usize, now_us: i64) -> Passed {
        let passed = try_pass(self, "w", &|_| limits.clone(), most, now_us, true).await.unwrap().unwrap();
        self.check().await;
        passed
    }

    async fn starts(&self) -> usize {
        rows_in(&self.store, self.keys.family_range("starts")).await.len()
    }
}

/// Asserts that no period has more starts than this; `times` are in their order.
fn assert_holds(times: &[i64], at_most: usize, per_us: i64) {
    for (first, next) in times.iter().zip(times.iter().skip(at_most)) {
        assert!(next - first >= per_us, "more than {at_most} start between {first} and {next}");
    }
}

#[tokio::test]
async fn a_period_has_no_more_starts_than_its_limit_and_every_place_is_used() {
    let (world, rate) = (World::new().await, Rate::new(5, 1_000));
    world.add_all(60).await;
    let limits = of(&rate, None);
    let mut rng = StdRng::seed_from_u64(7);
    let (mut now_us, mut times, mut slots) = (NOW_US, Vec::new(), [3, 1, 4, 2, 60].into_iter().cycle());
    while times.len() < 60 {
        let most = slots.next().unwrap();
        let passed = world.pass(&limits, most, now_us).await;
        // What a log of all starts would allow.
        let in_period = times.iter().filter(|at_us| **at_us > now_us - SECOND).count();
        assert_eq!(passed.started.len(), most.min(5 - in_period).min(60 - times.len()), "{times:?}");
        times.extend(std::iter::repeat_n(now_us, passed.started.len()));
        match (passed.next_us, rng.random_bool(0.6)) {
            (Some(next_us), true) if next_us > now_us => now_us = next_us,
            _ => now_us += rng.random_range(1..400_000),
        }
    }
    assert_holds(&times, 5, SECOND);
    assert!(world.starts().await <= 5, "older starts have no rows");
    world.pass(&limits, 9, now_us + SECOND).await;
    assert!(rows_in(&world.store, world.keys.roomy(T)).await.is_empty(), "no job is limited");
}

#[tokio::test]
async fn jobs_return_at_the_times_of_their_places_and_others_come_later() {
    let (world, limits) = (World::new().await, of(&Rate::new(2, 10_000), None));
    world.add_all(6).await;
    assert_eq!(world.pass(&limits, 1, NOW_US).await.started, ["j00000"]);
    let passed = world.pass(&limits, 9, NOW_US + 300).await;
    assert_eq!((passed.started.len(), passed.next_us), (1, Some(NOW_US + 10 * SECOND)));
    assert!(world.front("x").await.is_empty(), "nothing waits behind them");
    let early = world.pass(&limits, 9, NOW_US + 10 * SECOND - 1).await;
    assert_eq!((early.started.len(), early.next_us), (0, Some(NOW_US + 10 * SECOND)));
    // A worker of whose part the bucket is not leaves it to the other one, for a hundredth of the period.
    let other = async |now_us| {
        let passed = try_pass(&world, "w", &|_| limits.clone(), 9, now_us, false).await.unwrap().unwrap();
        (passed.started.len(), passed.next_us)
    };
    assert_eq!(other(NOW_US + 10 * SECOND + 99_999).await, (0, Some(NOW_US + 10 * SECOND + 100_000)));
    assert_eq!(other(NOW_US + 10 * SECOND + 100_000).await.0, 2, "the second place was free, too");
    // Nor is a place lost to a run that is.
    let (job, context_us) = (world.get("j00002").await, NOW_US + 11 * SECOND);
    let claim = job.claim().unwrap().clone();
    world
        .run(async |tx, keys| {
            claims::end(
                Context::new(tx, keys, T, context_us, 20),
                "j00002",
                &claim,
                &Ending::Stopped,
                None,
                None,
            )
            .await
        })
        .await;
    assert_eq!(world.pass(&limits, 9, context_us).await.started.len(), 0, "a start counts once, and stays");
}

#[tokio::test]
async fn a_change_of_the_numbers_applies_at_once() {
    let world = World::new().await;
    world.add_all(40).await;
    let release = async |limits: &Limits, now_us: i64| {
        // As after a change of the filters.
        let rule = rule(limits.rate.clone().unwrap().rate);
        world.run(async |tx, keys| filters::put(tx, keys, &rule).await).await;
        world.run(async |tx, keys| concurrency::release_old(tx, keys, None, 1_000).await).await;
        world.pass(limits, 99, now_us).await.started.len()
    };
    assert_eq!(world.pass(&of(&Rate::new(4, 1_000), None), 99, NOW_US).await.started.len(), 4);
    assert_eq!(release(&of(&Rate::new(10, 1_000), None), NOW_US + 1).await, 6, "the four count");
    assert_eq!(release(&of(&Rate::new(2, 1_000), None), NOW_US + 2).await, 0);
    assert_eq!(release(&of(&Rate::new(2, 1_000), None), NOW_US + 2 + SECOND).await, 2);
    let heavy = Rate { weight: 3, ..Rate::new(10, 1_000) };
    assert_eq!(release(&of(&heavy, None), NOW_US + 10 * SECOND).await, 3, "three of weight 3 fit into 10");
    assert_eq!(release(&of(&Rate::new(10, 1_000), None), NOW_US + 10 * SECOND).await, 1);
    let bucket = Rate { algorithm: Algorithm::Bucket, ..Rate::new(4, 1_000) };
    assert_eq!(release(&of(&bucket, None), NOW_US + 20 * SECOND).await, 4);
    let passed = world.pass(&of(&bucket, None), 99, NOW_US + 20 * SECOND + 250_000).await;
    assert_eq!(passed.started.len(), 1, "a token comes back every 250 ms");
}

#[tokio::test]
async fn each_key_and_each_reason_has_its_own_starts() {
    let (world, rate) = (World::new().await, Rate::new(1, 1_000));
    for (n, id) in (0..).zip(["a1", "a2", "b1", "b2"]) {
        world.add(id, &[], NOW_US + n).await;
    }
    let by_letter = |id: &str| of(&rate, Some(&id[..1]));
    let passed = try_pass(&world, "w", &by_letter, 9, NOW_US + 9, true).await.unwrap().unwrap();
    assert_eq!(passed.started, ["a1", "b1"]);
    world.check().await;
    // Two jobs name a rate, and each obeys its own numbers.
    world.add("r1", &["rate:1/1h:net"], NOW_US).await;
    world.add("r2", &["rate:2/1h:net", "concurrency:9:net"], NOW_US + 1).await;
    world.add("r3", &["rate:1/1h:net"], NOW_US + 2).await;
    let none = Limits::default();
    assert_eq!(world.pass(&none, 9, NOW_US + 9).await.started, ["r1", "r2"]);
    let (rate, next_us) =
        rates::awaited(&world.tx().await, &world.keys, &world.get("r3").await).await.unwrap().unwrap();
    assert_eq!((rate.at_most, next_us), (1, NOW_US + 9 + 3_600 * SECOND));
    // The rows of each are removed once they count no more.
    let expire = async |now_us| {
        world.run(async |tx, keys| rates::remove_expired(tx, keys, None, 100, now_us).await).await;
        rows_in(&world.store, world.keys.start_counts()).await.len()
    };
    assert_eq!(expire(NOW_US + 9).await, 3);
    assert_eq!(expire(NOW_US + 59 * SECOND).await, 3, "a node whose clock is behind may still count them");
    assert_eq!(expire(NOW_US + 62 * SECOND).await, 1);
    assert_eq!((expire(NOW_US + 4_000 * SECOND).await, world.starts().await), (0, 0));
}

#[tokio::test]
async fn a_pause_closes_a_rate_for_a_time() {
    let (world, rate) = (World::new().await, Rate::new(5, 1_000));
    world.add_all(9).await;
    let limits = of(&rate, None);
    let pause = async |until_us| {
        let rule = &rule(rate.clone());
        world.run(async |tx, keys| rates::pause(tx, keys, rule, None, until_us).await).await;
    };
    pause(NOW_US + 30 * SECOND).await;
    let passed = world.pass(&limits, 9, NOW_US + 1).await;
    assert_eq!((passed.started.len(), passed.next_us), (0, Some(NOW_US + 30 * SECOND)));
    // It ends earlier, for all types of its jobs.
    let types: Vec<String> = (0..30).map(|n| format!("type{n}")).collect();
    for job_type in &types {
        world
            .run(async |tx, keys| {
                jobs::add(tx, keys, &NewJob::new(job_type, "a", json("{}")), NOW_US).await?;
                let limit = Limit { bucket: of_filter("api", None), most: rate.at_most };
                let full = Full { limit, running: 0, rate: Some((rate.clone(), NOW_US + 30 * SECOND)) };
                concurrency::hold_back_until(tx, keys, job_type, "a", &full, None, NOW_US).await
            })
            .await;
    }
    pause(NOW_US + SECOND).await;
    while world.run(async |tx, keys| concurrency::mark_rest(tx, keys).await).await {}
    for job_type in &types {
        let due = world.keys.roomy_at(job_type, NOW_US + SECOND, "api");
        assert!(world.tx().await.get(&due).await.unwrap().is_some(), "{job_type}");
    }
    assert_eq!(world.pass(&limits, 9, NOW_US + SECOND).await.started.len(), 5);
    let keyed =
        Rule { rate: Some(Rate { key: Some("options.a".into()), ..rate.clone() }), ..rule(rate.clone()) };
    for (rule, key) in [(&keyed, None), (&rule(rate.clone()), Some("a"))] {
        let refused = world.unchecked(async |tx, keys| rates::pause(tx, keys, rule, key, NOW_US).await).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "key", .. })), "{refused:?}");
    }
    // A long value is a bucket, too.
    let (long, until_us) = ("x".repeat(200), NOW_US + 90 * SECOND);
    world.run(async |tx, keys| rates::pause(tx, keys, &keyed, Some(&long), until_us).await).await;
    let (tx, bucket) = (world.tx().await, of_filter("api", Some(&key_of(Some(Value::Text(long))))));
    let mut starts = rates::Starts::read(&tx, &world.keys, &bucket).await.unwrap();
    assert_eq!(starts.next_us(&tx, &world.keys, &rate).await.unwrap(), until_us);
}

#[tokio::test]
async fn a_raised_token_bucket_opens_at_once() {
    let bucket = |per_ms| Rate { algorithm: Algorithm::Bucket, ..Rate::new(100, per_ms) };
    for before in [bucket(86_400_000), Rate::new(100, 86_400_000)] {
        let world = World::with_limits(StoreLimits::DEFAULT).await;
        world.add_all(260).await;
        let mut started = 0;
        while started < 100 {
            started += world.pass(&of(&before, None), 40, NOW_US).await.started.len();
        }
        world.run(async |tx, keys| filters::put(tx, keys, &rule(bucket(60_000))).await).await;
        world.run(async |tx, keys| concurrency::release_old(tx, keys, None, 1_000).await).await;
        let raised = of(&bucket(60_000), None);
        assert_eq!(world.pass(&raised, 40, NOW_US + 599_999).await.started.len(), 0);
        assert_eq!(world.pass(&raised, 40, NOW_US + 6 * SECOND).await.started.len(), 10);
        let mut started = 0;
        for _ in 0..4 {
            started += world.pass(&raised, 40, NOW_US + 80 * SECOND).await.started.len();
        }
        assert_eq!(started, 100, "a full bucket");
    }
}

#[tokio::test]
async fn a_returned_job_that_does_not_start_costs_no_period() {
    let world = World::new().await;
    for (n, id) in (0..).zip(["first", "a", "b"]) {
        world.add(id, &[], NOW_US + n).await;
    }
    let day = of(&Rate::new(1, 86_400_000), None);
    assert_eq!(world.pass(&day, 9, NOW_US + 9).await.started, ["first"]);
    let next_us = NOW_US + 9 + 86_400 * SECOND;
    // `a` returns, and is cancelled before a worker claims it.
    let released = world.run(async |tx, keys| release(tx, keys, 1, next_us).await).await;
    assert_eq!(world.front("x").await.len(), 1);
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", next_us).await).await;
    let soon_us = released.next_us.unwrap();
    assert!(soon_us <= next_us + 10 * SECOND, "{soon_us}");
    assert_eq!(world.pass(&day, 9, soon_us).await.started, ["b"]);
}

#[tokio::test]
async fn jobs_of_one_name_and_number_obey_their_own_periods() {
    let (world, none) = (World::with_limits(StoreLimits::DEFAULT).await, Limits::default());
    for n in 0..40 {
        world.add(&format!("a{n:02}"), &["rate:2/1h:net"], NOW_US + n).await;
    }
    for n in 0..4 {
        world.add(&format!("b{n}"), &["rate:2/1s:net"], NOW_US + 100 + n).await;
    }
    assert_eq!(world.pass(&none, 9, NOW_US + 900).await.started, ["a00", "a01"]);
    let mut now_us = NOW_US + 900;
    let mut started = Vec::new();
    while started.len() < 4 {
        let passed = world.pass(&none, 9, now_us).await;
        started.extend(passed.started);
        now_us = passed.next_us.unwrap().max(now_us + 1);
        assert!(now_us < NOW_US + 10 * SECOND, "{started:?}");
    }
    assert_eq!(started, ["b0", "b1", "b2", "b3"]);
}

#[tokio::test]
async fn buckets_of_other_workers_set_a_time_and_no_endless_passes() {
    let world = World::with_limits(StoreLimits::DEFAULT).await;
    world
        .run(async |tx, keys| {
            for n in 0..450 {
                tx.set(keys.roomy_at(T, NOW_US, &format!("f{n:03}")), Bytes::from_static(b"1000000"))?;
            }
            Ok(())
        })
        .await;
    let (rotation, tasks, mut again) = (Rotation::default(), Tasks::default(), Vec::new());
    for _ in 0..12 {
        let options =
            ReleaseOptions { rotation: &rotation, most: 9, clears: true, tasks: &tasks, now_us: NOW_US };
        // Its part at another time does not count.
        let mine = |_: &str, at_us| at_us != NOW_US;
        let tx = world.tx().await;
        let released =
            concurrency::release_limited(&tx, &world.keys, T, options, mine, |_, _| Vec::new()).await;
        let released = released.unwrap();
        assert_eq!(released.next_us, Some(NOW_US + 10_000));
        again.push(released.more);
    }
    assert!(again.windows(2).all(|two| two != [true, true]), "{again:?}");
}

#[tokio::test]
async fn wrong_rates_are_refused() {
    let refused = |rule: &Rule| match filters::check(rule) {
        Err(Error::Invalid { field, problem }) => format!("{field}: {problem}"),
        other => panic!("not refused: {other:?}"),
    };
    let right = Rate::new(10_000, 100);
    filters::check(&rule(right.clone())).unwrap();
    filters::check(&Rule { limit: Some(3), ..rule(right.clone()) }).unwrap();
    assert!(refused(&Rule { rate: None, ..rule(right.clone()) }).starts_with("rate: is missing"));
    assert!(
        refused(&Rule { action: Action::Pause, ..rule(right.clone()) })
            .starts_with("rate: belongs to `rate`")
    );
    for (wrong, expected) in [
        (Rate::new(0, 1_000), "at_most must be from 1 to 10000"),
        (Rate::new(10_001, 1_000), "at_most must be"),
        (Rate::new(1, 99), "per_ms must be from 100"),
        (Rate { weight: 11, ..Rate::new(10, 1_000) }, "weight must be"),
        (Rate { key: Some("tenant".into()), ..right.clone() }, "key must name an option"),
        (Rate { key: Some(format!("options.{}", "x".repeat(200))), ..right }, "key has 208 bytes"),
    ] {
        let problem = refused(&rule(wrong));
        assert!(problem.starts_with(&format!("rate: {expected}")), "{problem}");
    }
    let mut new = NewJob::new(T, "a", json("{}"));
    new.spec.reasons = vec!["rate:0/1s:net".into()];
    assert!(new.check().unwrap_err().to_string().starts_with("reason: `rate:0/1s:net` is no rate"));
    new.spec.reasons = vec!["rate:100/1s:a".into(), "rate:1000/1h:b".into()];
    new.check().unwrap();
    new.spec.reasons.push("rate:1000/1h:a".into());
    assert!(new.check().unwrap_err().to_string().starts_with("reason: `rate:1000/1h:a`: another reason"));
}

/// Two workers whose clocks differ claim at the same time, with conflicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_nodes_with_different_clocks_never_exceed_a_rate() {
    const JOBS: usize = 400;
    let world = Arc::new(World::with_limits(StoreLimits::DEFAULT).await);
    world.register("v").await;
    world.add_all(JOBS).await;
    let (clock_us, started) = (Arc::new(AtomicI64::new(NOW_US)), Arc::new(AtomicUsize::new(0)));
    let node = |worker: &'static str, behind_us: i64, seed: u64| {
        let (world, clock_us, started) = (world.clone(), clock_us.clone(), started.clone());
        tokio::spawn(async move {
            let (mut rng, limits) = (StdRng::seed_from_u64(seed), of(&Rate::new(20, 1_000), None));
            while started.load(SeqCst) < JOBS {
                let now_us = clock_us.fetch_add(rng.random_range(0..60_000), SeqCst) - behind_us;
                let (most, mine) = (rng.random_range(1..9), rng.random_bool(0.5));
                let passed = try_pass(&world, worker, &|_| limits.clone(), most, now_us, mine).await.unwrap();
                started.fetch_add(passed.map_or(0, |passed| passed.started.len()), SeqCst);
                tokio::task::yield_now().await;
            }
        })
    };
    for node in [node("w", 0, 1), node("v", 170_000, 2)] {
        node.await.unwrap();
    }
    world.check().await;
    let mut times = Vec::new();
    for n in 0..JOBS {
        times.push(world.get(&format!("j{n:05}")).await.started_us.unwrap());
    }
    times.sort_unstable();
    assert_holds(&times, 20, SECOND);
}
