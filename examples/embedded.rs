//! turnwise inside your own service: a handler, a running worker, and jobs that survive a crash.
//!
//! `cargo run -p turnwise-worker --example embedded`

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::mpsc;
use turnwise_queue::{Keyspace, NewJob, jobs};
use turnwise_store::{Store, embedded::Embedded, runtime};
use turnwise_worker::{JobContext, Options, Outcome, Tunables, Worker, handler_fn};

#[derive(Deserialize)]
struct Greeting {
    to: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (sent, mut greetings) = mpsc::unbounded_channel();

    // The store is a folder, and this process owns it.
    let store = Store::new(Embedded::open(dir.path())?, Arc::new(runtime::System));
    let keys = Keyspace::default();

    // The handler of jobs of type "greet". After a panic or `Outcome::Crashed`, the job is retried after a backoff.
    let greet = handler_fn(move |job: JobContext| {
        let sent = sent.clone();
        async move {
            match serde_json::from_str::<Greeting>(job.options.get()) {
                Ok(greeting) => {
                    let _ = sent.send(format!("hello {}", greeting.to));
                    Outcome::completed(&"sent")
                }
                Err(error) => Outcome::Failed(error.to_string()),
            }
        }
    });
    let tunables = Tunables { max_jobs: 10, ..Tunables::default() };
    let options = Options { tunables, exclusive: true, ..Options::default() };
    let worker = Worker::start(store.clone(), keys.clone(), "greet", Arc::new(greet), options).await?;

    // Once the transaction is committed, the job is on disk. Adding a job twice under one id makes one job.
    for (id, to) in [("1", "world"), ("2", "queue")] {
        let options = serde_json::value::to_raw_value(&serde_json::json!({ "to": to }))?;
        let (job, keys, now_us) = (&NewJob::new("greet", id, options), &keys, store.runtime().now_us());
        store.transact(|tx| async move { jobs::add(&tx, keys, job, now_us).await }).await?;
    }
    for _ in 0..2 {
        println!("{}", greetings.recv().await.ok_or("the worker is gone")?);
    }

    // Every job has ended or is given back, and the worker has removed its rows.
    worker.shutdown().await;
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("the example runs to its end");
}
