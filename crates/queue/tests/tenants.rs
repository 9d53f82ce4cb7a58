//! A queue per tenant: its order, its moves, the tenants that wait, and what was charged to them.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::common::{T, json};
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::jobs::{self, Added};
use turnwise_queue::usage::{self, Boost, Charged};
use turnwise_queue::{Claim, Context, Error, Keyspace, NODE_TYPE, NewJob, State, tenants, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{
    Changes, Engine, Error as StoreError, KeyValue, Limits, RangeRead, Snapshot, Store, Transaction,
    Versionstamp, Watch, runtime,
};

fn new(id: &str, tenant: &str) -> NewJob {
    NewJob::new(T, id, json("{}")).with(|spec| spec.tenant = tenant.into())
}

/// Up to `limit` tenants that may have pending jobs, each with the stamp of its latest one.
async fn waiting(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<&str>,
    limit: usize,
) -> turnwise_queue::Result<Vec<(String, Versionstamp)>> {
    let mut waiting = Vec::new();
    let each = |tenant, stamp| waiting.push((tenant, stamp));
    tenants::each_waiting(tx, keys, job_type, after, (limit, limit), each).await?;
    Ok(waiting)
}

type World = crate::common::World<Tenants>;

#[derive(Default)]
struct Tenants;

impl World {
    async fn add(&self, id: &str, tenant: &str, now_us: i64) -> Added {
        self.run(async |tx, keys| jobs::add(tx, keys, &new(id, tenant), now_us).await).await
    }

    /// Claims a job, and stops it with this priority.
    async fn run_once(&self, id: &str, number: u64, priority: Option<f64>, now_us: i64) {
        let claim = Claim { worker: "w".into(), number };
        let (stopped, end_us) = (Ending::Stopped, now_us + 1);
        self.run(async |tx, keys| {
            let job = claims::claim(Context::new(tx, keys, T, now_us, 20), id, &claim).await?;
            assert!(!job.expect("it is pending").is_keyed());
            Ok(())
        })
        .await;
        self.run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, end_us, 20), id, &claim, &stopped, None, priority).await
        })
        .await;
    }

    async fn set_key(&self, id: &str, key: Option<f64>) -> bool {
        self.run(async |tx, keys| tenants::set_key(tx, keys, T, id, key).await).await
    }

    async fn waiting(&self) -> Vec<String> {
        let waiting = self.run(async |tx, keys| waiting(tx, keys, T, None, 9).await).await;
        waiting.into_iter().map(|(tenant, _)| tenant).collect()
    }
}

#[tokio::test]
async fn each_tenant_has_a_queue_in_the_order_of_time() {
    let world = World::new().await;
    for (id, tenant, at_us) in [("c", "x", 3), ("a", "y", 1), ("b", "x", 2), ("d", "x y", 1)] {
        assert_eq!(world.add(id, tenant, at_us).await, Added::Queued);
    }
    assert_eq!(world.waiting().await, ["x", "x y", "y"]);
    assert_eq!(world.front("x").await, ["b", "c"]);
    assert_eq!(world.front("y").await, ["a"]);
    // A tenant whose name starts with another tenant's name gets none of its jobs.
    assert_eq!(world.front("x y").await, ["d"]);
    let rest = world.run(async |tx, keys| waiting(tx, keys, T, Some("x"), 1).await).await;
    assert_eq!(rest.iter().map(|(tenant, _)| tenant).collect::<Vec<_>>(), ["x y"]);
}

#[tokio::test]
async fn the_stamp_of_a_tenant_changes_with_each_job_that_becomes_pending() {
    let world = World::new().await;
    let stamp = async || {
        let waiting = world.run(async |tx, keys| waiting(tx, keys, T, None, 9).await).await;
        waiting[0].1
    };
    world.add("a", "x", 1).await;
    let first = stamp().await;
    world.add("b", "x", 2).await;
    let second = stamp().await;
    assert!(first < second);
    // A stopped job is pending again.
    world.run_once("a", 1, None, 3).await;
    assert!(second < stamp().await);
    // Adding a job that already waits changes nothing.
    let third = stamp().await;
    world.add("b", "x", 4).await;
    assert_eq!(stamp().await, third);
}

#[tokio::test]
async fn a_job_that_is_added_again_under_another_tenant_moves_to_its_queue() {
    let world = World::new().await;
    world.add("a", "x", 1).await;
    world.add("b", "y", 2).await;
    world.add("c", "y", 0).await;
    world.set_key("a", Some(0.5)).await;
    assert_eq!(world.add("a", "y", 3).await, Added::AlreadyWaiting);
    assert!(world.front("x").await.is_empty());
    assert_eq!(world.front("y").await, ["c", "a", "b"], "at its time, whatever key it had");
    let job = world.get("a").await;
    assert_eq!(
        (job.tenant.as_str(), job.order_us(), job.is_keyed(), job.sort_key),
        ("y", 1, false, Some(0.5))
    );
    world.check().await;
}

#[tokio::test]
async fn keys_sort_before_times_and_can_be_removed() {
    let world = World::new().await;
    for (id, at_us) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        world.add(id, "x", at_us).await;
    }
    assert!(world.set_key("a", Some(-0.25)).await);
    assert!(world.set_key("b", Some(-1.0 / 3.0)).await);
    assert!(!world.set_key("b", Some(-1.0 / 3.0)).await, "it has that key");
    assert_eq!(world.front("x").await, ["c", "d", "b", "a"], "those without a key come first");
    let ranks = async |id: &str, most: usize| {
        let job = world.get(id).await;
        world.run(async |tx, keys| tenants::rank(tx, keys, &job, most).await).await
    };
    assert_eq!(
        [ranks("c", 9).await, ranks("d", 9).await, ranks("b", 9).await, ranks("a", 9).await],
        [0, 1, 2, 3]
    );
    assert_eq!(ranks("a", 2).await, 2, "no more than was asked for is counted");
    let count =
        async |most| world.run(async |tx, keys| tenants::count_pending(tx, keys, T, "x", most).await).await;
    assert_eq!([count(9).await, count(3).await], [4, 3]);
    assert!(world.set_key("b", None).await);
    assert_eq!(world.front("x").await, ["b", "c", "d", "a"]);
    assert_eq!(world.get("b").await.sort_key, Some(-1.0 / 3.0), "its priority is kept");
    // -0.0 and 0.0 are one key.
    assert!(world.set_key("c", Some(-0.0)).await);
    assert!(!world.set_key("c", Some(0.0)).await);
    world.check().await;
    let tx = world.tx().await;
    let infinite = tenants::set_key(&tx, &world.keys, T, "d", Some(f64::NAN)).await;
    assert!(matches!(infinite, Err(Error::Invalid { field: "priority", .. })), "{infinite:?}");
    // Nothing changes for a job that is not pending.
    let claim = Claim { worker: "w".into(), number: 1 };
    world
        .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 5, 20), "a", &claim).await)
        .await
        .unwrap();
    assert!(!world.set_key("a", Some(1.0)).await && !world.set_key("nobody", Some(1.0)).await);
    world.check().await;
}

#[tokio::test]
async fn a_run_that_is_stopped_leaves_its_priority_and_waits_by_its_time() {
    let world = World::new().await;
    world.add("a", "x", 1).await;
    world.set_key("a", Some(0.1)).await;
    world.run_once("a", 1, Some(0.7), 5).await;
    let job = world.get("a").await;
    assert_eq!(
        (job.state(), job.order_us(), job.is_keyed(), job.sort_key),
        (State::Pending, 5, false, Some(0.7))
    );
    // It ran at a worker that does not sort by keys.
    world.run_once("a", 2, None, 8).await;
    assert_eq!(world.get("a").await.sort_key, Some(0.7));
    world.run_once("a", 3, Some(f64::INFINITY), 9).await;
    assert_eq!(world.get("a").await.sort_key, Some(0.7));
    // Added after its end, it counts as a new job.
    let (claim, ending) = (Claim { worker: "w".into(), number: 4 }, Ending::Failed("no".into()));
    world
        .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 10, 20), "a", &claim).await)
        .await
        .unwrap();
    world
        .run(async |tx, keys| {
            claims::end(Context::new(tx, keys, T, 11, 20), "a", &claim, &ending, None, None).await
        })
        .await;
    world.add("a", "x", 12).await;
    assert_eq!(world.get("a").await.sort_key, None);
    world.check().await;
}

#[tokio::test]
async fn the_active_row_of_a_continuous_job_says_that_it_is_continuous() {
    let world = World::new().await;
    let endless = new("a", "x").with(|spec| spec.continuous = true);
    world.run(async |tx, keys| jobs::add(tx, keys, &endless, 1).await).await;
    world.add("b", "x", 1).await;
    for (number, id) in [(1, "a"), (2, "b")] {
        let claim = Claim { worker: "w".into(), number };
        world
            .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, 20), id, &claim).await)
            .await
            .unwrap();
    }
    let active = world.run(async |tx, keys| jobs::active_of(tx, keys, T, "w", 9).await).await;
    let continuous: Vec<_> = active.iter().map(|(id, active)| (id.as_str(), active.continuous)).collect();
    assert_eq!(continuous, [("a", true), ("b", false)]);
    // Adding it again sets whether it is continuous.
    world.add("a", "x", 3).await;
    assert!(!world.get("a").await.continuous);
}

#[tokio::test]
async fn releasing_jobs_returns_their_tenants() {
    let world = World::new().await;
    for (id, tenant, at_us) in [("a", "x", 10), ("b", "y", 20), ("c", "z", 99)] {
        let later = NewJob { not_before_us: Some(at_us), ..new(id, tenant) };
        world.run(async |tx, keys| jobs::add(tx, keys, &later, 1).await).await;
    }
    assert!(world.waiting().await.is_empty(), "a job for later waits in no queue");
    let released = world
        .run(async |tx, keys| {
            let delayed = claims::release_due(tx, keys, T, 50, 9, |_| true).await?;
            // Their stamps are not known yet; they must be read earlier.
            let waiting = waiting(tx, keys, T, None, 9).await;
            assert!(matches!(waiting, Err(Error::Store(StoreError::Misuse(_)))), "{waiting:?}");
            // Their rows are known.
            let front = tenants::front(tx, keys, T, "x", 9).await?;
            assert_eq!(front.iter().map(|pending| pending.id.as_str()).collect::<Vec<_>>(), ["a"]);
            Ok(delayed.released)
        })
        .await;
    assert_eq!(released.into_iter().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(world.waiting().await, ["x", "y"]);
}

#[tokio::test]
async fn a_tenant_waits_until_its_queue_was_found_empty() {
    let world = World::new().await;
    world.add("a", "x", 1).await;
    let clear = async || world.run(async |tx, keys| tenants::no_longer_waiting(tx, keys, T, "x").await).await;
    assert!(!clear().await);
    assert_eq!(world.waiting().await, ["x"]);
    let claim = Claim { worker: "w".into(), number: 1 };
    world
        .run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, 20), "a", &claim).await)
        .await
        .unwrap();
    assert_eq!(world.waiting().await, ["x"], "claims write nothing that others write");
    assert!(clear().await);
    assert!(world.waiting().await.is_empty());
    assert!(clear().await, "twice is harmless");
}

/// The work of a client in one transaction, in three steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Client {
    Adds,
    Claims,
    Clears,
    Stops,
    Keys,
}
use Client::{Adds, Claims, Clears, Keys, Stops};

/// All orders in which three clients can take three steps each.
fn interleavings(left: [usize; 3], order: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
    if left == [0; 3] {
        return found.push(order.clone());
    }
    for client in (0..3).filter(|client| left[*client] > 0) {
        let mut rest = left;
        rest[client] -= 1;
        order.push(client);
        interleavings(rest, order, found);
        order.pop();
    }
}

/// One step of a client: begin, act, commit. Returns whether its commit did not conflict.
async fn step(world: &World, job_type: &str, client: Client, tx: &mut Option<Transaction>, n: usize) -> bool {
    let keys = &world.keys;
    let claim = |number| Claim { worker: "w".into(), number };
    match (n, &tx) {
        (0, _) => *tx = Some(world.tx().await),
        (1, Some(tx)) => match client {
            Adds => drop(
                jobs::add(tx, keys, &NewJob { job_type: job_type.into(), ..new("new", "x") }, 5)
                    .await
                    .unwrap(),
            ),
            Claims => {
                drop(claims::claim(Context::new(tx, keys, job_type, 5, 20), "old", &claim(7)).await.unwrap())
            }
            Clears => drop(tenants::no_longer_waiting(tx, keys, job_type, "x").await.unwrap()),
            Stops => {
                let stop = &Ending::Stopped;
                let end =
                    claims::end(Context::new(tx, keys, job_type, 6, 20), "runs", &claim(1), stop, None, None)
                        .await;
                drop(end.unwrap());
            }
            Keys => drop(tenants::set_key(tx, keys, job_type, "old", Some(0.5)).await.unwrap()),
        },
        (_, Some(tx)) => match tx.commit().await {
            Ok(_) => {}
            Err(StoreError::Conflict) => return false,
            Err(error) => panic!("{error}"),
        },
        (_, None) => panic!("nothing was begun"),
    }
    true
}

/// However transactions overlap, a tenant with a pending job waits, and transactions that add or give back jobs have no
/// conflicts.
#[tokio::test]
async fn prop_a_pending_job_is_always_found() {
    let world = World::new().await;
    let mut orders = Vec::new();
    interleavings([3; 3], &mut Vec::new(), &mut orders);
    assert_eq!(orders.len(), 1_680);
    let (mut cleared, mut in_vain) = (0, 0);
    for (round, clients) in
        [[Adds, Claims, Clears], [Stops, Claims, Clears], [Keys, Claims, Clears]].into_iter().enumerate()
    {
        for (n, order) in orders.iter().enumerate() {
            // Each order in its own type.
            let job_type = &format!("{round}-{n}");
            // The rows are checked once per round: there are thousands of types.
            world
                .unchecked(async |tx, keys| {
                    workers::register(tx, keys, job_type, &workers::Worker::new("w", "n", 0, 9))?;
                    for id in ["runs", "old"] {
                        jobs::add(tx, keys, &NewJob { job_type: job_type.clone(), ..new(id, "x") }, 1)
                            .await?;
                    }
                    let claim = Claim { worker: "w".into(), number: 1 };
                    claims::claim(Context::new(tx, keys, job_type, 2, 20), "runs", &claim).await
                })
                .await
                .unwrap();
            let mut at = [0; 3];
            let mut open = [None, None, None];
            for client in order {
                let passed = step(&world, job_type, clients[*client], &mut open[*client], at[*client]).await;
                at[*client] += 1;
                in_vain += usize::from(!passed && clients[*client] == Clears);
                let never_conflicts = matches!(clients[*client], Adds | Stops);
                assert!(passed || !never_conflicts, "{:?} conflicts in {order:?}", clients[*client]);
            }
            let everything = world.keys.pending(job_type);
            let (pending, waiting) = world
                .unchecked(async |tx, keys| {
                    let pending = tx.range(&everything, 9).await?.len();
                    Ok((pending, waiting(tx, keys, job_type, None, 9).await?.len()))
                })
                .await
                .unwrap();
            assert!(pending == 0 || waiting == 1, "{clients:?} {order:?}: {pending} pending, nobody waits");
            cleared += usize::from(waiting == 0);
        }
        world.check().await;
    }
    // The row is cleared if the claim ends before the read and no job is added. In other rounds the read comes too early, or
    // conflicts.
    assert!(cleared > 50 && in_vain > 50, "{cleared} cleared, {in_vain} conflicts");
}

#[tokio::test]
async fn a_charge_stays_until_it_is_cleared() {
    let world = World::new().await;
    let charged =
        |service_us| Charged { service_us, virtual_us: service_us as f64 / 3.0, ..Charged::default() };
    for (tenant, charger, us) in [("x", "w", 1), ("x", "v", 2), ("y", "w", 3), ("x", "w", 10)] {
        world.run(async |tx, keys| usage::write(tx, keys, T, tenant, charger, &charged(us)).await).await;
    }
    let of_type = async |after, limit| {
        let read = async |tx: &Transaction, keys: &Keyspace| {
            let mut rows = Vec::new();
            let each = |tenant: String, charger: String, row: Charged| {
                rows.push(format!("{tenant} {charger} {}", row.service_us));
            };
            usage::each_of_type(tx, keys, T, after, (limit, limit), each).await.map(|_| rows)
        };
        world.run(read).await
    };
    assert_eq!(of_type(None, 9).await, ["x v 2", "x w 10", "y w 3"]);
    assert_eq!(of_type(None, 1).await, ["x v 2"]);
    assert_eq!(of_type(Some(("x", "v")), 9).await, ["x w 10", "y w 3"]);
    let of_tenant = world.run(async |tx, keys| usage::of_tenant(tx, keys, T, "x").await).await;
    assert_eq!(of_tenant, [("v".to_owned(), charged(2)), ("w".to_owned(), charged(10))], "to the last bit");
    let forget = async |charger: &str| {
        world.run(async |tx, keys| usage::forget_gone(tx, keys, T, "y", charger).await).await
    };
    assert!(!forget("w").await, "it is a member");
    // A node that has no workers of this type now may have some again, and continues with its row.
    let node = workers::Worker::new("n1", "node-a", 1, 0);
    world.run(async |tx, keys| workers::register(tx, keys, NODE_TYPE, &node)).await;
    assert!(!forget(&workers::node_contender("node-a")).await && forget("nobody").await);
    assert_eq!(of_type(None, 9).await.len(), 3);
    // A worker that leaves does not remove its charges.
    let gone =
        world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 5, 20), "w", 9).await).await;
    assert!(gone);
    assert_eq!(of_type(None, 9).await.len(), 3);
    world.check().await;
    world.run(async |tx, keys| usage::forget(tx, keys, T, "x", "w").await).await;
    assert_eq!(of_type(None, 9).await, ["x v 2", "y w 3"]);
    assert!(forget("w").await);
    assert_eq!(of_type(None, 9).await, ["x v 2"]);

    let boost = Boost { v: 0.1 + 0.2, at_us: 5, coeff: 0.98, interval_us: 60_000_000 };
    assert_eq!(world.run(async |tx, keys| usage::read_boost(tx, keys, T).await).await, None);
    world.run(async |tx, keys| usage::write_boost(tx, keys, T, &boost)).await;
    assert_eq!(world.run(async |tx, keys| usage::read_boost(tx, keys, T).await).await, Some(boost));
}

#[tokio::test]
async fn a_charge_that_comes_late_does_not_undo_a_later_one() {
    let world = World::new().await;
    let keys = &world.keys;
    let charged = |service_us| Charged { service_us, ..Charged::default() };
    let late = world.tx().await;
    usage::write(&late, keys, T, "x", "w", &charged(1)).await.unwrap();
    world.run(async |tx, keys| usage::write(tx, keys, T, "x", "w", &charged(2)).await).await;
    assert!(matches!(late.commit().await, Err(StoreError::Conflict)));
    // A repetition does not change it either.
    world.run(async |tx, keys| usage::write(tx, keys, T, "x", "w", &charged(1)).await).await;
    let rows = world.run(async |tx, keys| usage::of_tenant(tx, keys, T, "x").await).await;
    assert_eq!(rows[0].1.service_us, 2);
    let forgets = world.tx().await;
    usage::forget(&forgets, keys, T, "x", "w").await.unwrap();
    world.run(async |tx, keys| usage::write(tx, keys, T, "x", "w", &charged(3)).await).await;
    assert!(matches!(forgets.commit().await, Err(StoreError::Conflict)), "it is not decayed away");
}

#[tokio::test]
async fn pages_hold_the_pending_jobs_of_all_tenants() {
    let world = World::new().await;
    for (id, tenant, now_us) in
        [("b2", "b", 4), ("a1", "a", 1), ("b1", "b", 2), ("c1", "c", 3), ("a2", "a", 5)]
    {
        world.add(id, tenant, now_us).await;
    }
    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let page = world
            .run(async |tx, keys| tenants::page(tx, keys, T, from.clone(), 2, |locks| locks.is_none()).await)
            .await;
        assert!(page.rows <= 2 && page.jobs.len() == page.rows);
        seen.extend(page.jobs.into_iter().map(|(tenant, pending)| (tenant, pending.id)));
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    let expected = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1")];
    assert_eq!(seen, expected.map(|(tenant, id)| (tenant.to_owned(), id.to_owned())));
    let none = world.run(async |tx, keys| tenants::page(tx, keys, T, None, 9, |_| false).await).await;
    assert_eq!((none.rows, none.jobs.len(), none.next), (5, 0, None));
}

/// A store on another machine.
struct Remote(Arc<dyn Engine>);

struct RemoteSnapshot(Arc<dyn Snapshot>);

#[async_trait]
impl Engine for Remote {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    async fn snapshot(&self) -> turnwise_store::Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(RemoteSnapshot(self.0.snapshot().await?)))
    }

    async fn watch(&self, key: Bytes, seen: Option<Bytes>) -> turnwise_store::Result<Watch> {
        self.0.watch(key, seen).await
    }
}

#[async_trait]
impl Snapshot for RemoteSnapshot {
    async fn get(&self, key: &[u8]) -> turnwise_store::Result<Option<Bytes>> {
        self.0.get(key).await
    }

    async fn range(&self, read: &RangeRead) -> turnwise_store::Result<Vec<KeyValue>> {
        self.0.range(read).await
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn commit(&self, changes: Changes) -> turnwise_store::Result<Versionstamp> {
        self.0.commit(changes).await
    }
}

#[tokio::test]
async fn queues_of_neighbours_are_read_together_and_long_ones_alone() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open_with(dir.path(), Options { durable: false, ..Options::default() }).unwrap();
    let store = Store::new(Arc::new(Remote(engine)), Arc::new(runtime::System));
    let keys = turnwise_queue::Keyspace::default();
    let mut random = rand::rngs::StdRng::seed_from_u64(1);
    // Some tenants have no job, and some more than anyone wants.
    let queued: Vec<usize> =
        (0..200).map(|n| if n % 100 == 7 { 900 } else { random.random_range(0..3) }).collect();
    for (tenant, jobs) in queued.iter().enumerate() {
        let jobs: Vec<NewJob> =
            (0..*jobs).map(|job| new(&format!("{tenant}-{job}"), &format!("t{tenant}"))).collect();
        for jobs in jobs.chunks(50) {
            let keys = &keys;
            let add = |tx: Transaction| async move {
                for job in jobs {
                    jobs::add(&tx, keys, job, 1).await?;
                }
                Ok::<_, Error>(())
            };
            store.transact(add).await.unwrap();
        }
    }
    let rows = tenants::DecodedRows::default();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let mut wanted: Vec<(Arc<str>, usize)> =
            (0..200).map(|tenant| (format!("t{tenant}").into(), random.random_range(1..6))).collect();
        wanted.shuffle(&mut random);
        let tx = store.begin().await.unwrap();
        let before = store.counters().ranges;
        let found = rows.read_each(&tx, &keys, T, &wanted).await.unwrap();
        counts.push(store.counters().ranges - before);
        assert_eq!(found.len(), wanted.len());
        for ((tenant, wanted), found) in wanted.iter().zip(&found) {
            let alone = tenants::front(&tx, &keys, T, tenant, *wanted).await.unwrap();
            assert_eq!(found.len(), alone.len(), "{tenant}");
            assert!(found.iter().zip(&alone).all(|(found, alone)| found.id == alone.id), "{tenant}");
        }
    }
    // The two long queues are not known before the first read. Then they divide the others into a few groups.
    assert!(counts[0] > 30 && counts[1] <= 8 && counts[2] <= 8, "{counts:?}");
}
