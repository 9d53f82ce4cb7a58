//! A node in this process: restarts, schedules, retention, and what cannot be.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use turnwise::policy::backoff::OnLost;
use turnwise::queue::{State, jobs};
use turnwise::{Error, NewJob, Node, TaskError, When};

const DAY: Duration = Duration::from_secs(86_400);
/// Far more than anything here takes: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a node. One that was dropped may use the folder for a moment.
async fn start(folder: &tempfile::TempDir, retention: Duration) -> Node {
    let starting = async {
        loop {
            match Node::start(folder.path(), retention).await {
                Ok(node) => return node,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, starting).await.expect("the folder stays in use")
}

#[tokio::test]
async fn a_job_survives_the_process_that_ran_it() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(&folder, DAY).await;
    let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
    let hang = move |_, number: u32| {
        sender.send(number).unwrap();
        std::future::pending::<Result<(), TaskError>>()
    };
    node.work("sum", 1, hang).await.unwrap();
    let mut new = NewJob::new("sum", "a", serde_json::value::to_raw_value(&7).unwrap());
    // It does not wait for a backoff.
    new.spec.retry.on_lost = Some(OnLost::Requeue);
    node.add_job(&new).await.unwrap();
    assert_eq!(started.recv().await, Some(7));
    // Like a crash: nothing is given back.
    drop(node);

    let node = start(&folder, DAY).await;
    node.work("sum", 1, async |_, number: u32| Ok(number + 1)).await.unwrap();
    assert_eq!(node.result::<u32>("sum", "a").await.unwrap(), 8);
    assert!(matches!(node.result::<String>("sum", "a").await, Err(Error::Invalid(_))));
    assert_eq!(node.add_job(&new).await.unwrap(), jobs::Added::AlreadyThere);
    let wrong = node.add("sum", "seven").await.unwrap();
    let error = node.result::<u32>("sum", &wrong).await.unwrap_err();
    assert!(matches!(&error, Error::JobFailed(job) if job.state() == State::Failed), "{error}");
    let second = node.work("sum", 1, async |_, _: u32| Ok(())).await;
    assert!(matches!(second, Err(Error::Invalid(_))));
    assert!(Node::start(folder.path(), DAY).await.is_err(), "two nodes use one folder");
    node.shutdown().await;
}

#[tokio::test]
async fn a_schedule_adds_jobs_and_the_retention_removes_them() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(&folder, Duration::ZERO).await;
    let (sender, mut ran) = tokio::sync::mpsc::unbounded_channel();
    node.work("tick", 1, move |job: turnwise::JobContext, at: String| {
        let _ = sender.send((job.job.id.clone(), at));
        std::future::ready(Ok(()))
    })
    .await
    .unwrap();
    let every = When::Every { every_us: 1_000_000, offset_us: 0 };
    node.schedule("clock", every, "tick", "now").await.unwrap();
    let (id, at) = tokio::time::timeout(PATIENCE, ran.recv()).await.expect("nothing fires").unwrap();
    assert_eq!(at, "now");
    tokio::time::timeout(PATIENCE, async {
        while node.job("tick", &id).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the record stays");
    node.shutdown().await;
}
