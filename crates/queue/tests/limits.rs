//! Every transaction of the queue fits the engines with the smallest limits, for any data: etcd's limits, and the smallest
//! promised ones.
//!
//! There are two handles of one store. Test data is written through the handle without small limits. The tested code uses the
//! handle of the [`World`], which refuses a transaction that is too large.

use std::collections::BTreeMap;

use crate::common::{T, json};
use serde_json::value::RawValue;
use turnwise_policy::eligibility::dependencies::Otherwise;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, Request, Requests};
use turnwise_queue::claims::{self, Claiming, Ending, Park};
use turnwise_queue::concurrency;
use turnwise_queue::dependencies::{self, After, MAX_AFTER};
use turnwise_queue::jobs::{self, Added};
use turnwise_queue::locks::{Asked, LockAt, Spot, has_room};
use turnwise_queue::tags::{MAX_TAG_BYTES, MAX_TAGS};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::{
    Claim, Context, Error, NewJob, Parked, Result, RunKey, State, filters, locks, parking, workers,
};
use turnwise_store::{Limits, Store, Transaction};

/// The engines with the smallest limits.
const SMALL: [Limits; 2] = [Limits::ETCD, Limits::SMALL];
/// The most transactions that something may take.
const MANY: usize = 100_000;
/// A job with this many limits in its reasons is in one more bucket: that of a filter.
const REASONS: usize = 10;

/// JSON of about this many bytes.
fn large(bytes: usize) -> Box<RawValue> {
    json(&format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes)))
}

fn new(id: &str) -> NewJob {
    NewJob::new(T, id, json("{}"))
}

/// The longest name with this prefix.
fn long(id: &str) -> String {
    format!("{id:x<512}")
}

/// A job whose record is as large as possible when it is added.
fn fat(id: &str) -> NewJob {
    NewJob { options: large(8_000), ..new(id) }.with(|spec| {
        (spec.summary, spec.user) = (large(12_000), Some(long("u")));
        spec.tags = (0..MAX_TAGS).map(|n| format!("{n:x<MAX_TAG_BYTES$}")).collect();
    })
}

fn after(ids: impl IntoIterator<Item = String>) -> Vec<After> {
    ids.into_iter().map(|id| After::completed(T, &id)).collect()
}

/// Four levels; the units of the first one are counted.
fn levels() -> Levels {
    let levels =
        r#"[{"name":"level0","capacity":1000},{"name":"level1"},{"name":"level2"},{"name":"level3"}]"#;
    serde_json::from_str(levels).unwrap()
}

/// As many locks as a job can declare with these limits, on all levels.
fn most_locks(limits: &Limits) -> Requests {
    let named = |most: usize| {
        let mut levels: BTreeMap<String, AtLevel> = BTreeMap::new();
        for level in 0..4 {
            let names = (0..most).filter(|n| n % 4 == level).map(|n| format!("r{n}")).collect();
            levels.insert(format!("level{level}"), AtLevel::new([Request::Exclusive(names)]).unwrap());
        }
        levels.retain(|_, at| !at.requests().is_empty());
        Requests { big_lock: false, levels }
    };
    (4..100).map(named).take_while(|requests| has_room(requests, limits)).last().unwrap()
}

type World = crate::common::World<SmallLimits>;

#[derive(Default)]
struct SmallLimits;

impl World {
    /// Runs a transaction that must fit.
    async fn fits<R>(&self, what: &str, body: impl AsyncFnOnce(&Transaction) -> Result<R>) -> R {
        let tx = self.store.begin().await.unwrap();
        let value = body(&tx).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        tx.commit().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        value
    }

    /// The handle without small limits.
    fn wide(&self) -> Store {
        self.store.clone().with_limits(Limits::DEFAULT)
    }

    /// Writes test data.
    async fn lay<R>(&self, body: impl AsyncFnOnce(&Transaction) -> Result<R>) -> R {
        let tx = self.wide().begin().await.unwrap();
        let value = body(&tx).await.unwrap();
        tx.commit().await.unwrap();
        value
    }

    /// Adds jobs as test data.
    async fn there(&self, new: impl IntoIterator<Item = NewJob>) {
        let new: Vec<NewJob> = new.into_iter().collect();
        for some in new.chunks(100) {
            self.lay(async |tx| {
                for new in some {
                    jobs::add(tx, &self.keys, new, 5).await?;
                }
                Ok(())
            })
            .await;
        }
    }

    async fn add(&self, new: &NewJob) -> Added {
        let mut from = 0;
        while from < new.after.len() {
            let announced = async |tx: &Transaction| {
                dependencies::announce(tx, &self.keys, (&new.after, &new.inputs), from, 5).await
            };
            from = self.fits("announce", announced).await;
        }
        self.fits("add", async |tx| jobs::add(tx, &self.keys, new, 5).await).await
    }

    async fn start(&self, worker: &str, id: &str) -> Claim {
        let claim = self.next_claim(worker);
        let claimed = self.fits("claim", async |tx| {
            claims::claim_with(Context::new(tx, &self.keys, T, 10, 20), &levels(), id, &claim).await
        });
        assert!(matches!(claimed.await, Claiming::Claimed { .. }), "{id}");
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending) {
        let info = large(12_000);
        self.fits("end", async |tx| {
            claims::end(Context::new(tx, &self.keys, T, 20, 20), id, claim, &ending, Some(&info), None).await
        })
        .await;
    }

    /// Returns how many transactions it took until nothing was left to settle.
    async fn settle(&self) -> usize {
        for transactions in 0..MANY {
            let next = self.fits("look", async |tx| dependencies::next_unsettled(tx, &self.keys, None).await);
            let Some(group) = next.await else {
                while self.fits("mark", async |tx| concurrency::mark_rest(tx, &self.keys).await).await {}
                return transactions;
            };
            let told =
                self.fits("settle", async |tx| dependencies::settle(tx, &self.keys, &group, 40).await).await;
            let left = self.fits("look", async |tx| dependencies::next_unsettled(tx, &self.keys, None).await);
            assert!(told > 0 || left.await != Some(group), "it makes no progress");
        }
        panic!("there is no end of it");
    }

    /// Removes a worker; returns how many transactions it took.
    async fn remove_worker(&self, worker: &str) -> usize {
        for transactions in 1..MANY {
            let removed = self.fits("removal of a worker", async |tx| {
                workers::remove(Context::new(tx, &self.keys, T, 50, 20), worker, 1_000).await
            });
            if removed.await {
                return transactions;
            }
        }
        panic!("there is no end of it");
    }

    /// How many jobs are in a state, without those whose ids have this prefix.
    async fn count(&self, prefix: &str, state: State) -> usize {
        let tx = self.wide().begin().await.unwrap();
        let all = jobs::list(&tx, &self.keys, T, None, 1_000_000).await.unwrap();
        all.iter().filter(|job| job.id.starts_with(prefix) && job.state() == state).count()
    }
}

fn completed() -> Ending {
    Ending::completed(large(12_000))
}

fn failed() -> Ending {
    Ending::Failed("x".repeat(1_000).into())
}

#[tokio::test]
async fn a_job_may_have_the_documented_number_of_dependencies_of_any_size() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let first: Vec<String> = (0..MAX_AFTER).map(|n| long(&format!("a{n:03}"))).collect();
        let second: Vec<String> = (0..MAX_AFTER).map(|n| long(&format!("b{n:03}"))).collect();
        world.there(first.iter().chain(&second).map(|id| fat(id))).await;
        let id = long("waits");
        let waits = |on: &[String]| NewJob { after: after(on.to_vec()), ..fat(&id) };
        assert_eq!(world.add(&waits(&first)).await, Added::Blocked);
        assert_eq!(world.add(&waits(&second)).await, Added::Blocked, "in place of the others");
        world.check().await;
        world.fits("cancel", async |tx| jobs::cancel(tx, &world.keys, T, &id, 6).await).await;
        assert_eq!(world.add(&waits(&first)).await, Added::Blocked);
        world.fits("retry", async |tx| jobs::retry(tx, &world.keys, T, &id, 7).await).await;
        assert_eq!(world.add(&waits(&first)).await, Added::Blocked, "while it is pending");
        world.fits("remove", async |tx| jobs::remove(tx, &world.keys, T, &id).await).await;
        world.check().await;
        // All of them are updated in the end.
        assert_eq!(world.add(&waits(&second)).await, Added::Blocked);
        for id in &second {
            let claim = world.start("w", id).await;
            world.end(id, &claim, completed()).await;
        }
        assert_eq!(world.get(&id).await.state(), State::Pending);
    }
}

async fn dependents(limits: Limits, jobs: usize) -> usize {
    let world = World::with_limits(limits).await;
    world.there([new("a")]).await;
    world
        .there((0..jobs).map(|n| NewJob { after: after(["a".to_owned()]), ..new(&format!("d{n:06}")) }))
        .await;
    let claim = world.start("w", "a").await;
    world.end("a", &claim, completed()).await;
    // A job with another dependency is not delayed by them.
    world.there([new("b"), NewJob { after: after(["b".to_owned()]), ..new("z") }]).await;
    let transactions = world.settle().await;
    assert_eq!(world.count("d", State::Pending).await, jobs);
    world.check().await;
    transactions
}

#[tokio::test]
async fn any_number_of_dependents_is_freed() {
    for limits in SMALL {
        for jobs in [85, 86, 87, 100, 101, 119, 120, 121, 1_500] {
            let transactions = dependents(limits, jobs).await;
            assert!(transactions <= jobs / 40 + 2, "{jobs} jobs took {transactions} transactions");
        }
    }
}

#[tokio::test]
#[ignore = "takes half a minute"]
async fn a_hundred_thousand_dependents_are_freed() {
    for limits in SMALL {
        println!("{} transactions", dependents(limits, 100_000).await);
    }
}

#[tokio::test]
async fn an_end_is_recorded_whatever_its_dependents_wait_for() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let others: Vec<String> = (1..MAX_AFTER).map(|n| long(&format!("o{n:03}"))).collect();
        world.there(others.iter().map(|id| fat(id))).await;
        for id in ["ended", "cancelled", "removed", "lost"] {
            world.there([new(id)]).await;
            let waits = |n: usize| NewJob {
                after: after(others.iter().cloned().chain([id.to_owned()])),
                ..fat(&long(&format!("{id}-{n:02}")))
            };
            // Each of them has a dependent with many dependencies, too.
            let next = |n: usize| NewJob {
                after: after(others.iter().skip(1).cloned().chain([long(&format!("{id}-{n:02}"))])),
                ..fat(&long(&format!("{id}-next-{n:02}")))
            };
            world.there((0..12).map(waits)).await;
            world.there((0..12).map(next)).await;
        }
        let claim = world.start("w", "ended").await;
        world.end("ended", &claim, failed()).await;
        world.fits("cancel", async |tx| jobs::cancel(tx, &world.keys, T, "cancelled", 6).await).await;
        world.fits("remove", async |tx| jobs::remove(tx, &world.keys, T, "removed").await).await;
        world.register("dead").await;
        world.start("dead", "lost").await;
        world.fits("cancel", async |tx| jobs::cancel(tx, &world.keys, T, "lost", 6).await).await;
        world.remove_worker("dead").await;
        world.settle().await;
        for id in ["ended", "cancelled", "removed", "lost"] {
            assert_eq!(world.count(&format!("{id}-"), State::Cancelled).await, 24, "{id}");
        }
        world.check().await;
    }
}

/// A job with a place in as many buckets as possible.
fn limited(id: &str, job_type: &str, most: u32) -> NewJob {
    let reasons = (0..REASONS).map(|n| format!("concurrency:{most}:b{n}")).collect();
    NewJob::new(job_type, id, json("{}")).with(|spec| spec.reasons = reasons)
}

#[tokio::test]
async fn a_dead_worker_is_removed_whatever_its_jobs_hold() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        world.register("dead").await;
        let locks = most_locks(&limits);
        world.there([limited("locks", T, 100).with(|spec| spec.locks = locks.clone())]).await;
        world.there((0..90).map(|n| limited(&format!("j{n:02}"), T, 100))).await;
        world.start("dead", "locks").await;
        for n in 0..90 {
            world.start("dead", &format!("j{n:02}")).await;
        }
        // Each of its buckets limits jobs of several types.
        for n in 0..REASONS {
            for kind in 0..20 {
                let job_type = format!("t{kind:02}");
                let id = format!("back{n}");
                world.there([limited(&id, &job_type, 1)]).await;
                let limit =
                    turnwise_policy::eligibility::concurrency::of_reason(&format!("concurrency:1:b{n}"));
                let limit = limit.unwrap().unwrap();
                let back = world.fits("hold back", async |tx| {
                    concurrency::hold_back(tx, &world.keys, &job_type, &id, &limit, None, 9).await
                });
                assert!(back.await);
            }
        }
        assert!(world.remove_worker("dead").await < 60);
        world.settle().await;
        world.check().await;
        assert_eq!(world.count("j", State::Pending).await, 90);
        // All types are marked.
        for kind in 0..20 {
            let job_type = format!("t{kind:02}");
            let mut back = 0;
            for _ in 0..20 {
                let next = |tenants: &[(String, usize)], _: usize| {
                    tenants.iter().enumerate().flat_map(|(n, (_, jobs))| vec![n; *jobs]).collect()
                };
                let looked = world.fits("look", async |tx| {
                    let rotation = concurrency::Rotation::default();
                    concurrency::release_limited(
                        tx,
                        &world.keys,
                        &job_type,
                        concurrency::ReleaseOptions {
                            rotation: &rotation,
                            most: 9,
                            clears: true,
                            tasks: &Tasks::default(),
                            now_us: 9,
                        },
                        |_, _| true,
                        next,
                    )
                    .await
                });
                back += looked.await.released.len();
            }
            assert!(back > 0, "{job_type} hears nothing of the room that there is");
        }
    }
}

#[tokio::test]
async fn locks_are_claimed_requested_and_released() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let requests = most_locks(&limits);
        world.there([limited("known", T, 2).with(|spec| spec.locks = requests.clone())]).await;
        let claim = world.start("w", "known").await;
        let held = world.get("known").await.held().unwrap().clone();
        let spots: Vec<Spot> =
            held.locks().into_iter().map(|lock| lock.spot).filter(|spot| spot.level.is_some()).collect();
        world
            .fits("give back", async |tx| {
                locks::release_some(tx, &world.keys, RunKey::new(T, "known", &claim), &spots).await
            })
            .await;
        let wanted: Vec<LockAt> = held.locks().into_iter().filter(|lock| lock.spot.level.is_some()).collect();
        let asked = world.fits("ask", async |tx| {
            locks::request(tx, &world.keys, &levels(), RunKey::new(T, "known", &claim), &wanted, 11).await
        });
        assert_eq!(asked.await, Asked::Granted);
        // A queue that is longer than a transaction can prove.
        for n in 0..150 {
            let id = format!("q{n:03}");
            world.there([new(&id).with(|spec| spec.locks = requests.clone())]).await;
            world.fits("reserve", async |tx| locks::reserve(tx, &world.keys, T, &id, 20 + n).await).await;
        }
        world.end("known", &claim, completed()).await;
        let claim = world.start("w", "q000").await;
        world.end("q000", &claim, completed()).await;
        world.check().await;
    }
}

#[tokio::test]
async fn units_of_a_lock_are_shared_by_more_than_a_transaction_proves() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let shared = AtLevel::new([Request::Shared([("r".to_owned(), 1)].into())]).unwrap();
        let locks = Requests { big_lock: false, levels: [("level0".to_owned(), shared)].into() };
        world.there((0..150).map(|n| new(&format!("s{n:03}")).with(|spec| spec.locks = locks.clone()))).await;
        for n in 0..150 {
            let id = format!("s{n:03}");
            let claim = Claim { worker: "w".to_owned(), number: 1_000 + n };
            let claimed = world.fits("claim", async |tx| {
                claims::claim_with(Context::new(tx, &world.keys, T, 10, 20), &levels(), &id, &claim).await
            });
            assert!(matches!(claimed.await, Claiming::Claimed { .. }), "{id}");
        }
        world.check().await;
    }
}

#[tokio::test]
async fn batches_take_as_many_as_fit() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let keys = &world.keys;
        // Delayed, parked, paused, and ended jobs.
        world
            .there((0..300).map(|n| NewJob { not_before_us: Some(1_000), ..fat(&format!("l{n:03}")) }))
            .await;
        let mut transactions = 0;
        while world.count("l", State::Pending).await < 300 {
            world
                .fits("release", async |tx| claims::release_due(tx, keys, T, 2_000, 1_000, |_| true).await)
                .await;
            transactions += 1;
            assert!(transactions < 300);
        }
        let rule = Rule {
            id: "all".to_owned(),
            priority: 0,
            watermark_us: 0,
            when: "type = test".to_owned(),
            action: Action::Pause,
            limit: None,
            rate: None,
            note: None,
        };
        world.fits("filter", async |tx| filters::put(tx, keys, &rule).await).await;
        let stamp = filters::stamp(&world.wide().begin().await.unwrap(), keys).await.unwrap().unwrap();
        for n in 0..300 {
            let id = format!("l{n:03}");
            world.lay(async |tx| filters::pause(tx, keys, T, &id, "all", &stamp, 9).await).await;
        }
        world.fits("filter", async |tx| filters::remove(tx, keys, "all").await).await;
        let mut cursor = None;
        loop {
            cursor = world
                .fits("unpause", async |tx| filters::release(tx, keys, cursor.as_ref(), 1_000).await)
                .await;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(world.count("l", State::Pending).await, 300);
        for n in 0..300 {
            let id = format!("l{n:03}");
            world.lay(async |tx| jobs::cancel(tx, keys, T, &id, 20).await).await;
        }
        while world
            .fits("prune", async |tx| jobs::prune(tx, keys, T, 30, 1_000, &mut Default::default()).await)
            .await
            > 0
        {}
        assert_eq!(world.count("l", State::Cancelled).await, 0);
        world.there([fat("p")]).await;
        let claim = world.start("w", "p").await;
        let at = Parked { group: long("g"), key: long("k") };
        let park = Park { at: at.clone(), token: "t".repeat(4_096), not_before_us: 9_000 };
        world.end("p", &claim, Ending::Parked(park)).await;
        let parked = world.fits("parked", async |tx| parking::at(tx, keys, T, &at, 10).await).await;
        assert!(world.fits("wake", async |tx| parking::wake(tx, keys, T, &parked[0], 21).await).await);
        world.check().await;
    }
}

#[tokio::test]
async fn a_cycle_is_searched_for_among_more_jobs_than_a_transaction_proves() {
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        world.there([new("first"), NewJob { after: after(["first".to_owned()]), ..new("c000") }]).await;
        for n in 1..400 {
            let on = after([format!("c{:03}", n - 1)]);
            world.there([NewJob { after: on, ..new(&format!("c{n:03}")) }]).await;
        }
        world.there([new("free"), NewJob { after: after(["free".to_owned()]), ..new("x") }]).await;
        let add = |on: &str| NewJob { after: after([on.to_owned()]), ..new("first") };
        assert_eq!(world.add(&add("x")).await, Added::Blocked);
        let tx = world.store.begin().await.unwrap();
        let refused = jobs::add(&tx, &world.keys, &add("c399"), 5).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "after", .. })), "{refused:?}");
        // Two adds that form a cycle together do not both commit.
        let two = NewJob { after: after(["c399".to_owned()]), ..new("free") };
        let (one_tx, two_tx) = (world.store.begin().await.unwrap(), world.store.begin().await.unwrap());
        jobs::add(&one_tx, &world.keys, &add("x"), 5).await.unwrap();
        let refused = jobs::add(&two_tx, &world.keys, &two, 5).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "after", .. })), "{refused:?}");
        world.there([NewJob { after: Vec::new(), ..new("first") }]).await;
        let (one_tx, two_tx) = (world.store.begin().await.unwrap(), world.store.begin().await.unwrap());
        jobs::add(&one_tx, &world.keys, &add("x"), 5).await.unwrap();
        jobs::add(&two_tx, &world.keys, &two, 5).await.unwrap();
        one_tx.commit().await.unwrap();
        assert!(two_tx.commit().await.is_err(), "the second one has not seen the first");
    }
}

#[tokio::test]
async fn a_dependent_that_any_end_frees_needs_no_more_room() {
    // For every outcome, `free` writes as few rows as an accepted end.
    for limits in SMALL {
        let world = World::with_limits(limits).await;
        let others: Vec<String> = (1..MAX_AFTER).map(|n| format!("o{n:03}")).collect();
        world.there(others.iter().map(|id| new(id)).chain([new("a")])).await;
        let waits = |n: usize| {
            let mut on = after(others.iter().cloned().chain(["a".to_owned()]));
            on.iter_mut().for_each(|one| one.otherwise = Otherwise::Free);
            NewJob { after: on, ..new(&format!("f{n:03}")) }
        };
        world.there((0..130).map(waits)).await;
        let claim = world.start("w", "a").await;
        world.end("a", &claim, failed()).await;
        world.settle().await;
        let job = world.get("f129").await;
        assert_eq!((job.state(), job.unmet()), (State::Delayed, 99));
        world.check().await;
    }
}
