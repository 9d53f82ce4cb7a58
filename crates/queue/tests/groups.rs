//! Groups: exact counts, one end, and jobs that are added at it.

use std::collections::BTreeMap;

use crate::common::{T, json};
use futures::future::join_all;
use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::counts::{Family, fold};
use turnwise_queue::groups::{
    self, CallbackJob, Created, Group, GroupCounts, Member, NewGroup, On, Removed, Settled,
};
use turnwise_queue::jobs::{Added, Retried};
use turnwise_queue::schedules::Template;
use turnwise_queue::types::TypeTerms;
use turnwise_queue::unique::{By, Did, Mode, OnConflict, Outcome, Unique, Within};
use turnwise_queue::{
    After, Claim, Context, Error, JobSpec, Kept, Keyspace, Lifetime, NewJob, Result, RunError, State,
    dependencies, jobs, lifetimes, types, unique,
};
use turnwise_store::tuple::pack;
use turnwise_store::{Error as StoreError, Limits, Sum, Transaction};

type World = crate::common::World<Groups>;

#[derive(Default)]
struct Groups;

const TENANT: &str = "default";

fn member(id: &str, group: &str) -> NewJob {
    NewJob::new(T, id, json("{}")).with(|spec| spec.group = Some(Member::of(group)))
}

fn new(name: &str, callbacks: &[On]) -> NewGroup {
    let callback = |on: &On| {
        let template = Template {
            job_type: "after".to_owned(),
            spec: JobSpec::default(),
            priority: None,
            states_locks: true,
        };
        (*on, CallbackJob { template, options: json(r#"{"secret":"s"}"#) })
    };
    NewGroup { callbacks: callbacks.iter().map(callback).collect(), ..NewGroup::new(TENANT, name) }
}

fn counts(open: u64, completed: u64, failed: u64, cancelled: u64, removed: u64) -> GroupCounts {
    GroupCounts { open, completed, failed, cancelled, removed, failures: failed }
}

impl World {
    async fn create(&self, group: &NewGroup) -> Created {
        self.run(async |tx, keys| groups::create(tx, keys, group, 1).await).await
    }

    async fn close(&self, name: &str) -> bool {
        self.run(async |tx, keys| groups::close(tx, keys, TENANT, name).await).await
    }

    async fn add(&self, job: &NewJob) -> Added {
        self.run(async |tx, keys| jobs::add_once(tx, keys, job, 2).await).await
    }

    async fn group(&self, name: &str) -> Group {
        self.run(async |tx, keys| groups::get(tx, keys, TENANT, name).await).await.unwrap()
    }

    async fn counts(&self, name: &str) -> GroupCounts {
        let group = self.group(name).await;
        self.run(async |tx, keys| groups::counts(tx, keys, &group).await).await
    }

    /// Looks at all marked groups, as the servers do, until nothing happens any more.
    async fn settle(&self, now_us: i64) -> Vec<Settled> {
        let mut all = Vec::new();
        loop {
            let marked = self.run(async |tx, keys| groups::marked(tx, keys, None, 100).await).await;
            let before = all.len();
            for mark in marked {
                let settled = self
                    .run(async |tx, keys| groups::settle(tx, keys, &mark.tenant, &mark.name, now_us).await)
                    .await;
                all.extend((settled != Settled::default()).then_some(settled));
            }
            if all.len() == before {
                return all;
            }
        }
    }

    /// Runs a job to this end.
    async fn end(&self, id: &str, ending: Ending) {
        let claim = self.next_claim("w");
        self.run(async |tx, keys| claims::claim(context(tx, keys), id, &claim).await).await.unwrap();
        self.run(async |tx, keys| claims::end(context(tx, keys), id, &claim, &ending, None, None).await)
            .await;
    }

    /// How many jobs the groups have added.
    async fn called(&self) -> Vec<String> {
        let jobs = self.run(async |tx, keys| jobs::list(tx, keys, "after", None, 100).await).await;
        jobs.into_iter()
            .map(|job| {
                let callback = job.callback.as_ref().unwrap();
                assert!(job.id.starts_with(&format!("{}@", callback.group)));
                format!("{}.{}", callback.group, callback.on.name())
            })
            .collect()
    }
}

fn context<'a>(tx: &'a Transaction, keys: &'a Keyspace) -> Context<'a> {
    Context { tx, keys, job_type: T, now_us: 5, kept: Kept::default() }
}

fn done() -> Ending {
    Ending::completed(json("1"))
}

fn failed() -> Ending {
    Ending::Failed(RunError::from("broken".to_owned()))
}

fn invalid<R: std::fmt::Debug>(result: Result<R>, part: &str) {
    match result {
        Err(Error::Invalid { problem, .. }) => assert!(problem.contains(part), "{problem}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_group_ends_with_its_last_job_and_calls_back_once() {
    let world = World::new().await;
    let group = new("g", &On::ALL);
    assert_eq!(world.create(&group).await, Created::New);
    assert_eq!(world.create(&group).await, Created::Same);
    invalid(
        world.try_run(async |tx, keys| groups::create(tx, keys, &new("g", &[]), 1).await).await,
        "other terms",
    );
    for id in ["a", "b"] {
        assert_eq!(world.add(&member(id, "g")).await, Added::Queued);
        assert_eq!(world.add(&member(id, "g")).await, Added::AlreadyThere);
    }
    world.end("a", done()).await;
    assert_eq!(world.settle(6).await, [], "it is open, and b has not ended");
    assert!(world.close("g").await && !world.close("g").await);
    assert_eq!(world.settle(6).await, []);
    invalid(
        world.try_run(async |tx, keys| jobs::add_once(tx, keys, &member("c", "g"), 3).await).await,
        "is closed",
    );
    // A repetition of an earlier add is no new job.
    assert_eq!(world.add(&member("a", "g")).await, Added::AlreadyThere);
    world.end("b", done()).await;
    let settled = world.settle(7).await;
    assert_eq!(settled.len(), 1);
    assert_eq!(settled[0].ended.as_ref().unwrap().counts, counts(0, 2, 0, 0, 0));
    assert_eq!(world.called().await, ["g.complete", "g.success"]);
    let ended = world.run(async |tx, keys| groups::settle(tx, keys, TENANT, "g", 8).await).await;
    assert_eq!(ended, Settled::default());
    assert_eq!(world.called().await.len(), 2);
    let stored = world.group("g").await;
    assert_eq!(stored.removed_us, Some(7 + groups::DEFAULT_GROUP_KEEP_US));
    assert!(format!("{stored:?}").find("secret").is_none());
    // Its jobs are found by their tag.
    assert!(world.get("a").await.has_tag("group:g"));
}

#[tokio::test]
async fn the_first_failure_calls_at_once_and_success_does_not_follow() {
    let world = World::new().await;
    world.create(&new("g", &On::ALL)).await;
    for id in ["a", "b", "c"] {
        world.add(&member(id, "g")).await;
    }
    world.end("a", failed()).await;
    // It was retried before a server looked: the failure is not forgotten.
    let retried = world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 6).await).await;
    assert_eq!(retried, Retried::Now);
    assert_eq!(world.counts("g").await, GroupCounts { open: 3, failures: 1, ..GroupCounts::default() });
    world.settle(6).await;
    assert_eq!(world.called().await, ["g.first_failure"]);
    world.end("a", failed()).await;
    world.end("b", done()).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "c", 6).await).await;
    world.close("g").await;
    world.settle(7).await;
    assert_eq!(world.called().await, ["g.complete", "g.first_failure"]);
    let end = world.group("g").await.ended.unwrap();
    assert_eq!(end.counts, GroupCounts { failures: 2, ..counts(0, 1, 1, 1, 0) });
    assert_eq!(end.end().state(), State::Failed);
}

#[tokio::test]
async fn a_retry_after_the_end_counts_and_calls_no_more() {
    let world = World::new().await;
    world.create(&new("g", &[On::Complete, On::Success])).await;
    world.add(&member("a", "g")).await;
    world.close("g").await;
    world.end("a", failed()).await;
    world.settle(6).await;
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 7).await).await;
    assert_eq!(world.counts("g").await, GroupCounts { open: 1, failures: 1, ..GroupCounts::default() });
    assert_eq!(world.group("g").await.retried, 1);
    // While it has not ended, the group stays.
    let later_us = groups::DEFAULT_GROUP_KEEP_US + 10;
    world.run(async |tx, keys| groups::prune(tx, keys, later_us, 9).await).await;
    let remove = async || world.run(async |tx, keys| groups::remove(tx, keys, TENANT, "g").await).await;
    assert_eq!(remove().await, Removed::NotEnded);
    world.end("a", done()).await;
    assert_eq!(world.settle(later_us).await, []);
    assert_eq!(world.counts("g").await, GroupCounts { completed: 1, failures: 1, ..GroupCounts::default() });
    assert_eq!(world.called().await, ["g.complete"]);
    assert_eq!(remove().await, Removed::Now);
    assert!(world.run(async |tx, keys| groups::next_removal(tx, keys).await).await.is_none());
}

#[tokio::test]
async fn jobs_of_a_group_that_is_gone_do_not_count_in_a_later_one() {
    let world = World::new().await;
    world.create(&new("g", &[])).await;
    world.add(&member("a", "g")).await;
    world.close("g").await;
    world.end("a", failed()).await;
    world.settle(6).await;
    world.run(async |tx, keys| groups::prune(tx, keys, 7 + groups::DEFAULT_GROUP_KEEP_US, 9).await).await;
    world.create(&new("g", &[On::Complete])).await;
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 8).await).await;
    let job = world.get("a").await;
    assert!(job.group.is_none() && job.tags.is_empty());
    assert_eq!(world.counts("g").await, GroupCounts::default());
    // An empty group ends when it is closed.
    world.close("g").await;
    assert_eq!(world.settle(9).await[0].ended.as_ref().unwrap().counts, GroupCounts::default());
}

#[tokio::test]
async fn every_way_to_end_counts() {
    let world = World::new().await;
    world.create(&new("g", &[On::Complete])).await;
    world.add(&member("completed", "g")).await;
    world.add(&member("failed", "g")).await;
    world.add(&member("removed", "g")).await;
    world.add(&member("moved", "g")).await;
    world.add(&member("forgotten", "g")).await;
    let after = After {
        job_type: T.to_owned(),
        id: "failed".to_owned(),
        accepted: vec![DependencyEnd::Completed],
        otherwise: Otherwise::Cancel,
    };
    world.add(&NewJob { after: vec![after], ..member("dependent", "g") }).await;
    let lifetime = Lifetime { start_within_us: Some(3), keep_us: None };
    world.add(&member("expired", "g").with(|spec| spec.lifetime = lifetime)).await;
    world.end("completed", done()).await;
    world.end("failed", failed()).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "removed").await).await;
    // The counts outlive the records.
    world.end("forgotten", done()).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "forgotten").await).await;
    let due = world.run(async |tx, keys| lifetimes::due(tx, keys, 9, 9).await).await;
    world.run(async |tx, keys| lifetimes::settle(tx, keys, &due, 9).await).await;
    // It is added again, to another group.
    world.create(&new("h", &[])).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &member("moved", "h"), 9).await).await;
    assert_eq!(world.counts("h").await, counts(1, 0, 0, 0, 0));
    while let Some(group) =
        world.run(async |tx, keys| dependencies::next_unsettled(tx, keys, None).await).await
    {
        world.run(async |tx, keys| dependencies::settle(tx, keys, &group, 9).await).await;
    }
    assert_eq!(world.counts("g").await, counts(0, 2, 2, 1, 2));
    world.close("g").await;
    world.settle(10).await;
    assert_eq!(world.called().await, ["g.complete"]);
}

#[tokio::test]
async fn a_job_that_another_one_keeps_out_is_no_member() {
    let world = World::new().await;
    world.create(&NewGroup { at_once: Some(1), ..new("g", &[]) }).await;
    world.create(&NewGroup { at_once: Some(1), ..new("h", &[]) }).await;
    let keyed = |id: &str, group: &str, on_conflict: OnConflict| {
        let (mode, by) = (Mode::UntilEnd, By::Key("k".to_owned()));
        let unique = Unique { mode, by, within: Within::Type, on_conflict };
        member(id, group).with(|spec| spec.unique = Some(unique))
    };
    let add = async |job: &NewJob, again: bool| {
        world.run(async |tx, keys| unique::add(tx, keys, job, again, 3).await).await
    };
    add(&keyed("c", "h", OnConflict::After), false).await;
    world.end("c", failed()).await;
    add(&keyed("a", "g", OnConflict::Keep), false).await;
    let kept_out = keyed("b", "g", OnConflict::Keep);
    assert!(matches!(add(&kept_out, false).await, Outcome::Found(_)));
    assert_eq!(world.counts("g").await, counts(1, 0, 0, 0, 0));
    // A repetition finds the same, also if the group takes no jobs any more.
    world.close("g").await;
    assert!(matches!(add(&kept_out, false).await, Outcome::Found(_)));
    // A job that takes over what another one states keeps its own group.
    let claim = world.next_claim("w");
    world.run(async |tx, keys| claims::claim(context(tx, keys), "a", &claim).await).await.unwrap();
    let before = world.get("a").await;
    let again = kept(&world, "c", None).await;
    let Outcome::Found(found) = add(&again, true).await else { panic!("the key is free") };
    assert_eq!(found.did, Did::RunsAgain);
    let after = world.get("a").await;
    assert_eq!((&after.group, &after.tags, &after.reasons), (&before.group, &before.tags, &before.reasons));
    assert_eq!(after.reasons.len(), 1);
    assert_eq!(world.counts("h").await, counts(0, 0, 1, 0, 0));
}

#[tokio::test]
async fn the_end_of_a_group_is_an_end_in_its_parent() {
    let world = World::new().await;
    world.create(&new("all", &[On::Complete, On::FirstFailure])).await;
    for name in ["one", "two"] {
        world.create(&NewGroup { parent: Some("all".to_owned()), ..new(name, &[On::Success]) }).await;
        world.add(&member(name, name)).await;
        world.close(name).await;
    }
    world.close("all").await;
    invalid(
        world
            .try_run(async |tx, keys| {
                let late = NewGroup { parent: Some("all".to_owned()), ..new("late", &[]) };
                groups::create(tx, keys, &late, 1).await
            })
            .await,
        "is closed",
    );
    assert_eq!(world.counts("all").await, counts(2, 0, 0, 0, 0));
    world.end("one", done()).await;
    world.settle(6).await;
    assert_eq!(world.counts("all").await, counts(1, 1, 0, 0, 0));
    world.end("two", failed()).await;
    world.settle(7).await;
    assert_eq!(world.counts("all").await, counts(0, 1, 1, 0, 0));
    assert_eq!(world.called().await, ["all.complete", "all.first_failure", "one.success"]);
}

#[tokio::test]
async fn at_most_so_many_jobs_of_a_group_run_at_once() {
    let world = World::new().await;
    world.create(&NewGroup { at_once: Some(1), ..new("g", &[]) }).await;
    for (n, id) in (0..).zip(["a", "b"]) {
        let group = Member { index: Some(n), ..Member::of("g") };
        world.add(&member(id, "g").with(|spec| spec.group = Some(group))).await;
    }
    assert_eq!(world.get("b").await.group.as_ref().unwrap().index, Some(1));
    let claim = async |id: &str, claim: &Claim| {
        world.run(async |tx, keys| claims::claim(context(tx, keys), id, claim).await).await
    };
    assert!(claim("a", &world.next_claim("w")).await.is_some());
    assert!(claim("b", &world.next_claim("w")).await.is_none());
}

/// What a client adds that states nothing but the group, if any: the job keeps the rest.
async fn kept(world: &World, id: &str, group: Option<&str>) -> NewJob {
    let spec = world.get(id).await.into_fields().spec;
    NewJob::new(T, id, json("{}"))
        .with(|new| *new = JobSpec { group: group.map(Member::of).or(spec.group.clone()), ..spec })
}

#[tokio::test]
async fn a_job_takes_nothing_of_its_group_into_another_one() {
    let world = World::new().await;
    world.create(&NewGroup { at_once: Some(1), ..new("g", &[]) }).await;
    world.create(&NewGroup { at_once: Some(2), ..new("h", &[]) }).await;
    world.add(&member("a", "g").with(|spec| spec.reasons.push("concurrency:3:group-cars".to_owned()))).await;
    assert_eq!(world.get("a").await.reasons.len(), 2);
    let moved = kept(&world, "a", Some("h")).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &moved, 3).await).await;
    let (job, h) = (world.get("a").await, world.group("h").await);
    assert_eq!(job.all_tags().collect::<Vec<_>>(), ["group:h"]);
    assert_eq!(
        job.reasons,
        ["concurrency:3:group-cars".to_owned(), format!("concurrency:2:group-{:x}", h.id)]
    );
    assert_eq!(
        (world.counts("g").await, world.counts("h").await),
        (counts(0, 0, 0, 0, 1), counts(1, 0, 0, 0, 0))
    );
    world.close("h").await;
    world.end("a", failed()).await;
    world.settle(6).await;
    world.run(async |tx, keys| groups::remove(tx, keys, TENANT, "h").await).await;
    // Without its group, it has no limit, and no other group of the name has it.
    world.create(&new("h", &[])).await;
    let again = kept(&world, "a", None).await;
    assert_eq!(again.group.as_ref().unwrap().id, h.id);
    world.run(async |tx, keys| jobs::add(tx, keys, &again, 7).await).await;
    let job = world.get("a").await;
    assert!(job.group.is_none() && job.tags.is_empty() && job.reasons == ["concurrency:3:group-cars"]);
    assert_eq!(world.counts("h").await, GroupCounts::default());
    let stated = kept(&world, "a", Some("h")).await;
    world.run(async |tx, keys| jobs::add(tx, keys, &stated, 8).await).await;
    assert_eq!(world.counts("h").await, counts(1, 0, 0, 0, 0));
}

#[tokio::test]
async fn a_group_does_not_end_beside_the_retry_of_its_last_job() {
    let world = World::new().await;
    world.create(&new("g", &[On::Complete])).await;
    world.add(&member("a", "g")).await;
    world.close("g").await;
    world.end("a", failed()).await;
    let tx = world.tx().await;
    let settled = groups::settle(&tx, &world.keys, TENANT, "g", 6).await.unwrap();
    assert!(settled.ended.is_some());
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 6).await).await;
    assert!(matches!(tx.commit().await, Err(StoreError::Conflict)));
    assert_eq!(world.settle(7).await, []);
    world.end("a", done()).await;
    let end = world.settle(8).await.remove(0).ended.unwrap();
    assert_eq!(end.counts, GroupCounts { failures: 1, ..counts(0, 1, 0, 0, 0) });
    assert_eq!(world.called().await, ["g.complete"]);
}

#[tokio::test]
async fn hidden_options_of_callbacks_are_not_to_be_guessed() {
    let world = World::new().await;
    let terms = TypeTerms { secrets: vec!["/secret".to_owned()], ..TypeTerms::default() };
    world.run(async |tx, keys| types::put_terms(tx, keys, "after", &terms).await).await;
    let with = |options: &str| {
        let mut group = new("g", &[On::Complete]);
        group.callbacks.get_mut(&On::Complete).unwrap().options = json(options);
        group
    };
    assert_eq!(world.create(&with(r#"{"secret":"s","to":1}"#)).await, Created::New);
    assert_eq!(world.create(&with(r#"{"secret":"guess","to":1}"#)).await, Created::Same);
    let other = with(r#"{"secret":"s","to":2}"#);
    invalid(world.try_run(async |tx, keys| groups::create(tx, keys, &other, 1).await).await, "other terms");
}

#[tokio::test]
async fn a_fold_writes_nothing_of_a_group_that_is_removed() {
    let world = World::new().await;
    world.create(&new("g", &[])).await;
    world.close("g").await;
    world.settle(6).await;
    // As an engine writes it that cannot add.
    let (rows, _) = world.keys.all_group_counts();
    let own = world.keys.group_counts(TENANT, &format!("g@{:x}", world.group("g").await.id));
    assert!(own.starts_with(&rows[..rows.len() - 1]));
    let appended = [&own[..], &pack(&(7, 1))].concat();
    let sum = Sum::of(1, 40).to_bytes();
    world.unchecked(async |tx, _| Ok(tx.set(appended.into(), sum)?)).await.unwrap();
    let tx = world.tx().await;
    let folded = fold(&tx, &world.keys, Family::Groups, None).await.unwrap();
    assert!(folded.rows > 0);
    assert_eq!(world.run(async |tx, keys| groups::remove(tx, keys, TENANT, "g").await).await, Removed::Now);
    assert!(matches!(tx.commit().await, Err(StoreError::Conflict)));
    assert_eq!(crate::common::rows_in(&world.store, world.keys.all_group_counts()).await, []);
}

#[tokio::test]
async fn what_a_group_states_is_bounded() {
    let world = World::new().await;
    let refuses = async |group: NewGroup, part: &str| {
        invalid(world.try_run(async |tx, keys| groups::create(tx, keys, &group, 1).await).await, part);
    };
    refuses(new("", &[]), "empty").await;
    refuses(new("a@b", &[]), "@").await;
    refuses(new(&"x".repeat(groups::MAX_GROUP_NAME_BYTES + 1), &[]), "bytes").await;
    refuses(NewGroup { at_once: Some(0), ..new("g", &[]) }, "from 1").await;
    refuses(NewGroup { parent: Some("g".to_owned()), ..new("h", &[]) }, "there is no group").await;
    let mut large = new("g", &[On::Complete]);
    large.callbacks.get_mut(&On::Complete).unwrap().options = json(&format!("\"{}\"", "x".repeat(40_000)));
    refuses(large, "bytes").await;
    let of_another = NewGroup { tenant: "other".to_owned(), ..new("g", &[On::Complete]) };
    refuses(of_another, "tenant").await;
    let job = member("a", "g");
    invalid(
        world.try_run(async |tx, keys| jobs::add_once(tx, keys, &job, 2).await).await,
        "there is no group",
    );
    // A tenant's group is none of another one.
    world.create(&new("g", &[])).await;
    let job = member("a", "g").with(|spec| spec.tenant = "other".to_owned());
    invalid(world.try_run(async |tx, keys| jobs::add_once(tx, keys, &job, 2).await).await, "`other`");
    refuses(NewGroup { most_of_tenant: 1, ..new("h", &[]) }, "which is the most").await;
    let mut name = "g".to_owned();
    for n in 1..groups::MAX_GROUP_DEPTH {
        let inner = format!("g{n}");
        world.create(&NewGroup { parent: Some(name), ..new(&inner, &[]) }).await;
        name = inner;
    }
    refuses(NewGroup { parent: Some(name), ..new("h", &[]) }, "in each other").await;
}

#[tokio::test]
async fn counts_that_are_lost_are_made_again() {
    let world = World::new().await;
    world.create(&new("g", &[On::Complete])).await;
    world.create(&NewGroup { parent: Some("g".to_owned()), ..new("in", &[]) }).await;
    for id in ["a", "b"] {
        world.add(&member(id, "g")).await;
    }
    world.close("g").await;
    world.end("a", done()).await;
    let rows = crate::common::rows_in(&world.store, world.keys.all_group_counts()).await;
    let clear = async |tx: &Transaction, _: &Keyspace| {
        rows.iter().try_for_each(|(key, _)| Ok(tx.clear(key.clone())?))
    };
    world.unchecked(clear).await.unwrap();
    turnwise_queue::counts::rebuild(&world.store, &world.keys).await.unwrap();
    world.check().await;
    assert_eq!(world.counts("g").await, counts(2, 1, 0, 0, 0));
}

/// Commits of which the caller does not learn whether they took effect are repeated, as the store's callers do.
async fn repeated<R>(
    world: &World,
    unknown: bool,
    body: impl AsyncFn(&Transaction, &Keyspace) -> Result<R>,
) -> Option<R> {
    let mut unknown = unknown;
    loop {
        let tx = world.tx().await;
        let result = match body(&tx, &world.keys).await {
            Ok(result) => result,
            Err(Error::Halt) => return None,
            Err(error) => panic!("{error}"),
        };
        match tx.commit().await {
            Ok(_) if std::mem::take(&mut unknown) => {}
            Ok(_) => return Some(result),
            Err(StoreError::Conflict) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_ends_at_the_same_time_do_not_conflict_and_the_group_ends_once() {
    const JOBS: usize = 200;
    let world = World::with_limits(Limits::SMALL).await;
    for round in 0..5 {
        let name = format!("g{round}");
        world.create(&new(&name, &On::ALL)).await;
        let mut claims = BTreeMap::new();
        for n in 0..JOBS {
            let id = format!("{name}-{n}");
            let claim = world.next_claim("w");
            world
                .unchecked(async |tx, keys| {
                    jobs::add_once(tx, keys, &member(&id, &name), 2).await?;
                    claims::claim(context(tx, keys), &id, &claim).await
                })
                .await
                .unwrap()
                .unwrap();
            claims.insert(id, claim);
        }
        let (world, name) = (&world, &name);
        // Transactions that are all begun before the first of them is committed.
        let mut open = Vec::new();
        for (id, claim) in claims.iter().take(JOBS / 2) {
            let tx = world.tx().await;
            claims::end(context(&tx, &world.keys), id, claim, &done(), None, None).await.unwrap();
            open.push(tx);
        }
        for tx in open {
            tx.commit().await.unwrap();
        }
        let ends = claims.iter().skip(JOBS / 2).zip(0..).map(|((id, claim), n)| async move {
            let ending = if n % 7 == 0 { failed() } else { done() };
            repeated(world, n % 3 == 0, async |tx, keys| {
                claims::end(context(tx, keys), id, claim, &ending, None, None).await
            })
            .await
        });
        let close = async {
            repeated(world, true, async |tx, keys| groups::close(tx, keys, TENANT, name).await).await
        };
        let look = async |unknown: bool| {
            let mut ended = 0;
            for _ in 0..20 {
                let settled = repeated(world, unknown, async |tx, keys| {
                    groups::settle(tx, keys, TENANT, name, 5).await
                })
                .await;
                ended += usize::from(settled.unwrap().ended.is_some());
                tokio::task::yield_now().await;
            }
            ended
        };
        tokio::join!(join_all(ends), close, look(false), look(true), look(true));
        world.settle(6).await;
        let group = world.group(name).await;
        assert_eq!(group.ended.unwrap().counts.total(), JOBS as u64);
        assert_eq!(group.called.len(), 2, "complete and first_failure");
    }
    assert_eq!(world.called().await.len(), 10);
    world.check().await;
}
