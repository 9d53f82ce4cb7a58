//! Jobs that must start within a time, and records that are kept for a time of their own.

use std::collections::BTreeMap;

use crate::common::{T, json};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::concurrency::Tally;
use turnwise_queue::edit::{self, Edit};
use turnwise_queue::types::{self, TaskTerms, TermsOfType, TypeTerms};
use turnwise_queue::{
    After, Claim, Context, EventKind, Lifetime, NewJob, State, StatedTerms, Terms, jobs, lifetimes,
};

type World = crate::common::World<Lifetimes>;

#[derive(Default)]
struct Lifetimes;

fn within(id: &str, start_within_us: i64) -> NewJob {
    new(id, Lifetime { start_within_us: Some(start_within_us), keep_us: None })
}

fn kept(id: &str, keep_us: i64) -> NewJob {
    new(id, Lifetime { start_within_us: None, keep_us: Some(keep_us) })
}

fn new(id: &str, lifetime: Lifetime) -> NewJob {
    NewJob::new(T, id, json("{}")).with(|spec| spec.lifetime = lifetime)
}

impl World {
    async fn add(&self, new: &NewJob, now_us: i64) {
        self.run(async |tx, keys| jobs::add(tx, keys, new, now_us).await).await;
    }

    async fn claim(&self, id: &str, now_us: i64) -> Option<Claim> {
        let claim = self.next_claim("w");
        let claimed = self.run(async |tx, keys| {
            let (levels, mut tally, settings) = (Levels::default(), Tally::default(), Terms::default());
            let terms = TermsOfType { stated: types::stated(tx, keys, T).await?, settings: &settings };
            let context = Context::new(tx, keys, T, now_us, 20);
            claims::claim_within(context, &levels, &mut tally, None, &terms, id, &claim).await
        });
        matches!(claimed.await, Claiming::Claimed { .. }).then_some(claim)
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending, now_us: i64) {
        let ended = self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, now_us, 20), id, claim, &ending, None, None).await
        });
        ended.await;
    }

    /// Settles what is due, and returns the ids.
    async fn settle(&self, now_us: i64) -> Vec<String> {
        self.run(async |tx, keys| {
            let due = lifetimes::due(tx, keys, now_us, 100).await?;
            assert_eq!(lifetimes::settle(tx, keys, &due, now_us).await?, due.len());
            Ok(due.into_iter().map(|due| due.id).collect())
        })
        .await
    }
}

#[tokio::test]
async fn a_job_that_does_not_start_in_time_fails_wherever_it_waits() {
    let world = World::new().await;
    world.add(&within("pending", 100), 10).await;
    world.add(&NewJob { not_before_us: Some(500), ..within("delayed", 100) }, 10).await;
    world.add(&NewJob::new(T, "first", json("{}")), 10).await;
    let after = |id: &str, on: &str, accepted: &[DependencyEnd]| {
        let after = After {
            job_type: T.to_owned(),
            id: on.to_owned(),
            accepted: accepted.to_vec(),
            otherwise: Otherwise::Cancel,
        };
        NewJob { after: vec![after], ..within(id, 100) }
    };
    world.add(&after("blocked", "first", &[DependencyEnd::Completed]), 10).await;
    let dependent = after("dependent", "pending", &[DependencyEnd::Failed]);
    world.add(&NewJob { spec: NewJob::new(T, "x", json("{}")).spec, ..dependent }, 10).await;
    assert_eq!(world.settle(109).await, [""; 0]);
    // From its time on, no worker gets it, even if no server has ended it yet.
    assert_eq!(world.claim("pending", 110).await, None);
    assert_eq!(world.settle(110).await, ["blocked", "pending"]);
    for id in ["pending", "blocked"] {
        let job = world.get(id).await;
        assert_eq!((job.state(), job.attempts, job.due_us), (State::Failed, 0, None), "{id}");
        assert_eq!(job.history[0].kind, EventKind::Expired);
        assert_eq!(job.error_class.as_deref(), Some(lifetimes::EXPIRED));
        assert_eq!(job.reason(), Some("expired: it did not start in time"));
    }
    // That is an end, which others may wait for.
    assert_eq!(world.get("dependent").await.state(), State::Pending);
    assert_eq!(world.get("delayed").await.due_us, Some(600));
    assert_eq!(world.settle(600).await, ["delayed"]);
    // It runs again if it is added again, and has the whole time again.
    world.add(&within("pending", 100), 1_000).await;
    assert_eq!(world.get("pending").await.due_us, Some(1_100));
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "pending").await).await;
}

#[tokio::test]
async fn a_job_that_has_started_in_time_waits_as_long_as_it_must() {
    let world = World::new().await;
    world.add(&within("a", 100), 10).await;
    let claim = world.claim("a", 109).await.unwrap();
    assert_eq!(world.get("a").await.due_us, None);
    world.end("a", &claim, Ending::Crashed { error: "ouch".into(), retry_us: Some(900) }, 120).await;
    assert_eq!((world.settle(5_000).await, world.get("a").await.state()), (vec![], State::Crashing));
    // Added again while it runs: the next run must start in time.
    world.add(&within("b", 100), 10).await;
    let claim = world.claim("b", 20).await.unwrap();
    world.add(&within("b", 300), 30).await;
    world.end("b", &claim, Ending::completed(json("1")), 1_000).await;
    let job = world.get("b").await;
    assert_eq!((job.state(), job.due_us), (State::Pending, Some(1_300)));
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "b", 1_100).await).await;
    assert_eq!((world.settle(5_000).await, world.get("b").await.state()), (vec![], State::Cancelled));
}

#[tokio::test]
async fn a_record_is_removed_when_the_time_that_its_job_or_task_states_is_over() {
    let world = World::new().await;
    let of_task = StatedTerms {
        lifetime: Lifetime { start_within_us: Some(1_000), keep_us: Some(70) },
        ..StatedTerms::default()
    };
    let of_type = StatedTerms {
        lifetime: Lifetime { start_within_us: None, keep_us: Some(5) },
        ..StatedTerms::default()
    };
    let tasks = BTreeMap::from([("send".to_owned(), TaskTerms { terms: of_task, ..TaskTerms::default() })]);
    let stated = TypeTerms { terms: of_type, tasks, ..TypeTerms::default() };
    world.run(async |tx, keys| types::put_terms(tx, keys, T, &stated).await).await;
    world.add(&kept("own", 50).with(|spec| spec.task = Some("send".into())), 10).await;
    world
        .add(&NewJob::new(T, "of its task", json("{}")).with(|spec| spec.task = Some("send".into())), 10)
        .await;
    world.add(&NewJob::new(T, "of its type", json("{}")), 10).await;
    world.add(&kept("cancelled", 30), 10).await;
    assert_eq!(world.get("of its task").await.due_us, Some(1_010));
    for id in ["own", "of its task", "of its type"] {
        let claim = world.claim(id, 20).await.unwrap();
        world.end(id, &claim, Ending::completed(json("1")), 100).await;
    }
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "cancelled", 100).await).await;
    // Retention removes all jobs of the type by what the type states.
    assert_eq!(world.get("of its type").await.due_us, None);
    assert_eq!(world.settle(129).await, [""; 0]);
    assert_eq!(world.settle(130).await, ["cancelled"]);
    assert_eq!(world.settle(150).await, ["own"]);
    assert_eq!(world.settle(170).await, ["of its task"]);
    for id in ["cancelled", "own", "of its task"] {
        assert!(world.find(id).await.is_none(), "{id}");
    }
}

#[tokio::test]
async fn the_time_to_start_begins_when_a_job_may_start_and_again_with_what_is_stated_anew() {
    let world = World::new().await;
    let due = async |id: &str| world.get(id).await.due_us;
    // As requests add jobs: with a place in the order of their transaction.
    let later = NewJob { order_us: Some(10), not_before_us: Some(500), ..within("later", 100) };
    world.add(&later, 10).await;
    assert_eq!(due("later").await, Some(600));
    // Added again while it waits, it keeps its place, and has the new time.
    world.add(&within("a", 100), 10).await;
    world.add(&within("a", 300), 50).await;
    assert_eq!((due("a").await, world.get("a").await.state()), (Some(350), State::Pending));
    world.add(&within("a", 300), 70).await;
    assert_eq!(due("a").await, Some(350));
    let spec =
        |start_within_us| within("a", 1).with(|spec| spec.lifetime.start_within_us = start_within_us).spec;
    let edit = async |id: &'static str, start_within_us: Option<i64>, start_us: Option<i64>, now_us: i64| {
        let edit = Edit {
            spec: spec(start_within_us),
            options: None,
            priority: None,
            start_us,
            note: "start_within_ms".into(),
        };
        world
            .run(async |tx, keys| {
                let mut job = jobs::get(tx, keys, T, id).await?.unwrap();
                edit::edit(tx, keys, &mut job, edit, now_us).await
            })
            .await
            .unwrap();
    };
    edit("later", Some(40), None, 100).await;
    assert_eq!(due("later").await, Some(540));
    edit("later", Some(40), Some(800), 100).await;
    assert_eq!(due("later").await, Some(840));
    // Also if it ran before it was added again.
    let claim = world.claim("a", 80).await.unwrap();
    world.add(&within("a", 100), 90).await;
    world.end("a", &claim, Ending::completed(json("1")), 200).await;
    assert_eq!(due("a").await, Some(300));
    edit("a", None, None, 250).await;
    assert_eq!(due("a").await, None);
    edit("a", Some(60), None, 260).await;
    assert_eq!(due("a").await, Some(320));
    assert_eq!(world.settle(320).await, ["a"]);
}

#[tokio::test]
async fn a_job_that_is_due_leaves_the_queue_and_returns_if_the_clock_was_wrong() {
    let world = World::new().await;
    for id in ["a", "b"] {
        world.add(&within(id, 100), 10).await;
        world.run(async |tx, keys| lifetimes::set_aside(tx, keys, T, id, 100).await).await;
        assert_eq!(world.get(id).await.state(), State::Pending);
        world.run(async |tx, keys| lifetimes::set_aside(tx, keys, T, id, 5_000).await).await;
        assert_eq!((world.get(id).await.state(), world.front("default").await), (State::Delayed, vec![]));
    }
    // The clock was right.
    assert_eq!(world.settle(5_000).await, ["a", "b"]);
    assert_eq!(world.get("a").await.state(), State::Failed);
    // A row without its job goes.
    world
        .unchecked(async |tx, keys| Ok(tx.set(keys.lifetime_entry(7, T, "nobody"), bytes::Bytes::new())?))
        .await
        .unwrap();
    assert_eq!(world.settle(5_000).await, ["nobody"]);
}
