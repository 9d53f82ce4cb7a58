//! turnwise inside your own service: a worker, a schedule, and jobs that survive a crash.
//!
//! `cargo run -p turnwise --example embedded`

use std::time::Duration;

use serde::{Deserialize, Serialize};
use turnwise::{JobContext, Node, TaskError, When};

#[derive(Serialize, Deserialize)]
struct Greeting {
    to: String,
}

/// Runs a job of type "greet". After a panic, or an error that may pass, it is tried again after a backoff.
async fn greet(job: JobContext, greeting: Greeting) -> Result<String, TaskError> {
    if greeting.to.is_empty() {
        return Err(TaskError::failed("there is no one to greet"));
    }
    Ok(format!("hello {}, from job {}", greeting.to, job.job.id))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The store is a folder, and this process owns it. Records of jobs stay for a day after their ends.
    let folder = tempfile::tempdir()?;
    let node = Node::start(folder.path(), Duration::from_secs(86_400)).await?;
    node.work("greet", 10, greet).await?;
    let everyone = Greeting { to: "everyone".to_owned() };
    node.schedule("every morning", When::cron("0 8 * * *", "Europe/Berlin"), "greet", &everyone).await?;

    let id = node.add("greet", &Greeting { to: "world".to_owned() }).await?;
    println!("{}", node.result::<String>("greet", &id).await?);

    // Every job has ended or is given back.
    node.shutdown().await;
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("the example runs to its end");
}
