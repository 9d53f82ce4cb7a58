//! Three tenants with 2, 200 and 2,000 continuous replications, and 20 slots: run time follows their shares.
//!
//! The test measures from outside, by reading `_active_tasks` every 100 ms. That gives the slots' time as users see it,
//! independent of what the scheduler charges.
//!
//! By hand, for any length, with an interval of 2 s:
//!
//! ```sh
//! TURNWISE_FAIRNESS_SECONDS=300 cargo test -p turnwise-cli --test fairness replications -- --nocapture
//! ```
//!
//! With `TURNWISE_FAIRNESS=rfc` added, the test prints the results of CouchDB's fair-share scheduling, and does not check them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use turnwise_testkit::{Database, Peer};

use crate::entitlement::{Tenant, entitled};
use crate::server::{Home, Server};

const SLOTS: u32 = 20;
const TENANTS: [(&str, u32); 3] = [("a/_replicator", 2), ("b/_replicator", 200), ("c/_replicator", 2_000)];
/// Each replication uses another pair of databases. There are fewer databases than replications, because a server with
/// thousands of them would dominate the measurement.
const SOURCES: u32 = 50;
/// The replications that are preempted at each cycle. Enough that every slot changes hands every few cycles, and few
/// enough that their starts do not keep two cores busy.
const MAX_CHURN: u32 = 6;
const SAMPLE: Duration = Duration::from_millis(100);
const WRITE: Duration = Duration::from_millis(200);

/// The length of the measurement, and the tolerance for what tenants get.
struct Plan {
    interval: Duration,
    measured: Duration,
    tolerance: f64,
    fairness: String,
}

impl Plan {
    fn new() -> Plan {
        let fairness = std::env::var("TURNWISE_FAIRNESS").unwrap_or_else(|_| "virtual_time".to_owned());
        let (interval_s, measured_s, tolerance) = match std::env::var("TURNWISE_FAIRNESS_SECONDS") {
            Ok(seconds) => (2, seconds.parse().unwrap(), 0.05),
            // A tenant that is entitled to 4.5 slots has 4 or 5. At both the beginning and the end of the measurement,
            // it may have one turn of an interval more or less: 2 of 30 · 4.5 are 1.5%. The rest is for machines on
            // which a cycle may come a second late.
            Err(_) => (1, 30, 0.1),
        };
        let (interval, measured) = (Duration::from_secs(interval_s), Duration::from_secs(measured_s));
        Plan { interval, measured, tolerance, fairness }
    }
}

/// The databases that are copied, and a task that writes into the sources.
struct World {
    _peers: (Peer, Peer),
    sources: Vec<Database>,
    targets: Vec<Database>,
    _writer: AbortOnDropHandle<()>,
}

impl World {
    async fn start() -> World {
        let (a, b) = tokio::join!(Peer::start(), Peer::start());
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for n in 0..SOURCES {
            let source = a.create(&format!("source-{n}")).await;
            source.put("first", &json!({ "n": n })).await;
            sources.push(source);
        }
        let replications: u32 = TENANTS.iter().map(|(_, jobs)| jobs).sum();
        for n in 0..replications.div_ceil(SOURCES) {
            targets.push(b.create(&format!("target-{n}")).await);
        }
        let written = sources.clone();
        let writer = async move {
            for (n, source) in written.iter().cycle().enumerate() {
                source.put(&format!("later-{n}"), &json!({ "n": n })).await;
                tokio::time::sleep(WRITE).await;
            }
        };
        let _writer = AbortOnDropHandle::new(tokio::spawn(writer));
        World { _peers: (a, b), sources, targets, _writer }
    }

    /// Adds the documents of all tenants' replications. No two replications copy between the same databases.
    async fn add_replications(&self, server: &Server) {
        let pairs =
            self.targets.iter().flat_map(|target| self.sources.iter().map(move |source| (source, target)));
        let mut documents = pairs.map(
            |(source, target)| json!({ "source": source.url(), "target": target.url(), "continuous": true }),
        );
        for (tenant, jobs) in TENANTS {
            let db = format!("/{}", tenant.replace('/', "%2F"));
            server.put(&db, &json!({})).await;
            let documents: Vec<Value> = documents.by_ref().take(jobs.try_into().unwrap()).collect();
            for batch in documents.chunks(500) {
                let answers = server.post(&format!("{db}/_bulk_docs"), &json!({ "docs": batch })).await;
                assert!(answers.as_array().unwrap().iter().all(|answer| answer["ok"] == true), "{answers}");
            }
        }
    }
}

/// The slots that tenants had, as measured from outside.
#[derive(Debug, Default)]
struct Measured {
    seconds: f64,
    looks: usize,
    /// By tenant: slots × seconds.
    run: BTreeMap<String, f64>,
    /// By tenant: the replications that were seen running.
    seen: BTreeMap<String, BTreeSet<String>>,
}

async fn measure(server: &Server, length: Duration) -> Measured {
    let mut measured = Measured::default();
    let (started, mut last) = (Instant::now(), Instant::now());
    while started.elapsed() < length {
        tokio::time::sleep(SAMPLE).await;
        let tasks = server.get("/_active_tasks").await;
        let (now, tasks) = (Instant::now(), tasks.as_array().unwrap().clone());
        let since = now.duration_since(last).as_secs_f64();
        last = now;
        measured.looks += 1;
        measured.seconds += since;
        for task in tasks {
            let tenant = task["database"].as_str().unwrap().to_owned();
            let seen = measured.seen.entry(tenant.clone()).or_default();
            seen.insert(task["doc_id"].as_str().unwrap().to_owned());
            *measured.run.entry(tenant).or_default() += since;
        }
    }
    measured
}

/// Checks that each tenant had its part of the slots that were in use. A slot that changes hands is idle until the next
/// replication has started, longer on a busy machine. A tenant with fewer replications than slots never gives up a
/// slot, and is entitled to its slots in full.
fn check(what: &str, measured: &Measured, shares: [u32; 3], plan: &Plan) {
    let tolerance = plan.tolerance;
    let tenants: Vec<Tenant> =
        TENANTS.iter().zip(shares).map(|((_, jobs), shares)| Tenant { jobs: *jobs, shares }).collect();
    let total: f64 = measured.run.values().sum();
    let in_use = total / measured.seconds;
    let entitled = entitled(in_use, &tenants);
    println!("{what}: {:.1} s, {} looks, {total:.1} slots · s in use", measured.seconds, measured.looks);
    let mut wrong = Vec::new();
    for ((tenant, _), entitled) in TENANTS.iter().zip(&entitled) {
        let run = measured.run.get(*tenant).copied().unwrap_or_default();
        let of_entitled = run / measured.seconds / entitled;
        let line = format!(
            "{tenant}: {:.2} slots of {entitled:.2}, {:+.2}%, {} replications had a turn",
            run / measured.seconds,
            (of_entitled - 1.0) * 100.0,
            measured.seen.get(*tenant).map_or(0, BTreeSet::len),
        );
        println!("  {line}");
        if (of_entitled - 1.0).abs() > tolerance {
            wrong.push(line);
        }
    }
    if plan.fairness != "virtual_time" {
        return;
    }
    assert!(wrong.is_empty(), "{what}: not within {:.0}%: {wrong:#?}", tolerance * 100.0);
    // While tenants wait, slots are not idle for long.
    let in_use = in_use / f64::from(SLOTS);
    assert!(in_use > 0.8, "{what}: {:.0}% of the slots were in use", in_use * 100.0);
    // The tenants' replications take turns: more of them ran than the tenant has slots.
    for ((tenant, _), entitled) in TENANTS.iter().zip(&entitled).skip(1) {
        assert!(measured.seen[*tenant].len() as f64 > 2.0 * entitled, "{what}: {tenant} does not rotate");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_time_of_continuous_replications_follows_the_shares_of_their_tenants() {
    let plan = Plan::new();
    let world = World::start().await;
    let interval = plan.interval.as_millis();
    // A late answer of a busy machine must not become a crash, because its backoff would take a tenant's jobs out of the queue.
    let home = Home::new(&format!(
        "max_jobs = {SLOTS}\ninterval = {interval}\nmax_churn = {MAX_CHURN}\nstartup_jitter = 100\nconnection_timeout = 60000\n\
         retries_per_request = 5\nfairness = {}\nusage_interval = {interval}\npriority_interval = {interval}\n\
         charge_interval = {interval}\n",
        plan.fairness
    ));
    let server = home.serve().await;
    world.add_replications(&server).await;
    let jobs: u32 = TENANTS.iter().map(|(_, jobs)| jobs).sum();
    server.until("/_scheduler/jobs?limit=0", |answer| answer["total_rows"] == jobs).await;
    // Wait until every slot has changed hands.
    let settled = plan.interval * 2 * SLOTS / MAX_CHURN;

    tokio::time::sleep(settled).await;
    let equal = measure(&server, plan.measured).await;
    check("equal shares", &equal, [100, 100, 100], &plan);

    let shares = "/_node/_local/_config/replicator.shares/c%2F_replicator";
    assert_eq!(server.put(shares, &json!("300")).await, "");
    tokio::time::sleep(settled).await;
    let unequal = measure(&server, plan.measured).await;
    check("100 : 100 : 300", &unequal, [100, 100, 300], &plan);
    assert!(server.terminate().await.success());
}
