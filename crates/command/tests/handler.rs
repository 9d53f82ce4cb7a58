//! `command` jobs from their options to their record, run by a real worker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turnwise_command::{Handler, JOB_TYPE, Programs, Settings};
use turnwise_queue::groups::{self, NewGroup};
use turnwise_queue::{DEFAULT_TENANT, Job, Keyspace, Member, NewJob, State, jobs};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::{Store, runtime};
use turnwise_worker::{Options, Worker};

use crate::common::{Alive, LONG, PATIENCE};

struct World {
    store: Store,
    keys: Keyspace,
    _worker: Worker,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(settings: Settings) -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = embedded::Options { durable: false, ..Default::default() };
        let engine = Embedded::open_with(folder.path(), options).unwrap();
        let store = Store::new(engine, Arc::new(runtime::System));
        let keys = Keyspace::default();
        let handler = Arc::new(Handler::new(settings));
        let options = Options { exclusive: true, stop_grace: LONG, ..Options::default() };
        let worker = Worker::start(store.clone(), keys.clone(), JOB_TYPE, handler, options).await.unwrap();
        World { store, keys, _worker: worker, _folder: folder }
    }

    async fn add(&self, id: &str, options: Value, max_attempts: Option<u32>) {
        let options = serde_json::value::to_raw_value(&options).unwrap();
        let new = NewJob::new(JOB_TYPE, id, options).with(|spec| spec.max_attempts = max_attempts);
        let (keys, new) = (&self.keys, &new);
        let now_us = self.store.runtime().now_us();
        self.store.transact(|tx| async move { jobs::add(&tx, keys, new, now_us).await }).await.unwrap();
    }

    async fn until(&self, id: &str, what: impl Fn(&Job) -> bool) -> Job {
        let look = async {
            loop {
                let tx = self.store.begin().await.unwrap();
                if let Some(job) = jobs::get(&tx, &self.keys, JOB_TYPE, id).await.unwrap()
                    && what(&job)
                {
                    return job;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("the job does not get there")
    }

    async fn run(&self, id: &str, options: Value) -> Job {
        self.add(id, options, Some(1)).await;
        self.until(id, |job| job.state().is_final()).await
    }
}

fn value(json: &Option<Box<serde_json::value::RawValue>>) -> Value {
    serde_json::from_str(json.as_ref().expect("there is none").get()).unwrap()
}

#[tokio::test]
async fn a_command_completes_with_its_report() {
    let world = World::new(Settings::default()).await;
    let script =
        "cat; echo $NAME from $TURNWISE_JOB_TYPE/$TURNWISE_JOB_ID, attempt $TURNWISE_ATTEMPT; pwd >&2";
    let options =
        json!({ "argv": ["sh", "-c", script], "env": { "NAME": "me" }, "cwd": "/tmp", "stdin": "in\n" });
    let job = world.run("one two", options).await;
    assert_eq!(job.state(), State::Completed);
    let result = value(&job.result);
    assert_eq!(result["stdout"], "in\nme from command/one two, attempt 1\n");
    assert_eq!((&result["stderr"], &result["exit_code"]), (&json!("/tmp\n"), &json!(0)));
    assert_eq!((&result["truncated"], &result["lossy"]), (&json!(false), &json!(false)));
}

#[tokio::test]
async fn a_command_of_an_array_gets_its_index() {
    let world = World::new(Settings::default()).await;
    let options = json!({ "argv": ["sh", "-c", "echo \"${TURNWISE_ARRAY_INDEX-none}\""] });
    let member = Member { index: Some(7), ..Member::of("film") };
    let new = NewJob::new(JOB_TYPE, "film.7", serde_json::value::to_raw_value(&options).unwrap())
        .with(|spec| spec.group = Some(member));
    let group = NewGroup::new(DEFAULT_TENANT, "film");
    let (keys, group, new, now_us) = (&world.keys, &group, &new, world.store.runtime().now_us());
    let added = world.store.transact(|tx| async move {
        groups::create(&tx, keys, group, now_us).await?;
        jobs::add(&tx, keys, new, now_us).await
    });
    added.await.unwrap();
    let job = world.until("film.7", |job| job.state().is_final()).await;
    assert_eq!(value(&job.result)["stdout"], "7\n");
    assert_eq!(value(&world.run("alone", options).await.result)["stdout"], "none\n");
}

#[tokio::test]
async fn a_crash_is_tried_again_and_shows_what_was_printed() {
    let world = World::new(Settings::default()).await;
    let options = json!({ "argv": ["sh", "-c", "echo so far; echo 'no luck' >&2; exit 3"] });
    world.add("a", options.clone(), None).await;
    let job = world.until("a", |job| job.state() == State::Crashing).await;
    assert_eq!(job.reason(), Some("exit code 3: no luck"));
    let info = value(&job.info);
    assert_eq!((&info["stdout"], &info["exit_code"]), (&json!("so far\n"), &json!(3)));
    assert_eq!(world.run("b", options).await.state(), State::Failed, "that was the only attempt");
    let job = world.run("c", json!({ "argv": ["sh", "-c", "exit 65"] })).await;
    assert_eq!((job.state(), job.reason()), (State::Failed, Some("exit code 65")));
}

#[tokio::test]
async fn wrong_options_fail_with_what_is_wrong_and_without_secrets() {
    let settings = Settings { programs: Programs::Only(vec!["sh".into()]), ..Settings::default() };
    let world = World::new(settings.clone()).await;
    for (n, (options, reason)) in [
        (json!(["hunter2"]), "options: expected an object"),
        (json!({ "argv": "hunter2" }), "argv: expected a list"),
        (json!({ "argv": ["hunter2"] }), "argv[0]: this program may not be run here; allowed are: sh"),
        (json!({ "argv": ["sh"], "cwd": "/hunter2" }), "cwd: there is no such folder"),
        (json!({ "argv": ["sh"], "timeout_s": "hunter2" }), "timeout_s: expected seconds"),
    ]
    .into_iter()
    .enumerate()
    {
        world.add(&n.to_string(), options.clone(), None).await;
        let job = world.until(&n.to_string(), |job| job.state().is_final()).await;
        assert_eq!(job.state(), State::Failed, "{options}");
        assert!(job.reason().unwrap().starts_with(reason), "{options}: {:?}", job.reason());
        assert!(!format!("{:?}", job.history).contains("hunter2"), "{options}: {:?}", job.history);
        let raw = serde_json::value::to_raw_value(&options).unwrap();
        let checked = Handler::new(settings.clone()).check(&raw);
        assert_eq!(checked.is_err(), !reason.starts_with("cwd"), "{options}: {checked:?}");
    }
}

#[tokio::test]
async fn a_cancelled_command_is_ended_with_its_children() {
    let world = World::new(Settings { grace: LONG, ..Settings::default() }).await;
    let mut alive = Alive::new();
    let script = alive.script("sh -c 'echo ready >&3; exec sleep 1000' & wait");
    world.add("a", json!({ "argv": ["sh", "-c", script] }), None).await;
    alive.read(6).await;
    let (keys, now_us) = (&world.keys, world.store.runtime().now_us());
    world
        .store
        .transact(|tx| async move { jobs::cancel(&tx, keys, JOB_TYPE, "a", now_us).await })
        .await
        .unwrap();
    let job = world.until("a", |job| job.state().is_final()).await;
    assert_eq!(job.state(), State::Cancelled);
    alive.gone().await;
}
