//! What runs locked is kept for later runs: written with their end, once, and never in more rows than allowed.

use crate::common::{T, json, open, rows_in};
use turnwise_policy::predictive_queue::experience::{Likely, Traits, guess};
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::locks::{Asked, LockAt, Spot, release_some, request};
use turnwise_queue::{Claim, Context, NewJob, RunKey, State, jobs, learnt};
use turnwise_store::Limits;

const NODE_UNKNOWN: &str = r#"{"instance":{"exclusive":["i"]},"node":{"exclusive":"unknown"}}"#;

fn traits(value: &str) -> Traits {
    Traits { kind: T.to_owned(), values: vec![("instance".to_owned(), value.to_owned())] }
}

fn nodes(names: &[&str]) -> Vec<LockAt> {
    names.iter().map(|name| LockAt::new(Spot::resource("node", name), Mode::Exclusive)).collect()
}

type World = crate::common::World<Learnt>;

#[derive(Default)]
struct Learnt;

impl World {
    /// Adds and claims a job.
    async fn start(&self, locks: &str, traits: Traits) -> (String, Claim) {
        let claim = self.next_claim("w");
        let id = format!("job {}", claim.number);
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
    async fn whole(&self, traits: Traits, names: &[&str]) {
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
        rows_in(&self.store, self.keys.all_learnt()).await.len()
    }
}

#[tokio::test]
async fn locks_are_likely_after_some_runs_and_after_a_restart() {
    let world = World::new().await;
    for runs in 0..3 {
        assert_eq!(world.likely("web1").await, None, "after {runs}");
        world.whole(traits("web1"), &["n1", "n2"]).await;
    }
    let likely = Some((r#"{"exclusive":["n1","n2"]}"#.to_owned(), 3, 3));
    assert_eq!(world.likely("web1").await, likely);
    assert_eq!(world.likely("web2").await, None);
    let World { store, keys, claims, dir, own } = world;
    drop(store);
    let world = World { store: open(&dir).with_limits(Limits::SMALL), keys, claims, dir, own };
    assert_eq!(world.likely("web1").await, likely);
}

#[tokio::test]
async fn locks_that_were_released_early_count_as_locked() {
    let world = World::new().await;
    for _ in 0..3 {
        let run = world.start(NODE_UNKNOWN, traits("web1")).await;
        for name in ["n1", "n2"] {
            world.lock(&run, &nodes(&[name])).await;
            let spot = [Spot::resource("node", name)];
            world
                .run(async |tx, keys| release_some(tx, keys, RunKey::new(T, &run.0, &run.1), &spot).await)
                .await;
        }
        assert!(!world.find(&run.0).await.unwrap().run().unwrap().gave_back.is_none());
        world.end(&run, Ending::Completed(json("{}"))).await;
        assert!(world.find(&run.0).await.unwrap().run().is_none());
    }
    assert_eq!(world.likely("web1").await, Some((r#"{"exclusive":["n1","n2"]}"#.to_owned(), 3, 3)));
}

#[tokio::test]
async fn a_run_that_releases_too_many_locks_is_not_counted() {
    let world = World::new().await;
    let run = world.start(NODE_UNKNOWN, traits("web1")).await;
    for n in 0..300 {
        let name = format!("node {n:0100}");
        let run_key = RunKey::new(T, &run.0, &run.1);
        world.lock(&run, &nodes(&[&name])).await;
        let spot = [Spot::resource("node", &name)];
        world.run(async |tx, keys| release_some(tx, keys, run_key, &spot).await).await;
    }
    let job = world.find(&run.0).await.unwrap();
    assert!(serde_json::to_string(&job.run().unwrap().gave_back).unwrap().len() < 3_000);
    world.end(&run, Ending::Completed(json("{}"))).await;
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn only_completed_runs_of_jobs_with_unknown_locks_are_counted() {
    let world = World::new().await;
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
        assert!(world.find(&run.0).await.unwrap().traits.is_empty());
        world.end(&run, Ending::Completed(json("{}"))).await;
    }
    assert_eq!(world.rows().await, 0);
    world.whole(traits("web1"), &["n1"]).await;
    assert_eq!(world.rows().await, 1);
}

#[tokio::test]
async fn a_job_that_is_added_again_has_the_traits_of_its_next_run() {
    let world = World::new().await;
    let run = world.start(NODE_UNKNOWN, traits("old")).await;
    let locks: Requests = serde_json::from_str(NODE_UNKNOWN).unwrap();
    let again = NewJob { locks, traits: traits("new"), ..NewJob::new(T, &run.0, json("{}")) };
    world.run(async |tx, keys| jobs::add(tx, keys, &again, 3).await).await;
    assert_eq!(world.find(&run.0).await.unwrap().traits, traits("old"));
    world.lock(&run, &nodes(&["n1"])).await;
    world.end(&run, Ending::Completed(json("{}"))).await;
    let job = world.find(&run.0).await.unwrap();
    assert_eq!((job.state(), job.traits), (State::Pending, traits("new")));
    let known =
        async |value| world.run(async |tx, keys| learnt::get(tx, keys, T, "instance", value).await).await;
    assert!(known("old").await.is_some() && known("new").await.is_none());
    // A pending job that is added again: its row changes.
    let once_more = NewJob { traits: traits("newer"), ..again };
    world.run(async |tx, keys| jobs::add(tx, keys, &once_more, 5).await).await;
    assert_eq!(world.find(&run.0).await.unwrap().traits, traits("newer"));
}

#[tokio::test]
async fn values_seen_once_fill_the_rows_and_replace_no_value_seen_again() {
    let world = World::new().await;
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
