//! What clients change at jobs that do not run: edits of jobs in each place, holds and releases.

use crate::common::{T, by, json};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::edit::{self, Edit, Released};
use turnwise_queue::{
    After, Context, DEFAULT_TENANT, Error, EventKind, Holder, Job, NewJob, Place, Result, State, concurrency,
    filters, jobs, locks,
};

type World = crate::common::World<Edits>;

#[derive(Default)]
struct Edits;

fn new(id: &str) -> NewJob {
    NewJob::new(T, id, json("{}"))
}

/// An edit of a job that changes nothing yet.
fn of(job: &Job) -> Edit {
    Edit { spec: job.spec.clone(), options: None, priority: None, start_us: None, note: "summary".to_owned() }
}

impl World {
    async fn add(&self, new: &NewJob, now_us: i64) {
        self.run(async |tx, keys| jobs::add(tx, keys, new, now_us).await.map(drop)).await;
    }

    /// Edits a job at 50.
    async fn edit(&self, id: &str, change: impl FnOnce(&mut Edit)) -> Result<Result<(), &'static str>> {
        let mut job = self.get(id).await;
        let mut edit = of(&job);
        change(&mut edit);
        self.try_run(async |tx, keys| edit::edit(tx, keys, &mut job, edit, 50).await).await
    }

    async fn start(&self, id: &str, start_us: i64) -> Place {
        self.edit(id, |edit| edit.start_us = Some(start_us)).await.unwrap().unwrap();
        self.get(id).await.into_fields().place
    }

    async fn hold(&self, id: &str, holder: Holder) -> Result<(), &'static str> {
        let mut job = self.get(id).await;
        let by = Some("user:jan".to_owned());
        self.run(async |tx, keys| edit::hold(tx, keys, &mut job, holder, by, 60).await).await
    }

    async fn release(&self, id: &str, holder: Holder) -> Released {
        let mut job = self.get(id).await;
        self.run(async |tx, keys| edit::release(tx, keys, &mut job, holder, None, 70).await).await
    }

    async fn claim(&self, id: &str, number: u64) {
        let claimed =
            async |tx: &_, keys: &_| claims::claim(Context::new(tx, keys, T, 7, 20), id, &by(number)).await;
        assert!(self.run(claimed).await.is_some());
    }

    /// The job runs, and crashes: its backoff ends at 100.
    async fn crash(&self, id: &str, number: u64) {
        self.claim(id, number).await;
        let ending = Ending::Crashed { error: "ouch".into(), retry_us: Some(100) };
        let ended = async |tx: &_, keys: &_| {
            claims::end(Context::new(tx, keys, T, 20, 20), id, &by(number), &ending, None, None)
                .await
                .map(drop)
        };
        self.run(ended).await;
    }

    /// Filters that do not change, and jobs that they pause and limit at 9.
    async fn keep_out(&self, paused: &str, limited: &str) {
        let rule = &Rule {
            id: "p".into(),
            priority: 0,
            watermark_us: 0,
            when: String::new(),
            action: Action::Pause,
            limit: None,
            rate: None,
            note: None,
        };
        self.run(async |tx, keys| filters::put(tx, keys, rule).await).await;
        let stamp = self.run(async |tx, keys| filters::stamp(tx, keys).await).await.unwrap();
        let limit = &Limit { bucket: Bucket::Reason("net".into()), most: 1 };
        self.run(async |tx, keys| {
            concurrency::hold_back(tx, keys, T, limited, limit, None, 9).await?;
            filters::pause(tx, keys, T, paused, "p", &stamp, 9).await.map(drop)
        })
        .await;
    }

    async fn queue(&self) -> Vec<String> {
        self.front(DEFAULT_TENANT).await
    }
}

#[tokio::test]
async fn a_pending_job_keeps_its_place_unless_its_priority_or_its_time_changes() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        let locked = new(id).with(|spec| {
            spec.locks = serde_json::from_str(r#"{"node":{"exclusive":["n"]}}"#).unwrap();
        });
        world.add(&locked, n).await;
    }
    world.run(async |tx, keys| locks::reserve(tx, keys, T, "a", 9).await.map(drop)).await;
    let change = |edit: &mut Edit| {
        edit.spec.summary = json(r#"{"n":2}"#);
        edit.spec.max_attempts = Some(7);
        edit.options = Some(json(r#"{"to":"jan"}"#));
        edit.start_us = Some(50);
    };
    world.edit("a", change).await.unwrap().unwrap();
    let job = world.get("a").await;
    assert_eq!((job.summary.get(), job.max_attempts, job.changed_us), (r#"{"n":2}"#, Some(7), 1));
    assert!(job.reserved().is_some(), "it keeps what it has reserved");
    assert_eq!(job.history[0].kind, EventKind::Edited { reason: "summary".to_owned() });
    let options = world.run(async |tx, keys| jobs::options(tx, keys, &job).await).await;
    assert_eq!(options.get(), r#"{"to":"jan"}"#);
    world.edit("a", |edit| edit.spec.locks = Default::default()).await.unwrap().unwrap();
    assert!(world.get("a").await.reserved().is_none(), "it wants other locks");
    // The row of one that has reserved nothing states its locks, too: they are compared after each transaction.
    world.edit("b", |edit| edit.spec.locks = Default::default()).await.unwrap().unwrap();
    assert_eq!(world.queue().await, ["a", "b", "c"]);
    world.edit("c", |edit| edit.priority = Some(-1)).await.unwrap().unwrap();
    assert_eq!(world.queue().await, ["c", "a", "b"]);
    assert_eq!(world.start("a", 80).await, Place::Delayed { until_us: 80 });
    assert_eq!(world.get("a").await.changed_us, 50);
    assert_eq!(world.queue().await, ["c", "b"]);
    let wrong = world.edit("b", |edit| edit.priority = Some(20)).await;
    assert!(matches!(wrong, Err(Error::Invalid { field: "priority", .. })));
}

#[tokio::test]
async fn a_new_start_time_moves_a_job_from_wherever_it_waits() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["crash-later", "crash-now", "paused", "limited", "runs"]) {
        world.add(&new(id), n).await;
    }
    world.add(&NewJob { not_before_us: Some(90), ..new("delayed") }, 6).await;
    let after = vec![After::completed(T, "runs")];
    world.add(&NewJob { after, ..new("blocked") }, 7).await;
    world.crash("crash-later", 1).await;
    world.crash("crash-now", 2).await;
    world.keep_out("paused", "limited").await;

    assert_eq!(world.start("delayed", 95).await, Place::Delayed { until_us: 95 });
    assert_eq!(world.start("delayed", 0).await, Place::pending(50));
    assert_eq!(world.start("crash-later", 60).await, Place::Crashing { until_us: 60 });
    let job = world.get("crash-later").await;
    assert_eq!((job.reason(), job.crashes, job.changed_us), (Some("ouch"), 1, 20));
    assert_eq!(world.start("crash-now", 50).await, Place::pending(50));
    assert_eq!(world.start("blocked", 99).await, Place::Blocked { until_us: 99, unmet: 1 });
    // A filter decides again about a job that has changed.
    for id in ["paused", "limited"] {
        world.edit(id, |_| {}).await.unwrap().unwrap();
    }
    assert_eq!(world.queue().await, ["paused", "limited", "runs", "crash-now", "delayed"]);
    world.keep_out("paused", "limited").await;
    for id in ["paused", "limited"] {
        assert_eq!(world.start(id, 70).await, Place::Delayed { until_us: 70 });
    }

    world.claim("runs", 3).await;
    assert_eq!(world.edit("runs", |_| {}).await.unwrap(), Err("it runs"));
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "delayed", 51).await).await;
    assert_eq!(world.edit("delayed", |_| {}).await.unwrap(), Err("it has ended"));
    assert_eq!(world.get("delayed").await.history[0].kind, EventKind::Cancelled);
}

#[tokio::test]
async fn a_held_job_waits_until_it_is_released_and_returns_to_its_place() {
    let world = World::new().await;
    for (n, id) in (1..).zip(["a", "crashes", "paused", "limited", "z"]) {
        world.add(&new(id), n).await;
    }
    for (id, until_us) in [("later", 200), ("due", 65)] {
        world.add(&NewJob { not_before_us: Some(until_us), ..new(id) }, 6).await;
    }
    world.crash("crashes", 1).await;
    world.keep_out("paused", "limited").await;
    let all = ["a", "crashes", "paused", "limited", "later", "due"];
    for id in all {
        assert_eq!(world.hold(id, Holder::Client).await, Ok(()));
        assert_eq!(world.get(id).await.held_by(), Some(Holder::Client));
    }
    assert_eq!(world.queue().await, ["z"]);
    assert!(world.run(async |tx, keys| filters::remove(tx, keys, "p").await).await);
    world.run(async |tx, keys| filters::release(tx, keys, None, 99).await).await;
    world.run(async |tx, keys| claims::release_due(tx, keys, T, 500, 99, |_| true).await).await;
    assert_eq!(world.queue().await, ["z"], "neither a filter nor the time releases it");
    // A job that is added again stays held, and so does one that is edited.
    world.add(&new("a").with(|spec| spec.max_attempts = Some(2)), 61).await;
    world.edit("a", |_| {}).await.unwrap().unwrap();
    assert_eq!(world.get("a").await.held_by(), Some(Holder::Client));
    assert_eq!(world.start("later", 300).await, Place::Paused { order_us: 300, filter: "client".into() });
    for id in all {
        assert_eq!(world.release(id, Holder::Client).await, Released::Now);
        assert_eq!(world.release(id, Holder::Client).await, Released::NotHeld);
    }
    assert_eq!(world.queue().await, ["a", "paused", "limited", "z", "due"]);
    assert_eq!(world.get("later").await.place, Place::Delayed { until_us: 300 });
    assert_eq!(world.get("crashes").await.place, Place::Delayed { until_us: 100 });
    let kinds: Vec<EventKind> =
        world.get("due").await.into_fields().history.into_iter().map(|event| event.kind).collect();
    let held = EventKind::Held { reason: Some("user:jan".to_owned()) };
    assert_eq!(kinds, [EventKind::Released { reason: None }, held, EventKind::Added]);
}

#[tokio::test]
async fn a_job_that_waits_for_others_is_held_once_they_have_ended() {
    let world = World::new().await;
    let after = |id: &str| NewJob { after: vec![After::completed(T, "first")], ..new(id) };
    world.add(&new("first"), 1).await;
    for id in ["held", "released", "later"] {
        world.add(&after(id), 2).await;
        assert_eq!(world.hold(id, Holder::Client).await, Ok(()));
        assert_eq!(world.get(id).await.paused_by(), Some("client"));
    }
    world.edit("later", |edit| edit.start_us = Some(300)).await.unwrap().unwrap();
    assert_eq!(world.get("held").await.place, Place::Blocked { until_us: 2, unmet: 1 });
    assert_eq!(world.release("released", Holder::Client).await, Released::Now);
    assert_eq!(world.release("released", Holder::Client).await, Released::NotHeld);
    world.claim("first", 1).await;
    let ended = async |tx: &_, keys: &_| {
        let ending = Ending::completed(json("1"));
        claims::end(Context::new(tx, keys, T, 65, 20), "first", &by(1), &ending, None, None).await.map(drop)
    };
    world.run(ended).await;
    assert_eq!(world.queue().await, ["released"]);
    for (id, order_us) in [("held", 65), ("later", 300)] {
        assert_eq!(world.get(id).await.place, Place::Paused { order_us, filter: "client".into() });
        assert_eq!(world.get(id).await.hold, None);
    }
    // Dependencies that are added later do not release it, whether or not they have ended.
    for (waits, on) in [(true, "released"), (false, "first")] {
        world.add(&NewJob { after: vec![After::completed(T, on)], ..new("held") }, 66).await;
        let job = world.get("held").await;
        assert_eq!((job.unmet() > 0, job.paused_by()), (waits, Some("client")));
    }
    assert_eq!(world.release("held", Holder::Client).await, Released::Now);
    // What a client holds is released when it ends.
    world.run(async |tx, keys| jobs::cancel(tx, keys, T, "later", 67).await).await;
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "later", 68).await).await;
    assert_eq!(world.queue().await, ["released", "held", "later"]);
}

#[tokio::test]
async fn the_hold_of_an_operator_outlasts_a_cancellation_and_what_follows() {
    let world = World::new().await;
    let cancel =
        async |id: &'static str| world.run(async |tx, keys| jobs::cancel(tx, keys, T, id, 61).await).await;
    world.add(&new("first"), 1).await;
    let after = NewJob { after: vec![After::completed(T, "first")], ..new("blocked") };
    world.add(&after, 2).await;
    for id in ["again", "retried", "taken"] {
        world.add(&new(id), 2).await;
    }
    for id in ["again", "retried", "taken", "blocked"] {
        world.hold(id, Holder::Operator).await.unwrap();
        cancel(id).await;
        let job = world.get(id).await;
        assert_eq!((job.state(), job.paused_by()), (State::Cancelled, Some("operator")));
    }
    assert_eq!(world.release("again", Holder::Client).await, Released::ByOperator);
    world.add(&new("again"), 62).await;
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "retried", 62).await).await;
    world.add(&after, 62).await;
    world.run(async |tx, keys| jobs::retry(tx, keys, T, "blocked", 63).await).await;
    for id in ["again", "retried", "blocked"] {
        assert_eq!(world.get(id).await.held_by(), Some(Holder::Operator), "{id}");
        assert_eq!(world.release(id, Holder::Client).await, Released::ByOperator);
    }
    assert_eq!(world.release("taken", Holder::Operator).await, Released::Now);
    world.run(async |tx, keys| jobs::rerun(tx, keys, T, "taken", 64).await).await;
    assert_eq!(world.queue().await, ["first", "taken"]);
    assert_eq!(world.release("again", Holder::Operator).await, Released::Now);
    assert_eq!(world.queue().await, ["first", "again", "taken"]);
}

#[tokio::test]
async fn only_an_operator_releases_what_an_operator_holds() {
    let world = World::new().await;
    world.add(&new("a"), 1).await;
    for (holder, held_by) in [
        (Holder::Client, Holder::Client),
        (Holder::Operator, Holder::Operator),
        (Holder::Client, Holder::Operator),
    ] {
        world.hold("a", holder).await.unwrap();
        assert_eq!(world.get("a").await.held_by(), Some(held_by));
    }
    assert_eq!(world.get("a").await.history.len(), 3, "a hold that changes nothing is not recorded");
    assert_eq!(world.release("a", Holder::Client).await, Released::ByOperator);
    assert_eq!(world.release("a", Holder::Operator).await, Released::Now);
    world.hold("a", Holder::Client).await.unwrap();
    assert_eq!(world.release("a", Holder::Operator).await, Released::Now);

    world.claim("a", 1).await;
    assert_eq!(world.hold("a", Holder::Client).await, Err("it runs"));
    for name in ["client", "operator"] {
        let rule = Rule {
            id: name.into(),
            priority: 0,
            watermark_us: 0,
            when: String::new(),
            action: Action::Pause,
            limit: None,
            rate: None,
            note: None,
        };
        assert!(matches!(filters::check(&rule), Err(Error::Invalid { field: "id", .. })));
    }
}

#[tokio::test]
async fn every_change_has_another_version_and_edits_displace_no_step() {
    let world = World::new().await;
    world.add(&new("a"), 1).await;
    world.crash("a", 1).await;
    let mut versions = vec![world.get("a").await.version()];
    for n in 0..30 {
        // All changes happen at one time, and large options are not in the record.
        let options = format!("\"{n:0>9000}\"");
        world.edit("a", |edit| edit.options = Some(json(&options))).await.unwrap().unwrap();
        versions.push(world.get("a").await.version());
    }
    let job = world.get("a").await;
    assert_eq!(job.version(), *versions.last().unwrap());
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 31);
    let steps: Vec<&str> = job.history.iter().map(|event| event.kind.name()).collect();
    assert_eq!(steps, ["edited", "edited", "edited", "edited", "edited", "crashed", "started", "added"]);
    assert_eq!((job.state(), job.reason()), (State::Crashing, Some("ouch")));
    // It tells nothing of the options, which may be hidden.
    for id in ["b", "c"] {
        world.add(&NewJob::new(T, id, json(&format!("{{\"token\":\"{id}\"}}"))), 9).await;
    }
    assert_eq!(world.get("b").await.version(), world.get("c").await.version());
}
