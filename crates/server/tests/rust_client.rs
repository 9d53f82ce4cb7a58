//! The Rust client's tasks and its worker, with a real server: terms, steps, schedules, restarts, and a worker that hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use serde_json::json;
use turnwise_client::protocol::{Backoff, LogLevel, TaskTerms, WaitMs};
use turnwise_client::{
    AddJob, CancellationToken, Client, Error, JobResult, LogUpdate, Outcome, Result, Run, State, Task,
    TaskError, Worker, WorkerOptions, work,
};

use crate::common::{PATIENCE, TestServer, until};

const CHARGE: Task<u32, String> = Task::new("shop", "charge");
const COUNT: Task<(), u32> = Task::new("shop", "count");

fn client(server: &TestServer) -> Client {
    Client::new(&server.url).unwrap()
}

/// Crashes in its first attempt, after its step.
async fn charge(run: Run, amount: u32, steps: Arc<AtomicU32>) -> Result<String, TaskError> {
    run.log(LogLevel::Info, format!("attempt {}", run.job.attempt));
    let receipt: String = run
        .step("charge", async {
            steps.fetch_add(1, SeqCst);
            Ok::<_, TaskError>(format!("{amount} charged"))
        })
        .await?;
    if run.job.attempt == 1 {
        "no number".parse::<u8>()?;
    }
    Ok(receipt)
}

#[tokio::test]
async fn a_task_is_tried_again_by_its_terms_and_its_steps_run_once() {
    let server = TestServer::start().await;
    let (client, steps, stop) = (client(&server), Arc::<AtomicU32>::default(), CancellationToken::new());
    let backoff = Some(Backoff::FixedMs(WaitMs(1)));
    let counted = steps.clone();
    let worker = Worker::new(WorkerOptions { slots: 4, ..WorkerOptions::new("shop") })
        .task(CHARGE, move |run, amount| charge(run, amount, counted.clone()))
        .task(COUNT, async |_, ()| Ok(3))
        .terms(CHARGE, TaskTerms { max_attempts: Some(2), backoff, ..TaskTerms::default() })
        .schedule(COUNT, "30 2 * * * Europe/Berlin".into(), &());
    let working = tokio::spawn({
        let (client, stop) = (client.clone(), stop.clone());
        async move { worker.run(&client, stop).await }
    });
    let charged = CHARGE.add(&client, &7).await.unwrap();
    let result = tokio::time::timeout(PATIENCE, charged.result()).await.unwrap().unwrap();
    assert_eq!((result.as_str(), steps.load(SeqCst)), ("7 charged", 1));
    let job = charged.status().await.unwrap();
    assert_eq!((job.attempts, job.max_attempts), (2, Some(2)));
    assert_eq!(job.errors[0].class.as_deref(), Some("core::num::error::ParseIntError"));
    let (mut logs, mut lines) = (charged.logs().unwrap(), Vec::new());
    while let Some(LogUpdate::Line(line)) = logs.next().await.unwrap() {
        lines.push(line.message);
    }
    assert_eq!(lines, ["attempt 1", "attempt 2"]);

    // Another language adds it without options.
    let task = Some("count".to_owned());
    let added = client.add("shop", AddJob { task, ..AddJob::default() }).await.unwrap();
    assert_eq!(COUNT.handle(&client, added.id).result().await.unwrap(), 3);
    let fired = client.fire_schedule("shop.count").await.unwrap();
    assert_eq!(COUNT.handle(&client, fired.job).result().await.unwrap(), 3);
    let wrong =
        client.add("shop", AddJob { task: Some("charge".into()), ..AddJob::default() }).await.unwrap();
    let error = CHARGE.handle(&client, wrong.id).result().await.unwrap_err();
    assert!(matches!(&error, Error::JobFailed(job) if job.attempts == 1), "{error}");
    stop.cancel();
    working.await.unwrap().unwrap();
    assert_eq!(server.get("/v1/workers?type=shop").await.body, json!({ "workers": [] }));
}

#[tokio::test]
async fn a_run_ends_once_although_the_server_restarts_and_a_result_may_be_bytes() {
    let server = TestServer::start().await;
    let client = client(&server);
    let (started, go) = (Arc::new(tokio::sync::Notify::new()), CancellationToken::new());
    let handler = {
        let (started, go) = (started.clone(), go.clone());
        move |_: Run| {
            let (started, go) = (started.clone(), go.clone());
            async move {
                started.notify_one();
                go.cancelled().await;
                let bytes = vec![b'x'; 100_000].into();
                Outcome::CompletedWith(JobResult { media_type: "text/plain".into(), bytes })
            }
        }
    };
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let (client, stop) = (client.clone(), stop.clone());
        async move { work(&client, WorkerOptions::new("t"), handler, stop).await }
    });
    let added = client.add("t", AddJob::default()).await.unwrap();
    started.notified().await;
    // The end is under way while no server answers.
    go.cancel();
    let _server = server.restart_there().await;
    let ended = client.wait("t", &added.id, Some(PATIENCE)).await.unwrap().job;
    assert_eq!((ended.state, ended.attempts), (State::Completed, 1), "{ended:?}");
    let result = client.result("t", &added.id).await.unwrap();
    assert_eq!((result.media_type.as_str(), result.bytes.len()), ("text/plain", 100_000));
    stop.cancel();
    working.await.unwrap().unwrap();
}

/// A worker in a runtime of one thread, which its handler blocks until the sender is dropped.
fn start_hanging(
    client: Client,
) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<Result<()>>, CancellationToken) {
    let ((unblock, blocked), stop) = (std::sync::mpsc::channel::<()>(), CancellationToken::new());
    let (blocked, stopped) = (std::sync::Mutex::new(blocked), stop.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handler = move |_| {
            let _ = blocked.lock().unwrap().recv();
            std::future::ready(Outcome::completed(&"too late"))
        };
        runtime.block_on(work(&client, WorkerOptions::new("t"), handler, stopped))
    });
    (unblock, thread, stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_loses_its_job_to_another_one_and_works_again() {
    let server = TestServer::start_with("[workers]\nhealth_interval = 0.2\nhealth_timeout = 2\n").await;
    // Each has its own connections: those of the worker hang with it.
    let (client, hanging) = (client(&server), client(&server));
    let (unblock, thread, stop_hanging) = start_hanging(hanging);
    let quick =
        AddJob { id: Some("a".into()), backoff: Some(Backoff::FixedMs(WaitMs(1))), ..AddJob::default() };
    client.add("t", quick).await.unwrap();
    let running = |job: &turnwise_client::Job| job.state == State::Running;
    until("the job runs", async || client.get("t", "a").await.unwrap(), running).await;
    let (stop, other) = (CancellationToken::new(), client.clone());
    let stopped = stop.clone();
    let handler = |_| std::future::ready(Outcome::completed(&"in time"));
    let working = tokio::spawn(async move { work(&other, WorkerOptions::new("t"), handler, stopped).await });
    let ended = client.wait("t", "a", Some(PATIENCE)).await.unwrap().job;
    assert_eq!(ended.result.as_ref().map(|result| result.get()), Some(r#""in time""#));
    stop.cancel();
    working.await.unwrap().unwrap();
    // The first one notices that it was removed, sends nothing for the job, and registers again.
    drop(unblock);
    client.add("t", AddJob { id: Some("b".into()), ..AddJob::default() }).await.unwrap();
    let next = client.wait("t", "b", Some(PATIENCE)).await.unwrap().job;
    assert_eq!(next.result.as_ref().map(|result| result.get()), Some(r#""too late""#));
    let first = client.get("t", "a").await.unwrap();
    assert_eq!(first.result.as_ref().map(|result| result.get()), Some(r#""in time""#));
    stop_hanging.cancel();
    tokio::task::spawn_blocking(|| thread.join().unwrap().unwrap()).await.unwrap();
}

/// How long a stopping worker may take, far below its time to drain.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_worker_that_stops_lets_its_runs_end_and_gives_the_rest_back() {
    let server = TestServer::start().await;
    let client = client(&server);
    let (started, stop) = (Arc::new(tokio::sync::Notify::new()), CancellationToken::new());
    let handler = {
        let (started, stop) = (started.clone(), stop.clone());
        move |run: Run| {
            let (started, stop) = (started.clone(), stop.clone());
            async move {
                started.notify_one();
                stop.cancelled().await;
                if run.job.id == "hangs" {
                    run.stop.cancelled().await;
                    return Outcome::Stopped;
                }
                Outcome::completed(&run.job.id)
            }
        }
    };
    for id in ["ends", "hangs"] {
        client.add("t", AddJob { id: Some(id.into()), ..AddJob::default() }).await.unwrap();
    }
    let options = WorkerOptions { slots: 2, drain: Duration::from_secs(2), ..WorkerOptions::new("t") };
    let working = tokio::spawn({
        let (client, stop) = (client.clone(), stop.clone());
        async move { work(&client, options, handler, stop).await }
    });
    let both = |job: &turnwise_client::Job| job.state == State::Running;
    for id in ["ends", "hangs"] {
        until("it runs", async || client.get("t", id).await.unwrap(), both).await;
    }
    started.notified().await;
    stop.cancel();
    tokio::time::timeout(SOON, working).await.unwrap().unwrap().unwrap();
    assert_eq!(client.get("t", "ends").await.unwrap().state, State::Completed);
    let given_back = client.get("t", "hangs").await.unwrap();
    assert_eq!((given_back.state, given_back.attempts), (State::Pending, 0));
}
