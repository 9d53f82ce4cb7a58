//! Clients that add jobs, and external workers that end each job at once, over the minimal HTTP client.

use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http_client::Connection;

/// The time between two heartbeats. A server asks for one every five seconds.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// Adds jobs with one request.
///
/// # Errors
/// The response, unless the server says `expected` of each of these `jobs` jobs.
pub async fn add(
    connection: &mut Connection,
    body: &Value,
    jobs: usize,
    expected: &str,
) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Added {
        jobs: Vec<AddedJob>,
    }
    let Added { jobs: added } = connection.send("POST", "/v1/jobs", &body.to_string()).await?;
    match added.iter().find(|job| job.added != expected) {
        Some(other) => Err(format!("{other:?}: `{expected}` is expected")),
        None if added.len() != jobs => Err(format!("{} of {jobs} jobs were added", added.len())),
        None => Ok(()),
    }
}

/// What the server says of a job that is added.
#[derive(Debug, Deserialize)]
pub struct AddedJob {
    /// Its id.
    pub id: String,
    /// The result of adding it.
    pub added: String,
}

/// A job that a worker has received.
#[derive(Debug, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// The number of the claim.
    pub claim: u64,
    /// The schedule that has added it.
    pub schedule: Option<Fire>,
    /// The group that has added it.
    pub callback: Option<Callback>,
}

/// The fire that has added a job.
#[derive(Debug, Deserialize)]
pub struct Fire {
    /// The name of the schedule.
    pub name: String,
    /// Its time by the schedule, in µs since the Unix epoch.
    pub scheduled_at_us: i64,
    /// When it was made.
    pub fired_at_us: i64,
}

/// The group that has added a job.
#[derive(Debug, Deserialize)]
pub struct Callback {
    /// Its name.
    pub group: String,
    /// How its jobs had ended.
    pub counts: Counts,
}

/// How the jobs of a group have ended.
#[derive(Debug, Deserialize)]
pub struct Counts {
    /// All of them.
    pub total: usize,
    /// Those that have completed.
    pub completed: usize,
}

#[derive(Serialize)]
struct Accept<'a> {
    received: u64,
    limit: usize,
    wait_ms: u128,
    ends: Ends<'a>,
}

#[derive(Serialize)]
struct Ends<'a> {
    finish: &'a [Finish],
}

#[derive(Serialize)]
struct Finish {
    id: String,
    claim: u64,
}

#[derive(Deserialize)]
struct Accepted {
    jobs: Vec<Job>,
    #[serde(default)]
    ended: Vec<Ended>,
}

#[derive(Deserialize)]
struct Ended {
    state: Option<String>,
    error: Option<Value>,
}

/// An external worker.
pub struct Worker {
    connection: Connection,
    path: String,
    received: u64,
    ends: Vec<Finish>,
    heartbeat: Instant,
}

impl Worker {
    /// Registers a worker for jobs of a type.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn register(port: u16, job_type: &str, slots: usize) -> Result<Worker, String> {
        #[derive(Deserialize)]
        struct Registered {
            worker: String,
        }
        let mut connection = Connection::open(port).await;
        let path = format!("/v1/workers/{job_type}");
        let body = json!({ "slots": slots }).to_string();
        let Registered { worker } = connection.send("POST", &path, &body).await?;
        let path = format!("{path}/{worker}");
        Ok(Worker { connection, path, received: 0, ends: Vec::new(), heartbeat: Instant::now() })
    }

    /// Ends the jobs that it has received last, and accepts up to `limit` others. Without jobs to end, the server waits for jobs for at most `wait`, which is
    /// shorter than the time between two heartbeats.
    ///
    /// # Errors
    /// The server does not record an end, or refuses the request.
    pub async fn accept(&mut self, limit: usize, wait: Duration) -> Result<Vec<Job>, String> {
        if self.heartbeat.elapsed() > HEARTBEAT {
            self.heartbeat = Instant::now();
            let IgnoredAny = self.connection.send("POST", &format!("{}/ping", self.path), "{}").await?;
        }
        let question = Accept {
            received: self.received,
            limit,
            wait_ms: wait.as_millis(),
            ends: Ends { finish: &self.ends },
        };
        let body = serde_json::to_string(&question).expect("names and numbers are JSON");
        let Accepted { jobs, ended } =
            self.connection.send("POST", &format!("{}/accept", self.path), &body).await?;
        if let Some(Ended { state, error }) =
            ended.iter().find(|end| end.state.as_deref() != Some("completed"))
        {
            return Err(format!("the answer to an end is {state:?}, {error:?}"));
        }
        if ended.len() != self.ends.len() {
            return Err(format!("{} of {} ends were recorded", ended.len(), self.ends.len()));
        }
        self.ends.clear();
        for Job { id, claim, .. } in &jobs {
            self.received = self.received.max(*claim);
            self.ends.push(Finish { id: id.clone(), claim: *claim });
        }
        Ok(jobs)
    }
}
