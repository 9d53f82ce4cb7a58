//! Priorities: the order in which a tenant's jobs start, without disadvantage for other tenants.

use turnwise_policy::fair_share::Fairness;
use turnwise_queue::{NewJob, State, jobs};
use turnwise_worker::{FairRules, Options, RotationRules, Tunables};

use crate::common::{T, World, done, json, tuned};

async fn add(world: &World, tenant: &str, id: &str, priority: i8, locks: Option<&str>) {
    let mut new = NewJob { priority: Some(priority), ..NewJob::new(T, id, json("{}")) }
        .with(|spec| spec.tenant = tenant.into());
    if let Some(locks) = locks {
        new.spec.locks = serde_json::from_str(locks).unwrap();
    }
    let (keys, new) = (&world.keys, &new);
    let now_us = turnwise_store::Runtime::now_us(&*world.clock);
    world.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
}

async fn in_order(world: &mut World, jobs: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        let run = world.next_run().await;
        ids.push(run.id.clone());
        let id = run.id.clone();
        run.end(done());
        world.until_state(&id, State::Completed).await;
    }
    ids
}

#[tokio::test]
async fn a_tenants_jobs_start_by_class_and_a_change_counts_at_once() {
    let mut world = World::new();
    for (id, priority) in [("a", 0), ("b", 5), ("c", -5), ("d", 19), ("e", -20)] {
        add(&world, "x", id, priority, None).await;
    }
    let keys = &world.keys;
    world.store.transact(|tx| async move { jobs::set_priority(&tx, keys, T, "d", -10).await }).await.unwrap();
    let worker = world.start(1).await;
    assert_eq!(in_order(&mut world, 5).await, ["e", "d", "c", "a", "b"]);
    worker.shutdown().await;
}

#[tokio::test]
async fn where_keys_decide_priorities_order_the_jobs_of_a_tenant() {
    let mut world = World::new();
    for (id, priority) in [("a", 0), ("b", 5), ("c", -5), ("d", 19), ("e", -20), ("f", 0)] {
        add(&world, "x", id, priority, None).await;
        world.clock.advance(std::time::Duration::from_millis(1));
    }
    // More jobs than one pass reads of a queue. All have keys, so the store sorts them behind jobs of other priorities.
    for n in 0..30 {
        add(&world, "x", &format!("many{n:02}"), 0, None).await;
    }
    let fair = FairRules {
        fairness: Fairness::Rfc,
        rotation: Some(RotationRules::default()),
        ..FairRules::default()
    };
    let options = Options { exclusive: true, ..tuned(Tunables { max_jobs: 1, fair, ..Tunables::default() }) };
    let worker = world.start_with(&world.store, options).await;
    let order = in_order(&mut world, 36).await;
    assert_eq!(order[..2], ["e", "c"]);
    let (later, zero): (Vec<&String>, Vec<&String>) =
        order[2..].iter().partition(|id| ["b", "d"].contains(&id.as_str()));
    assert_eq!((later.len(), zero.len()), (2, 32));
    assert_eq!(order[34..], ["b", "d"], "{order:?}");
    worker.shutdown().await;
}

#[tokio::test]
async fn no_tenant_gets_ahead_of_other_tenants_by_priorities() {
    for locks in [None, Some(r#"{"node":{"exclusive":["n"]}}"#)] {
        let mut world = World::new();
        for n in 0..6 {
            add(&world, "pushy", &format!("pushy{n}"), -20, locks).await;
        }
        for n in 0..3 {
            add(&world, "modest", &format!("modest{n}"), 19, locks).await;
        }
        add(&world, "pushy", "later", 0, locks).await;
        let worker = world.start(1).await;
        let started = in_order(&mut world, 10).await;
        let modest: Vec<usize> =
            started.iter().enumerate().filter(|(_, id)| id.starts_with("modest")).map(|(n, _)| n).collect();
        assert!(modest.iter().all(|place| *place < 8), "{started:?}");
        let later = started.iter().position(|id| id == "later").unwrap();
        let last = started.iter().rposition(|id| id.starts_with("pushy")).unwrap();
        assert!(last < later, "{started:?}");
        worker.shutdown().await;
    }
}
