//! Slots of a server's own workers that follow the demand: `max_jobs = 1..6`.

use serde_json::{Value, json};

use crate::common::{Cluster, TestServer};

const COMMANDS: &str = "[command]\nenabled = true\nallow_root = true\n";

async fn add(server: &TestServer, ids: std::ops::Range<usize>) {
    let sleep =
        |n| json!({ "type": "command", "id": format!("{n}"), "options": { "argv": ["sleep", "600"] } });
    let jobs: Vec<Value> = ids.map(sleep).collect();
    let answer = server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn slots(workers: &Value) -> Vec<u64> {
    workers["workers"].as_array().unwrap().iter().map(|worker| worker["slots"].as_u64().unwrap()).collect()
}

async fn running(server: &TestServer, count: usize) {
    let running = |jobs: &Value| jobs["jobs"].as_array().unwrap().len() == count;
    server.poll("/v1/jobs?type=command&state=running", running).await;
}

#[tokio::test]
async fn slots_follow_the_demand_between_their_bounds_and_a_reduction_ends_no_run() {
    let file = format!("{COMMANDS}max_jobs = 1..6\n[workers]\ndrain_target = 1\n");
    let server = TestServer::start_with(&file).await;
    let worker = server.poll("/v1/workers?type=command", |workers| slots(workers) == [1]).await;
    assert_eq!(worker["workers"][0]["slot_bounds"], json!({ "least": 1, "most": 6 }));
    // A job takes a slot of its own if its run, of which nothing is known, is expected to take as long as the target.
    add(&server, 0..4).await;
    running(&server, 4).await;
    assert_eq!(slots(&server.get("/v1/workers?type=command").await.body), [4]);
    add(&server, 4..9).await;
    running(&server, 6).await;
    assert_eq!(slots(&server.get("/v1/workers?type=command").await.body), [6], "its most");
    let why = server.get("/v1/jobs/command/8/why").await.body;
    let capacity = json!({ "workers": 1, "slots": 6, "most_slots": 6, "running": 6, "quiet": 0 });
    assert_eq!(why["capacity"], capacity, "{why}");

    for n in [8, 7, 6, 5, 4, 3, 2] {
        server.post_empty(&format!("/v1/jobs/command/{n}/cancel")).await;
    }
    server.poll("/v1/workers?type=command", |workers| slots(workers) == [2]).await;
    // Fewer slots than running jobs: the upper bound alone stops none of them.
    let answer = server.put("/_node/_local/_config/command/max_jobs", &json!("1..1")).await;
    assert_eq!((answer.status, &answer.body), (200, &json!("1..6")));
    let plain = |workers: &Value| slots(workers) == [1] && workers["workers"][0].get("slot_bounds").is_none();
    server.poll("/v1/workers?type=command", plain).await;
    running(&server, 2).await;
    for n in 0..2 {
        let job = server.get(&format!("/v1/jobs/command/{n}")).await.body;
        assert_eq!((&job["state"], &job["attempts"]), (&json!("running"), &json!(0)), "{job}");
    }
    let wrong = server.put("/_node/_local/_config/command/max_jobs", &json!("6..1")).await;
    assert_eq!(wrong.error(), (400, "bad_request"), "{}", wrong.body);
    server.put("/_node/_local/_config/command/max_jobs", &json!("3..9")).await;
    server.poll("/v1/workers?type=command", |workers| slots(workers) == [3]).await;
}

#[tokio::test]
async fn nodes_share_what_is_wanted() {
    let file = format!("{COMMANDS}max_jobs = 1..20\n[workers]\ndrain_target = 1\n");
    let cluster = Cluster::start([&*file, &*file]).await;
    let (a, b) = (cluster.at(0), cluster.at(1));
    a.poll("/v1/workers?type=command", |workers| slots(workers) == [1, 1]).await;
    add(b, 0..12).await;
    let shared = |workers: &Value| {
        let slots = slots(workers);
        assert!(slots.iter().sum::<u64>() <= 12, "{slots:?}");
        let all_run = workers["workers"].as_array().unwrap().iter().all(|worker| {
            worker["running"].as_array().unwrap().len() as u64 == worker["slots"].as_u64().unwrap()
        });
        slots == [6, 6] && all_run
    };
    a.poll("/v1/workers?type=command", shared).await;
    // A quiet node takes none of what is added, and what it runs counts.
    let quiet = json!({ "mode": "quiet" });
    assert_eq!(a.put(&format!("/v1/nodes/{}", a.name()), &quiet).await.status, 200);
    add(a, 12..15).await;
    running(b, 15).await;
    let workers = a.get("/v1/workers?type=command").await.body;
    let of = |node: &TestServer| {
        let workers = workers["workers"].as_array().unwrap();
        let worker = workers.iter().find(|worker| worker["node"] == node.name()).unwrap();
        (worker["slots"].as_u64().unwrap(), worker["running"].as_array().unwrap().len())
    };
    assert_eq!((of(a).1, of(b)), (6, (9, 9)), "{workers}");
}
