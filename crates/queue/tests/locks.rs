//! Locks: every edge of a job's life with them, every fence, and what blocks what.

use crate::common::{T, by, json, rows_in};
use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::{Levels, Mode, Requests};
use turnwise_queue::claims::{self, Claiming, Ending, Park};
use turnwise_queue::jobs::{self, Added};
use turnwise_queue::locks::{self, Asked, Blocked, How, LockAt, Spot};
use turnwise_queue::tenants::DecodedRows;
use turnwise_queue::{Claim, Context, Error, NewJob, Parked, Result, RunKey, State, check, tenants, workers};
use turnwise_store::{Error as StoreError, Isolation};

fn requests(text: &str) -> Requests {
    serde_json::from_str(text).unwrap()
}

fn new(id: &str, locks: &str) -> NewJob {
    NewJob::new(T, id, json("{}")).with(|spec| spec.locks = requests(locks))
}

fn lock(text: &str, mode: Mode) -> LockAt {
    let spot = match text.split_once('/') {
        Some((level, name)) => Spot::resource(level, name),
        None => Spot::whole(text),
    };
    LockAt::new(spot, mode)
}

fn exclusive(text: &str) -> LockAt {
    lock(text, Mode::Exclusive)
}

fn shared(text: &str) -> LockAt {
    lock(text, Mode::Shared)
}

type World = crate::common::World<Locking>;

struct Locking {
    levels: Levels,
}

impl Default for Locking {
    /// The level `pool` has four units of each resource.
    fn default() -> Self {
        let levels = r#"[{"name":"instance"},{"name":"node"},{"name":"pool","capacity":4}]"#;
        Locking { levels: serde_json::from_str(levels).unwrap() }
    }
}

impl World {
    /// All rows, or those of one family.
    async fn rows(&self, family: Option<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
        rows_in(&self.store, family.unwrap_or((Bytes::new(), b"\xff"[..].into()))).await
    }

    /// Holders, waiting jobs and reservations, as text.
    async fn held(&self) -> Vec<String> {
        let entries = self.run(async |tx, keys| locks::list(tx, keys, None, 1_000).await).await;
        let text = |entry: &locks::Entry| match entry.how {
            How::Holds => format!("{} {}", entry.id, entry.lock),
            How::Waits => format!("{} waits {}", entry.id, entry.lock),
            How::Reserved => format!("{} reserved {}", entry.id, entry.lock),
        };
        entries.iter().map(text).filter(|text| !text.contains("big_lock (shared)")).collect()
    }

    async fn wake(&self) -> Option<Bytes> {
        let tx = self.tx().await;
        tx.get_with(&self.keys.lock_wake(), Isolation::Snapshot).await.unwrap()
    }

    async fn add(&self, job: &NewJob, now_us: i64) -> Added {
        self.run(async |tx, keys| jobs::add(tx, keys, job, now_us).await).await
    }

    async fn try_claim(&self, id: &str, number: u64) -> Claiming {
        let claim = by(number);
        let levels = &self.own.levels;
        self.run(async |tx, keys| {
            claims::claim_with(Context::new(tx, keys, T, 7, 20), levels, id, &claim).await
        })
        .await
    }

    /// Adds a job and claims it, under the claim `number`.
    async fn start(&self, id: &str, number: u64, locks: &str) -> Claim {
        self.add(&new(id, locks), 5).await;
        match self.try_claim(id, number).await {
            Claiming::Claimed { job, .. } => job.claim().unwrap().clone(),
            other => panic!("{id} was to be claimed: {other:?}"),
        }
    }

    async fn blocked(&self, id: &str) -> Blocked {
        match self.try_claim(id, 1_000).await {
            Claiming::Blocked(blocked) => *blocked,
            other => panic!("{id} was to be blocked: {other:?}"),
        }
    }

    async fn request(&self, id: &str, claim: &Claim, locks: &[LockAt], now_us: i64) -> Result<Asked> {
        let levels = &self.own.levels;
        self.try_run(async |tx, keys| {
            locks::request(tx, keys, levels, RunKey::new(T, id, claim), locks, now_us).await
        })
        .await
    }

    async fn poll(&self, id: &str, claim: &Claim) -> Result<Asked> {
        let levels = &self.own.levels;
        self.try_run(async |tx, keys| locks::poll(tx, keys, levels, RunKey::new(T, id, claim), 90).await)
            .await
    }

    /// Requests a lock that is not free; returns what blocks it.
    async fn waits(&self, id: &str, claim: &Claim, lock: LockAt, now_us: i64) -> Vec<String> {
        match self.request(id, claim, std::slice::from_ref(&lock), now_us).await.unwrap() {
            Asked::Waits(Blocked { by, .. }) => by.into_iter().map(|by| by.id).collect(),
            other => panic!("{id} was to wait for {lock}: {other:?}"),
        }
    }

    async fn end(&self, id: &str, claim: &Claim, ending: Ending) -> Result<()> {
        self.try_run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 50, 20), id, claim, &ending, None, None).await
        })
        .await
        .map(drop)
    }

    async fn done(&self, id: &str, claim: &Claim) {
        self.end(id, claim, Ending::completed(json("1"))).await.unwrap();
    }

    async fn reserve(&self, id: &str, now_us: i64) -> Option<i64> {
        self.run(async |tx, keys| locks::reserve(tx, keys, T, id, now_us).await).await
    }

    async fn state(&self, id: &str) -> State {
        self.get(id).await.state()
    }
}

fn endings() -> Vec<(Ending, State)> {
    let at = Parked { group: "g".into(), key: "k".into() };
    let park = Park { at, token: "t".into(), not_before_us: 900 };
    vec![
        (Ending::completed(json("1")), State::Completed),
        (Ending::Failed("no".into()), State::Failed),
        (Ending::Crashed { error: "ouch".into(), retry_us: Some(900) }, State::Crashing),
        (Ending::Stopped, State::Pending),
        (Ending::Preempted, State::Pending),
        (Ending::Parked(park), State::Delayed),
    ]
}

#[tokio::test]
async fn known_locks_are_taken_with_the_claim_and_released_with_every_end() {
    let world = World::new().await;
    let wanted = r#"{"node":{"shared":["n"],"exclusive":["m"]},"pool":{"shared":{"p":3}},"instance":{"exclusive":"unknown"}}"#;
    for (n, (ending, state)) in (0..).zip(endings()) {
        let id = format!("job {n}");
        let claim = world.start(&id, n, wanted).await;
        assert_eq!(world.state(&id).await, State::Running);
        let of = |text: &str| format!("{id} {text}");
        let expected = [of("node/m (exclusive)"), of("node/n (shared)"), of("pool/p (shared, 3 units)")];
        assert_eq!(world.held().await, expected);
        let before = world.wake().await;
        world.end(&id, &claim, ending).await.unwrap();
        assert_eq!(world.state(&id).await, state);
        assert_eq!(world.held().await, [""; 0]);
        assert!(world.wake().await > before, "nobody hears that {id} has ended");
        assert_eq!((world.get(&id).await.held(), world.get(&id).await.waits()), (None, None));
    }
}

#[tokio::test]
async fn a_blocked_claim_changes_nothing_and_names_its_blocker() {
    let world = World::new().await;
    let claim = world.start("a", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
    world.add(&new("b", r#"{"instance":{"exclusive":["i"]},"node":{"shared":["n"]}}"#), 5).await;
    let before = world.rows(None).await;
    let blocked = world.blocked("b").await;
    assert_eq!(blocked.lock, shared("node/n"));
    let holder = &blocked.by[0];
    assert_eq!((holder.id.as_str(), holder.how, &holder.lock), ("a", How::Holds, &exclusive("node/n")));
    assert_eq!((holder.tenant.as_str(), holder.since_us, blocked.by.len()), ("default", 7, 1));
    assert_eq!(world.rows(None).await, before);
    // The blocked job does not block the next one.
    world.start("c", 2, r#"{"instance":{"exclusive":["i"]}}"#).await;
    world.done("a", &claim).await;
    world.done("c", &by(2)).await;
    assert!(matches!(world.try_claim("b", 3).await, Claiming::Claimed { .. }));
}

#[tokio::test]
async fn locks_exclude_exactly_the_jobs_that_conflict() {
    const BIG: &str = r#"{"big_lock":true}"#;
    const ALL: &str = r#"{"node":{"exclusive":"all"}}"#;
    const ALL_SHARED: &str = r#"{"node":{"shared":"all"}}"#;
    const ONE: &str = r#"{"node":{"exclusive":["n"]}}"#;
    const OTHER: &str = r#"{"node":{"exclusive":["m"]}}"#;
    const SHARED: &str = r#"{"node":{"shared":["n"]}}"#;
    const UNKNOWN: &str = r#"{"node":{"exclusive":"unknown"}}"#;
    const ELSEWHERE: &str = r#"{"instance":{"exclusive":"all"}}"#;
    const THREE: &str = r#"{"pool":{"shared":{"n":3}}}"#;
    const TWO: &str = r#"{"pool":{"shared":{"n":2}}}"#;
    const ONE_UNIT: &str = r#"{"pool":{"shared":["n"]}}"#;
    const POOL: &str = r#"{"pool":{"exclusive":["n"]}}"#;
    for (one, other, together) in [
        (BIG, BIG, false),
        (BIG, UNKNOWN, false),
        (BIG, SHARED, false),
        (BIG, "{}", true),
        (ALL, ALL, false),
        (ALL, ALL_SHARED, false),
        (ALL, ONE, false),
        (ALL, SHARED, false),
        (ALL, UNKNOWN, true),
        (ALL, ELSEWHERE, true),
        (ALL_SHARED, ALL_SHARED, true),
        (ALL_SHARED, ONE, false),
        (ALL_SHARED, SHARED, true),
        (ONE, ONE, false),
        (ONE, OTHER, true),
        (ONE, SHARED, false),
        (SHARED, SHARED, true),
        (THREE, TWO, false),
        (THREE, ONE_UNIT, true),
        (THREE, POOL, false),
        (TWO, TWO, true),
        (ONE_UNIT, r#"{"pool":{"shared":{"m":4}}}"#, true),
    ] {
        for (one, other) in [(one, other), (other, one)] {
            let world = World::new().await;
            world.start("a", 1, one).await;
            world.add(&new("b", other), 5).await;
            let claimed = matches!(world.try_claim("b", 2).await, Claiming::Claimed { .. });
            assert_eq!(claimed, together, "{one} beside {other}");
        }
    }
}

#[tokio::test]
async fn claims_that_share_commit_side_by_side_and_others_conflict() {
    for (locks, together) in [
        (r#"{"node":{"shared":["n","m"]},"instance":{"shared":"all"}}"#, true),
        (r#"{"node":{"exclusive":["n"]}}"#, false),
        (r#"{"node":{"exclusive":"all"}}"#, false),
        (r#"{"big_lock":true}"#, false),
        (r#"{"pool":{"shared":{"n":3}}}"#, false),
    ] {
        let world = World::new().await;
        let (one, two) = (world.tx().await, world.tx().await);
        drop((one, two));
        world.add(&new("a", locks), 5).await;
        world.add(&new("b", locks), 5).await;
        let (one, two) = (world.tx().await, world.tx().await);
        for (tx, id, number) in [(&one, "a", 1), (&two, "b", 2)] {
            let claimed = claims::claim_with(
                Context::new(tx, &world.keys, T, 7, 20),
                &world.own.levels,
                id,
                &by(number),
            )
            .await
            .unwrap();
            assert!(matches!(claimed, Claiming::Claimed { .. }), "{locks}");
        }
        one.commit().await.unwrap();
        match two.commit().await {
            Ok(_) => assert!(together, "{locks}"),
            Err(StoreError::Conflict) => assert!(!together, "{locks}"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(check::check_rows(&world.keys, &world.rows(None).await), []);
    }
}

#[tokio::test]
async fn a_reservation_blocks_only_later_claims() {
    let world = World::new().await;
    let shares = r#"{"node":{"shared":["n"]}}"#;
    let first = world.start("first", 1, shares).await;
    world.add(&new("old", r#"{"node":{"exclusive":["n"]}}"#), 5).await;
    world.blocked("old").await;
    assert_eq!(world.reserve("old", 10).await, Some(10));
    assert_eq!(world.reserve("old", 20).await, Some(10), "it keeps its ticket");
    assert_eq!(world.held().await, ["first node/n (shared)", "old reserved node/n (exclusive)"]);
    // The lock is free for them, but the reservation blocks them, also the jobs that may want it.
    for (id, locks) in [
        ("shares", shares),
        ("may want it", r#"{"node":{"shared":"unknown"}}"#),
        ("wants all", r#"{"node":{"shared":"all"}}"#),
        ("big", r#"{"big_lock":true}"#),
    ] {
        world.add(&new(id, locks), 11).await;
        let by = world.blocked(id).await.by;
        assert!(by.iter().any(|by| by.id == "old" || by.id == "first"), "{by:?}");
    }
    assert_eq!(world.blocked("shares").await.by[0].how, How::Reserved);
    // Another node, and an unrelated level.
    world.start("elsewhere", 2, r#"{"node":{"exclusive":["m"]},"instance":{"exclusive":"all"}}"#).await;
    // A later reservation waits for an earlier one.
    assert_eq!(world.reserve("shares", 12).await, Some(12));
    world.done("first", &first).await;
    assert_eq!(world.blocked("shares").await.by[0].id, "old");
    assert!(matches!(world.try_claim("old", 3).await, Claiming::Claimed { .. }));
    assert_eq!(world.get("old").await.reserved(), None);
    world.done("old", &by(3)).await;
    assert!(matches!(world.try_claim("shares", 4).await, Claiming::Claimed { .. }));
}

#[tokio::test]
async fn a_reservation_does_not_block_a_running_job() {
    let world = World::new().await;
    let claim = world.start("runs", 1, r#"{"node":{"exclusive":"unknown"}}"#).await;
    let holder = world.start("holder", 2, r#"{"instance":{"exclusive":["i"]}}"#).await;
    world.add(&new("old", r#"{"instance":{"exclusive":["i"]},"node":{"exclusive":["n"]}}"#), 5).await;
    assert_eq!(world.reserve("old", 10).await, Some(10));
    assert_eq!(world.request("runs", &claim, &[exclusive("node/n")], 11).await.unwrap(), Asked::Granted);
    world.done("holder", &holder).await;
    assert_eq!(world.blocked("old").await.by[0].id, "runs");
}

#[tokio::test]
async fn a_reservation_ends_however_its_job_leaves_the_queue() {
    let locks = r#"{"node":{"exclusive":["n"]},"pool":{"shared":["p"]}}"#;
    for way in 0..7 {
        let world = World::new().await;
        world.add(&new("a", locks), 5).await;
        assert_eq!(world.reserve("a", 10).await, Some(10));
        assert_eq!(world.held().await.len(), 2);
        let before = world.wake().await;
        match way {
            0 => drop(world.try_claim("a", 1).await),
            1 => drop(world.run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 11).await).await),
            2 => world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await,
            3 => drop(world.add(&new("a", r#"{"node":{"exclusive":["m"]}}"#), 11).await),
            4 => drop(world.add(&new("a", locks).with(|spec| spec.tenant = "other".into()), 11).await),
            5 => drop(world.add(&new("a", "{}"), 11).await),
            // It is the same job, and keeps its place.
            _ => drop(world.add(&new("a", locks), 11).await),
        }
        let reserved = world.held().await.iter().any(|text| text.contains("reserved"));
        assert_eq!(reserved, way == 6, "way {way}");
        assert_eq!(world.wake().await > before, way != 6, "way {way}");
    }
    let world = World::new().await;
    world.add(&NewJob { not_before_us: Some(900), ..new("later", locks) }, 5).await;
    world.add(&new("none", "{}"), 5).await;
    for id in ["later", "none", "no such job"] {
        assert_eq!(world.reserve(id, 10).await, None, "{id}");
    }
}

#[tokio::test]
async fn a_job_that_runs_waits_for_a_lock_first_come_first_served() {
    let world = World::new().await;
    let unknown = r#"{"node":{"shared":"unknown","exclusive":"unknown"}}"#;
    let a = world.start("a", 1, unknown).await;
    let b = world.start("b", 2, unknown).await;
    let c = world.start("c", 3, unknown).await;
    assert_eq!(world.request("a", &a, &[shared("node/n")], 10).await.unwrap(), Asked::Granted);
    assert_eq!(world.request("a", &a, &[shared("node/n")], 10).await.unwrap(), Asked::Granted, "repeated");
    assert_eq!(world.waits("b", &b, exclusive("node/n"), 11).await, ["a"]);
    assert_eq!(world.state("b").await, State::Waiting);
    assert_eq!(world.waits("b", &b, exclusive("node/n"), 12).await, ["a"], "repeated");
    // It would be compatible with the held lock, but came later. Its clock is behind, but not its ticket.
    assert_eq!(world.waits("c", &c, shared("node/n"), 3).await, ["b"]);
    let queue = ["a node/n (shared)", "b waits node/n (exclusive)", "c waits node/n (shared)"];
    assert_eq!(world.held().await, queue);
    // A claim holds nothing, so that it comes after all waiting jobs.
    world.add(&new("d", r#"{"node":{"shared":["n"]}}"#), 5).await;
    assert_eq!(world.blocked("d").await.by[0].how, How::Waits);
    assert!(matches!(world.poll("c", &c).await.unwrap(), Asked::Waits(_)));
    world.done("a", &a).await;
    assert!(matches!(world.poll("c", &c).await.unwrap(), Asked::Waits(_)));
    let before = world.wake().await;
    assert_eq!(world.poll("b", &b).await.unwrap(), Asked::Granted);
    assert!(world.wake().await > before, "one fewer stands in the queue");
    assert_eq!(world.state("b").await, State::Running);
    assert_eq!(world.poll("b", &b).await.unwrap(), Asked::Granted, "repeated");
    world.done("b", &b).await;
    // Another request does what polling does.
    assert_eq!(world.request("c", &c, &[shared("node/n")], 20).await.unwrap(), Asked::Granted);
    assert!(matches!(world.try_claim("d", 4).await, Claiming::Claimed { .. }));
    assert_eq!(world.held().await, ["c node/n (shared)", "d node/n (shared)"]);
}

#[tokio::test]
async fn several_locks_are_taken_one_after_the_other_in_their_order() {
    let world = World::new().await;
    let unknown = r#"{"instance":{"exclusive":"unknown"},"node":{"exclusive":"unknown"}}"#;
    let holder = world.start("holder", 1, r#"{"node":{"exclusive":["b"]}}"#).await;
    let claim = world.start("a", 2, unknown).await;
    let all = [exclusive("node/c"), exclusive("node/b"), exclusive("instance/z"), exclusive("node/a")];
    let Asked::Waits(blocked) = world.request("a", &claim, &all, 10).await.unwrap() else {
        panic!("it is not free")
    };
    assert_eq!(blocked.lock, exclusive("node/b"));
    let got: Vec<String> = world.held().await.into_iter().filter(|text| text.starts_with('a')).collect();
    assert_eq!(got, ["a instance/z (exclusive)", "a node/a (exclusive)", "a waits node/b (exclusive)"]);
    let other = world.request("a", &claim, &[exclusive("node/d")], 11).await.unwrap_err();
    assert_eq!(
        other.to_string(),
        "locks: the job waits for node/b (exclusive) and cannot ask for node/d (exclusive) before it"
    );
    world.done("holder", &holder).await;
    assert_eq!(world.request("a", &claim, &all, 12).await.unwrap(), Asked::Granted);
    assert_eq!(world.get("a").await.held().unwrap().count(), 5);
}

#[tokio::test]
async fn a_job_that_waits_ends_in_every_way_in_which_one_that_runs_does() {
    let unknown = r#"{"node":{"exclusive":"unknown"}}"#;
    for (ending, state) in endings() {
        let world = World::new().await;
        world.start("holder", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
        let claim = world.start("a", 2, unknown).await;
        world.waits("a", &claim, exclusive("node/n"), 10).await;
        world.end("a", &claim, ending).await.unwrap();
        assert_eq!(world.state("a").await, state);
        assert_eq!(world.held().await, ["holder node/n (exclusive)"]);
    }
    for way in 0..5 {
        let world = World::new().await;
        world.start("holder", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
        world.register("v").await;
        world.add(&new("a", unknown), 5).await;
        let claim = Claim { worker: "v".into(), number: 1 };
        let levels = &world.own.levels;
        world
            .run(async |tx, keys| {
                claims::claim_with(Context::new(tx, keys, T, 7, 20), levels, "a", &claim).await
            })
            .await;
        world.waits("a", &claim, exclusive("node/n"), 10).await;
        let lose = async || {
            world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 20, 20), "v", 9).await).await
        };
        let expected = match way {
            0 => {
                assert!(lose().await);
                Some(State::Pending)
            }
            1 => {
                let told = world.try_run(async |tx, keys| jobs::cancel(tx, keys, T, "a", 11).await).await;
                assert_eq!(told.unwrap(), jobs::Cancelled::Requested);
                assert_eq!(world.state("a").await, State::Waiting);
                world.end("a", &claim, Ending::Stopped).await.unwrap();
                Some(State::Cancelled)
            }
            2 => {
                world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
                assert_eq!(world.state("a").await, State::Waiting);
                assert!(lose().await);
                None
            }
            3 => {
                assert_eq!(world.add(&new("a", r#"{"node":{"shared":["m"]}}"#), 12).await, Added::RunsAgain);
                world.end("a", &claim, Ending::completed(json("1"))).await.unwrap();
                assert_eq!(world.get("a").await.locks, requests(r#"{"node":{"shared":["m"]}}"#));
                Some(State::Pending)
            }
            _ => {
                world.run(async |tx, keys| jobs::restart(tx, keys, T, "a").await).await;
                world.end("a", &claim, Ending::Stopped).await.unwrap();
                Some(State::Pending)
            }
        };
        let tx = world.tx().await;
        let job = jobs::get(&tx, &world.keys, T, "a").await.unwrap();
        assert_eq!(job.map(|job| job.state()), expected, "way {way}");
        assert_eq!(world.held().await, ["holder node/n (exclusive)"], "way {way}");
    }
}

#[tokio::test]
async fn a_job_that_withdraws_its_request_continues_to_run() {
    let world = World::new().await;
    let unknown = r#"{"node":{"exclusive":"unknown"}}"#;
    world.start("holder", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
    let (a, b) = (world.start("a", 2, unknown).await, world.start("b", 3, unknown).await);
    world.waits("a", &a, exclusive("node/n"), 10).await;
    world.waits("b", &b, exclusive("node/n"), 11).await;
    for _ in 0..2 {
        world.run(async |tx, keys| locks::withdraw(tx, keys, RunKey::new(T, "a", &a), 12).await).await;
        assert_eq!((world.state("a").await, world.get("a").await.waits()), (State::Running, None));
    }
    assert_eq!(world.held().await, ["holder node/n (exclusive)", "b waits node/n (exclusive)"]);
    assert_eq!(world.request("a", &a, &[exclusive("node/m")], 13).await.unwrap(), Asked::Granted);
}

#[tokio::test]
async fn a_request_that_commits_after_its_withdrawal_does_not_wait() {
    let world = World::new().await;
    world.start("holder", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
    let a = world.start("a", 2, r#"{"node":{"exclusive":"unknown"}}"#).await;
    let late = world.tx().await;
    let wanted = [exclusive("node/n")];
    let asked = locks::request(&late, &world.keys, &world.own.levels, RunKey::new(T, "a", &a), &wanted, 10)
        .await
        .unwrap();
    assert!(matches!(asked, Asked::Waits(_)), "{asked:?}");
    world.run(async |tx, keys| locks::withdraw(tx, keys, RunKey::new(T, "a", &a), 12).await).await;
    assert!(matches!(late.commit().await, Err(StoreError::Conflict)));
    assert_eq!(world.state("a").await, State::Running);
    assert_eq!(world.held().await, ["holder node/n (exclusive)"]);
}

#[tokio::test]
async fn locks_can_be_released_early() {
    let world = World::new().await;
    let locks = r#"{"node":{"exclusive":["m","n"]},"instance":{"shared":"all"}}"#;
    let a = world.start("a", 1, locks).await;
    let spots = [Spot::resource("node", "n"), Spot::resource("node", "never held"), Spot::whole("instance")];
    let before = world.wake().await;
    world.run(async |tx, keys| locks::release_some(tx, keys, RunKey::new(T, "a", &a), &spots).await).await;
    assert_eq!(world.held().await, ["a node/m (exclusive)"]);
    let woken = world.wake().await;
    assert!(woken > before);
    world.run(async |tx, keys| locks::release_some(tx, keys, RunKey::new(T, "a", &a), &spots).await).await;
    assert_eq!(world.wake().await, woken, "there was nothing to give back");
    let b = world.start("b", 2, r#"{"node":{"exclusive":["n"]},"instance":{"exclusive":"all"}}"#).await;
    let big = world
        .try_run(async |tx, keys| {
            locks::release_some(tx, keys, RunKey::new(T, "a", &a), &[Spot::BIG_LOCK]).await
        })
        .await;
    assert_eq!(big.unwrap_err().to_string(), "locks: the big lock goes with the claim, and not before it");
    world.done("a", &a).await;
    world.done("b", &b).await;
    assert_eq!(world.held().await, [""; 0]);
}

#[tokio::test]
async fn no_job_waits_for_a_lock_that_comes_before_one_that_it_holds() {
    let world = World::new().await;
    let unknown = r#"{"instance":{"exclusive":"unknown"},"node":{"shared":"unknown","exclusive":"unknown"}}"#;
    world.start("holder", 1, r#"{"instance":{"exclusive":["i"]},"node":{"exclusive":["a","x"]}}"#).await;
    let claim = world.start("a", 2, unknown).await;
    assert_eq!(world.request("a", &claim, &[exclusive("node/n")], 10).await.unwrap(), Asked::Granted);
    for (lower, above) in [
        (exclusive("instance/i"), exclusive("node/n")),
        (exclusive("node/a"), exclusive("node/n")),
        (exclusive("node"), exclusive("node/n")),
    ] {
        match world.request("a", &claim, std::slice::from_ref(&lower), 11).await.unwrap() {
            Asked::OutOfOrder { blocked, above: held } => {
                assert_eq!((blocked.lock, held), (lower, above));
                assert_eq!(blocked.by[0].id, "holder");
            }
            other => panic!("{lower} was granted: {other:?}"),
        }
    }
    assert_eq!(world.state("a").await, State::Running);
    // A free lock is granted immediately.
    assert_eq!(world.request("a", &claim, &[exclusive("node/m")], 12).await.unwrap(), Asked::Granted);
    assert_eq!(world.waits("a", &claim, exclusive("node/x"), 13).await, ["holder"]);
    // A holder of a whole level shared may be waited for at each of its resources.
    let all = world.start("all", 3, r#"{"pool":{"shared":"all","exclusive":"unknown"}}"#).await;
    world.start("one", 4, r#"{"pool":{"shared":["p"]}}"#).await;
    let asked = world.request("all", &all, &[exclusive("pool/p")], 14).await.unwrap();
    assert!(
        matches!(asked, Asked::OutOfOrder { above, .. } if above == shared("pool")),
        "its holder may wait"
    );
    assert_eq!(world.request("all", &all, &[exclusive("pool/q")], 15).await.unwrap(), Asked::Granted);
}

/// One job waits for a whole level. Behind it waits one that holds nothing there. Behind that, at the same resource, comes a
/// job for which the first one waits: nothing may block it.
#[tokio::test]
async fn a_job_is_not_blocked_by_a_job_that_waits_for_it() {
    let world = World::new().await;
    let unknown = r#"{"node":{"exclusive":"unknown"}}"#;
    let inside = world.start("inside", 1, unknown).await;
    assert_eq!(world.request("inside", &inside, &[exclusive("node/a")], 9).await.unwrap(), Asked::Granted);
    let whole = world.start("whole", 2, unknown).await;
    assert_eq!(world.waits("whole", &whole, exclusive("node"), 10).await, ["inside"]);
    let outside = world.start("outside", 3, unknown).await;
    // With a clock that is behind, it still queues behind its blocker; otherwise nothing would wake it.
    assert_eq!(world.waits("outside", &outside, exclusive("node/b"), 3).await, ["whole"]);
    assert!(matches!(world.poll("outside", &outside).await.unwrap(), Asked::Waits(_)));
    assert_eq!(world.request("inside", &inside, &[exclusive("node/b")], 12).await.unwrap(), Asked::Granted);
    world.done("inside", &inside).await;
    assert!(matches!(world.poll("outside", &outside).await.unwrap(), Asked::Waits(_)));
    assert_eq!(world.poll("whole", &whole).await.unwrap(), Asked::Granted);
    world.done("whole", &whole).await;
    assert_eq!(world.poll("outside", &outside).await.unwrap(), Asked::Granted);
}

#[tokio::test]
async fn an_undeclared_lock_is_refused_with_the_fix() {
    let world = World::new().await;
    let none = world.start("none", 1, "{}").await;
    let some = world.start("some", 2, r#"{"node":{"shared":"unknown"},"pool":{"shared":"unknown"}}"#).await;
    let units = LockAt { units: 5, ..shared("pool/p") };
    for (id, claim, lock, told) in [
        (
            "none",
            &none,
            shared("node/n"),
            "declares none, and asks for node/n (shared): declare what it may want",
        ),
        ("some", &some, exclusive("node/n"), "node/n (exclusive), which it has not declared: name it"),
        ("some", &some, shared("instance/i"), "say \"unknown\" of level \"instance\""),
        ("some", &some, shared("disk/d"), "no level \"disk\"; the levels are instance, node, pool"),
        ("some", &some, units, "5 units of pool/p are asked for, and it has 4"),
        ("some", &some, shared("node/"), "empty name"),
        ("some", &some, LockAt::new(Spot::BIG_LOCK, Mode::Exclusive), "big_lock (exclusive)"),
    ] {
        match world.request(id, claim, std::slice::from_ref(&lock), 10).await {
            Err(Error::Invalid { field: "locks", problem }) => assert!(problem.contains(told), "{problem}"),
            other => panic!("{lock} was to be refused: {other:?}"),
        }
    }
    let levels = Levels::default();
    let wrong = new("x", r#"{"nod":{"shared":"all"}}"#).check_locks(&levels).unwrap_err();
    assert!(wrong.to_string().starts_with("locks: nod: there is no such level; the levels are "), "{wrong}");
}

#[tokio::test]
async fn a_stale_claim_changes_nothing() {
    let world = World::new().await;
    let unknown = r#"{"node":{"exclusive":"unknown"}}"#;
    let stale = world.start("a", 1, unknown).await;
    world.end("a", &stale, Ending::Stopped).await.unwrap();
    let claim = world.try_claim("a", 2).await.job().unwrap().claim().unwrap().clone();
    assert_eq!(world.request("a", &claim, &[exclusive("node/n")], 10).await.unwrap(), Asked::Granted);
    let before = world.rows(None).await;
    let is_lost = |result: Result<()>| assert!(matches!(result, Err(Error::Halt)), "{result:?}");
    is_lost(world.request("a", &stale, &[exclusive("node/m")], 11).await.map(drop));
    is_lost(world.poll("a", &stale).await.map(drop));
    is_lost(
        world
            .try_run(async |tx, keys| locks::withdraw(tx, keys, RunKey::new(T, "a", &stale), 12).await)
            .await,
    );
    let spots = [Spot::resource("node", "n")];
    is_lost(
        world
            .try_run(async |tx, keys| {
                locks::release_some(tx, keys, RunKey::new(T, "a", &stale), &spots).await
            })
            .await,
    );
    // The end is already recorded, and nothing is released twice.
    let known = world.end("a", &stale, Ending::Stopped).await;
    assert!(matches!(known, Err(Error::Halt) | Ok(())), "{known:?}");
    assert_eq!(world.rows(None).await, before);
}

#[tokio::test]
async fn a_lost_worker_loses_its_locks() {
    let world = World::new().await;
    world.start("a", 1, r#"{"node":{"exclusive":["n"]}}"#).await;
    assert!(
        world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 20, 20), "w", 9).await).await
    );
    assert_eq!(world.held().await, [""; 0]);
    assert_eq!((world.state("a").await, world.get("a").await.held()), (State::Pending, None));
}

#[tokio::test]
async fn the_next_run_has_the_locks_that_it_was_added_again_with() {
    let world = World::new().await;
    let claim = world.start("a", 1, r#"{"node":{"exclusive":"unknown"}}"#).await;
    let next = r#"{"instance":{"exclusive":["i"]}}"#;
    assert_eq!(world.add(&new("a", next), 10).await, Added::RunsAgain);
    // This run still has the earlier declaration.
    assert_eq!(world.request("a", &claim, &[exclusive("node/n")], 11).await.unwrap(), Asked::Granted);
    world.done("a", &claim).await;
    assert_eq!(world.get("a").await.locks, requests(next));
    world.try_claim("a", 2).await.job().unwrap();
    assert_eq!(world.held().await, ["a instance/i (exclusive)"]);
    // Added again while it runs, a job without locks gets a declaration, and a job with locks loses it.
    let plain = world.start("plain", 3, "{}").await;
    world.add(&new("plain", next), 12).await;
    world.done("plain", &plain).await;
    assert_eq!(world.get("plain").await.locks, requests(next));
    world.add(&new("a", "{}"), 13).await;
    world.done("a", &by(2)).await;
    assert!(world.get("a").await.locks.is_none());
}

#[tokio::test]
async fn levels_can_be_reconfigured_while_jobs_hold_locks() {
    let mut world = World::new().await;
    let locks = r#"{"node":{"exclusive":["n"]},"pool":{"shared":{"p":3}}}"#;
    let claim = world.start("a", 1, locks).await;
    // `node` is gone, and `pool` is first and has fewer units.
    world.own.levels = serde_json::from_str(r#"[{"name":"pool","capacity":2},{"name":"instance"}]"#).unwrap();
    world.add(&new("b", r#"{"node":{"exclusive":["n"]}}"#), 5).await;
    assert_eq!(world.blocked("b").await.by[0].id, "a");
    world.add(&new("c", r#"{"pool":{"shared":{"p":1}}}"#), 5).await;
    assert_eq!(world.blocked("c").await.by[0].id, "a");
    world.done("a", &claim).await;
    // A job that wants more units than there are gets all of them.
    world.add(&new("d", locks), 5).await;
    world.try_claim("d", 2).await.job().unwrap();
    assert_eq!(world.blocked("c").await.by[0].lock.units, 2);
    world.done("d", &by(2)).await;
    for (id, number) in [("b", 3), ("c", 4)] {
        world.try_claim(id, number).await.job().unwrap();
    }
}

#[tokio::test]
async fn more_locks_than_fit_a_transaction_are_refused_or_left_to_the_next_one() {
    let world = World::new().await;
    let names = |level: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("{level}{n}")).collect();
        serde_json::json!({ level: { "exclusive": names } }).to_string()
    };
    let add = async |job: NewJob| world.try_run(async |tx, keys| jobs::add(tx, keys, &job, 5).await).await;
    let refused = add(new("a", &names("node", 12))).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "locks: names 12 locks; at most 11 are possible in this store: ask for all of a level"
    );
    let long: Vec<String> = (0..100).map(|n| format!("{n:0>100}")).collect();
    let long = serde_json::json!({ "node": { "shared": long } }).to_string();
    let refused = add(new("a", &long)).await.unwrap_err().to_string();
    assert!(refused.contains("at most 8192 are allowed"), "{refused}");
    // As many as fit a pass, and the rest in the next one.
    for id in ["a", "b", "c"] {
        world.add(&new(id, &names(id, 11).replace(&format!("\"{id}\""), "\"node\"")), 5).await;
    }
    let levels = &world.own.levels;
    let mut left = vec!["a", "b", "c"];
    for pass in 0.. {
        let before = left.len();
        left = world
            .run(async |tx, keys| {
                let mut rest = Vec::new();
                for (n, id) in (0..).zip(&left) {
                    let claim = by(pass * 10 + n);
                    match claims::claim_with(Context::new(tx, keys, T, 7, 20), levels, id, &claim).await? {
                        Claiming::Claimed { .. } => {}
                        Claiming::NoRoom => rest.push(*id),
                        other => panic!("{other:?}"),
                    }
                }
                Ok(rest)
            })
            .await;
        assert!(left.len() < before, "the first of a transaction always fits");
        if left.is_empty() {
            assert!(pass > 0, "three of twelve do not fit into one");
            break;
        }
    }
    // The locks of one run are limited, too.
    let claim = world.start("d", 99, r#"{"instance":{"exclusive":"unknown"}}"#).await;
    for n in 0..11 {
        let lock = exclusive(&format!("instance/{n:02}"));
        assert_eq!(world.request("d", &claim, &[lock], 10).await.unwrap(), Asked::Granted);
    }
    let refused = world.request("d", &claim, &[exclusive("instance/99")], 10).await.unwrap_err().to_string();
    assert!(refused.contains("ask for all of the level"), "{refused}");
}

#[tokio::test]
async fn decoded_rows_follow_the_rows_of_the_queue() {
    let world = World::new().await;
    let decoded = DecodedRows::default();
    let decoded = &decoded;
    let read = async || {
        let front =
            world.run(async |tx, keys| decoded.read(tx, keys, keys.pending_of(T, "default"), 9).await).await;
        assert_eq!(front, world.run(async |tx, keys| tenants::front(tx, keys, T, "default", 9).await).await);
        front.into_iter().map(|pending| (pending.id, (*pending.locks).clone())).collect::<Vec<_>>()
    };
    let (one, other) = (r#"{"node":{"exclusive":["n"]}}"#, r#"{"node":{"shared":["n"]}}"#);
    world.add(&new("a", one), 5).await;
    world.add(&new("b", other), 6).await;
    let front = [("a".to_owned(), requests(one)), ("b".to_owned(), requests(other))];
    assert_eq!(read().await, front);
    assert_eq!(read().await, front);
    // The key stays the same, and its value is another one.
    world.add(&new("a", other), 7).await;
    let front = [("a".to_owned(), requests(other)), ("b".to_owned(), requests(other))];
    assert_eq!(read().await, front);
    world.start("a", 1, other).await;
    assert_eq!(read().await, front[1..]);
}

#[tokio::test]
async fn a_pending_row_states_the_locks_that_its_job_wants() {
    let world = World::new().await;
    let locks = r#"{"node":{"exclusive":["n"]}}"#;
    world.add(&new("a", locks), 5).await;
    world.add(&new("b", "{}"), 6).await;
    world.run(async |tx, keys| tenants::set_key(tx, keys, T, "a", Some(0.5)).await).await;
    let front = world.run(async |tx, keys| tenants::front(tx, keys, T, "default", 9).await).await;
    let front: Vec<_> = front.into_iter().map(|pending| (pending.id, pending.locks)).collect();
    assert_eq!(
        front,
        [("b".to_owned(), Requests::default().into()), ("a".to_owned(), requests(locks).into())]
    );
    let empty =
        world.rows(Some(world.keys.pending(T))).await.iter().filter(|(_, value)| value.is_empty()).count();
    assert_eq!(empty, 1);
}

#[tokio::test]
async fn locks_are_listed_page_by_page() {
    let world = World::new().await;
    world.start("a", 1, r#"{"node":{"exclusive":["n"],"shared":"all"}}"#).await;
    let b = world.start("b", 2, r#"{"node":{"shared":"unknown"},"pool":{"shared":{"p":2}}}"#).await;
    world.add(&new("c", r#"{"node":{"exclusive":["n"]}}"#), 5).await;
    world.reserve("c", 9).await;
    assert!(matches!(
        world.request("b", &b, &[shared("node/n")], 10).await.unwrap(),
        Asked::OutOfOrder { .. }
    ));
    let all = world.run(async |tx, keys| locks::list(tx, keys, None, 100).await).await;
    let texts: Vec<String> =
        all.iter().map(|entry| format!("{} {} {:?}", entry.id, entry.lock, entry.how)).collect();
    assert_eq!(
        texts,
        [
            "a big_lock (shared) Holds",
            "b big_lock (shared) Holds",
            "a node/n (exclusive) Holds",
            "a all of node (shared) Holds",
            "b pool/p (shared, 2 units) Holds",
            "c big_lock (shared) Reserved",
            "c node/n (exclusive) Reserved",
        ]
    );
    for size in 1..8 {
        let mut paged: Vec<locks::Entry> = Vec::new();
        loop {
            let after = paged.last().map(|entry| entry.key.clone());
            let page = world.run(async |tx, keys| locks::list(tx, keys, after.as_ref(), size).await).await;
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= size);
            paged.extend(page);
        }
        assert_eq!(paged, all, "pages of {size}");
    }
    let running = world.run(async |tx, keys| locks::running(tx, keys, 100).await).await;
    let ids: Vec<&str> = running.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(running[1].all.locks, world.get("b").await.locks);
    assert_eq!(Some(&running[1].all.held), world.get("b").await.held());
}

#[tokio::test]
async fn a_job_without_locks_costs_no_rows_and_no_reads_for_locks() {
    let world = World::new().await;
    world.add(&new("a", "{}"), 5).await;
    let before = world.rows(None).await.len();
    let tx = world.tx().await;
    let reads = world.store.counters();
    let claimed =
        claims::claim_with(Context::new(&tx, &world.keys, T, 7, 20), &world.own.levels, "a", &by(1))
            .await
            .unwrap();
    let (after, _) = (world.store.counters(), claimed.job().unwrap());
    // The worker's membership row and the record.
    assert_eq!((after.gets - reads.gets, after.ranges - reads.ranges), (2, 0));
    tx.commit().await.unwrap();
    // An active row replaces the pending row.
    assert_eq!(world.rows(None).await.len(), before);
    world.done("a", &by(1)).await;
    assert_eq!(world.wake().await, None);
}
