//! `why` and `/v1/queue` state what the next pass does, whatever waits, runs and is locked.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::TestServer;
use crate::common::worker::ExternalWorker;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A job to add.
#[derive(Debug, Clone)]
struct Job {
    tenant: u8,
    priority: i8,
    locks: Value,
}

/// Jobs that a worker gets, as far as it has slots, and jobs that come after that.
#[derive(Debug, Clone)]
struct Scene {
    slots: usize,
    before: Vec<Job>,
    after: Vec<Job>,
}

fn locks() -> impl Strategy<Value = Value> {
    let resource = (0..3_u8).prop_map(|n| format!("i{n}"));
    prop_oneof![
        4 => Just(json!({})),
        4 => resource.clone().prop_map(|name| json!({ "instance": { "exclusive": [name] } })),
        2 => resource.prop_map(|name| json!({ "instance": { "shared": { name: 1 } } })),
        1 => Just(json!({ "instance": { "exclusive": "all" } })),
        1 => Just(json!({ "instance": { "shared": "unknown" } })),
        1 => Just(json!({ "big_lock": true })),
    ]
}

fn job() -> impl Strategy<Value = Job> {
    let job = (0..3_u8, -1..2_i8, locks());
    job.prop_map(|(tenant, priority, locks)| Job { tenant, priority, locks })
}

fn scene() -> impl Strategy<Value = Scene> {
    let jobs = |most| prop::collection::vec(job(), 0..most);
    (1..6_usize, jobs(6), jobs(12)).prop_map(|(slots, before, after)| Scene { slots, before, after })
}

async fn add(server: &TestServer, id: &str, tenant: &str, Job { priority, locks, .. }: &Job) {
    let job = json!({ "id": id, "tenant": tenant, "priority": priority, "locks": locks });
    let added = server.post("/v1/jobs/mail", &job).await;
    assert_eq!(added.status, 201, "{}", added.body);
}

impl Scene {
    async fn play(&self) {
        // Jobs do not age between the answers and the pass.
        let server = TestServer::start_with("[queue]\ntick = 3600\n").await;
        for (n, job) in self.before.iter().enumerate() {
            // A worker's charges of the last second are not in its rows, so the running jobs belong to other tenants.
            add(&server, &format!("b{n}"), &format!("b{}", job.tenant), job).await;
        }
        let mut worker = ExternalWorker::register(&server, "mail", self.slots).await;
        let running = worker.now_ids().await;
        for (n, job) in self.after.iter().enumerate() {
            add(&server, &format!("c{n}"), &format!("c{}", job.tenant), job).await;
        }
        let queue = server.get("/v1/queue?type=mail&limit=100").await.body;
        let rows = queue["jobs"].as_array().unwrap().iter().filter(|row| row["state"] == "pending");
        let mut reasons: BTreeMap<String, Value> = BTreeMap::new();
        for row in rows {
            let id = row["id"].as_str().unwrap();
            let why = server.get(&format!("/v1/jobs/mail/{id}/why")).await.body;
            assert_eq!(why["reason"], row["reason"], "{id}: {why}");
            reasons.insert(id.to_owned(), why["reason"].clone());
        }
        assert_eq!(reasons.len() + running.len(), self.before.len() + self.after.len(), "{queue}");
        let starts_next = reasons.iter().filter(|(_, reason)| **reason == "starts_next");
        let starts_next: BTreeSet<String> = starts_next.map(|(id, _)| id.clone()).collect();
        let started: BTreeSet<String> = worker.now_ids().await.into_iter().collect();
        assert_eq!(started, starts_next, "{reasons:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn prop_the_jobs_without_a_reason_start(scene in scene()) {
        tokio::runtime::Runtime::new().unwrap().block_on(scene.play());
    }
}
