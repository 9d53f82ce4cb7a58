//! Jobs that wait for other jobs to end: what makes them pending, what cancels them, and what is refused.

use crate::common::{T, json};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::dependencies::{self, AT_ONCE, After, MAX_AFTER};
use turnwise_queue::jobs::{self, Added};
use turnwise_queue::{Claim, Context, Error, NewJob, Result, State, Then, workers};
use turnwise_store::Limits;

fn new(id: &str, after: &[&str]) -> NewJob {
    let after = after.iter().map(|id| After::completed(T, id)).collect();
    NewJob { after, ..NewJob::new(T, id, json("{}")) }
}

fn free(id: &str, after: &str) -> NewJob {
    let after = After { otherwise: Otherwise::Free, ..After::completed(T, after) };
    NewJob { after: vec![after], ..new(id, &[]) }
}

type World = crate::common::World<Dependencies>;

#[derive(Default)]
struct Dependencies;

impl World {
    /// Returns how many transactions it took.
    async fn remove_worker(&self) -> usize {
        for transactions in 1..10_000 {
            let removed = self
                .run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 50, 20), "w", 1_000).await);
            if removed.await {
                return transactions;
            }
        }
        panic!("there is no end of it");
    }

    async fn try_add(&self, new: &NewJob, now_us: i64) -> Result<Added> {
        self.try_run(async |tx, keys| jobs::add(tx, keys, new, now_us).await).await
    }

    async fn add(&self, new: &NewJob) -> Added {
        self.try_add(new, 5).await.unwrap()
    }

    async fn start(&self, id: &str) -> Claim {
        let claim = self.next_claim("w");
        let claimed =
            self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), id, &claim).await);
        assert!(claimed.await.is_some());
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending) {
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 20, 20), id, claim, &ending, None, None).await
        })
        .await;
    }

    async fn complete(&self, id: &str) {
        let claim = self.start(id).await;
        self.end(id, &claim, Ending::completed(json("1"))).await;
    }

    async fn fail(&self, id: &str) {
        let claim = self.start(id).await;
        self.end(id, &claim, Ending::Failed("no".into())).await;
    }

    async fn remove(&self, id: &str) {
        self.run(async |tx, keys| jobs::remove(tx, keys, T, id).await).await;
    }

    async fn cancel(&self, id: &str) {
        self.run(async |tx, keys| jobs::cancel(tx, keys, T, id, 30).await).await;
    }

    /// Returns how many transactions it took until nothing was left to settle.
    async fn settle(&self) -> usize {
        for transactions in 0..1_000 {
            let next = dependencies::next_unsettled(&self.tx().await, &self.keys, None).await;
            let Some(group) = next.unwrap() else { return transactions };
            self.run(async |tx, keys| dependencies::settle(tx, keys, &group, 40).await).await;
        }
        panic!("there is no end of it");
    }

    async fn stands(&self, id: &str) -> (State, u32) {
        let job = self.get(id).await;
        (job.state(), job.unmet())
    }

    async fn waits_for(&self, id: &str) -> Vec<String> {
        let job = self.get(id).await;
        let tx = self.tx().await;
        let unmet = dependencies::unmet(&tx, &self.keys, &job).await.unwrap();
        unmet.into_iter().map(|after| after.id).collect()
    }
}

const PENDING: (State, u32) = (State::Pending, 0);
const CANCELLED: (State, u32) = (State::Cancelled, 0);

fn problem(refused: Result<Added>) -> String {
    match refused {
        Err(Error::Invalid { field: "after", problem }) => problem,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_job_is_pending_once_its_last_dependency_has_ended() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    world.add(&new("b", &[])).await;
    assert_eq!(world.add(&new("c", &["a", "b"])).await, Added::Blocked);
    assert_eq!(world.waits_for("c").await, ["a", "b"]);
    world.complete("b").await;
    assert_eq!(
        (world.stands("c").await, world.waits_for("c").await),
        ((State::Delayed, 1), vec!["a".into()])
    );
    world.complete("a").await;
    assert_eq!(world.stands("c").await, PENDING);
    assert_eq!(world.get("c").await.order_us(), 20, "it waits in the queue since then");
    world.complete("c").await;
}

#[tokio::test]
async fn a_crash_is_no_end_and_an_unaccepted_end_cancels_or_frees() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    world.add(&new("cancelled", &["a"])).await;
    world.add(&free("free", "a")).await;
    let failed = After { accepted: vec![DependencyEnd::Failed], ..After::completed(T, "a") };
    world.add(&NewJob { after: vec![failed], ..new("cleanup", &[]) }).await;
    let claim = world.start("a").await;
    let crashed = Ending::Crashed { error: "ouch".into(), retry_us: Some(15) };
    world.end("a", &claim, crashed).await;
    assert_eq!(world.stands("cancelled").await, (State::Delayed, 1));
    let tx = world.tx().await;
    claims::release_due(&tx, &world.keys, T, 16, 9, |_| true).await.unwrap();
    tx.commit().await.unwrap();
    world.fail("a").await;
    assert_eq!(world.stands("cancelled").await, CANCELLED);
    let job = world.get("cancelled").await;
    assert_eq!(job.reason(), Some("job `a` of type `test`, which it was to wait for, has failed"));
    assert_eq!((world.stands("free").await, world.stands("cleanup").await), (PENDING, PENDING));
}

#[tokio::test]
async fn a_dependency_that_ended_before_the_add_counts_the_same() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("well", &[])).await;
    world.complete("well").await;
    world.add(&new("badly", &[])).await;
    world.fail("badly").await;
    assert_eq!(world.add(&new("a", &["well"])).await, Added::Queued);
    assert_eq!(world.add(&free("b", "badly")).await, Added::Queued);
    assert_eq!(world.add(&new("c", &["badly"])).await, Added::Cancelled);
    assert!(world.get("c").await.reason().unwrap().contains("`badly`"));
    world.add(&new("d", &[])).await;
    assert_eq!(
        world.add(&new("e", &["d", "badly"])).await,
        Added::Cancelled,
        "whatever becomes of the other"
    );
    assert_eq!(world.get("d").await.awaited, None);
}

#[tokio::test]
async fn a_chain_of_any_length_is_cancelled_in_small_transactions() {
    let world = World::new().await;
    world.add(&new("0", &[])).await;
    for n in 1..200 {
        world.add(&new(&n.to_string(), &[&(n - 1).to_string()])).await;
    }
    world.fail("0").await;
    assert!(world.settle().await > 1);
    for n in 1..200 {
        assert_eq!(world.stands(&n.to_string()).await, CANCELLED, "{n}");
    }
}

#[tokio::test]
async fn more_dependents_than_one_transaction_settles_are_updated_after_it() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    let jobs = AT_ONCE + 30;
    for n in 0..jobs {
        world.try_add(&new(&format!("d{n}"), &["a"]), 5).await.unwrap();
    }
    world.complete("a").await;
    let mut pending = 0;
    for n in 0..jobs {
        pending += usize::from(world.stands(&format!("d{n}")).await == PENDING);
    }
    assert_eq!(pending, AT_ONCE, "with the end itself");
    // A job that waits for the next end of the same job is not affected by this end.
    world.add(&new("a", &[])).await;
    world.add(&new("late", &["a"])).await;
    assert_eq!(world.settle().await, 1);
    for n in 0..jobs {
        assert_eq!(world.stands(&format!("d{n}")).await, PENDING);
    }
    assert_eq!(world.stands("late").await, (State::Delayed, 1));
    world.complete("a").await;
    assert_eq!(world.stands("late").await, PENDING);
}

#[tokio::test]
async fn a_removal_is_an_end_that_no_dependent_accepts() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    world.add(&new("b", &["a"])).await;
    world.add(&free("c", "a")).await;
    world.remove("a").await;
    // The id is free immediately; the dependents of the removed job do not depend on the new one.
    world.add(&new("a", &[])).await;
    world.add(&new("d", &["a"])).await;
    assert_eq!(world.settle().await, 1);
    assert_eq!((world.stands("b").await, world.stands("c").await), (CANCELLED, PENDING));
    assert_eq!(world.stands("d").await, (State::Delayed, 1));
    assert!(world.get("b").await.reason().unwrap().ends_with("was removed"));
    let claim = world.start("a").await;
    world.remove("a").await;
    world.end("a", &claim, Ending::Stopped).await;
    world.settle().await;
    assert_eq!(world.stands("d").await, CANCELLED);
}

#[tokio::test]
async fn a_blocked_job_can_be_cancelled_removed_retried_and_added_again() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    for id in ["cancelled", "removed", "retried", "again", "after"] {
        world.add(&new(id, &["a"])).await;
    }
    world.add(&new("next", &["cancelled"])).await;
    world.cancel("cancelled").await;
    assert_eq!(world.stands("next").await, CANCELLED, "it was to wait for one that was cancelled");
    world.remove("removed").await;
    let tx = world.tx().await;
    jobs::retry(&tx, &world.keys, T, "retried", 9).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.stands("retried").await, PENDING);
    assert_eq!(world.add(&new("again", &[])).await, Added::Queued);
    assert_eq!(world.add(&new("again", &["a"])).await, Added::Blocked, "while it is pending");
    world.complete("a").await;
    assert_eq!((world.stands("again").await, world.stands("after").await), (PENDING, PENDING));
    assert_eq!(world.stands("cancelled").await, CANCELLED);
}

#[tokio::test]
async fn the_next_run_waits_for_dependencies_and_the_current_one_does_not() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    for (id, freed) in [("b", true), ("c", false)] {
        world.add(&new(id, &[])).await;
        let claim = world.start(id).await;
        assert_eq!(world.add(&new(id, &["a"])).await, Added::RunsAgain);
        if freed {
            world.end(id, &claim, Ending::completed(json("1"))).await;
            assert_eq!(world.stands(id).await, (State::Delayed, 1));
        }
    }
    world.fail("a").await;
    assert_eq!(world.stands("b").await, CANCELLED);
    let running = world.get("c").await;
    assert_eq!((running.state(), running.unmet(), running.then()), (State::Running, 0, Then::Keep));
}

#[tokio::test]
async fn a_job_whose_next_run_was_refused_does_not_start_with_its_options() {
    let world = World::with_limits(Limits::DEFAULT).await;
    let refused = |id: &str| NewJob { options: json(r#"{"refused":true}"#), ..new(id, &["a"]) };
    let crashed = Ending::Crashed { error: "ouch".into(), retry_us: Some(15) };
    for known in [true, false] {
        world.add(&new("a", &[])).await;
        for id in ["stopped", "crashed", "completed", "lost", "restarted"] {
            world.add(&new(id, &[])).await;
        }
        let mut claims = Vec::new();
        for id in ["stopped", "crashed", "completed", "lost", "restarted"] {
            claims.push(world.start(id).await);
            if !known {
                assert_eq!(world.add(&refused(id)).await, Added::RunsAgain);
            }
        }
        world.fail("a").await;
        for id in ["stopped", "crashed", "completed", "lost", "restarted"] {
            if known {
                assert_eq!(world.add(&refused(id)).await, Added::Cancelled);
            }
            assert_eq!(world.stands(id).await, (State::Running, 0), "it may come to its own end");
        }
        let tx = world.tx().await;
        jobs::restart(&tx, &world.keys, T, "restarted").await.unwrap();
        tx.commit().await.unwrap();
        world.end("stopped", &claims[0], Ending::Stopped).await;
        world.end("crashed", &claims[1], crashed.clone()).await;
        world.end("completed", &claims[2], Ending::completed(json("1"))).await;
        world.end("restarted", &claims[4], Ending::Stopped).await;
        world.remove_worker().await;
        for id in ["stopped", "crashed", "lost"] {
            assert_eq!(world.stands(id).await, CANCELLED, "{id}");
            assert!(world.get(id).await.reason().unwrap().contains("`a`"), "{id}");
        }
        assert_eq!(world.stands("completed").await, (State::Completed, 0));
        assert_eq!(world.stands("restarted").await, PENDING, "with what was added last");
        world.register("w").await;
    }
}

#[tokio::test]
async fn the_later_of_a_cancel_and_a_refused_run_is_the_reason() {
    let world = World::with_limits(Limits::DEFAULT).await;
    let crashed = Ending::Crashed { error: "ouch".into(), retry_us: Some(15) };
    for known in [true, false] {
        world.add(&new("a", &[])).await;
        let ids = ["stopped", "crashed", "completed", "lost"];
        let mut claims = Vec::new();
        for id in ids {
            world.add(&new(id, &[])).await;
            claims.push(world.start(id).await);
            world.cancel(id).await;
            if !known {
                assert_eq!(world.add(&new(id, &["a"])).await, Added::RunsAgain);
            }
        }
        world.fail("a").await;
        for id in ids {
            if known {
                assert_eq!(world.add(&new(id, &["a"])).await, Added::Cancelled);
            }
        }
        for id in ["late", "late-lost"] {
            world.add(&new(id, &[])).await;
            claims.push(world.start(id).await);
            world.add(&new(id, &["a"])).await;
            world.cancel(id).await;
        }
        world.end("stopped", &claims[0], Ending::Stopped).await;
        world.end("crashed", &claims[1], crashed.clone()).await;
        world.end("completed", &claims[2], Ending::completed(json("1"))).await;
        world.end("late", &claims[4], Ending::Stopped).await;
        world.remove_worker().await;
        for id in ["stopped", "crashed", "lost"] {
            assert_eq!(world.stands(id).await, CANCELLED, "{id}");
            let job = world.get(id).await;
            assert!(job.reason().is_some_and(|reason| reason.contains("`a`")), "{id}: {job:?}");
        }
        assert_eq!(world.stands("completed").await, (State::Completed, 0));
        for id in ["late", "late-lost"] {
            assert_eq!((world.stands(id).await, world.get(id).await.reason()), (CANCELLED, None), "{id}");
        }
        world.register("w").await;
    }
}

#[tokio::test]
async fn a_job_waits_for_its_time_and_its_dependencies() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    let later = NewJob { not_before_us: Some(1_000), ..new("b", &["a"]) };
    assert_eq!(world.add(&later).await, Added::Blocked);
    let tx = world.tx().await;
    claims::release_due(&tx, &world.keys, T, 2_000, 9, |_| true).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.stands("b").await, (State::Delayed, 1), "its time alone starts nothing");
    world.complete("a").await;
    let job = world.get("b").await;
    assert_eq!((job.state(), job.unmet(), job.order_us()), (State::Delayed, 0, 1_000));
}

#[tokio::test]
async fn cycles_and_missing_dependencies_are_refused() {
    let world = World::with_limits(Limits::DEFAULT).await;
    assert!(problem(world.try_add(&new("a", &["none"]), 5).await).contains("no job `none`"));
    assert!(problem(world.try_add(&new("a", &["a"]), 5).await).contains("the job itself"));
    world.add(&new("a", &[])).await;
    world.add(&new("b", &["a"])).await;
    world.add(&new("c", &["b"])).await;
    let told = problem(world.try_add(&new("a", &["c"]), 5).await);
    assert!(told.contains("`b`") && told.contains("circle"), "{told}");
    assert_eq!(world.stands("a").await, PENDING, "nothing was written");
    world.check().await;
    let claim = world.start("a").await;
    assert!(problem(world.try_add(&new("a", &["c"]), 5).await).contains("circle"), "of its next run");
    world.end("a", &claim, Ending::completed(json("1"))).await;
    assert_eq!(world.add(&new("a", &["c"])).await, Added::Blocked, "b waits for what has ended");
    assert!(problem(world.try_add(&new("d", &["c", "c"]), 5).await).contains("twice"));
    let none = After { accepted: vec![], ..After::completed(T, "c") };
    let none = NewJob { after: vec![none], ..new("d", &[]) };
    assert!(problem(world.try_add(&none, 5).await).contains("accepted"));
    let ids: Vec<String> = (0..=MAX_AFTER).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert!(problem(world.try_add(&new("d", &ids), 5).await).contains("at most 100"));
}

#[tokio::test]
async fn a_dependent_that_is_added_during_the_end_is_never_missed() {
    let world = World::with_limits(Limits::DEFAULT).await;
    world.add(&new("a", &[])).await;
    for first in [true, false] {
        let id = if first { "b" } else { "c" };
        world.add(&new("a", &[])).await;
        let claim = world.start("a").await;
        let (adds, ends) = (world.tx().await, world.tx().await);
        jobs::add(&adds, &world.keys, &new(id, &["a"]), 5).await.unwrap();
        let well = Ending::completed(json("1"));
        claims::end(Context::new(&ends, &world.keys, T, 20, 20), "a", &claim, &well, None, None)
            .await
            .unwrap();
        let (one, two) = if first { (adds, ends) } else { (ends, adds) };
        one.commit().await.unwrap();
        assert!(two.commit().await.is_err(), "one of them must see the other");
        world.check().await;
        if first {
            world.end("a", &claim, well).await;
        } else {
            world.add(&new(id, &["a"])).await;
        }
        assert_eq!(world.stands(id).await, PENDING);
    }
}
