//! Schedules: each instant once, what is missed, what overlaps, and what pauses.

use std::collections::BTreeSet;

use crate::common::{T, json, open, rows_in};
use turnwise_calendar::{Calendar, When};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::schedules::{
    self, Changed, Due, FireRecord, Fired, Missed, NewSchedule, Outcome, Overlap, PausedBy, Put, Schedule,
    Template, Waiting,
};
use turnwise_queue::unique::{By, Mode, OnConflict, Unique, Within};
use turnwise_queue::{Claim, Context, Error, Job, JobSpec, Keyspace, NewJob, Place, State, jobs, lifetimes};
use turnwise_store::{Error as StoreError, Limits, Transaction};

type World = crate::common::World<Schedules>;

#[derive(Default)]
struct Schedules;

const MINUTE: i64 = 60_000_000;

fn every_minutes(minutes: i64) -> Calendar {
    Calendar { when: When::Every { every_us: minutes * MINUTE, offset_us: 0 }, from_us: None, until_us: None }
}

fn new(name: &str, minutes: i64) -> NewSchedule {
    let template =
        Template { job_type: T.to_owned(), spec: JobSpec::default(), priority: None, states_locks: false };
    NewSchedule::new(name, every_minutes(minutes), template, json(r#"{"a":1}"#))
}

fn unique(by: By, on_conflict: OnConflict) -> Option<Unique> {
    Some(Unique { mode: Mode::UntilEnd, by, within: Within::Type, on_conflict })
}

/// The id of the job of a minute.
fn id(name: &str, minute: i64) -> String {
    schedules::job_id(name, minute * MINUTE)
}

impl World {
    async fn put(&self, new: &NewSchedule, now_us: i64) -> Put {
        self.run(async |tx, keys| schedules::put(tx, keys, new, now_us).await).await
    }

    /// Fires all that is due, and returns what came of each instant, as `minute: outcome`.
    async fn fire(&self, now_us: i64) -> Vec<String> {
        self.fired(now_us).await.into_iter().map(|(_, fire)| told(&fire)).collect()
    }

    async fn fired(&self, now_us: i64) -> Vec<(String, FireRecord)> {
        self.fired_within(None, now_us).await
    }

    /// The same where a tenant may have at most so many waiting jobs.
    async fn fired_within(&self, most: Option<u64>, now_us: i64) -> Vec<(String, FireRecord)> {
        let mut all = Vec::new();
        loop {
            let due = schedules::due(&self.tx().await, &self.keys, now_us, 1_000).await.unwrap();
            if due.is_empty() {
                return all;
            }
            let fire = async |tx: &Transaction, keys: &Keyspace| {
                let waiting = match most {
                    Some(most) => Some(Waiting::new(self.tx().await, most)),
                    None => None,
                };
                schedules::fire(tx, keys, &due, waiting, now_us).await
            };
            let fired = self.run(fire).await;
            assert!(fired.done > 0);
            all.extend(fired.fires);
        }
    }

    async fn schedule(&self, name: &str) -> Schedule {
        schedules::get(&self.tx().await, &self.keys, name).await.unwrap().unwrap()
    }

    async fn jobs(&self) -> Vec<Job> {
        jobs::list(&self.tx().await, &self.keys, T, None, 10_000).await.unwrap()
    }

    async fn claim(&self, id: &str, now_us: i64) -> Claim {
        let claim = self.next_claim("w");
        let claimed = self
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, now_us, 20), id, &claim).await)
            .await;
        assert!(claimed.is_some(), "{id}");
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending, now_us: i64) {
        let end = async |tx: &Transaction, keys: &Keyspace| {
            claims::end(Context::new(tx, keys, T, now_us, 20), id, claim, &ending, None, None).await.map(drop)
        };
        self.run(end).await;
    }

    async fn run_job(&self, id: &str, ending: Ending, now_us: i64) {
        let claim = self.claim(id, now_us).await;
        self.end(id, &claim, ending, now_us).await;
    }
}

fn told(fire: &FireRecord) -> String {
    let names_a_job = matches!(fire.outcome, Outcome::Added | Outcome::Exists | Outcome::Found);
    assert_eq!(fire.job.is_some(), names_a_job);
    format!("{}: {}", fire.at_us / MINUTE, fire.outcome.name())
}

#[tokio::test]
async fn an_instant_fires_once_on_any_node_and_however_often_it_is_tried() {
    let world = World::new().await;
    let mut nightly = new("nightly", 10);
    nightly.template.spec.tenant = "acme".to_owned();
    nightly.template.priority = Some(-3);
    assert_eq!(world.put(&nightly, 25 * MINUTE).await, Put::Created);
    assert_eq!(world.schedule("nightly").await.next, Some(30 * MINUTE));
    assert_eq!(world.fire(30 * MINUTE - 1).await, [""; 0]);
    let due = schedules::due(&world.tx().await, &world.keys, 30 * MINUTE, 10).await.unwrap();
    assert_eq!(due, [Due { at_us: 30 * MINUTE, name: "nightly".to_owned() }]);
    // Two nodes at the same time: one of them conflicts, looks again, and finds nothing.
    let (first, second) = (world.tx().await, world.tx().await);
    for tx in [&first, &second] {
        assert_eq!(schedules::fire(tx, &world.keys, &due, None, 30 * MINUTE).await.unwrap().fires.len(), 1);
    }
    first.commit().await.unwrap();
    assert!(matches!(second.commit().await, Err(StoreError::Conflict)));
    // A repetition with an old list, as after a commit whose outcome was unknown.
    let again: Fired =
        world.run(async |tx, keys| schedules::fire(tx, keys, &due, None, 30 * MINUTE).await).await;
    assert_eq!((again.done, again.fires.len()), (1, 0));
    let job = world.get("nightly@1970-01-01T00:30:00Z").await;
    assert_eq!((job.tenant.as_str(), job.priority, job.state()), ("acme", -3, State::Pending));
    let of = job.schedule.clone().unwrap();
    assert_eq!((of.name.as_str(), of.at_us, of.fired_us), ("nightly", 30 * MINUTE, 30 * MINUTE));
    let options = jobs::options(&world.tx().await, &world.keys, &job).await.unwrap();
    assert_eq!(options.get(), r#"{"a":1}"#);
    // Its row is as in a store that was copied before this fire: the job is there, and stays as it is.
    world.run_job(&job.id, Ending::completed(json("1")), 31 * MINUTE).await;
    let row = world.keys.schedule("nightly");
    let before = world.tx().await.get(&row).await.unwrap().unwrap();
    assert_eq!(world.fire(40 * MINUTE).await, ["40: added"]);
    world.run_job(&id("nightly", 40), Ending::completed(json("1")), 41 * MINUTE).await;
    world
        .run(async |tx, keys| {
            tx.set(row.clone(), before.clone())?;
            tx.clear(keys.schedule_due_entry(50 * MINUTE, "nightly"))?;
            Ok(tx.set(keys.schedule_due_entry(40 * MINUTE, "nightly"), bytes::Bytes::new())?)
        })
        .await;
    assert_eq!(world.fire(40 * MINUTE).await, ["40: exists"]);
    assert_eq!(world.get(&id("nightly", 40)).await.state(), State::Completed);
    assert_eq!((world.jobs().await.len(), world.schedule("nightly").await.next), (2, Some(50 * MINUTE)));
}

#[tokio::test]
async fn a_clock_that_is_set_back_fires_nothing_twice() {
    let world = World::new().await;
    let allows = NewSchedule { overlap: Overlap::Allow, ..new("s", 10) };
    world.put(&allows, MINUTE).await;
    assert_eq!(world.fire(10 * MINUTE).await, ["10: added"]);
    assert_eq!(world.fire(5 * MINUTE).await, [""; 0]);
    // Even an edit under the earlier clock: the job of the instant is there.
    let noted = NewSchedule { calendar: every_minutes(5), ..allows };
    world.put(&noted, 7 * MINUTE).await;
    assert_eq!(world.fire(10 * MINUTE).await, ["10: exists"]);
    assert_eq!(world.jobs().await.len(), 1);
    // Set forward: these are missed, and one job stands for them.
    assert_eq!(world.fire(100 * MINUTE + 1).await, ["95: missed", "100: added"]);
    assert_eq!(world.fire(20 * MINUTE).await, [""; 0]);
}

#[tokio::test]
async fn what_is_missed_is_one_job_or_none_or_some() {
    let cases = [
        (Missed::One, vec!["90: missed", "100: added"]),
        (Missed::Skip, vec!["100: missed"]),
        (Missed::All { most: 3 }, vec!["70: missed", "80: added", "90: added", "100: added"]),
        (Missed::All { most: 100 }, (1..=10).map(|_| "").collect()),
    ];
    for (missed, expected) in cases {
        let world = World::new().await;
        world.put(&NewSchedule { missed, overlap: Overlap::Allow, ..new("s", 10) }, MINUTE).await;
        let fires = world.fire(108 * MINUTE).await;
        if expected[0].is_empty() {
            assert_eq!(fires, (1..=10).map(|n| format!("{}: added", n * 10)).collect::<Vec<_>>());
        } else {
            assert_eq!(fires, expected, "{missed:?}");
        }
        let schedule = world.schedule("s").await;
        assert_eq!(schedule.next, Some(110 * MINUTE));
        let newest_first: Vec<_> = schedule.fires.iter().map(told).collect();
        assert_eq!(newest_first, fires.into_iter().rev().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_job_that_has_not_ended_decides_with_the_overlap() {
    let world = World::new().await;
    world.put(&new("skip", 10), MINUTE).await;
    assert_eq!(world.fire(10 * MINUTE).await, ["10: added"]);
    let claim = world.claim(&id("skip", 10), 11 * MINUTE).await;
    assert_eq!(world.fire(20 * MINUTE).await, ["20: skipped"]);
    world.end(&id("skip", 10), &claim, Ending::Failed("no".into()), 21 * MINUTE).await;
    assert_eq!(world.fire(30 * MINUTE).await, ["30: added"]);
    world.run(async |tx, keys| schedules::remove(tx, keys, "skip").await).await;

    world.put(&NewSchedule { overlap: Overlap::Queue, ..new("queue", 10) }, 31 * MINUTE).await;
    assert_eq!(world.fire(40 * MINUTE).await, ["40: added"]);
    // It waits itself, so no second one does.
    assert_eq!(world.fire(50 * MINUTE).await, ["50: skipped"]);
    let claim = world.claim(&id("queue", 40), 51 * MINUTE).await;
    assert_eq!(world.fire(60 * MINUTE).await, ["60: added"]);
    assert!(matches!(world.get(&id("queue", 60)).await.place, Place::Blocked { .. }));
    assert_eq!(world.fire(70 * MINUTE).await, ["70: skipped"]);
    world.end(&id("queue", 40), &claim, Ending::Failed("no".into()), 71 * MINUTE).await;
    assert_eq!(world.get(&id("queue", 60)).await.state(), State::Pending);
    world.run(async |tx, keys| schedules::remove(tx, keys, "queue").await).await;

    world.put(&NewSchedule { overlap: Overlap::CancelRunning, ..new("cancel", 10) }, 71 * MINUTE).await;
    assert_eq!(world.fire(80 * MINUTE).await, ["80: added"]);
    assert_eq!(world.fire(90 * MINUTE).await, ["90: added"]);
    assert_eq!(world.get(&id("cancel", 80)).await.state(), State::Cancelled, "it had not begun");
    let claim = world.claim(&id("cancel", 90), 91 * MINUTE).await;
    assert_eq!(world.fire(100 * MINUTE).await, ["100: added"]);
    assert_eq!(world.fire(110 * MINUTE).await, ["110: added"]);
    assert_eq!(world.get(&id("cancel", 100)).await.state(), State::Cancelled);
    // It starts only once the one that was told to stop has stopped, however many were cancelled between them.
    assert!(world.get(&id("cancel", 90)).await.cancel_requested());
    assert!(matches!(world.get(&id("cancel", 110)).await.place, Place::Blocked { .. }));
    world.end(&id("cancel", 90), &claim, Ending::Stopped, 111 * MINUTE).await;
    assert_eq!(world.get(&id("cancel", 110)).await.state(), State::Pending);
}

#[tokio::test]
async fn a_tenant_that_has_all_its_waiting_jobs_gets_no_further_one() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.put(&NewSchedule { overlap: Overlap::Allow, ..new(name, 10) }, MINUTE).await;
    }
    let mut other = new("d", 10);
    other.template.spec.tenant = "other".to_owned();
    world.put(&other, MINUTE).await;
    let fire = async |minute: i64| {
        let fires = world.fired_within(Some(2), minute * MINUTE).await;
        fires.iter().map(|(name, fire)| format!("{name} {}", told(fire))).collect::<Vec<_>>()
    };
    assert_eq!(fire(10).await, ["a 10: added", "b 10: added", "c 10: full", "d 10: added"]);
    assert_eq!(world.jobs().await.len(), 3);
    assert_eq!(world.schedule("c").await.next, Some(20 * MINUTE), "nothing makes up for it");
    // What runs does not wait. `d` has a job that has not ended.
    let claim = world.claim(&id("a", 10), 11 * MINUTE).await;
    assert_eq!(fire(20).await, ["a 20: added", "b 20: full", "c 20: full", "d 20: skipped"]);
    for name in ["a", "b", "d"] {
        world.run(async |tx, keys| schedules::remove(tx, keys, name).await).await;
    }

    // Late fires, too, and neither is counted as a failure.
    let late = NewSchedule {
        missed: Missed::All { most: 3 },
        overlap: Overlap::Allow,
        pause_after: Some(1),
        ..new("c", 10)
    };
    world.put(&late, 21 * MINUTE).await;
    assert_eq!(fire(45).await, ["c 30: full", "c 40: full"]);
    assert_eq!(fire(50).await, ["c 50: full"]);
    // Nothing is cancelled for a job that is not added.
    world.put(&NewSchedule { overlap: Overlap::CancelRunning, ..new("c", 10) }, 51 * MINUTE).await;
    world.end(&id("a", 10), &claim, Ending::completed(json("1")), 52 * MINUTE).await;
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, &id("b", 10), 52 * MINUTE).await).await;
    assert_eq!(fire(60).await, ["c 60: added"]);
    world.claim(&id("c", 60), 61 * MINUTE).await;
    let more = NewJob::new(T, "more", json("1"));
    world.run(async |tx, keys| jobs::add_once(tx, keys, &more, 62 * MINUTE).await.map(drop)).await;
    assert_eq!(fire(70).await, ["c 70: full"]);
    assert!(!world.get(&id("c", 60)).await.cancel_requested());
    // A fire that adds none because of a unique key is not refused.
    let mut keyed = new("u", 10);
    keyed.template.spec.unique = unique(By::Key("k".to_owned()), OnConflict::Keep);
    let holder =
        NewJob::new(T, "more", json("1")).with(|spec| spec.unique = keyed.template.spec.unique.clone());
    world.run(async |tx, keys| jobs::add(tx, keys, &holder, 71 * MINUTE).await.map(drop)).await;
    world.put(&keyed, 71 * MINUTE).await;
    assert_eq!(fire(80).await, ["c 80: full", "u 80: found"]);
}

#[tokio::test]
async fn a_job_of_another_tenant_with_the_id_of_a_fire_is_neither_awaited_nor_cancelled() {
    for overlap in [Overlap::Skip, Overlap::Queue, Overlap::CancelRunning] {
        let world = World::new().await;
        world.put(&NewSchedule { overlap, ..new("mine", 10) }, MINUTE).await;
        let foreign =
            NewJob::new(T, &id("mine", 10), json("{}")).with(|spec| spec.tenant = "other".to_owned());
        world.run(async |tx, keys| jobs::add_once(tx, keys, &foreign, 2 * MINUTE).await.map(drop)).await;
        assert_eq!(world.fire(10 * MINUTE).await, ["10: exists"], "{overlap:?}");
        assert_eq!(world.fire(20 * MINUTE).await, ["20: added"], "{overlap:?}");
        assert_eq!(world.get(&id("mine", 10)).await.state(), State::Pending, "{overlap:?}");
        assert_eq!(world.get(&id("mine", 20)).await.state(), State::Pending, "{overlap:?}");
    }
}

#[tokio::test]
async fn failures_in_a_row_pause_and_a_success_is_remembered() {
    let world = World::new().await;
    world.put(&NewSchedule { pause_after: Some(2), ..new("s", 10) }, MINUTE).await;
    let ends = async || schedules::ends(&world.tx().await, &world.keys, "s").await.unwrap();
    for (minute, ending, failures) in [
        (10, Ending::Failed("no".into()), 1),
        (20, Ending::completed(json(r#"{"rows":7}"#)), 0),
        (30, Ending::Failed("no".into()), 1),
    ] {
        assert_eq!(world.fire(minute * MINUTE).await, [format!("{minute}: added")]);
        world.run_job(&id("s", minute), ending, minute * MINUTE + 5).await;
        assert_eq!(ends().await.0, failures);
    }
    let success = ends().await.1.unwrap();
    assert_eq!((success.id, success.at_us, success.ended_us), (id("s", 20), 20 * MINUTE, 20 * MINUTE + 5));
    assert_eq!(success.result.unwrap().get(), r#"{"rows":7}"#);
    // One that does not start in time has failed, and one that is cancelled has not.
    assert_eq!(world.fire(40 * MINUTE).await, ["40: added"]);
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, &id("s", 40), 41 * MINUTE).await).await;
    assert_eq!(ends().await.0, 1);
    let mut hurried = NewSchedule { pause_after: Some(2), ..new("s", 10) };
    hurried.template.spec.lifetime.start_within_us = Some(MINUTE);
    assert_eq!(world.put(&hurried, 42 * MINUTE).await, Put::Changed);
    assert_eq!(world.fire(50 * MINUTE).await, ["50: added"]);
    world
        .run(async |tx, keys| {
            let due = lifetimes::due(tx, keys, 51 * MINUTE, 10).await?;
            lifetimes::settle(tx, keys, &due, 51 * MINUTE).await
        })
        .await;
    assert_eq!(ends().await.0, 2);
    let due = schedules::due(&world.tx().await, &world.keys, 60 * MINUTE, 10).await.unwrap();
    let fired = world.run(async |tx, keys| schedules::fire(tx, keys, &due, None, 60 * MINUTE).await).await;
    assert_eq!((fired.paused, fired.fires.len()), (vec!["s".to_owned()], 0));
    let paused = world.schedule("s").await;
    assert_eq!((paused.paused.map(|paused| paused.by), paused.next), (Some(PausedBy::Failures), None));
    assert_eq!(world.fire(100 * MINUTE).await, [""; 0]);
    // Resumed, it has the same number of failures before it again.
    let resume = async |tx: &Transaction, keys: &Keyspace| {
        schedules::resume(tx, keys, "s", PausedBy::Client, 100 * MINUTE).await
    };
    assert_eq!(world.run(resume).await, Changed::Now);
    assert_eq!((ends().await.0, world.fire(110 * MINUTE).await), (0, vec!["110: added".to_owned()]));
}

#[tokio::test]
async fn an_edit_or_a_resumption_fills_nothing_that_lies_before_it() {
    let world = World::new().await;
    world.put(&new("s", 10), 5 * MINUTE).await;
    // The same again writes nothing, not even a version.
    let everything = || rows_in(&world.store, (bytes::Bytes::new(), b"\xff"[..].into()));
    let before = everything().await;
    assert_eq!(world.put(&new("s", 10), 6 * MINUTE).await, Put::Same);
    assert_eq!(everything().await, before);
    // Another note does not lose the instant that is due, and another calendar begins anew.
    let noted = NewSchedule { note: Some("daily".to_owned()), ..new("s", 10) };
    assert_eq!(world.put(&noted, 10 * MINUTE).await, Put::Changed);
    assert_eq!(world.fire(10 * MINUTE).await, ["10: added"]);
    world.run(async |tx, keys| jobs::remove(tx, keys, T, &id("s", 10)).await).await;
    assert_eq!(world.put(&new("s", 7), 50 * MINUTE).await, Put::Changed);
    assert_eq!(
        (world.fire(55 * MINUTE).await, world.fire(56 * MINUTE).await),
        (vec![], vec!["56: added".into()])
    );
    world.run(async |tx, keys| jobs::remove(tx, keys, T, &id("s", 56)).await).await;
    let change = async |pause: bool, by, minute: i64| {
        let body = async |tx: &Transaction, keys: &Keyspace| match pause {
            true => schedules::pause(tx, keys, "s", by, minute * MINUTE).await,
            false => schedules::resume(tx, keys, "s", by, minute * MINUTE).await,
        };
        world.run(body).await
    };
    assert_eq!(change(true, PausedBy::Client, 57).await, Changed::Now);
    assert_eq!(world.fire(100 * MINUTE).await, [""; 0]);
    assert_eq!(change(true, PausedBy::Operator, 100).await, Changed::Now);
    assert_eq!(change(false, PausedBy::Client, 100).await, Changed::ByOperator);
    // Nor does a request that states it as a whole.
    let resumes = NewSchedule { paused: Some(false), ..new("s", 7) };
    assert_eq!(world.put(&resumes, 100 * MINUTE).await, Put::Same);
    assert_eq!(change(false, PausedBy::Operator, 100).await, Changed::Now);
    // An operator who states it as a whole pauses what a client has paused.
    assert_eq!(change(true, PausedBy::Client, 100).await, Changed::Now);
    let pauses = NewSchedule { paused: Some(true), pauses_as: PausedBy::Operator, ..new("s", 7) };
    assert_eq!(world.put(&pauses, 100 * MINUTE).await, Put::Changed);
    assert_eq!(world.put(&pauses, 100 * MINUTE).await, Put::Same);
    assert_eq!(change(false, PausedBy::Client, 100).await, Changed::ByOperator);
    assert_eq!(change(false, PausedBy::Operator, 100).await, Changed::Now);
    assert_eq!(
        (world.fire(104 * MINUTE).await, world.fire(105 * MINUTE).await),
        (vec![], vec!["105: added".into()])
    );
    let paused = NewSchedule { paused: Some(true), ..new("s", 7) };
    assert_eq!(world.put(&paused, 106 * MINUTE).await, Put::Changed);
    let tally = schedules::tally(&world.tx().await, &world.keys, 106 * MINUTE).await.unwrap();
    assert_eq!((tally.active, tally.paused, tally.over, tally.late), (0, 1, 0, 0));
}

#[tokio::test]
async fn many_due_at_once_fire_in_transactions_within_the_limits() {
    let world = World::with_limits(Limits::SMALL).await;
    for n in 0..150 {
        let mut one = new(&format!("s{n:03}"), 10);
        one.template.spec.tags = (0..16).map(|tag| format!("tag-{tag}")).collect();
        one.jitter_us = if n % 2 == 0 { MINUTE } else { 0 };
        world.unchecked(async |tx, keys| schedules::put(tx, keys, &one, MINUTE).await).await.unwrap();
    }
    // Options in pieces: such a schedule has a transaction of its own.
    let large = NewSchedule { options: json(&format!("\"{}\"", "x".repeat(400_000))), ..new("large", 10) };
    world.put(&large, MINUTE).await;
    let tally = schedules::tally(&world.tx().await, &world.keys, 20 * MINUTE).await.unwrap();
    assert_eq!((tally.active, tally.late), (151, 151));
    let mut transactions = 0;
    let mut names = BTreeSet::new();
    loop {
        let due = schedules::due(&world.tx().await, &world.keys, 10 * MINUTE, 1_000).await.unwrap();
        if due.is_empty() {
            break;
        }
        let fired =
            world.unchecked(async |tx, keys| schedules::fire(tx, keys, &due, None, 10 * MINUTE).await).await;
        transactions += 1;
        for (name, fire) in fired.unwrap().fires {
            assert_eq!(fire.outcome, Outcome::Added);
            assert!(names.insert(name), "twice");
        }
    }
    world.check().await;
    assert_eq!(names.len(), 151);
    assert!((2..100).contains(&transactions), "{transactions}");
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 151);
    let spread: BTreeSet<_> =
        jobs.iter().filter(|job| job.state() == State::Delayed).map(Job::order_us).collect();
    assert!(
        spread.len() > 50 && spread.iter().all(|at| (10 * MINUTE..=11 * MINUTE).contains(at)),
        "{spread:?}"
    );
    let large = world.get(&id("large", 10)).await;
    let options = jobs::options(&world.tx().await, &world.keys, &large).await.unwrap();
    assert_eq!(options.get().len(), 400_002);
    // Missed ones of one schedule do not fit into one transaction either.
    let all = Missed::All { most: 100 };
    let tags = (0..16).map(|tag| format!("tag-{tag}")).collect();
    let mut many = NewSchedule { missed: all, overlap: Overlap::Allow, ..new("many", 1) };
    many.template.spec.tags = tags;
    world.put(&many, 11 * MINUTE).await;
    let fires = world.fired(400 * MINUTE).await;
    let added: Vec<_> = fires.iter().filter(|(name, _)| name == "many").collect();
    let minutes: Vec<_> = added.iter().skip(1).map(|(_, fire)| fire.at_us / MINUTE).collect();
    assert_eq!(told(&added[0].1), "300: missed");
    assert_eq!(minutes, (301..=400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_job_that_cannot_be_added_is_refused_and_the_next_one_tried() {
    let world = World::new().await;
    let mut locked = new("s", 10);
    let names: Vec<_> = (0..300).map(|n| format!("\"n{n}\"")).collect();
    locked.template.spec.locks =
        serde_json::from_str(&format!(r#"{{"node":{{"exclusive":[{}]}}}}"#, names.join(","))).unwrap();
    world.put(&locked, MINUTE).await;
    let fires = world.fired(10 * MINUTE).await;
    let [(_, FireRecord { outcome: Outcome::Refused(problem), job: None, .. })] = fires.as_slice() else {
        panic!("{fires:?}")
    };
    assert!(problem.starts_with("locks: names 300 locks"), "{problem}");
    assert_eq!((world.jobs().await.len(), world.schedule("s").await.next), (0, Some(20 * MINUTE)));
    world.run(async |tx, keys| schedules::remove(tx, keys, "s").await).await;
    // A key that cannot be made of the options shows only when a job is added.
    let mut huge = NewSchedule { options: json("1e400"), ..new("huge", 10) };
    huge.template.spec.unique = unique(By::Options, OnConflict::Keep);
    world.put(&huge, 11 * MINUTE).await;
    world.put(&new("other", 10), 11 * MINUTE).await;
    assert_eq!(world.fire(20 * MINUTE).await, ["20: refused", "20: added"]);
    assert_eq!(world.schedule("huge").await.next, Some(30 * MINUTE));
}

#[tokio::test]
async fn the_past_is_filled_only_on_request() {
    let world = World::new().await;
    world.put(&new("s", 10), 95 * MINUTE).await;
    let fill = async |from: i64, to: i64, limit: usize| {
        let body = async |tx: &Transaction, keys: &Keyspace| {
            schedules::backfill(tx, keys, "s", (from * MINUTE, to * MINUTE), limit, 96 * MINUTE).await
        };
        world.try_run(body).await
    };
    let filled = fill(20, 50, 3).await.unwrap();
    assert_eq!(filled.added, [20, 30, 40].map(|minute| id("s", minute)));
    assert_eq!((filled.existed, filled.next_us), (0, Some(50 * MINUTE)));
    let filled = fill(20, 50, 100).await.unwrap();
    assert_eq!((filled.added, filled.existed, filled.next_us), (vec![id("s", 50)], 3, None));
    assert!(matches!(fill(20, 97, 9).await, Err(Error::Invalid { field: "to", .. })));
    assert!(matches!(fill(30, 20, 9).await, Err(Error::Invalid { field: "from", .. })));
    // Its own fires go on as if nothing had been filled.
    assert_eq!(
        (world.schedule("s").await.fires.len(), world.fire(100 * MINUTE).await),
        (0, vec!["100: added".into()])
    );
    let now =
        async |tx: &Transaction, keys: &Keyspace| schedules::fire_now(tx, keys, "s", 101 * MINUTE + 5).await;
    assert_eq!(world.run(now).await.job.unwrap(), "s@1970-01-01T01:41:00.000005Z");
    assert_eq!(world.fire(110 * MINUTE).await, ["110: skipped"], "that one has not ended");
    // A result of the past does not hide a later one.
    for minute in [100, 30] {
        world.run_job(&id("s", minute), Ending::completed(json(&minute.to_string())), 120 * MINUTE).await;
    }
    let (_, success) = schedules::ends(&world.tx().await, &world.keys, "s").await.unwrap();
    assert_eq!(success.unwrap().result.unwrap().get(), "100");
}

#[tokio::test]
async fn schedules_have_bounds_and_one_tenant() {
    let world = World::new().await;
    let field = async |new: &NewSchedule| match world
        .try_run(async |tx, keys| schedules::put(tx, keys, new, MINUTE).await)
        .await
    {
        Err(Error::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&new("a@b", 1)).await, "name");
    assert_eq!(field(&new("a/b", 1)).await, "name");
    assert_eq!(field(&new(&"x".repeat(129), 1)).await, "name");
    assert_eq!(field(&new("s", 0)).await, "every_us");
    assert_eq!(field(&NewSchedule { note: Some("x".repeat(501)), ..new("s", 1) }).await, "note");
    assert_eq!(field(&NewSchedule { jitter_us: -1, ..new("s", 1) }).await, "jitter");
    assert_eq!(field(&NewSchedule { missed: Missed::All { most: 101 }, ..new("s", 1) }).await, "missed");
    // The first of them would be the only one.
    let all = NewSchedule { missed: Missed::All { most: 2 }, overlap: Overlap::Queue, ..new("s", 1) };
    all.check().unwrap();
    assert_eq!(field(&NewSchedule { overlap: Overlap::Skip, ..all }).await, "missed");
    assert_eq!(field(&NewSchedule { pause_after: Some(0), ..new("s", 1) }).await, "pause_after");
    // What is found does not wait.
    let mut replaces = NewSchedule { overlap: Overlap::CancelRunning, ..new("s", 1) };
    replaces.template.spec.unique = unique(By::Options, OnConflict::Replace);
    assert_eq!(field(&replaces).await, "overlap");
    let mut tagged = new("s", 1);
    tagged.template.spec.tags = (0..17).map(|n| n.to_string()).collect();
    assert_eq!(field(&tagged).await, "tags");
    for n in 0..2 {
        world.put(&NewSchedule { most_of_tenant: 2, ..new(&format!("s{n}"), 1) }, MINUTE).await;
    }
    assert_eq!(field(&NewSchedule { most_of_tenant: 2, ..new("s2", 1) }).await, "schedule");
    let mut foreign = new("s1", 1);
    foreign.template.spec.tenant = "other".to_owned();
    assert_eq!(field(&foreign).await, "tenant");
    foreign.name = "s2".to_owned();
    world.put(&foreign, MINUTE).await;
    let listed = async |after, tenant, limit| -> Vec<String> {
        let found = schedules::list(&world.tx().await, &world.keys, after, tenant, limit).await.unwrap();
        found.into_iter().map(|schedule| schedule.name).collect()
    };
    assert_eq!(listed(None, None, 2).await, ["s0", "s1"]);
    assert_eq!(listed(Some("s0"), Some("other"), 9).await, ["s2"]);
    assert_eq!(listed(None, Some("default"), 1).await, ["s0"]);
    assert_eq!(listed(Some("s0"), Some("default"), 9).await, ["s1"]);
    // A calendar that is over can be stated again, and ends.
    let once = Calendar { when: When::Dates(vec![2 * MINUTE]), from_us: None, until_us: None };
    let once = NewSchedule { calendar: once, ..new("once", 1) };
    world.put(&once, MINUTE).await;
    world.fire(2 * MINUTE).await;
    assert_eq!((world.schedule("once").await.next, world.put(&once, 9 * MINUTE).await), (None, Put::Same));
}

#[tokio::test]
async fn a_schedule_that_is_removed_leaves_its_jobs_and_nothing_else() {
    let world = World::new().await;
    world.put(&new("s", 10), MINUTE).await;
    world.fire(10 * MINUTE).await;
    let claim = world.claim(&id("s", 10), 11 * MINUTE).await;
    let remove = async |tx: &Transaction, keys: &Keyspace| schedules::remove(tx, keys, "s").await;
    assert!(world.run(remove).await && !world.run(remove).await);
    for family in ["schedules", "schedule_options", "schedule_due", "schedule_ends", "tenant_schedules"] {
        assert_eq!(rows_in(&world.store, world.keys.family_range(family)).await, [], "{family}");
    }
    // A later schedule of that name, of another tenant, learns nothing of the end of this job.
    let mut other = new("s", 10);
    other.template.spec.tenant = "other".to_owned();
    world.put(&other, 12 * MINUTE).await;
    world.end(&id("s", 10), &claim, Ending::completed(json("7")), 13 * MINUTE).await;
    let (failures, success) = schedules::ends(&world.tx().await, &world.keys, "s").await.unwrap();
    assert!(failures == 0 && success.is_none());
    let plain = NewJob::new(T, "plain", json("{}"));
    world.run(async |tx, keys| jobs::add(tx, keys, &plain, MINUTE).await).await;
    world.run_job("plain", Ending::completed(json("7")), 14 * MINUTE).await;
}

#[tokio::test]
async fn a_schedule_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keyspace::default();
    let mut stated = new("s", 10);
    stated.calendar.when =
        When::Cron { expression: "30 2 * * *".to_owned(), zone: "Europe/Berlin".to_owned() };
    stated.template.spec.tags = ["a".to_owned()].into();
    stated.template.spec.lifetime.keep_us = Some(5);
    {
        let store = open(&dir);
        let tx = store.begin().await.unwrap();
        schedules::put(&tx, &keys, &stated, MINUTE).await.unwrap();
        tx.commit().await.unwrap();
    }
    let store = open(&dir);
    let tx = store.begin().await.unwrap();
    let schedule = schedules::get(&tx, &keys, "s").await.unwrap().unwrap();
    assert_eq!((schedule.calendar, schedule.next), (stated.calendar.clone(), Some(90 * MINUTE)));
    assert_eq!(schedule.template.spec.tags, stated.template.spec.tags);
    assert_eq!(schedule.template.spec.lifetime, stated.template.spec.lifetime);
    assert_eq!(schedules::put(&tx, &keys, &stated, 2 * MINUTE).await.unwrap(), Put::Same);
    let done = schedules::recompute(&tx, &keys, None, 2 * MINUTE).await.unwrap();
    assert!(done.moved.is_empty() && done.unreadable.is_empty() && done.rest.is_none());
}

#[tokio::test]
async fn other_zone_data_move_instants_and_lose_none() {
    let world = World::new().await;
    let mut daily = new("s", 10);
    daily.calendar.when = When::Cron { expression: "30 2 * * *".to_owned(), zone: "UTC".to_owned() };
    world.put(&daily, MINUTE).await;
    world.put(&new("plain", 10), MINUTE).await;
    // As a server wrote it that knew of a later time, and a row that cannot be read.
    let set = async |name: &str, value: bytes::Bytes| {
        let write = async |tx: &Transaction, keys: &Keyspace| Ok(tx.set(keys.schedule(name), value.clone())?);
        world.unchecked(write).await.unwrap();
    };
    let row = world.tx().await.get(&world.keys.schedule("s")).await.unwrap().unwrap();
    let mut row: serde_json::Value = serde_json::from_slice(&row).unwrap();
    (row["next"], row["zone_data"]) = ((400 * MINUTE).into(), "older".into());
    set("s", row.to_string().into()).await;
    world
        .unchecked(async |tx, keys| {
            tx.clear(keys.schedule_due_entry(150 * MINUTE, "s"))?;
            Ok(tx.set(keys.schedule_due_entry(400 * MINUTE, "s"), bytes::Bytes::new())?)
        })
        .await
        .unwrap();
    set("broken", b"{"[..].into()).await;
    let done = world
        .unchecked(async |tx, keys| schedules::recompute(tx, keys, None, 200 * MINUTE).await)
        .await
        .unwrap();
    assert_eq!(done.moved, [("s".to_owned(), 400 * MINUTE, Some(150 * MINUTE))], "it is late, and not lost");
    assert_eq!((done.unreadable, done.rest), (vec!["broken".to_owned()], None));
    world.unchecked(async |tx, keys| Ok(tx.clear(keys.schedule("broken"))?)).await.unwrap();
    let fires = world.fired(200 * MINUTE).await;
    assert!(fires.iter().any(|(name, fire)| name == "s" && told(fire) == "150: added"), "{fires:?}");
}

#[tokio::test]
async fn a_fire_whose_unique_key_another_job_has_finds_that_job() {
    let world = World::new().await;
    let mut only = NewSchedule { overlap: Overlap::Allow, ..new("s", 10) };
    only.template.spec.unique = unique(By::Key("k".to_owned()), OnConflict::Keep);
    world.put(&only, MINUTE).await;
    assert_eq!(world.fire(10 * MINUTE).await, ["10: added"]);
    let found = world.fired(20 * MINUTE).await;
    assert_eq!((told(&found[0].1), &found[0].1.job), ("20: found".to_owned(), &Some(id("s", 10))));
    let now = async |tx: &Transaction, keys: &Keyspace| schedules::fire_now(tx, keys, "s", 21 * MINUTE).await;
    let by_hand = world.run(now).await;
    assert_eq!((told(&by_hand), by_hand.job), ("21: found".to_owned(), Some(id("s", 10))));
    let fill = async |tx: &Transaction, keys: &Keyspace| {
        schedules::backfill(tx, keys, "s", (12 * MINUTE, 20 * MINUTE), 9, 21 * MINUTE).await
    };
    let filled = world.run(fill).await;
    assert_eq!((filled.added.len(), filled.existed, world.jobs().await.len()), (0, 1, 1));
    // What the job states happens to the other one.
    only.template.spec.unique = unique(By::Key("k".to_owned()), OnConflict::Replace);
    only.options = json(r#"{"a":2}"#);
    world.put(&only, 22 * MINUTE).await;
    assert_eq!(world.fire(30 * MINUTE).await, ["30: found"]);
    let options =
        jobs::options(&world.tx().await, &world.keys, &world.get(&id("s", 10)).await).await.unwrap();
    assert_eq!(options.get(), r#"{"a":2}"#);
    world.run_job(&id("s", 10), Ending::completed(json("1")), 31 * MINUTE).await;
    assert_eq!(world.fire(40 * MINUTE).await, ["40: added"]);
}

#[tokio::test]
async fn missed_instants_that_are_all_made_up_for_wait_for_each_other() {
    let world = World::new().await;
    let all = Missed::All { most: 4 };
    world.put(&NewSchedule { missed: all, overlap: Overlap::Queue, ..new("s", 10) }, MINUTE).await;
    let fires = world.fire(108 * MINUTE).await;
    assert_eq!(fires, ["60: missed", "70: added", "80: added", "90: added", "100: added"]);
    // On time, one that waits is enough.
    assert_eq!(world.fire(110 * MINUTE).await, ["110: skipped"]);
    for minute in [70, 80, 90, 100] {
        let waits: Vec<_> = world.front("default").await;
        assert_eq!(waits, [id("s", minute)]);
        world.run_job(&id("s", minute), Ending::Failed("no".into()), 111 * MINUTE).await;
    }
}

#[tokio::test]
async fn a_fire_by_hand_does_not_hide_a_job_that_still_runs() {
    let world = World::new().await;
    world.put(&new("s", 10), MINUTE).await;
    world.fire(10 * MINUTE).await;
    let claim = world.claim(&id("s", 10), 11 * MINUTE).await;
    let now = async |tx: &Transaction, keys: &Keyspace| schedules::fire_now(tx, keys, "s", 12 * MINUTE).await;
    let by_hand = world.run(now).await.job.unwrap();
    world.run_job(&by_hand, Ending::completed(json("1")), 13 * MINUTE).await;
    assert_eq!(world.fire(20 * MINUTE).await, ["20: skipped"]);
    world.end(&id("s", 10), &claim, Ending::completed(json("1")), 21 * MINUTE).await;
    assert_eq!(world.fire(30 * MINUTE).await, ["30: added"]);
}

#[tokio::test]
async fn all_dates_of_a_minute_fire() {
    let world = World::new().await;
    let dates = (0..300).map(|n| 10 * MINUTE + n * 1_000).collect();
    let calendar = Calendar { when: When::Dates(dates), from_us: None, until_us: None };
    world.put(&NewSchedule { calendar, overlap: Overlap::Allow, ..new("s", 1) }, MINUTE).await;
    assert_eq!(world.fired(10 * MINUTE + 300_000).await.len(), 300);
    assert_eq!(world.jobs().await.len(), 300);
}

#[tokio::test]
async fn what_is_due_is_read_in_pages() {
    let world = World::new().await;
    for n in 0..3 {
        world.put(&new(&format!("s{n}"), 10), MINUTE).await;
    }
    let tx = world.tx().await;
    let (first, row) = schedules::due_behind(&tx, &world.keys, None, 10 * MINUTE, 2).await.unwrap();
    let (rest, end) = schedules::due_behind(&tx, &world.keys, row, 10 * MINUTE, 2).await.unwrap();
    let names: Vec<_> = first.into_iter().chain(rest).map(|due| due.name).collect();
    assert_eq!((names, end), (["s0", "s1", "s2"].map(str::to_owned).to_vec(), None));
    assert_eq!(schedules::next_due(&tx, &world.keys, None).await.unwrap(), Some(10 * MINUTE));
    assert_eq!(schedules::next_due(&tx, &world.keys, Some(10 * MINUTE)).await.unwrap(), None);
}
