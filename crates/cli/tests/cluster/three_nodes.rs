//! Six thousand jobs and a hundred replications on three nodes, while nodes, members of their store, and the links to it
//! fail.
//!
//! Each fault comes while a share of the jobs is added and run. Only faults that must last longer than the health timeout
//! have a fixed length. In the end, each job has one end in its record, with the result that one of its runs reported.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use turnwise_client::{Client, NewJob};

use crate::node::Node;
use crate::replications::Replications;
use crate::server::{PATIENCE, turnwise};
use crate::shared_store::SharedStore;
use crate::workers::{Kind, Workers};

const JOBS: usize = ROUNDS * SHARE;
/// How many jobs are added for each fault.
const SHARE: usize = 750;
const COMMANDS: usize = ROUNDS * COMMANDS_SHARE;
const COMMANDS_SHARE: usize = 38;
const SLOTS: usize = 16;
/// Longer than the health timeout below, which is longer than etcd needs to elect a new leader.
const LONGER: Duration = Duration::from_secs(6);
/// The number of different faults.
const ROUNDS: usize = 8;
const CONFIG: &str = "checkpoint_interval = 2000\n[workers]\nhealth_interval = 1\nhealth_timeout = 4\n\
                      [jobs]\nbackoff_base_ms = 100\n[command]\nenabled = true\nallow_root = true\n";

/// Adds a share of the jobs. While a server does not answer, the client tries the next one.
async fn add_jobs(client: Client, round: usize) {
    let job = |n: usize| -> NewJob {
        let number = round * SHARE + n;
        let kind = Kind::of(number);
        let mut job =
            json!({ "type": kind.job_type(), "id": format!("{number:05}"), "options": { "n": number } });
        if kind == Kind::Crashing {
            job["max_attempts"] = json!(2);
        }
        serde_json::from_value(job).unwrap()
    };
    client.add_many((0..SHARE).map(job).collect()).await.expect("jobs are added");
}

/// Adds a share of the commands. Of every three, one sleeps, and one fails permanently.
async fn add_commands(client: Client, round: usize) {
    let job = |n: usize| -> NewJob {
        let number = round * COMMANDS_SHARE + n;
        let argv = [json!(["true"]), json!(["sleep", "0.2"]), json!(["sh", "-c", "exit 65"])];
        let options = json!({ "argv": argv[number % 3] });
        serde_json::from_value(json!({ "type": "command", "id": format!("{number:05}"), "options": options }))
            .unwrap()
    };
    client.add_many((0..COMMANDS_SHARE).map(job).collect()).await.expect("commands are added");
}

/// The node's own workers of both types.
async fn own_workers(seen_by: &Node, of: &Node) -> [Vec<String>; 2] {
    [seen_by.own_workers("command", of).await, seen_by.own_workers("replication", of).await]
}

async fn until_gone(seen_by: &Node, [commands, replications]: &[Vec<String>; 2]) {
    seen_by.until_gone("command", commands).await;
    seen_by.until_gone("replication", replications).await;
}

/// One fault, until it is over.
async fn fault(round: usize, store: &SharedStore, nodes: &mut [Node]) {
    let started = Instant::now();
    let what = match round % ROUNDS {
        // A node is killed, and restarts within the health timeout.
        0 => {
            nodes[0].kill().await;
            nodes[0].restart().await;
            "a node was killed"
        }
        1 => {
            store.lose_leader().await;
            "the leader was killed"
        }
        // A node has no store until the others have removed its workers; then the store is back.
        2 => {
            let own = own_workers(&nodes[0], &nodes[2]).await;
            if !store.cut() {
                nodes[2].signal("-STOP").await;
            }
            until_gone(&nodes[0], &own).await;
            store.restore();
            nodes[2].signal("-CONT").await;
            "a node was without its store"
        }
        3 => {
            store.pause(false, LONGER).await;
            "a follower stood still"
        }
        // A node is killed, and restarts after the others have removed its workers.
        4 => {
            let own = own_workers(&nodes[0], &nodes[1]).await;
            nodes[1].kill().await;
            until_gone(&nodes[0], &own).await;
            nodes[1].restart().await;
            "a node was dead"
        }
        5 => {
            store.pause(true, LONGER).await;
            "the leader stood still"
        }
        // A node is paused until the others have removed its workers, and is then resumed.
        6 => {
            let own = own_workers(&nodes[1], &nodes[0]).await;
            nodes[0].signal("-STOP").await;
            until_gone(&nodes[1], &own).await;
            nodes[0].signal("-CONT").await;
            "a node stood still"
        }
        // A node and the leader are killed together.
        _ => {
            let (first, _) = nodes.split_at_mut(1);
            first[0].kill().await;
            tokio::join!(store.lose_leader(), first[0].restart());
            "a node and the leader were killed"
        }
    };
    eprintln!("round {round}: {what}, {:.1} s", started.elapsed().as_secs_f64());
}

/// Checks the record of a job that must have ended in this state. Returns how often the job was started.
fn check(job: &Value, end: &str, wrong: &mut Vec<Value>) -> usize {
    let events = job["history"].as_array().unwrap();
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    let ends = count("completed") + count("failed") + count("cancelled");
    if job["state"] != end || ends != 1 || count(end) != 1 || count("added") != 1 || !job["worker"].is_null()
    {
        wrong.push(job.clone());
    }
    count("started")
}

/// Checks that `turnwise store check` finds no violation.
async fn check_store(store: &SharedStore) {
    let checked = crate::server::clean(
        turnwise().args(["store", "check"]).env("TURNWISE_STORE", store.url()).output().await.unwrap(),
    );
    let said = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    assert!(checked.status.success(), "{}{}", said(&checked.stdout), said(&checked.stderr));
}

/// Waits until every job of a type has ended, which means that none is pending, delayed or running.
async fn until_ended(node: &Node, job_type: &str, wanted: usize) {
    let (mut most, mut since) = (0, Instant::now());
    loop {
        let (mut ended, mut seen) = (0, 0);
        node.for_each_job(job_type, |job| {
            seen += 1;
            ended += usize::from(job["state"] == "completed" || job["state"] == "failed");
        })
        .await;
        if ended == wanted {
            return;
        }
        if ended > most {
            (most, since) = (ended, Instant::now());
        }
        assert!(
            since.elapsed() < PATIENCE,
            "{job_type}: {ended} of {wanted} have ended, of {seen} that there are"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The test, on any store.
async fn nothing_is_lost_on(store: SharedStore) {
    let started = Instant::now();
    let after = |what: &str| eprintln!("{:6.1} s: {what}", started.elapsed().as_secs_f64());
    let mut nodes = vec![
        Node::start(&store.url(), CONFIG).await,
        Node::start(&store.url(), CONFIG).await,
        Node::start(&store.url_that_can_be_cut(), CONFIG).await,
    ];
    after("three nodes");
    let mut replications = Replications::start(&nodes).await;
    after("a hundred replications");
    let servers: Vec<String> = nodes.iter().map(|node| node.url().to_owned()).collect();
    let client = |first: usize| {
        let urls: Vec<String> = servers.iter().cycle().skip(first).take(3).cloned().collect();
        Client::new(&urls.join(",")).unwrap().retry_for(PATIENCE)
    };
    let mut adding = JoinSet::new();
    let mut workers = Workers::start(servers.clone(), SLOTS);

    for round in 0..ROUNDS {
        workers.until_run(round * SHARE, PATIENCE).await;
        replications.add_documents().await;
        adding.spawn(add_jobs(client(round), round));
        adding.spawn(add_commands(client(round + 1), round));
        workers.until_run(round * SHARE + 1, PATIENCE).await;
        workers.replace_oldest(round, (round + 1) * SHARE, PATIENCE).await;
        fault(round, &store, &mut nodes).await;
    }
    after("all faults");
    // The check runs while jobs run. It thus also proves that no claim is live twice at this moment.
    check_store(&store).await;
    after("the store was checked in use");
    adding.join_all().await;
    workers.until_run(JOBS, PATIENCE).await;
    replications.add_documents().await;
    after("all jobs had a run");
    let kinds = [Kind::Nothing, Kind::Sleeping, Kind::Failing];
    for kind in kinds {
        let wanted = (0..JOBS).filter(|n| Kind::of(*n).job_type() == kind.job_type()).count();
        until_ended(&nodes[0], kind.job_type(), wanted).await;
    }
    until_ended(&nodes[1], "command", COMMANDS).await;
    after("all jobs have ended");
    workers.stop().await;
    replications.until_copied().await;
    after("everything is copied");

    let (mut seen, mut restarted, mut wrong) = (0, 0, Vec::new());
    for kind in kinds {
        let (job_type, mut completed) = (kind.job_type(), Vec::new());
        nodes[2]
            .for_each_job(job_type, |job| {
                seen += 1;
                let id = job["id"].as_str().unwrap();
                let kind = Kind::of(id.parse().unwrap());
                restarted += usize::from(check(job, kind.end(), &mut wrong) > 1 && kind != Kind::Crashing);
                if kind.end() == "completed" {
                    completed.push(id.to_owned());
                }
            })
            .await;
        // Lists carry no results.
        let node = &nodes[2];
        for ids in completed.chunks(16) {
            let results = ids.iter().map(|id| async move {
                (id, node.server().get(&format!("/v1/jobs/{job_type}/{id}/result")).await)
            });
            for (id, result) in futures::future::join_all(results).await {
                if !workers.has_reported(id, &result) {
                    wrong.push(json!({ "id": id, "result": result }));
                }
            }
        }
        // A worker that could not unregister while the store failed is removed after its health timeout.
        nodes[0].until_no_worker(job_type).await;
    }
    let mut commands = 0;
    nodes[2]
        .for_each_job("command", |job| {
            commands += 1;
            let number: usize = job["id"].as_str().unwrap().parse().unwrap();
            restarted +=
                usize::from(check(job, ["completed", "completed", "failed"][number % 3], &mut wrong) > 1);
        })
        .await;
    eprintln!("{restarted} jobs were started more than once");
    assert_eq!((seen, commands, wrong), (JOBS, COMMANDS, vec![]));
    assert!(restarted > 0, "the faults have hit no job");
    // Each node has one worker, and is registered once. On a busy machine, a worker may be about to register again.
    let each_has_one = |list: &'static str| {
        let nodes = nodes.len();
        move |answer: &Value| answer[list].as_array().unwrap().len() == nodes
    };
    for job_type in ["command", "replication"] {
        nodes[1].server().until(&format!("/v1/workers?type={job_type}"), each_has_one("workers")).await;
    }
    nodes[1].server().until("/_membership", each_has_one("all_nodes")).await;

    for node in nodes {
        node.stop().await;
    }
    check_store(&store).await;
    after("the store was checked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_etcd_whatever_fails() {
    let Some(store) = SharedStore::etcd().await else { return };
    nothing_is_lost_on(store).await;
}

/// `cargo xtask test --cluster foundationdb`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_foundationdb_whatever_fails() {
    if let Some(store) = SharedStore::foundationdb().filter(|_| cfg!(feature = "foundationdb")) {
        nothing_is_lost_on(store).await;
    }
}
