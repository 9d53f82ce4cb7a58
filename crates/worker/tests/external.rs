//! Workers that reach the store through a server: a lost response loses nothing, and a restart of the server does not
//! affect them.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_policy::backoff;
use turnwise_queue::claims::{self, Answer, Report};
use turnwise_queue::{Claim, Context, Error, EventKind, Job, NewJob, Result, State, jobs, workers};
use turnwise_worker::{
    Accepted, External, ExternalEnd, MAX_ACCEPTED, MAX_EXTERNAL_SLOTS, Options, TenantFilter, Tunables,
    Wanted,
};

use crate::common::faulty::Fault;
use crate::common::{self, PATIENCE, T, World, json};

const WAIT: Duration = Duration::from_secs(20);
const NOW: Duration = Duration::ZERO;

fn external(world: &World) -> External {
    External::new(world.store.clone(), world.keys.clone(), Options::default())
}

/// A worker with this many slots.
async fn join(external: &External, slots: usize) -> String {
    external.register(T, None, slots, None).await.unwrap().id
}

fn ids(accepted: &[Accepted]) -> Vec<&str> {
    accepted.iter().map(|accepted| accepted.job.id.as_str()).collect()
}

/// The jobs that it accepts within this time.
async fn wait_for(
    external: &External,
    worker: &str,
    received: u64,
    limit: usize,
    wait: Duration,
) -> Result<Vec<Accepted>> {
    common::accept(external, T, worker, (received, limit, wait), &CancellationToken::new()).await
}

/// Accepts without waiting. The worker has received all claims up to `received`.
async fn accept(external: &External, worker: &str, received: u64, limit: usize) -> Vec<Accepted> {
    // The clock does not move, so even a wait of zero would not end.
    let accepted = wait_for(external, worker, received, limit, WAIT);
    tokio::time::timeout(PATIENCE, accepted).await.expect("nothing was accepted").unwrap()
}

fn completed() -> ExternalEnd {
    ExternalEnd::completed(json("42"))
}

async fn end(external: &External, worker: &str, accepted: &Accepted, end: ExternalEnd) -> Option<Job> {
    external.end(T, worker, &accepted.job.id, accepted.claim, end, None).await.unwrap()
}

/// Adds a job of a tenant.
async fn add_of(world: &World, tenant: &str, id: &str) {
    let new = NewJob::new(T, id, json("1")).with(|spec| spec.tenant = tenant.to_owned());
    world.run(async |tx, keys| jobs::add(tx, keys, &new, 7).await).await;
}

fn only(tenant: &'static str) -> Option<TenantFilter> {
    Some(TenantFilter::new(tenant, move |of| of == tenant))
}

#[tokio::test]
async fn a_worker_gets_the_jobs_of_its_tenants_alone() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 500).await;
    // More jobs of others in front than a pass reads.
    for n in 0..60 {
        add_of(&world, "a", &format!("a{n}")).await;
    }
    for n in 0..3 {
        add_of(&world, "b", &format!("b{n}")).await;
    }
    let leave = CancellationToken::new();
    let accept = |received, tenants| {
        let wanted = Wanted { received, limit: 2, wait: WAIT, tenants };
        let accepting = external.accept(T, &worker, wanted, &leave);
        async { tokio::time::timeout(PATIENCE, accepting).await.expect("nothing was accepted").unwrap().jobs }
    };
    assert_eq!(ids(&accept(0, only("b")).await), ["b0", "b1"]);
    assert_eq!(ids(&accept(2, only("b")).await), ["b2"]);
    let rest = accept(3, None).await;
    assert!(rest.iter().all(|accepted| accepted.job.tenant == "a") && rest.len() == 2);
}

#[tokio::test]
async fn a_worker_that_may_not_take_a_job_does_not_keep_it_from_the_next() {
    let world = World::new();
    let external = external(&world);
    let wait = Duration::from_secs(600);
    let waits = |worker: String, tenants| {
        let external = external.clone();
        let wanted = Wanted { received: 0, limit: 1, wait, tenants };
        tokio::spawn(async move {
            external.accept(T, &worker, wanted, &CancellationToken::new()).await.map(|given| given.jobs)
        })
    };
    // It is the first to wait, and may not run what arrives.
    let _first = waits(join(&external, 1).await, only("a"));
    world.clock.wait_for_sleepers(wait, 1).await;
    let second = waits(join(&external, 1).await, only("b"));
    world.clock.wait_for_sleepers(wait, 2).await;
    add_of(&world, "b", "b").await;
    let accepted = tokio::time::timeout(PATIENCE, second).await.expect("it waits on").unwrap().unwrap();
    assert_eq!(ids(&accepted), ["b"]);
    let third = waits(join(&external, 1).await, None);
    world.clock.wait_for_sleepers(wait, 2).await;
    add_of(&world, "c", "c").await;
    let accepted = tokio::time::timeout(PATIENCE, third).await.expect("it waits on").unwrap().unwrap();
    assert_eq!(ids(&accepted), ["c"]);
}

#[tokio::test]
async fn a_job_claimed_by_another_server_is_delivered_again_to_a_request_that_waits_here() {
    let world = World::new();
    let external = external(&world);
    let (first, worker) = (join(&external, 1).await, join(&external, 1).await);
    let waits = |worker: String| {
        let external = external.clone();
        tokio::spawn(async move { wait_for(&external, &worker, 0, 1, Duration::from_secs(600)).await })
    };
    // The arrival wakes the first worker in the line; the second one only learns of its own claims.
    let _in_front = waits(first);
    world.clock.wait_for_sleepers(Duration::from_secs(600), 1).await;
    let waiting = waits(worker.clone());
    world.clock.wait_for_sleepers(Duration::from_secs(600), 2).await;
    let (new, id) = (NewJob::new(T, "a", json("1")), worker.as_str());
    let claimed = world.run(async |tx, keys| {
        jobs::add(tx, keys, &new, 7).await?;
        let number = claims::next_number(tx, keys, T, id).await?;
        let claim = Claim { worker: id.to_owned(), number };
        claims::claim(Context::new(tx, keys, T, 7, 20), "a", &claim).await
    });
    claimed.await.unwrap();
    let accepted = tokio::time::timeout(PATIENCE, waiting).await.expect("it waits on").unwrap().unwrap();
    assert_eq!((ids(&accepted), accepted[0].claim), (vec!["a"], 1));
}

#[tokio::test]
async fn a_job_is_accepted_and_completed() {
    let world = World::new();
    let external = external(&world);
    let worker = external.register(T, Some("carpenter 7"), 4, None).await.unwrap();
    assert_eq!((worker.name.as_deref(), worker.external, worker.slots), (Some("carpenter 7"), true, 4));
    let new = NewJob::new(T, "a", json(r#"{"secret":1}"#));
    world.run(async |tx, keys| jobs::add(tx, keys, &new, 7).await).await;
    let accepted = accept(&external, &worker.id, 0, 1).await.remove(0);
    assert_eq!((accepted.claim, accepted.options.get()), (1, r#"{"secret":1}"#));
    assert!(!format!("{accepted:?}").contains("secret"), "{accepted:?}");
    assert_eq!(accepted.job.state(), State::Running);
    let answer =
        external.update(T, &worker.id, "a", 1, Report::of(Some(&json(r#"{"done":0.5}"#)))).await.unwrap();
    assert_eq!(answer, Answer::Continue);
    let ended = external.end(T, &worker.id, "a", 1, completed(), Some(&json(r#"{"done":1}"#))).await;
    let job = ended.unwrap().unwrap();
    assert_eq!(job.state(), State::Completed);
    assert_eq!(
        (job.result.as_ref().unwrap().get(), job.info.as_ref().unwrap().get()),
        ("42", r#"{"done":1}"#)
    );
    external.leave(T, &worker.id).await.unwrap();
    assert_eq!(world.workers().await.len(), 0);
}

#[tokio::test]
async fn every_way_to_end_a_run_leads_to_its_state() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 1).await;
    let ends = [
        (completed(), State::Completed, None),
        (ExternalEnd::Failed("no".into()), State::Failed, Some("no")),
        (ExternalEnd::crashed("ouch"), State::Crashing, Some("ouch")),
        (ExternalEnd::Snoozed { until_us: 5, for_us: 7_000_000 }, State::Delayed, None),
        (ExternalEnd::Released, State::Pending, None),
    ];
    for (number, (how, state, reason)) in (1..).zip(ends) {
        let id = format!("job {number}");
        world.add(&id).await;
        let accepted = accept(&external, &worker, number - 1, 1).await.remove(0);
        let job = end(&external, &worker, &accepted, how).await.unwrap();
        assert_eq!((job.id.as_str(), job.state(), job.reason()), (id.as_str(), state, reason));
        if state == State::Crashing {
            let now_us = turnwise_store::Runtime::now_us(&*world.clock);
            assert_eq!((job.crashes, job.order_us() - now_us), (1, 30_000_000));
        }
        if state == State::Delayed {
            let now_us = turnwise_store::Runtime::now_us(&*world.clock);
            assert_eq!((job.snoozes, job.attempts, job.order_us() - now_us), (1, 0, 7_000_000));
        }
    }
}

#[tokio::test]
async fn a_lost_response_is_sent_again_before_any_new_job() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 5).await;
    for id in ["a", "b", "c"] {
        world.add(id).await;
    }
    assert_eq!(ids(&accept(&external, &worker, 0, 2).await), ["a", "b"]);
    let again = accept(&external, &worker, 0, 1).await;
    assert_eq!((ids(&again), again[1].claim), (vec!["a", "b"], 2));
    assert_eq!(ids(&accept(&external, &worker, 1, 5).await), ["b"]);
    assert_eq!(ids(&accept(&external, &worker, 2, 5).await), ["c"]);
    // No job was started twice.
    assert_eq!(world.get("a").await.unwrap().history.len(), 2);
}

#[tokio::test]
async fn a_claim_of_unknown_outcome_is_answered_with_the_claimed_jobs() {
    for (fault, numbers) in [(Fault::Committed, [1, 2]), (Fault::Lost, [1, 2])] {
        let world = World::new();
        let (store, faulty) = world.faulty();
        let external = External::new(store, world.keys.clone(), Options::default());
        let worker = join(&external, 2).await;
        for id in ["a", "b", "c", "d"] {
            world.add(id).await;
        }
        faulty.fail(fault, "active");
        let accepting = accept(&external, &worker, 0, 2);
        let retry = async {
            faulty.happened(1).await;
            // The store's retry pauses.
            world.clock.wait_for_sleeper(Duration::from_micros(1)).await;
            world.clock.advance(Duration::from_secs(1));
        };
        let (accepted, ()) = tokio::join!(accepting, retry);
        assert_eq!(ids(&accepted), ["a", "b"]);
        assert_eq!(accepted.iter().map(|accepted| accepted.claim).collect::<Vec<_>>(), numbers);
    }
}

#[tokio::test]
async fn ending_a_job_is_idempotent() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 1).await;
    world.add("a").await;
    let accepted = accept(&external, &worker, 0, 1).await.remove(0);
    let crash = || ExternalEnd::crashed("ouch");
    let first = end(&external, &worker, &accepted, crash()).await.unwrap();
    let second = end(&external, &worker, &accepted, crash()).await.unwrap();
    assert_eq!(
        (second.state(), second.crashes, second.history.len()),
        (State::Crashing, 1, first.history.len())
    );
}

#[tokio::test]
async fn a_worker_never_gets_more_than_its_slots() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 2).await;
    for id in ["a", "b", "c"] {
        world.add(id).await;
    }
    let accepted = accept(&external, &worker, 0, 50).await;
    assert_eq!(ids(&accepted), ["a", "b"]);
    // No slot is free: it waits for its time, and gets nothing.
    let waiting = wait_for(&external, &worker, 2, 50, WAIT);
    let time = async {
        world.clock.wait_for_sleeper(WAIT).await;
        world.clock.advance(WAIT);
    };
    let (nothing, ()) = tokio::join!(waiting, time);
    assert_eq!(nothing.unwrap().len(), 0);
    end(&external, &worker, &accepted[0], completed()).await;
    assert_eq!(ids(&accept(&external, &worker, 2, 50).await), ["c"]);
}

#[tokio::test]
async fn accepting_waits_for_a_job_until_its_wait_is_over() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 9).await;
    let arrival = async {
        world.clock.wait_for_sleeper(WAIT).await;
        world.add("a").await;
    };
    let (accepted, ()) = tokio::join!(accept(&external, &worker, 0, 9), arrival);
    assert_eq!(ids(&accepted), ["a"]);
    let time = async {
        world.clock.wait_for_sleeper(WAIT).await;
        world.clock.advance(WAIT);
    };
    let (nothing, ()) = tokio::join!(wait_for(&external, &worker, 1, 9, WAIT), time);
    assert_eq!(nothing.unwrap().len(), 0);
    // A request without a wait gets its response immediately, on any clock that moves.
    let time = async {
        world.clock.wait_for_sleeper(NOW).await;
        world.clock.advance(Duration::from_micros(1));
    };
    let (nothing, ()) = tokio::join!(wait_for(&external, &worker, 1, 9, NOW), time);
    assert_eq!(nothing.unwrap().len(), 0);
}

#[tokio::test]
async fn a_crashed_job_is_accepted_once_its_backoff_is_over() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 1).await;
    world.add("a").await;
    let accepted = accept(&external, &worker, 0, 1).await.remove(0);
    end(&external, &worker, &accepted, ExternalEnd::crashed("ouch")).await;
    let backoff = Duration::from_secs(30);
    let time = async {
        // Its deadline, and the end of the backoff.
        world.clock.wait_for_sleepers(backoff, 2).await;
        world.clock.advance(backoff);
    };
    let (accepted, ()) = tokio::join!(wait_for(&external, &worker, 1, 1, 2 * backoff), time);
    assert_eq!(ids(&accepted.unwrap()), ["a"]);
}

#[tokio::test]
async fn a_crash_of_an_external_run_waits_for_the_backoff_that_applied_when_it_started() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 1).await;
    world.add("a").await;
    let accepted = accept(&external, &worker, 0, 1).await.remove(0);
    let backoff = backoff::Rules { base_us: 7_000_000, ..backoff::Rules::default() };
    external.tunables().set(Tunables { backoff, ..external.tunables().get() });
    let job = end(&external, &worker, &accepted, ExternalEnd::crashed("ouch")).await.unwrap();
    assert_eq!((job.crashes, job.order_us() - job.changed_us), (1, 30_000_000));
}

#[tokio::test]
async fn waiting_workers_stand_in_line_and_one_arrival_wakes_one_of_them() {
    let world = World::new();
    let (store, faulty) = world.faulty();
    let external = External::new(store, world.keys.clone(), Options::default());
    let mut waiting = Vec::new();
    let mut names = Vec::new();
    for n in 1..=4 {
        let worker = join(&external, 1).await;
        names.push(worker.clone());
        let external = external.clone();
        waiting.push(tokio::spawn(async move { wait_for(&external, &worker, 0, 1, WAIT).await.unwrap() }));
        // It has made a pass, and is in the line.
        world.clock.wait_for_sleepers(WAIT, n).await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    for (n, waiter) in waiting.into_iter().enumerate() {
        let id = format!("job {n}");
        let begun = faulty.begun();
        world.add(&id).await;
        let accepted = tokio::time::timeout(PATIENCE, waiter).await.expect("not the first in line was woken");
        let accepted = accepted.unwrap();
        assert_eq!((ids(&accepted), &accepted[0].job.claim().unwrap().worker), (vec![&*id], &names[n]));
        // The first worker in the line made a pass, and then the next one, which is now the first.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(faulty.begun() <= begun + 2, "every waiting request made a pass");
    }
}

#[tokio::test]
async fn a_waiting_worker_that_leaves_admits_the_next_one() {
    let world = World::new();
    let external = external(&world);
    let (first, second) = (join(&external, 1).await, join(&external, 1).await);
    let gone = {
        let external = external.clone();
        tokio::spawn(async move { wait_for(&external, &first, 0, 1, WAIT).await })
    };
    world.clock.wait_for_sleepers(WAIT, 1).await;
    let waiting = accept(&external, &second, 0, 1);
    let others = async {
        world.clock.wait_for_sleepers(WAIT, 2).await;
        gone.abort();
        gone.await.unwrap_err();
        world.add("a").await;
    };
    let (accepted, ()) = tokio::join!(waiting, others);
    assert_eq!(ids(&accepted), ["a"]);
}

#[tokio::test]
async fn a_job_that_a_concurrent_pass_failed_to_claim_is_claimed_by_a_waiting_request() {
    let world = World::new();
    let (store, faulty) = world.faulty();
    let external = External::new(store, world.keys.clone(), Options::default());
    let (first, second) = (join(&external, 1).await, join(&external, 1).await);
    world.add("a").await;
    faulty.pause_commits(true);
    let begun = faulty.begun();
    let failing = {
        let external = external.clone();
        tokio::spawn(async move { wait_for(&external, &first, 0, 1, WAIT).await })
    };
    while faulty.begun() == begun {
        tokio::task::yield_now().await;
    }
    let waiting = accept(&external, &second, 0, 1);
    let others = async {
        world.clock.wait_for_sleeper(WAIT).await;
        failing.abort();
        failing.await.unwrap_err();
        faulty.pause_commits(false);
    };
    let (accepted, ()) = tokio::join!(waiting, others);
    assert_eq!(ids(&accepted), ["a"]);
}

#[tokio::test]
async fn a_claim_that_arrives_late_is_delivered_to_a_waiting_request_at_once() {
    let world = World::new();
    let external = external(&world);
    let (first, second) = (join(&external, 1).await, join(&external, 1).await);
    let first = {
        let external = external.clone();
        tokio::spawn(async move { wait_for(&external, &first, 0, 1, WAIT).await })
    };
    world.clock.wait_for_sleeper(WAIT).await;
    // It is not the first of its line: no arriving job wakes it.
    let waiting = accept(&external, &second, 0, 1);
    let arrival = async {
        world.clock.wait_for_sleepers(WAIT, 2).await;
        // As if an earlier request to another server had committed late.
        world
            .run(async |tx, keys| {
                let number = claims::next_number(tx, keys, T, &second).await?;
                let claim = Claim { worker: second.clone(), number };
                jobs::add(tx, keys, &NewJob::new(T, "a", json("{}")), 0).await?;
                claims::claim(Context::new(tx, keys, T, 0, 20), "a", &claim).await
            })
            .await;
    };
    let (accepted, ()) = tokio::join!(waiting, arrival);
    assert_eq!((ids(&accepted), accepted[0].claim), (vec!["a"], 1));
    assert!(!first.is_finished());
}

#[tokio::test]
async fn many_concurrent_requests_do_not_conflict() {
    let world = World::new();
    let (store, faulty) = world.faulty();
    let external = External::new(store, world.keys.clone(), Options::default());
    let mut workers = Vec::new();
    for n in 0..20 {
        workers.push(join(&external, 1).await);
        world.add(&format!("{n:02}")).await;
    }
    let begun = faulty.begun();
    faulty.pause_commits(true);
    let accepting = workers.iter().map(|worker| accept(&external, worker, 0, 1));
    let at_once = async {
        while faulty.begun() < begun + 2 + 20 {
            tokio::task::yield_now().await;
        }
        faulty.pause_commits(false);
    };
    let (accepted, ()) = tokio::join!(futures::future::join_all(accepting), at_once);
    let mut ids: Vec<&str> = accepted.iter().flat_map(|accepted| ids(accepted)).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    // One request reads the contenders for all, and one reads the tenants' charges.
    assert_eq!(faulty.begun() - begun, 2 + 20, "some requests had to be repeated");
}

#[tokio::test]
async fn a_ping_returns_the_claims_that_must_stop_and_an_update_whether_its_own_must() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 5).await;
    for id in ["a", "b"] {
        world.add(id).await;
    }
    let accepted = accept(&external, &worker, 0, 5).await;
    assert_eq!(external.ping(T, &worker).await.unwrap().stop, [0; 0]);
    world.cancel("b").await;
    assert_eq!(external.ping(T, &worker).await.unwrap().stop, [2]);
    let update = async |id: &'static str, claim| {
        external.update(T, &worker, id, claim, Report::of(Some(&json("1")))).await
    };
    assert_eq!(update("a", 1).await.unwrap(), Answer::Continue);
    assert_eq!(update("b", 2).await.unwrap(), Answer::Cancel);
    let job = end(&external, &worker, &accepted[1], ExternalEnd::Released).await.unwrap();
    assert_eq!(job.state(), State::Cancelled);
    let health = world.run(async |tx, keys| workers::health(tx, keys, T, &worker).await).await;
    assert_eq!(health.unwrap().counter, 2);
}

#[tokio::test]
async fn every_request_of_a_removed_worker_returns_halt() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 5).await;
    world.add("a").await;
    let accepted = accept(&external, &worker, 0, 5).await.remove(0);
    assert!(
        world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 3, 20), &worker, 9).await).await
    );
    let halted = |result: Option<Error>| assert!(matches!(result, Some(Error::Halt)), "{result:?}");
    halted(external.ping(T, &worker).await.err());
    halted(wait_for(&external, &worker, 1, 5, WAIT).await.err());
    halted(external.update(T, &worker, "a", 1, Report::of(Some(&json("1")))).await.err());
    halted(external.end(T, &worker, "a", accepted.claim, completed(), None).await.err());
    let job = world.get("a").await.unwrap();
    assert_eq!(
        (job.state(), &job.history[0].kind),
        (State::Pending, &EventKind::Stopped { reason: Some("its worker left".into()) })
    );
    // Leaving twice is no error.
    external.leave(T, &worker).await.unwrap();
}

#[tokio::test]
async fn foreign_claims_change_nothing() {
    let world = World::new();
    let external = external(&world);
    let (worker, other) = (join(&external, 5).await, join(&external, 5).await);
    world.add("a").await;
    let accepted = accept(&external, &worker, 0, 5).await.remove(0);
    for (worker, claim) in [(&other, accepted.claim), (&worker, accepted.claim + 1)] {
        let update = external.update(T, worker, "a", claim, Report::of(Some(&json("1")))).await;
        assert!(matches!(update, Err(Error::Halt)), "{update:?}");
        let ended = external.end(T, worker, "a", claim, completed(), None).await;
        assert!(matches!(ended, Err(Error::Halt)), "{ended:?}");
    }
    assert_eq!(world.get("a").await.unwrap().claim(), accepted.job.claim());
}

#[tokio::test]
async fn a_response_holds_many_jobs_and_the_next_one_the_rest() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 500).await;
    let all = MAX_ACCEPTED + 50;
    for n in 0..all {
        world.add(&format!("{n:03}")).await;
    }
    let mut received: Vec<Accepted> = Vec::new();
    while received.len() < all {
        let last = received.last().map_or(0, |accepted| accepted.claim);
        let next = accept(&external, &worker, last, 500).await;
        // As many as fit into a transaction of this store, and not too few.
        let least = (all - received.len()).min(51);
        assert!((least..=MAX_ACCEPTED).contains(&next.len()), "{}", next.len());
        received.extend(next);
    }
    let claims: Vec<u64> = received.iter().map(|accepted| accepted.claim).collect();
    assert_eq!(claims, (1..=all as u64).collect::<Vec<_>>());
    let ids: BTreeSet<&str> = received.iter().map(|accepted| accepted.job.id.as_str()).collect();
    assert_eq!(ids.len(), all);
}

#[tokio::test]
async fn leaving_gives_every_job_back_and_only_external_workers_can_leave() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 500).await;
    for n in 0..120 {
        world.add(&format!("{n:03}")).await;
    }
    let mut received = 0;
    while received < 120 {
        received = accept(&external, &worker, received, 500).await.last().unwrap().claim;
    }
    external.leave(T, &worker).await.unwrap();
    for n in 0..120 {
        assert_eq!(world.get(&format!("{n:03}")).await.unwrap().state(), State::Pending);
    }
    let inner = world.start(0).await;
    let id = world.workers().await.remove(0);
    assert!(matches!(external.leave(T, &id).await, Err(Error::Halt)));
    assert_eq!(world.workers().await, [id]);
    inner.shutdown().await;
}

#[tokio::test]
async fn another_server_continues_after_one_has_stopped() {
    let world = World::new();
    let before = external(&world);
    let worker = join(&before, 5).await;
    world.add("a").await;
    let accepted = accept(&before, &worker, 0, 5).await.remove(0);
    drop(before);
    // The restarted server's own worker owns the store.
    let inner = world.start(0).await;
    let after = external(&world);
    after.ping(T, &worker).await.unwrap();
    assert_eq!(end(&after, &worker, &accepted, completed()).await.unwrap().state(), State::Completed);
    world.add("b").await;
    assert_eq!(accept(&after, &worker, 1, 5).await[0].claim, 2);
    inner.shutdown().await;
}

#[tokio::test]
async fn slots_out_of_bounds_are_refused() {
    let world = World::new();
    let external = external(&world);
    for slots in [0, MAX_EXTERNAL_SLOTS + 1] {
        let refused = external.register(T, None, slots, None).await;
        assert!(matches!(refused, Err(Error::Invalid { field: "slots", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn jobs_that_have_not_started_in_time_hide_no_others() {
    let world = World::new();
    let external = external(&world);
    let worker = join(&external, 1).await;
    for n in 0..300 {
        let new = NewJob::new(T, &format!("late {n:03}"), json("{}"))
            .with(|spec| spec.lifetime.start_within_us = Some(1_000_000));
        let now_us = turnwise_store::Runtime::now_us(&*world.clock);
        world.run(async |tx, keys| jobs::add(tx, keys, &new, now_us).await).await;
    }
    world.clock.advance(Duration::from_secs(5));
    world.add("fresh").await;
    // No server has ended them yet.
    assert_eq!(ids(&accept(&external, &worker, 0, 1).await), ["fresh"]);
    let late = world.get("late 000").await.unwrap();
    assert_eq!((late.state(), late.attempts), (State::Delayed, 0));
}
