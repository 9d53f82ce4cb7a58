//! Results that are handed on: who gets them, how long they stay, and jobs that are tried again with those after them.

use std::collections::{HashSet, VecDeque};

use crate::common::{T, json, rows_in};
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::dependencies::After;
use turnwise_queue::jobs::{self, Added};
use turnwise_queue::rerun_followers::{self, Step};
use turnwise_queue::unique::{By, Mode, OnConflict, Unique, Within};
use turnwise_queue::{
    Claim, Context, Error, Input, Lifetime, MAX_INPUTS, NewJob, Result, State, await_inputs, check,
    dependencies, followers, lifetimes,
};
use turnwise_store::Limits;

type World = crate::common::World<Inputs>;

#[derive(Default)]
struct Inputs;

/// A job that gets the results of these jobs, under their ids.
fn wants(id: &str, inputs: &[&str]) -> NewJob {
    let input = |id: &&str| (id.to_string(), Input { job_type: T.to_owned(), id: id.to_string() });
    let mut new =
        NewJob::new(T, id, json("{}")).with(|spec| spec.inputs = inputs.iter().map(input).collect());
    await_inputs(&new.spec.inputs, &mut new.after);
    new
}

fn after(id: &str, on: &[&str]) -> NewJob {
    let after = on.iter().map(|on| After::completed(T, on)).collect();
    NewJob { after, ..NewJob::new(T, id, json("{}")) }
}

impl World {
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
        assert!(claimed.await.is_some(), "{id}");
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending) {
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 20, 20), id, claim, &ending, None, None).await
        })
        .await;
    }

    async fn complete(&self, id: &str, result: &str) {
        let claim = self.start(id).await;
        self.end(id, &claim, Ending::completed(json(result))).await;
    }

    async fn fail(&self, id: &str) {
        let claim = self.start(id).await;
        self.end(id, &claim, Ending::Failed("no".into())).await;
    }

    async fn state(&self, id: &str) -> Option<State> {
        self.find(id).await.map(|job| job.state())
    }

    async fn waits_for(&self, id: &str) -> Vec<String> {
        let job = self.get(id).await;
        let unmet = dependencies::unmet(&self.tx().await, &self.keys, &job).await.unwrap();
        unmet.into_iter().map(|after| after.id).collect()
    }

    /// The results that a job gets, by name; `None` where there is none.
    async fn given(&self, id: &str) -> Vec<(String, Option<String>)> {
        let job = self.get(id).await;
        let given = followers::inputs(&self.tx().await, &self.keys, &job).await.unwrap();
        let result = |job: turnwise_queue::Job| job.into_fields().result.map(|json| json.get().to_owned());
        given.into_iter().map(|(name, _, job)| (name, job.and_then(result))).collect()
    }

    /// A round of the retention, for which all records are too old.
    async fn prune(&self) {
        let mut behind = Default::default();
        while self.run(async |tx, keys| jobs::prune(tx, keys, T, 1_000, 3, &mut behind).await).await > 0 {}
    }

    /// Looks for followers of a job that were cancelled because of its end.
    async fn step(&self, id: &str, last: Option<&(String, String)>) -> Step {
        let of = (T, id);
        self.run(async |tx, keys| rerun_followers::step(tx, keys, of, last, |_| true, 15).await).await
    }

    /// Updates all dependents of jobs that have ended.
    async fn settle(&self) {
        while let Some(group) =
            dependencies::next_unsettled(&self.tx().await, &self.keys, None).await.unwrap()
        {
            self.run(async |tx, keys| dependencies::settle(tx, keys, &group, 40).await).await;
        }
    }

    /// Retries a job with those that were cancelled because of its end. Returns how many of them wait again.
    async fn retry_from(&self, id: &str) -> usize {
        self.run(async |tx, keys| jobs::rerun(tx, keys, T, id, 15).await).await;
        let (mut open, mut all) = (VecDeque::from([(id.to_owned(), None)]), 0);
        let mut seen = HashSet::new();
        while let Some((id, last)) = open.pop_front() {
            let Step { followers, rerun, next, .. } = self.step(&id, last.as_ref()).await;
            all += rerun.len();
            if next.is_some() {
                open.push_front((id, next));
            }
            let new = followers.into_iter().filter(|(_, id)| seen.insert(id.clone()));
            open.extend(new.map(|(_, id)| (id, None)));
        }
        all
    }
}

fn problem(refused: Result<Added>, of: &str) -> String {
    match refused {
        Err(Error::Invalid { field, problem }) if field == of => problem,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_job_waits_for_its_inputs_and_gets_their_results() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.add(&wants("b", &[])).await;
    assert_eq!(world.add(&wants("c", &["a", "b"])).await, Added::Blocked);
    world.complete("a", "[1]").await;
    world.complete("b", "2").await;
    let got = [("a".to_owned(), Some("[1]".to_owned())), ("b".to_owned(), Some("2".to_owned()))];
    let claim = world.start("c").await;
    assert_eq!(world.given("c").await, got);
    // A run that is put off, or crashes, gets them again.
    world.end("c", &claim, Ending::Snoozed { until_us: 15 }).await;
    world.run(async |tx, keys| jobs::retry(tx, keys, T, "c", 30).await).await;
    world.start("c").await;
    assert_eq!(world.given("c").await, got);
    // One that runs again has no result meanwhile.
    world.add(&wants("a", &[])).await;
    assert_eq!(world.given("c").await[0], ("a".to_owned(), None));
}

#[tokio::test]
async fn a_result_stays_until_no_dependant_needs_it() {
    for ends in ["completes", "is cancelled", "is removed"] {
        let world = World::new().await;
        for id in ["a", "x", "y", "z", "kept"] {
            let keep_us = (id == "kept").then_some(0);
            let lifetime = Lifetime { start_within_us: None, keep_us };
            world.add(&wants(id, &[]).with(|spec| spec.lifetime = lifetime)).await;
            world.complete(id, "1").await;
        }
        assert_eq!(world.add(&wants("d", &["a", "kept"])).await, Added::Queued);
        let settle = async |now_us: i64| {
            world
                .run(async |tx, keys| {
                    let due = lifetimes::due(tx, keys, now_us, 100).await?;
                    lifetimes::settle(tx, keys, &due, now_us).await
                })
                .await
        };
        world.prune().await;
        settle(1_000).await;
        for (id, stays) in [("a", true), ("x", false), ("y", false), ("z", false), ("kept", true)] {
            assert_eq!(world.find(id).await.is_some(), stays, "{id}");
        }
        match ends {
            "completes" => world.complete("d", "1").await,
            "is cancelled" => {
                world.run(async |tx, keys| jobs::cancel(tx, keys, T, "d", 30).await).await;
            }
            _ => world.run(async |tx, keys| jobs::remove(tx, keys, T, "d").await).await,
        }
        world.prune().await;
        settle(1_000_000_000).await;
        assert_eq!((world.state("a").await, world.state("kept").await), (None, None), "{ends}");
    }
}

#[tokio::test]
async fn many_dependants_that_have_ended_keep_nothing_and_one_that_has_not_keeps_the_result() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.complete("a", "1").await;
    for n in 0..followers::AT_ONCE * 2 {
        let id = format!("d{n:03}");
        world.add(&wants(&id, &["a"])).await;
        world.run(async |tx, keys| jobs::cancel(tx, keys, T, &id, 30).await).await;
    }
    world.add(&wants("last", &["a"])).await;
    world.prune().await;
    assert!(world.find("a").await.is_some());
    assert!(world.find("d000").await.is_none());
    world.complete("last", "1").await;
    world.prune().await;
    assert!(world.find("a").await.is_none());
}

#[tokio::test]
async fn a_dependency_that_fails_cancels_the_job_or_gives_it_nothing() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    assert_eq!(world.add(&wants("strict", &["a"])).await, Added::Blocked);
    let mut lenient = wants("lenient", &["a"]);
    lenient.after[0].otherwise = Otherwise::Free;
    world.add(&lenient).await;
    world.fail("a").await;
    assert_eq!(world.state("strict").await, Some(State::Cancelled));
    world.start("lenient").await;
    assert_eq!(world.given("lenient").await, [("a".to_owned(), None)]);
}

#[tokio::test]
async fn inputs_that_are_not_possible_are_refused() {
    let world = World::new().await;
    let foreign = wants("foreign", &[]).with(|spec| spec.tenant = "other".to_owned());
    world.add(&foreign).await;
    let refused = problem(world.try_add(&wants("b", &["foreign"]), 5).await, "inputs");
    assert_eq!(refused, "`foreign` is of another tenant: a job gets results of its own tenant only");
    assert!(problem(world.try_add(&wants("b", &["nowhere"]), 5).await, "after").contains("there is no job"));
    assert!(
        problem(world.try_add(&NewJob { after: vec![], ..wants("b", &["b"]) }, 5).await, "inputs")
            .contains("itself")
    );
    let ids: Vec<String> = (0..=MAX_INPUTS).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert!(problem(world.try_add(&wants("b", &ids), 5).await, "inputs").contains("at most 32"));
    let name = |name: &str| {
        let input = Input { job_type: T.to_owned(), id: "a".to_owned() };
        wants("b", &[]).with(|spec| drop(spec.inputs.insert(name.to_owned(), input)))
    };
    for wrong in ["", "a/b", "..", "ä"] {
        problem(world.try_add(&name(wrong), 5).await, "inputs");
    }
    // A job that is given to another tenant has no results of the former one.
    world.add(&wants("a", &[])).await;
    world.add(&wants("b", &["a"])).await;
    world.complete("a", "1").await;
    let moved = NewJob { after: vec![], ..wants("b", &["a"]) }.with(|spec| spec.tenant = "other".to_owned());
    world.add(&moved).await;
    assert_eq!(world.given("b").await, [("a".to_owned(), None)]);
}

#[tokio::test]
async fn jobs_that_no_one_follows_have_no_mark() {
    let world = World::new().await;
    for id in ["a", "b"] {
        world.add(&wants(id, &[])).await;
    }
    world.add(&after("c", &["a", "b"])).await;
    world.complete("a", "1").await;
    world.complete("b", "1").await;
    world.complete("c", "1").await;
    for id in ["a", "b", "c"] {
        assert!(!world.get(id).await.followed, "{id}");
    }
    let rows = rows_in(&world.store, world.keys.followers(T, "a")).await;
    assert!(rows.is_empty());
}

#[tokio::test]
async fn a_graph_is_tried_again_from_the_job_that_failed() {
    let world = World::new().await;
    for id in ["a", "other"] {
        world.add(&wants(id, &[])).await;
    }
    world.add(&after("b", &["a", "other"])).await;
    world.add(&wants("c", &["b"])).await;
    world.add(&after("cleanup", &["c"])).await;
    let ended = NewJob {
        after: vec![After { accepted: vec![DependencyEnd::Failed], ..After::completed(T, "a") }],
        ..after("alarm", &[])
    };
    world.add(&ended).await;
    world.add(&after("not-wanted", &["a"])).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "not-wanted", 15).await).await;
    world.fail("a").await;
    for id in ["b", "c", "cleanup"] {
        assert_eq!(world.state(id).await, Some(State::Cancelled), "{id}");
    }
    assert_eq!(world.retry_from("a").await, 3);
    assert_eq!(world.waits_for("b").await, ["a", "other"]);
    assert_eq!(world.waits_for("c").await, ["b"]);
    assert_eq!(world.waits_for("cleanup").await, ["c"]);
    assert_eq!(world.state("not-wanted").await, Some(State::Cancelled));
    // The request may be repeated.
    assert_eq!(world.retry_from("a").await, 0);
    for id in ["a", "other", "b", "c", "cleanup"] {
        world.complete(id, "1").await;
    }
}

#[tokio::test]
async fn a_job_that_was_added_after_the_failure_is_tried_again_too() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.fail("a").await;
    assert_eq!(world.add(&wants("late", &["a"])).await, Added::Cancelled);
    assert_eq!(world.retry_from("a").await, 1);
    assert_eq!(world.waits_for("late").await, ["a"]);
    // It fails once more: so does the whole story.
    world.fail("a").await;
    assert_eq!(world.state("late").await, Some(State::Cancelled));
    assert_eq!(world.retry_from("a").await, 1);
    world.complete("a", "7").await;
    world.start("late").await;
    assert_eq!(world.given("late").await, [("a".to_owned(), Some("7".to_owned()))]);
}

#[tokio::test]
async fn a_wide_graph_is_tried_again_in_small_steps() {
    let world = World::with_limits(Limits::SMALL).await;
    world.add(&wants("a", &[])).await;
    let wide = followers::AT_ONCE * 3;
    for n in 0..wide {
        world.add(&after(&format!("d{n:03}"), &["a"])).await;
    }
    world.fail("a").await;
    world.settle().await;
    assert_eq!(world.retry_from("a").await, wide);
    assert_eq!(world.state("d000").await, Some(State::Delayed));
}

#[tokio::test]
async fn a_retry_that_was_interrupted_goes_on_behind_what_runs_again() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.add(&wants("b", &["a"])).await;
    world.add(&after("c", &["b"])).await;
    world.fail("a").await;
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 15).await).await;
    let step = world.step("a", None).await;
    assert_eq!((step.rerun.len(), step.followers.len()), (1, 1));
    assert_eq!(world.state("c").await, Some(State::Cancelled));
    assert_eq!(world.retry_from("a").await, 1);
    assert_eq!(world.waits_for("c").await, ["b"]);
}

#[tokio::test]
async fn paths_of_other_lengths_meet_at_a_job_that_is_tried_again_once() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.add(&after("short", &["a"])).await;
    world.add(&after("long-1", &["a"])).await;
    world.add(&after("long-2", &["long-1"])).await;
    world.add(&after("long-3", &["long-2"])).await;
    world.add(&wants("meet", &["short", "long-3"])).await;
    world.add(&after("last", &["meet"])).await;
    world.fail("a").await;
    assert_eq!(world.retry_from("a").await, 6);
    assert_eq!(world.waits_for("meet").await, ["long-3", "short"]);
    assert_eq!(world.waits_for("last").await, ["meet"]);
}

#[tokio::test]
async fn a_job_that_does_not_run_again_keeps_those_behind_it_cancelled() {
    let world = World::new().await;
    let unique = Unique {
        mode: Mode::UntilEnd,
        by: By::Key("k".into()),
        within: Within::Type,
        on_conflict: OnConflict::Keep,
    };
    let keyed = |new: NewJob| new.with(|spec| spec.unique = Some(unique.clone()));
    world.add(&wants("a", &[])).await;
    world.add(&keyed(after("b", &["a"]))).await;
    world.add(&after("c", &["b"])).await;
    world.fail("a").await;
    world.add(&keyed(after("holder", &[]))).await;
    let before = world.get("c").await.history.len();
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 15).await).await;
    let step = world.step("a", None).await;
    assert_eq!((step.refused.len(), step.rerun.len(), step.followers.len()), (1, 0, 0));
    assert_eq!(world.retry_from("a").await, 0);
    assert_eq!(world.get("c").await.history.len(), before);
    // The key is free.
    world.complete("holder", "1").await;
    assert_eq!(world.retry_from("a").await, 2);
    // What fails for a reason of its own is not retried from before it.
    world.complete("a", "1").await;
    world.fail("b").await;
    assert_eq!((world.retry_from("a").await, world.state("c").await), (0, Some(State::Cancelled)));
}

#[tokio::test]
async fn jobs_that_are_cancelled_only_after_a_retry_are_found_by_the_next_one() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    let wide = 150;
    for n in 0..wide {
        world.add(&after(&format!("d{n:03}"), &["a"])).await;
    }
    world.fail("a").await;
    let first = world.retry_from("a").await;
    world.settle().await;
    assert_eq!(
        (first + world.retry_from("a").await, world.state("d149").await),
        (wide, Some(State::Delayed))
    );
}

#[tokio::test]
async fn a_follower_whose_input_is_another_tenants_by_now_does_not_stop_the_others() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.add(&wants("b", &["a"])).await;
    world.add(&after("c", &["a"])).await;
    world.fail("a").await;
    world.add(&wants("a", &[]).with(|spec| spec.tenant = "other".to_owned())).await;
    let step = world.step("a", None).await;
    assert_eq!((step.refused.len(), step.rerun.len()), (1, 1));
    assert_eq!(world.state("c").await, Some(State::Delayed));
}

#[tokio::test]
async fn a_job_that_waited_for_many_with_long_ids_waits_for_all_of_them_again() {
    let world = World::with_limits(Limits::DEFAULT).await;
    let ids: Vec<String> = (0..100).map(|n| format!("{n:0500}")).collect();
    for id in &ids {
        world.add(&wants(id, &[])).await;
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    world.add(&after("wide", &ids)).await;
    world.fail(ids[7]).await;
    assert_eq!(world.retry_from(ids[7]).await, 1);
    assert_eq!(world.waits_for("wide").await.len(), 100);
}

#[tokio::test]
async fn a_job_that_is_added_again_and_again_does_not_collect_rows_of_followers() {
    let world = World::new().await;
    let rows = async || {
        let (a, b) = (world.keys.followers(T, "a"), world.keys.followers(T, "b"));
        (rows_in(&world.store, a).await.len(), rows_in(&world.store, b).await.len())
    };
    world.add(&wants("b", &[])).await;
    world.complete("b", "1").await;
    for id in ["one", "two"] {
        world.add(&wants("a", &[])).await;
        world.complete("a", "1").await;
        world.add(&wants(id, &["a", "b"])).await;
        // It needs another result now.
        world.add(&wants(id, &["a"])).await;
        assert_eq!(rows().await, (1, 0));
        world.complete(id, "1").await;
        world.run(async |tx, keys| jobs::remove(tx, keys, T, id).await).await;
        assert_eq!(rows().await, (0, 0));
    }
}

#[tokio::test]
async fn the_check_finds_rows_of_followers_that_are_lost_or_belong_to_no_follower() {
    let world = World::new().await;
    world.add(&wants("a", &[])).await;
    world.add(&wants("b", &["a"])).await;
    world.complete("a", "1").await;
    let (b, nobody) = (world.keys.follower((T, "a"), T, "b"), world.keys.follower((T, "a"), T, "nobody"));
    let found = async || {
        let rows = rows_in(&world.store, (bytes::Bytes::new(), b"\xff"[..].into())).await;
        check::check_rows(&world.keys, &rows).iter().map(|found| found.invariant).collect::<Vec<_>>()
    };
    for key in [world.keys.follower((T, "a"), T, "a"), nobody] {
        world.unchecked(async |tx, _| Ok(tx.set(key.clone(), bytes::Bytes::new())?)).await.unwrap();
        assert_eq!(found().await, [check::Invariant::FollowerKnown]);
        world.unchecked(async |tx, _| Ok(tx.clear(key)?)).await.unwrap();
    }
    world.unchecked(async |tx, _| Ok(tx.clear(b)?)).await.unwrap();
    assert_eq!(found().await, [check::Invariant::FollowerKnown]);
    // It has ended, and needs nothing.
    world.unchecked(async |tx, keys| jobs::cancel(tx, keys, T, "b", 30).await).await.unwrap();
    assert_eq!(found().await, []);
}
