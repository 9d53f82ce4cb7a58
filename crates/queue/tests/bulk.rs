//! Bulk operations: which jobs they change, in which steps.

use turnwise_queue::bulk::{
    Action, Created, Gate, MAX_RUNNING_OF_ONE, NewOperation, Operation, Standing, Step, Stepped,
};
use turnwise_queue::claims::{Ending, Park};
use turnwise_queue::selection::{Position, Selection};
use turnwise_queue::{
    After, Claim, Context, Error, Holder, Job, NewJob, Parked, Result, State, Then, bulk, claims, edit, jobs,
};
use turnwise_store::Limits;

use crate::common::{T, json};

type World = crate::common::World<Bulk>;

#[derive(Default)]
struct Bulk;

/// An identity that may change everything but the jobs of the tenant `foreign`, which it does not see, and those of
/// `read-only`.
struct Someone;

impl Gate for Someone {
    fn sees(&self, job: &Job) -> bool {
        job.tenant != "foreign"
    }

    fn tests_options(&self, job: &Job) -> bool {
        job.tenant != "read-only"
    }

    fn permits(&self, job: &Job, _: Action) -> std::result::Result<(), &'static str> {
        if job.tenant == "read-only" { Err("it is read-only") } else { Ok(()) }
    }

    fn holder(&self) -> Holder {
        Holder::Client
    }

    fn name(&self) -> Option<String> {
        Some("user:jan".into())
    }
}

impl World {
    async fn add(&self, id: &str, tenant: &str, now_us: i64) {
        let new = NewJob::new(T, id, json(r#"{"to": "x"}"#)).with(|spec| spec.tenant = tenant.into());
        self.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    }

    async fn create(&self, id: &str, action: Action, condition: &str, now_us: i64) -> Result<Created> {
        let new = NewOperation {
            id: id.into(),
            action,
            condition: condition.into(),
            by: Some("user:jan".into()),
            scopes: Vec::new(),
            node: "n".into(),
            by_operator: false,
        };
        self.try_run(async |tx, keys| bulk::create(tx, keys, &new, now_us).await).await
    }

    async fn step(&self, id: &str, looks: usize, changes: usize, now_us: i64) -> Stepped {
        let operation = self.operation(id).await;
        let selection = Selection::parse(&operation.condition, operation.begun_us).unwrap();
        let step = Step { id, node: "n", selection: &selection, gate: &Someone, looks, changes };
        self.run(async |tx, keys| bulk::step(tx, keys, &step, now_us).await).await
    }

    async fn operation(&self, id: &str) -> Operation {
        self.run(async |tx, keys| bulk::get(tx, keys, id).await).await.unwrap()
    }

    /// Makes all steps, and returns the operation and how many there were.
    async fn finish(&self, id: &str, looks: usize, changes: usize, now_us: i64) -> (Operation, usize) {
        for steps in 1..500 {
            let Stepped::Made(operation) = self.step(id, looks, changes, now_us).await else {
                panic!("it is over")
            };
            if operation.standing != Standing::Running {
                return (*operation, steps);
            }
        }
        panic!("there is no end of it");
    }

    /// Begins an operation and makes all its steps, at a time.
    async fn bulk(&self, id: &str, action: Action, condition: &str, now_us: i64) -> Operation {
        self.create(id, action, condition, now_us).await.unwrap();
        self.finish(id, 3, 2, now_us + 1).await.0
    }

    async fn states(&self, ids: &[&str]) -> Vec<State> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.get(id).await.state());
        }
        states
    }

    async fn start(&self, id: &str) -> Claim {
        let claim = self.next_claim("w");
        let claimed = self
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), id, &claim).await)
            .await;
        assert!(claimed.is_some(), "{id}");
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending, now_us: i64) {
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, now_us, 20), id, claim, &ending, None, None).await
        })
        .await;
    }

    /// Adds a job, and runs it to this end.
    async fn ended(&self, id: &str, tenant: &str, ending: Ending) {
        self.add(id, tenant, 5).await;
        let claim = self.start(id).await;
        self.end(id, &claim, ending, 20).await;
    }
}

fn failed(reason: &str) -> Ending {
    Ending::Failed(reason.into())
}

fn refused(operation: &Operation) -> Vec<(&str, u64)> {
    operation.refused.iter().map(|(reason, jobs)| (reason.as_str(), *jobs)).collect()
}

#[tokio::test]
async fn every_job_that_meets_the_condition_is_changed_once() {
    let world = World::new().await;
    for n in 0..20 {
        world.add(&format!("a{n:02}"), if n % 2 == 0 { "even" } else { "odd" }, 5).await;
    }
    for id in ["f1", "f2"] {
        world.add(id, "foreign", 5).await;
    }
    world.add("r", "read-only", 5).await;
    world.create("op", Action::Cancel, "not tenant = odd", 50).await.unwrap();
    let (operation, steps) = world.finish("op", 5, 2, 51).await;
    assert!(steps > 4, "{steps}");
    assert_eq!((operation.looked_at, operation.matched, operation.changed), (21, 11, 10));
    assert_eq!(refused(&operation), [("it is read-only", 1)]);
    assert_eq!(world.front("even").await, Vec::<String>::new());
    assert_eq!((world.front("odd").await.len(), world.front("foreign").await.len()), (10, 2));
    // Its end stays, and no step follows.
    assert!(matches!(world.step("op", 5, 5, 60).await, Stepped::Over));
    assert_eq!(world.operation("op").await.ended_us, Some(51));
}

#[tokio::test]
async fn each_action_changes_what_it_may_and_tells_what_it_did_not() {
    let world = World::new().await;
    world.ended("failed", "acme", failed("timeout after 30 s")).await;
    world.ended("other", "acme", failed("no route")).await;
    world.ended("done", "acme", Ending::completed(json("null"))).await;
    let crash = Ending::Crashed { error: "timeout".into(), retry_us: Some(9_000) };
    world.ended("crashing", "acme", crash).await;
    world.add("runs", "acme", 5).await;
    world.start("runs").await;
    let later = NewJob { not_before_us: Some(9_000), ..NewJob::new(T, "later", json("{}")) };
    let after = NewJob { after: vec![After::completed(T, "runs")], ..NewJob::new(T, "after", json("{}")) };
    for new in [&later, &after] {
        world.run(async |tx, keys| jobs::add(tx, keys, new, 5).await).await;
    }

    let retried =
        world.bulk("1", Action::Retry, "state in (failed, crashing) and reason ~ timeout", 50).await;
    assert_eq!((retried.matched, retried.changed), (2, 2));
    assert_eq!(
        world.states(&["failed", "crashing", "other"]).await,
        [State::Pending, State::Pending, State::Failed]
    );
    let (failed, crashing) = (world.get("failed").await, world.get("crashing").await);
    assert_eq!((failed.attempts, crashing.crashes), (0, 0));

    let now = world.bulk("2", Action::RunNow, "", 60).await;
    // The two retried jobs were added again after the first operation began, and before this one.
    assert_eq!((now.matched, now.changed), (7, 1));
    let reasons = [("it has ended", 2), ("it is pending", 2), ("it runs", 1), ("it waits for other jobs", 1)];
    assert_eq!(refused(&now), reasons);
    assert_eq!(world.states(&["later"]).await, [State::Pending]);

    let set = world.bulk("3", Action::Priority(-7), "state = pending", 70).await;
    assert_eq!((set.matched, set.changed, world.get("later").await.priority), (3, 3, -7));

    let cancelled = world.bulk("4", Action::Cancel, "state in (running, blocked)", 80).await;
    assert_eq!(cancelled.changed, 2);
    assert!(world.get("runs").await.cancel_requested());
    assert_eq!(world.states(&["runs", "after"]).await, [State::Running, State::Cancelled]);
    let again = world.bulk("5", Action::Cancel, "id in (runs, after)", 90).await;
    assert_eq!(refused(&again), [("it has ended", 1), ("it is being stopped", 1)]);

    let removed = world.bulk("6", Action::Remove, "not state = pending", 100).await;
    assert_eq!(removed.changed, 4);
    assert_eq!(world.get("runs").await.then(), Then::Remove);
    for id in ["other", "done", "after"] {
        assert!(world.find(id).await.is_none(), "{id}");
    }
}

#[tokio::test]
async fn jobs_are_held_and_released_as_one() {
    let world = World::new().await;
    world.ended("done", "acme", Ending::completed(json("null"))).await;
    for id in ["a", "b", "runs", "operator"] {
        world.add(id, "acme", 5).await;
    }
    world.start("runs").await;
    let later = NewJob { not_before_us: Some(9_000), ..NewJob::new(T, "later", json("{}")) };
    let after = NewJob { after: vec![After::completed(T, "runs")], ..NewJob::new(T, "after", json("{}")) };
    for new in [&later, &after] {
        world.run(async |tx, keys| jobs::add(tx, keys, new, 5).await).await;
    }
    let mut job = world.get("operator").await;
    world
        .run(async |tx, keys| edit::hold(tx, keys, &mut job, Holder::Operator, None, 30).await)
        .await
        .unwrap();

    // Jobs that it holds are found again among those that are paused, and count once.
    let held =
        world.bulk("1", Action::Hold, "state in (delayed, pending, paused, running, blocked)", 50).await;
    assert_eq!((held.matched, held.changed), (5, 4));
    assert_eq!(refused(&held), [("it runs", 1)]);
    assert_eq!(world.get("after").await.holder(), Some(Holder::Client));
    for id in ["a", "b", "later"] {
        assert_eq!(world.get(id).await.held_by(), Some(Holder::Client), "{id}");
    }
    let held = world.bulk("2", Action::Hold, "id in (a, done)", 60).await;
    assert_eq!((held.changed, refused(&held)), (0, vec![("it has ended", 1)]));

    let released = world.bulk("3", Action::Release, "", 70).await;
    assert_eq!((released.changed, refused(&released)), (4, vec![("an operator holds it", 1)]));
    assert_eq!(world.get("after").await.holder(), None);
    assert_eq!(world.states(&["a", "b", "later"]).await, [State::Pending, State::Pending, State::Delayed]);
    assert_eq!(world.get("operator").await.held_by(), Some(Holder::Operator));
}

#[tokio::test]
async fn dependents_end_as_with_a_cancelled_job() {
    let world = World::new().await;
    world.add("first", "acme", 5).await;
    for (id, on) in [("second", "first"), ("third", "second")] {
        let new = NewJob { after: vec![After::completed(T, on)], ..NewJob::new(T, id, json("{}")) };
        world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
    }
    let operation = world.bulk("op", Action::Cancel, "type = test and id in (first, second)", 50).await;
    // The end of the first one has cancelled the second one before the operation reaches it.
    assert_eq!(operation.changed + operation.refused.values().sum::<u64>(), 2);
    assert_eq!(world.states(&["first", "second", "third"]).await, [State::Cancelled; 3]);
    assert_eq!(
        world.get("third").await.reason(),
        Some("job `second` of type `test`, which it was to wait for, was cancelled")
    );
}

#[tokio::test]
async fn parked_and_continuous_jobs_are_found() {
    let world = World::new().await;
    let new = NewJob::new(T, "parked", json("{}")).with(|spec| spec.continuous = true);
    world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
    let claim = world.start("parked").await;
    let at = Parked { group: "g".into(), key: "k".into() };
    let parked = Ending::Parked(Park { at, token: "1".into(), not_before_us: 9_000 });
    world.end("parked", &claim, parked, 20).await;
    let runs = NewJob::new(T, "runs", json("{}")).with(|spec| spec.continuous = true);
    world.run(async |tx, keys| jobs::add(tx, keys, &runs, 5).await).await;
    world.start("runs").await;
    let now = world.bulk("1", Action::RunNow, "state = parked", 50).await;
    assert_eq!((now.changed, world.states(&["parked"]).await), (1, vec![State::Pending]));
    let cancelled = world.bulk("2", Action::Cancel, "state in (pending, running)", 60).await;
    assert_eq!((cancelled.changed, world.get("runs").await.cancel_requested()), (2, true));
}

#[tokio::test]
async fn what_happens_after_the_start_is_not_undone() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.ended(id, "acme", failed("x")).await;
    }
    world.create("op", Action::Retry, "state = failed", 50).await.unwrap();
    assert!(matches!(world.step("op", 9, 1, 51).await, Stepped::Made(_)));
    // The retried job fails again, and so it is at the end of the index.
    let retried = world.front("acme").await.pop().unwrap();
    let claim = world.start(&retried).await;
    world.end(&retried, &claim, failed("x"), 60).await;
    world.ended_later("new").await;
    let (operation, _) = world.finish("op", 9, 1, 70).await;
    assert_eq!((operation.changed, operation.standing), (3, Standing::Done));
    assert_eq!(world.states(&[&retried, "new"]).await, [State::Failed, State::Failed]);
}

impl World {
    async fn ended_later(&self, id: &str) {
        self.add(id, "acme", 55).await;
        let claim = self.start(id).await;
        self.end(id, &claim, failed("x"), 61).await;
    }
}

#[tokio::test]
async fn a_job_that_moves_behind_the_position_is_found_by_the_next_pass() {
    let world = World::new().await;
    for n in 0..6 {
        world.add(&format!("a{n}"), "acme", 5 + n).await;
    }
    world.create("op", Action::Cancel, "state = pending and tenant = acme", 50).await.unwrap();
    world.step("op", 2, 2, 51).await;
    world.run(async |tx, keys| jobs::set_priority(tx, keys, T, "a0", 19).await).await;
    let (operation, _) = world.finish("op", 2, 2, 52).await;
    assert_eq!((operation.looked_at, operation.matched, operation.changed), (5, 6, 6));
    assert_eq!(world.front("acme").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_step_of_a_node_that_has_lost_the_operation_changes_nothing() {
    let world = World::new().await;
    world.add("a", "acme", 5).await;
    world.create("op", Action::Cancel, "", 50).await.unwrap();
    let taken = async |steps| world.run(async |tx, keys| bulk::take(tx, keys, "op", steps, "m").await).await;
    assert!(!taken(7).await, "it has made steps meanwhile");
    assert!(taken(0).await);
    assert!(!taken(0).await, "another node was faster");
    assert!(matches!(world.step("op", 9, 9, 51).await, Stepped::Over));
    assert_eq!(world.states(&["a"]).await, [State::Pending]);
    // Two nodes that both make the step conflict, as the row is one.
    let selection = Selection::parse("", 50).unwrap();
    let step = Step { id: "op", node: "m", selection: &selection, gate: &Someone, looks: 9, changes: 9 };
    let (one, other) = (world.tx().await, world.tx().await);
    for tx in [&one, &other] {
        assert!(matches!(bulk::step(tx, &world.keys, &step, 52).await.unwrap(), Stepped::Made(_)));
    }
    one.commit().await.unwrap();
    assert!(other.commit().await.is_err());
    world.check().await;
    assert_eq!(world.operation("op").await.changed, 1);
}

#[tokio::test]
async fn an_operation_begins_once_and_few_of_them_run() {
    let world = World::new().await;
    let create = async |id, condition| world.create(id, Action::Cancel, condition, 50).await;
    assert!(matches!(create("op", "id = a").await.unwrap(), Created::Now(_)));
    assert!(matches!(create("op", "id = a").await.unwrap(), Created::Before(_)));
    assert!(matches!(create("op", "id = b").await.unwrap(), Created::Taken));
    for (condition, problem) in [("id", "where: column 3"), ("colour = red", "where: column 1")] {
        let error = create("x", condition).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { .. }) && error.to_string().starts_with(problem), "{error}");
    }
    let wrong = world.create("x", Action::Priority(20), "", 50).await.unwrap_err();
    assert!(wrong.to_string().starts_with("priority: must be from -20"), "{wrong}");
    assert!(matches!(create("second", "").await.unwrap(), Created::Now(_)));
    assert!(matches!(create("third", "").await.unwrap(), Created::TooMany(MAX_RUNNING_OF_ONE)));
    let stopped = world.run(async |tx, keys| bulk::end(tx, keys, "op", Standing::Stopped, 60).await).await;
    assert_eq!(stopped.unwrap().standing, Standing::Stopped);
    assert!(matches!(world.step("op", 9, 9, 61).await, Stepped::Over));
    assert!(matches!(create("third", "").await.unwrap(), Created::Now(_)));
    let ids = async |after: Option<&'static str>| {
        let listed = world.run(async |tx, keys| bulk::list(tx, keys, after, 2).await).await;
        listed.into_iter().map(|operation| operation.id).collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(None).await, ids(Some("second")).await),
        (vec!["op".into(), "second".into()], vec!["third".to_owned()])
    );
    // What still runs is kept.
    assert_eq!(world.run(async |tx, keys| bulk::prune(tx, keys, 1_000).await).await, 1);
    assert_eq!(ids(None).await, ["second", "third"]);
}

#[tokio::test]
async fn an_identity_with_many_operations_forgets_its_own() {
    let world = World::new().await;
    let create = async |id: &str, by: &str, now_us: i64| {
        let new = NewOperation {
            id: id.into(),
            action: Action::Cancel,
            condition: "id = none".into(),
            by: Some(by.into()),
            scopes: Vec::new(),
            node: "n".into(),
            by_operator: false,
        };
        world.run(async |tx, keys| bulk::create(tx, keys, &new, now_us).await).await
    };
    let end = async |id: &str, now_us: i64| {
        world.run(async |tx, keys| bulk::end(tx, keys, id, Standing::Done, now_us).await).await;
    };
    assert!(matches!(create("nightly", "user:jan", 1).await, Created::Now(_)));
    end("nightly", 2).await;
    let most = i64::try_from(bulk::MAX_KEPT).unwrap();
    for n in 0..most + 5 {
        let id = format!("e{n}");
        assert!(matches!(create(&id, "user:eve", 10 + n).await, Created::Now(_)), "{id}");
        end(&id, 10 + n).await;
    }
    // The oldest of all is still there, and repeating its request begins nothing.
    assert!(matches!(create("nightly", "user:jan", 1_000).await, Created::Before(_)));
    assert!(matches!(create("e0", "user:eve", 1_000).await, Created::Used), "its record is gone");
    assert!(
        matches!(create("e0", "user:jan", 1_000).await, Created::Now(_)),
        "of another identity it is new"
    );
    end("e0", 1_000).await;
    let kept = world.run(async |tx, keys| bulk::list(tx, keys, None, 1_000).await).await;
    assert_eq!(kept.len(), bulk::MAX_KEPT);
    world.run(async |tx, keys| bulk::prune(tx, keys, 1_001).await).await;
    assert!(matches!(create("e0", "user:eve", 1_002).await, Created::Now(_)), "after a week it is forgotten");
}

#[tokio::test]
async fn options_are_tested_only_where_that_is_allowed() {
    let world = World::empty(Limits::SMALL);
    world.add("a", "acme", 5).await;
    world.add("r", "read-only", 5).await;
    let operation = world.bulk("op", Action::Cancel, "options.to = x", 50).await;
    assert_eq!((operation.looked_at, operation.matched, operation.changed), (2, 1, 1));
}

#[tokio::test]
async fn a_search_of_several_types_goes_on_after_any_row() {
    let world = World::empty(Limits::SMALL);
    for job_type in ["a", "b", "c"] {
        for id in ["1", "2", "3"] {
            let new = NewJob::new(job_type, id, json("{}"));
            world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
        }
    }
    for (text, expected) in [
        ("", "a1 a2 a3 b1 b2 b3 c1 c2 c3"),
        ("type in (c, a)", "a1 a2 a3 c1 c2 c3"),
        ("id in (3, '2')", "a2 a3 b2 b3 c2 c3"),
        ("id in ('3', '2')", "a2 a3 b2 b3 c2 c3"),
        ("state in (pending, failed)", "a3 a2 a1 b3 b2 b1 c3 c2 c1"),
        ("type = none", ""),
    ] {
        let selection = Selection::parse(text, 0).unwrap();
        for limit in 1..4 {
            let (mut at, mut found) = (Position::default(), Vec::new());
            loop {
                let page = selection.page(&world.tx().await, &world.keys, &at, limit).await.unwrap();
                assert!(page.jobs.len() <= limit);
                found.extend(page.jobs.iter().map(|(_, job)| format!("{}{}", job.job_type, job.id)));
                match page.next {
                    Some(next) => at = next,
                    None => break,
                }
            }
            assert_eq!(found.join(" "), expected, "{text}");
        }
    }
}

/// A client's search does not read what it may not see: the records of types in which its tenants have no jobs.
#[tokio::test]
async fn a_search_is_narrowed_to_the_types_of_the_tenants_that_it_means() {
    let world = World::empty(Limits::SMALL);
    for (job_type, tenant) in [("a", "acme"), ("b", "beta"), ("c", "acme"), ("c", "beta"), ("d", "gone")] {
        let new = NewJob::new(job_type, tenant, json("{}")).with(|spec| spec.tenant = tenant.into());
        world.run(async |tx, keys| jobs::add(tx, keys, &new, 5).await).await;
    }
    world.run(async |tx, keys| jobs::remove(tx, keys, "d", "gone").await).await;
    for (text, seen, expected) in [
        ("age >= 0s", "acme", "a/acme c/acme c/beta"),
        ("age >= 0s", "acme beta", "a/acme b/beta c/acme c/beta"),
        ("tenant = beta", "acme beta", "b/beta c/acme c/beta"),
        ("tenant = beta", "acme", ""),
        ("id = acme", "acme", "a/acme c/acme"),
        ("type = b", "acme", "b/beta"),
        ("age >= 0s", "", ""),
    ] {
        let sees = |tenant: &str| seen.split(' ').any(|seen| seen == tenant);
        let tx = world.tx().await;
        let selection = Selection::parse(text, 0).unwrap();
        let selection = selection.narrowed(&tx, &world.keys, &sees).await.unwrap();
        let (mut at, mut found) = (Position::default(), Vec::new());
        loop {
            let page = selection.page(&tx, &world.keys, &at, 2).await.unwrap();
            found.extend(page.jobs.iter().map(|(_, job)| format!("{}/{}", job.job_type, job.id)));
            match page.next {
                Some(next) => at = next,
                None => break,
            }
        }
        assert_eq!(found.join(" "), expected, "{text}");
    }
}
