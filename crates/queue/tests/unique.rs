//! Jobs of which only one may exist at a time for a key.

use crate::common::{T, json};
use turnwise_policy::eligibility::dependencies::DependencyEnd;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::edit::{self, Edit};
use turnwise_queue::jobs::{Added, Cancelled, Retried};
use turnwise_queue::unique::{self, By, Did, Found, Mode, OnConflict, Outcome, Unique, Within};
use turnwise_queue::{After, Claim, Context, Error, Holder, Job, NewJob, State, jobs, workers};

type World = crate::common::World<Keys>;

#[derive(Default)]
struct Keys;

fn with(id: &str, mode: Mode, by: By, on_conflict: OnConflict) -> NewJob {
    let unique = Unique { mode, by, within: Within::Type, on_conflict };
    NewJob::new(T, id, json(&format!(r#"{{"from":"{id}"}}"#))).with(|spec| spec.unique = Some(unique))
}

/// A job with the key `k`.
fn new(id: &str, mode: Mode, on_conflict: OnConflict) -> NewJob {
    with(id, mode, By::Key("k".to_owned()), on_conflict)
}

fn waiting(id: &str) -> NewJob {
    new(id, Mode::WhileWaiting, OnConflict::Keep)
}

fn until_end(id: &str) -> NewJob {
    new(id, Mode::UntilEnd, OnConflict::Keep)
}

impl World {
    async fn add(&self, new: &NewJob, now_us: i64) -> Outcome {
        self.run(async |tx, keys| unique::add(tx, keys, new, false, now_us).await).await
    }

    /// Adds a job whose key is free.
    async fn fresh(&self, new: &NewJob, now_us: i64) {
        let added = self.add(new, now_us).await;
        assert!(
            matches!(added, Outcome::Added(Added::Queued | Added::Delayed | Added::Blocked)),
            "{added:?}"
        );
    }

    /// Adds a job whose key is taken, and returns the id of the other job, and what happened to that one.
    async fn found(&self, new: &NewJob, now_us: i64) -> (String, Did) {
        let Outcome::Found(found) = self.add(new, now_us).await else { panic!("the key was free") };
        assert!(self.find(&new.id).await.is_none() || new.id == found.id);
        (found.id, found.did)
    }

    async fn holds(&self, id: &str) -> bool {
        self.get(id).await.unique_key.as_ref().is_some_and(|key| key.held)
    }

    async fn claim(&self, id: &str, now_us: i64) -> Claim {
        let claim = self.next_claim("w");
        self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, now_us, 20), id, &claim).await)
            .await
            .unwrap();
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending, now_us: i64) {
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, now_us, 20), id, claim, &ending, None, None).await
        })
        .await;
    }

    async fn options(&self, id: &str) -> String {
        let tx = self.tx().await;
        jobs::options(&tx, &self.keys, &self.get(id).await).await.unwrap().get().to_owned()
    }

    async fn cancel(&self, id: &str, now_us: i64) -> Cancelled {
        self.run(async |tx, keys| jobs::cancel(tx, keys, T, id, now_us).await).await
    }

    async fn edit(&self, id: &str, options: &str) -> Result<(), &'static str> {
        let job: Job = self.get(id).await;
        let edit = Edit {
            spec: job.spec.clone(),
            options: Some(json(options)),
            priority: None,
            start_us: None,
            note: "options".into(),
        };
        self.run(async |tx, keys| edit::edit(tx, keys, &mut job.clone(), edit, 50).await).await
    }
}

fn crashed(retry_us: i64) -> Ending {
    Ending::Crashed { error: "ouch".into(), retry_us: Some(retry_us) }
}

fn kept(id: &str) -> (String, Did) {
    (id.to_owned(), Did::Kept)
}

#[tokio::test]
async fn while_one_waits_no_other_is_added_and_a_change_during_its_run_is_not_lost() {
    let world = World::new().await;
    world.fresh(&waiting("a"), 1).await;
    let found = Found {
        job_type: T.into(),
        id: "a".into(),
        mode: Mode::WhileWaiting,
        until_us: None,
        did: Did::Kept,
    };
    assert_eq!(world.add(&waiting("b"), 2).await, Outcome::Found(found));
    // The id comes first: a repeated request is what it was.
    assert_eq!(world.add(&waiting("a"), 2).await, Outcome::Added(Added::AlreadyThere));
    let claim = world.claim("a", 3).await;
    assert!(!world.holds("a").await);
    world.fresh(&waiting("b"), 4).await;
    assert_eq!(world.found(&waiting("c"), 5).await, kept("b"));
    // It returns to the queue, and the other one has the key.
    world.end("a", &claim, crashed(10), 6).await;
    assert!(!world.holds("a").await && world.holds("b").await);
    let of_b = world.claim("b", 7).await;
    world.fresh(&waiting("c"), 8).await;
    world.cancel("c", 9).await;
    // Where the key is free, a crash, a stop and a wait for a time take it again.
    for (n, ending) in
        [crashed(20), Ending::Snoozed { until_us: 30 }, Ending::Stopped].into_iter().enumerate()
    {
        let (id, now_us) = (format!("d{n}"), 40 + n as i64);
        world.fresh(&waiting(&id), now_us).await;
        let claim = world.claim(&id, now_us).await;
        world.end(&id, &claim, ending, now_us).await;
        assert_eq!(world.found(&waiting("e"), now_us).await, kept(&id));
        world.cancel(&id, now_us).await;
    }
    world.end("b", &of_b, Ending::completed(json("1")), 90).await;
    world.fresh(&waiting("e"), 91).await;
}

#[tokio::test]
async fn until_its_end_no_other_is_added_however_it_ends() {
    let world = World::new().await;
    for (n, how) in ["completes", "fails", "cancelled", "stopped", "removed", "removed running", "lost"]
        .into_iter()
        .enumerate()
    {
        let id = format!("a{n}");
        world.fresh(&until_end(&id), 1).await;
        assert_eq!(world.found(&until_end("b"), 2).await, kept(&id), "{how}");
        match how {
            "cancelled" => drop(world.cancel(&id, 3).await),
            "removed" => world.run(async |tx, keys| jobs::remove(tx, keys, T, &id).await).await,
            _ => {
                let claim = world.claim(&id, 3).await;
                assert_eq!(world.found(&until_end("b"), 4).await, kept(&id), "{how}");
                world.end(&id, &claim, crashed(5), 5).await;
                assert_eq!(world.found(&until_end("b"), 6).await, kept(&id), "{how}");
                world.run(async |tx, keys| jobs::retry(tx, keys, T, &id, 7).await).await;
                let claim = world.claim(&id, 8).await;
                match how {
                    "stopped" => assert_eq!(world.cancel(&id, 9).await, Cancelled::Requested),
                    "removed running" => {
                        world.run(async |tx, keys| jobs::remove(tx, keys, T, &id).await).await
                    }
                    _ => {}
                }
                assert_eq!(world.found(&until_end("b"), 9).await, kept(&id), "{how}");
                match how {
                    "completes" => world.end(&id, &claim, Ending::completed(json("1")), 10).await,
                    "fails" => world.end(&id, &claim, Ending::Failed("no".into()), 10).await,
                    "lost" => {
                        world
                            .run(async |tx, keys| {
                                workers::remove(Context::new(tx, keys, T, 10, 20), "w", 10).await
                            })
                            .await;
                        world.register("w").await;
                        world.cancel(&id, 11).await;
                    }
                    _ => world.end(&id, &claim, Ending::Stopped, 10).await,
                }
            }
        }
        world.fresh(&until_end("next"), 12).await;
        world.run(async |tx, keys| jobs::remove(tx, keys, T, "next").await).await;
    }
}

#[tokio::test]
async fn for_a_period_no_other_is_added_whatever_becomes_of_the_job() {
    let world = World::new().await;
    let period = |id: &str| new(id, Mode::Period(100), OnConflict::Keep);
    world.fresh(&period("a"), 10).await;
    let claim = world.claim("a", 20).await;
    world.end("a", &claim, Ending::completed(json("1")), 30).await;
    assert_eq!(world.found(&period("b"), 40).await, kept("a"));
    world.run(async |tx, keys| jobs::prune(tx, keys, T, 31, 10, &mut Default::default()).await).await;
    assert!(world.find("a").await.is_none());
    assert_eq!(world.found(&period("b"), 109).await, kept("a"));
    assert_eq!(world.found(&period("a"), 109).await, kept("a"), "also under its own id");
    // Another job of the id, of another tenant, has nothing to do with the key.
    let other = NewJob::new(T, "a", json("{}")).with(|spec| spec.tenant = "other".into());
    world.fresh(&other, 109).await;
    for on_conflict in [OnConflict::Replace, OnConflict::After] {
        assert_eq!(world.found(&new("b", Mode::UntilEnd, on_conflict), 109).await, kept("a"));
    }
    assert_eq!(world.options("a").await, "{}");
    // Its time is over: the row counts no more, even before it is cleared.
    world.fresh(&period("b"), 110).await;
    let sweep = async |now_us| world.run(async |tx, keys| unique::sweep(tx, keys, now_us, 10).await).await;
    assert_eq!((sweep(209).await, sweep(210).await, sweep(210).await), (0, 1, 0));
    world.fresh(&until_end("c"), 150).await;
    world.cancel("c", 160).await;
    // A job that is added again begins a period again.
    world.fresh(&period("d"), 300).await;
    let again = world.run(async |tx, keys| unique::add(tx, keys, &period("d"), true, 350).await).await;
    assert_eq!(again, Outcome::Added(Added::AlreadyWaiting));
    assert_eq!(world.found(&period("e"), 449).await, kept("d"));
    world.fresh(&period("e"), 450).await;
    // A client that removes a job frees its key, and that of no other one.
    let remove = async |id: &str| world.run(async |tx, keys| jobs::remove(tx, keys, T, id).await).await;
    remove("d").await;
    assert_eq!(world.found(&period("f"), 451).await, kept("e"));
    remove("e").await;
    world.fresh(&period("f"), 452).await;
    let claim = world.claim("f", 453).await;
    remove("f").await;
    assert_eq!(world.found(&period("g"), 454).await, kept("f"), "it runs");
    world.end("f", &claim, Ending::Stopped, 455).await;
    world.fresh(&period("g"), 456).await;
}

#[tokio::test]
async fn a_job_that_waits_takes_what_is_stated_now() {
    let world = World::new().await;
    let replace = |id: &str| new(id, Mode::WhileWaiting, OnConflict::Replace);
    let replaced = ("a".to_owned(), Did::Replaced);
    // Debounce: each change puts the job off.
    let later = |id: &str, at_us| NewJob { not_before_us: Some(at_us), ..replace(id) };
    world.fresh(&later("a", 100), 1).await;
    assert_eq!(world.found(&later("b", 150), 50).await, replaced);
    assert_eq!((world.get("a").await.order_us(), world.options("a").await), (150, r#"{"from":"b"}"#.into()));
    assert_eq!(world.found(&replace("c"), 60).await, replaced);
    assert_eq!(
        (world.get("a").await.state(), world.options("a").await),
        (State::Pending, r#"{"from":"c"}"#.into())
    );
    // It keeps its place in the queue, its backoff, and its hold.
    let order_us = world.get("a").await.order_us();
    assert_eq!(world.found(&replace("b"), 70).await, replaced);
    assert_eq!(world.get("a").await.order_us(), order_us);
    let claim = world.claim("a", 80).await;
    world.end("a", &claim, crashed(500), 90).await;
    assert_eq!(world.found(&replace("b"), 95).await, replaced);
    assert_eq!((world.get("a").await.state(), world.get("a").await.order_us()), (State::Crashing, 500));
    world
        .run(async |tx, keys| {
            let mut job = jobs::get(tx, keys, T, "a").await?.unwrap();
            edit::hold(tx, keys, &mut job, Holder::Operator, None, 96).await
        })
        .await
        .unwrap();
    assert_eq!(world.found(&replace("d"), 97).await, replaced);
    assert_eq!(
        (world.get("a").await.held_by(), world.options("a").await),
        (Some(Holder::Operator), r#"{"from":"d"}"#.into())
    );
    assert_eq!(
        world.found(&new("x", Mode::UntilEnd, OnConflict::Reject), 98).await,
        ("a".into(), Did::Rejected)
    );
    // A job that runs keeps what it runs with.
    world.cancel("a", 99).await;
    world.fresh(&until_end("r"), 100).await;
    world.claim("r", 101).await;
    assert_eq!(world.found(&replace("b"), 102).await, kept("r"));
}

#[tokio::test]
async fn a_job_that_runs_runs_once_more_with_what_is_stated_now() {
    let world = World::new().await;
    let after = |id: &str| new(id, Mode::UntilEnd, OnConflict::After);
    world.fresh(&after("a"), 1).await;
    assert_eq!(world.found(&after("b"), 2).await, kept("a"));
    let claim = world.claim("a", 3).await;
    for id in ["b", "c"] {
        assert_eq!(world.found(&after(id), 4).await, ("a".into(), Did::RunsAgain));
    }
    world.end("a", &claim, Ending::completed(json("1")), 5).await;
    assert_eq!(
        (world.get("a").await.state(), world.options("a").await),
        (State::Pending, r#"{"from":"c"}"#.into())
    );
    assert_eq!(world.found(&until_end("d"), 6).await, kept("a"));
    let claim = world.claim("a", 7).await;
    world.end("a", &claim, Ending::completed(json("1")), 8).await;
    world.fresh(&after("d"), 9).await;
    // Dependencies of the one that is found stay, so those of the other cannot apply.
    for on_conflict in [OnConflict::Replace, OnConflict::After] {
        let dependent =
            NewJob { after: vec![After::completed(T, "d")], ..new("e", Mode::UntilEnd, on_conflict) };
        let refused =
            world.try_run(async |tx, keys| unique::add(tx, keys, &dependent, false, 10).await).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "unique.on_conflict", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn what_a_client_asks_for_is_refused_if_another_job_has_the_key() {
    let world = World::new().await;
    for mode in [Mode::WhileWaiting, Mode::UntilEnd] {
        let keep = |id: &str| new(id, mode, OnConflict::Keep);
        world.fresh(&keep("a"), 1).await;
        world.cancel("a", 2).await;
        world.fresh(&keep("b"), 3).await;
        let rerun = async || world.run(async |tx, keys| jobs::rerun(tx, keys, T, "a", 4).await).await;
        assert_eq!(rerun().await, Retried::KeyTaken);
        assert_eq!(world.get("a").await.state(), State::Cancelled);
        // The same id again, too.
        let again = world.run(async |tx, keys| unique::add(tx, keys, &keep("a"), true, 5).await).await;
        assert!(matches!(again, Outcome::Found(Found { id, did: Did::Kept, .. }) if id == "b"));
        world.cancel("b", 6).await;
        assert_eq!(rerun().await, Retried::Now);
        assert_eq!(world.found(&keep("b2"), 7).await, kept("a"));
        for id in ["a", "b"] {
            world.run(async |tx, keys| jobs::remove(tx, keys, T, id).await).await;
        }
    }
}

#[tokio::test]
async fn a_key_follows_the_options_that_it_is_made_of() {
    let world = World::new().await;
    let of = |id: &str, options: &str| {
        let by = By::Of(vec!["/customer".to_owned()]);
        NewJob { options: json(options), ..with(id, Mode::UntilEnd, by, OnConflict::Keep) }
    };
    world.fresh(&of("a", r#"{"customer":1}"#), 1).await;
    world.fresh(&of("b", r#"{"customer":2}"#), 1).await;
    assert_eq!(world.found(&of("c", r#"{"x":0,"customer":2}"#), 2).await, kept("b"));
    world.edit("a", r#"{"customer":1,"x":1}"#).await.unwrap();
    assert!(world.edit("a", r#"{"customer":2}"#).await.is_err());
    assert_eq!(world.options("a").await, r#"{"customer":1,"x":1}"#);
    world.edit("a", r#"{"customer":3}"#).await.unwrap();
    assert_eq!(world.found(&of("c", r#"{"customer":3}"#), 3).await, kept("a"));
    world.fresh(&of("c", r#"{"customer":1}"#), 4).await;
    // So does that of a job that is added again, also while it runs; without a statement, it has none.
    let claim = world.claim("a", 5).await;
    let again =
        async |new: NewJob| world.run(async |tx, keys| unique::add(tx, keys, &new, true, 6).await).await;
    assert_eq!(again(of("a", r#"{"customer":4}"#)).await, Outcome::Added(Added::RunsAgain));
    assert_eq!(world.found(&of("d", r#"{"customer":4}"#), 7).await, kept("a"));
    world.end("a", &claim, Ending::completed(json("1")), 8).await;
    assert_eq!(world.found(&of("d", r#"{"customer":4}"#), 9).await, kept("a"));
    again(NewJob::new(T, "a", json("{}"))).await;
    world.fresh(&of("d", r#"{"customer":4}"#), 10).await;
}

#[tokio::test]
async fn a_job_that_is_to_run_again_holds_its_key_while_that_run_waits() {
    let world = World::new().await;
    let again = async |now_us| {
        world.run(async |tx, keys| unique::add(tx, keys, &waiting("a"), true, now_us).await).await
    };
    for stop in ["cancel", "remove"] {
        world.fresh(&waiting("a"), 1).await;
        let claim = world.claim("a", 2).await;
        assert_eq!(again(3).await, Outcome::Added(Added::RunsAgain));
        assert_eq!(world.found(&waiting("b"), 4).await, kept("a"));
        // No run follows, so a change would be lost if the key were not free.
        match stop {
            "cancel" => drop(world.cancel("a", 5).await),
            _ => world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await,
        }
        world.fresh(&waiting("b"), 6).await;
        world.end("a", &claim, Ending::Stopped, 7).await;
        for id in ["a", "b"] {
            if world.find(id).await.is_some() {
                world.run(async |tx, keys| jobs::remove(tx, keys, T, id).await).await;
            }
        }
    }
}

#[tokio::test]
async fn jobs_of_one_request_and_blocked_ones_have_keys_as_others() {
    let world = World::new().await;
    world.fresh(&NewJob::new(T, "first", json("{}")), 1).await;
    let blocked = NewJob { after: vec![After::completed(T, "first")], ..waiting("a") };
    let both = world.run(async |tx, keys| {
        let first = unique::add(tx, keys, &blocked, false, 2).await?;
        Ok((first, unique::add(tx, keys, &waiting("b"), false, 2).await?))
    });
    let (first, second) = both.await;
    assert_eq!(first, Outcome::Added(Added::Blocked));
    assert!(matches!(second, Outcome::Found(Found { id, .. }) if id == "a"));
    // A dependency that ends otherwise cancels it: the key is free.
    world.cancel("first", 3).await;
    assert_eq!(world.get("a").await.state(), State::Cancelled);
    let dead = After { accepted: vec![DependencyEnd::Completed], ..After::completed(T, "first") };
    let added = world.add(&NewJob { after: vec![dead], ..waiting("b") }, 4).await;
    assert_eq!(added, Outcome::Added(Added::Cancelled));
    world.fresh(&waiting("c"), 5).await;
    assert_eq!(world.found(&NewJob { not_before_us: Some(900), ..waiting("d") }, 6).await, kept("c"));
    // Another type has another job, but for a key of the whole tenant: then its options are not for the one that is found.
    let of_tenant = |id: &str, job_type: &str| {
        let mut new = new(id, Mode::UntilEnd, OnConflict::Replace);
        new.job_type = job_type.to_owned();
        new.spec.unique.as_mut().unwrap().within = Within::Tenant;
        new
    };
    world.fresh(&of_tenant("t", T), 7).await;
    let other = world.add(&of_tenant("u", "other"), 8).await;
    assert!(matches!(other, Outcome::Found(Found { id, did: Did::Rejected, .. }) if id == "t"));
    let elsewhere = of_tenant("u", "other").with(|spec| spec.tenant = "else".into());
    assert_eq!(world.add(&elsewhere, 9).await, Outcome::Added(Added::Queued));
}
