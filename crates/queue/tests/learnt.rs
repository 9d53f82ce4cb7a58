//! What runs locked is kept for later runs: written with their end, once, and never in more rows than allowed.

use std::sync::Arc;

use serde_json::value::RawValue;
use turnwise_policy::predictive_queue::experience::{Likely, Traits, guess};
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::locks::{Asked, LockAt, Spot, release_some, request};
use turnwise_queue::{
    Claim, Context, Job, Keyspace, NewJob, Result, RunKey, State, check, jobs, learnt, workers,
};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Isolation, Limits, RangeRead, Store, Transaction, runtime};

const T: &str = "test";
const NODE_UNKNOWN: &str = r#"{"instance":{"exclusive":["i"]},"node":{"exclusive":"unknown"}}"#;

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn traits(value: &str) -> Traits {
    Traits { kind: T.to_owned(), values: vec![("instance".to_owned(), value.to_owned())] }
}

fn nodes(names: &[&str]) -> Vec<LockAt> {
    names.iter().map(|name| LockAt::new(Spot::resource("node", name), Mode::Exclusive)).collect()
}

struct World {
    store: Store,
    keys: Keyspace,
    runs: u64,
    dir: tempfile::TempDir,
}

fn open(dir: &tempfile::TempDir) -> Store {
    let options = Options { durable: false, ..Options::default() };
    Store::new(Embedded::open_with(dir.path(), options).unwrap(), Arc::new(runtime::System))
        .with_limits(Limits::SMALL)
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = World { store: open(&dir), keys: Keyspace::default(), runs: 0, dir };
        let worker = workers::Worker::new("w", "n", 0, 9);
        world.run(async |tx, keys| workers::register(tx, keys, T, &worker)).await;
        world
    }

    /// Runs a transaction, then checks all rows.
    async fn run<R>(&self, body: impl AsyncFnOnce(&Transaction, &Keyspace) -> Result<R>) -> R {
        let tx = self.store.begin().await.unwrap();
        let value = body(&tx, &self.keys).await.unwrap();
        tx.commit().await.unwrap();
        let (begin, end) = (bytes::Bytes::new(), b"\xff"[..].into());
        let read = RangeRead { begin, end, limit: 100_000, reverse: false };
        let rows = self.store.begin().await.unwrap().range_with(read, Isolation::Snapshot).await.unwrap();
        assert_eq!(check::check_rows(&self.keys, &rows), []);
        value
    }

    async fn job(&self, id: &str) -> Option<Job> {
        self.run(async |tx, keys| jobs::get(tx, keys, T, id).await).await
    }

    /// Adds and claims a job.
    async fn start(&mut self, locks: &str, traits: Traits) -> (String, Claim) {
        self.runs += 1;
        let (id, claim) = (format!("job {}", self.runs), Claim { worker: "w".to_owned(), number: self.runs });
        let locks: Requests = serde_json::from_str(locks).unwrap();
        let new = NewJob { locks, traits, ..NewJob::new(T, &id, json("{}")) };
        self.run(async |tx, keys| jobs::add(tx, keys, &new, 1).await).await;
        let claimed = self
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, 9), &id, &claim).await)
            .await;
        assert!(claimed.is_some());
        (id, claim)
    }

    async fn lock(&self, (id, claim): &(String, Claim), locks: &[LockAt]) {
        let levels = &Levels::default();
        let asked = self
            .run(async |tx, keys| request(tx, keys, levels, RunKey::new(T, id, claim), locks, 3).await)
            .await;
        assert_eq!(asked, Asked::Granted);
    }

    async fn end(&self, (id, claim): &(String, Claim), ending: Ending) {
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 4, 9), id, claim, &ending, None, None).await
        })
        .await;
    }

    /// A job from its add to its end.
    async fn whole(&mut self, traits: Traits, names: &[&str]) {
        let run = self.start(NODE_UNKNOWN, traits).await;
        self.lock(&run, &nodes(names)).await;
        self.end(&run, Ending::Completed(json("{}"))).await;
    }

    /// The likely locks of a job, and the number of runs behind them.
    async fn likely(&self, value: &str) -> Option<(String, usize, usize)> {
        let traits = traits(value);
        let known = self.run(async |tx, keys| learnt::get(tx, keys, T, "instance", value).await).await;
        let declared: Requests = serde_json::from_str(NODE_UNKNOWN).unwrap();
        let (_, likely) = guess(&declared, &traits, |_, _| known.as_ref());
        let Likely { set, alike, runs, .. } = likely.first()?;
        Some((serde_json::to_string(set).unwrap(), *alike, *runs))
    }

    async fn rows(&self) -> usize {
        let (begin, end) = self.keys.all_learnt();
        let read = RangeRead { begin, end, limit: 100_000, reverse: false };
        self.store.begin().await.unwrap().range_with(read, Isolation::Snapshot).await.unwrap().len()
    }
}

#[tokio::test]
async fn locks_are_likely_after_some_runs_and_after_a_restart() {
    let mut world = World::new().await;
    for runs in 0..3 {
        assert_eq!(world.likely("web1").await, None, "after {runs}");
        world.whole(traits("web1"), &["n1", "n2"]).await;
    }
    let likely = Some((r#"{"exclusive":["n1","n2"]}"#.to_owned(), 3, 3));
    assert_eq!(world.likely("web1").await, likely);
    assert_eq!(world.likely("web2").await, None);
    let World { store, dir, keys, runs } = world;
    drop(store);
    let world = World { store: open(&dir), dir, keys, runs };
    assert_eq!(world.likely("web1").await, likely);
}

#[tokio::test]
async fn locks_that_were_released_early_count_as_locked() {
    let mut world = World::new().await;
    for _ in 0..3 {
        let run = world.start(NODE_UNKNOWN, traits("web1")).await;
        for name in ["n1", "n2"] {
            world.lock(&run, &nodes(&[name])).await;
            let spot = [Spot::resource("node", name)];
            world
                .run(async |tx, keys| release_some(tx, keys, RunKey::new(T, &run.0, &run.1), &spot).await)
                .await;
        }
        assert!(!world.job(&run.0).await.unwrap().run().unwrap().gave_back.is_none());
        world.end(&run, Ending::Completed(json("{}"))).await;
        assert!(world.job(&run.0).await.unwrap().run().is_none());
    }
    assert_eq!(world.likely("web1").await, Some((r#"{"exclusive":["n1","n2"]}"#.to_owned(), 3, 3)));
}

#[tokio::test]
async fn a_run_that_releases_too_many_locks_is_not_counted() {
    let mut world = World::new().await;
    let run = world.start(NODE_UNKNOWN, traits("web1")).await;
    for n in 0..300 {
        let name = format!("node {n:0100}");
        let run_key = RunKey::new(T, &run.0, &run.1);
        world.lock(&run, &nodes(&[&name])).await;
        let spot = [Spot::resource("node", &name)];
        world.run(async |tx, keys| release_some(tx, keys, run_key, &spot).await).await;
    }
    let job = world.job(&run.0).await.unwrap();
    assert!(serde_json::to_string(&job.run().unwrap().gave_back).unwrap().len() < 3_000);
    world.end(&run, Ending::Completed(json("{}"))).await;
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn only_completed_runs_of_jobs_with_unknown_locks_are_counted() {
    let mut world = World::new().await;
    let crashed = Ending::Crashed { reason: "x".to_owned(), crashes: 1, not_before_us: 9 };
    for ending in [Ending::Failed("x".to_owned()), crashed, Ending::Stopped, Ending::Preempted] {
        let run = world.start(NODE_UNKNOWN, traits("web1")).await;
        world.lock(&run, &nodes(&["n1"])).await;
        world.end(&run, ending).await;
        world.run(async |tx, keys| jobs::remove(tx, keys, T, &run.0).await).await;
    }
    let known = r#"{"node":{"exclusive":["n1"]}}"#;
    for (locks, traits) in [(known, traits("web1")), (NODE_UNKNOWN, Traits::default())] {
        let run = world.start(locks, traits).await;
        assert!(world.job(&run.0).await.unwrap().traits.is_empty());
        world.end(&run, Ending::Completed(json("{}"))).await;
    }
    assert_eq!(world.rows().await, 0);
    world.whole(traits("web1"), &["n1"]).await;
    assert_eq!(world.rows().await, 1);
}

#[tokio::test]
async fn a_job_that_is_added_again_has_the_traits_of_its_next_run() {
    let mut world = World::new().await;
    let run = world.start(NODE_UNKNOWN, traits("old")).await;
    let locks: Requests = serde_json::from_str(NODE_UNKNOWN).unwrap();
    let again = NewJob { locks, traits: traits("new"), ..NewJob::new(T, &run.0, json("{}")) };
    world.run(async |tx, keys| jobs::add(tx, keys, &again, 3).await).await;
    assert_eq!(world.job(&run.0).await.unwrap().traits, traits("old"));
    world.lock(&run, &nodes(&["n1"])).await;
    world.end(&run, Ending::Completed(json("{}"))).await;
    let job = world.job(&run.0).await.unwrap();
    assert_eq!((job.state(), job.traits), (State::Pending, traits("new")));
    let known =
        async |value| world.run(async |tx, keys| learnt::get(tx, keys, T, "instance", value).await).await;
    assert!(known("old").await.is_some() && known("new").await.is_none());
    // A pending job that is added again: its row changes.
    let once_more = NewJob { traits: traits("newer"), ..again };
    world.run(async |tx, keys| jobs::add(tx, keys, &once_more, 5).await).await;
    assert_eq!(world.job(&run.0).await.unwrap().traits, traits("newer"));
}

#[tokio::test]
async fn values_seen_once_fill_the_rows_and_replace_no_value_seen_again() {
    let mut world = World::new().await;
    for _ in 0..3 {
        world.whole(traits("web1"), &["n1"]).await;
    }
    // As if every other value had been seen once.
    let taken = learnt::Learnt {
        kind: T.to_owned(),
        option: "id".to_owned(),
        value: String::new(),
        seen_us: 4,
        again: false,
        locked: Default::default(),
    };
    let filled: Vec<learnt::Learnt> =
        (0..200_000).map(|n| learnt::Learnt { value: n.to_string(), ..taken.clone() }).collect();
    let own = learnt::Learnt { option: "instance".to_owned(), value: "web1".to_owned(), ..taken }.slots();
    let mut rows = std::collections::BTreeMap::new();
    for learnt in filled {
        for slot in learnt.slots().into_iter().filter(|slot| !own.contains(slot)) {
            rows.entry(slot).or_insert_with(|| learnt.clone());
        }
    }
    assert!(rows.len() as u64 >= learnt::SLOTS - 2, "{}", rows.len());
    let rows: Vec<_> = rows.into_iter().collect();
    for some in rows.chunks(50) {
        let tx = world.store.begin().await.unwrap();
        for (slot, learnt) in some {
            tx.set(world.keys.learnt(*slot), serde_json::to_vec(learnt).unwrap().into()).unwrap();
        }
        tx.commit().await.unwrap();
    }
    let before = world.rows().await;
    for n in 0..20 {
        world.whole(traits(&format!("new {n}")), &["n1"]).await;
    }
    assert!(world.rows().await <= before.max(usize::try_from(learnt::SLOTS).unwrap()));
    assert_eq!(world.likely("web1").await.unwrap().1, 3);
    let new = world.run(async |tx, keys| learnt::get(tx, keys, T, "instance", "new 19").await).await;
    assert!(new.is_some(), "the latest one has a place");
}
