//! Jobs of `/v1` on an external worker: a tenant with few jobs does not wait behind a tenant with thousands.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use turnwise_client::{AddJob, Client, NewJob, Outcome, Run, WorkerOptions, work};

use crate::server::{Home, PATIENCE, Server};

const T: &str = "work";
const BATCH: usize = 1_000;

/// The number of jobs of the largest tenant. For a larger test by hand: `TURNWISE_FAIRNESS_BACKLOG=100000`.
fn backlog() -> usize {
    std::env::var("TURNWISE_FAIRNESS_BACKLOG").map_or(5_000, |jobs| jobs.parse().unwrap())
}

async fn add(server: &Server, tenant: &str, jobs: usize) {
    // The client retries while the store of a busy machine does not answer.
    let client = Client::new(server.url()).unwrap();
    let job = || NewJob::new(T, AddJob { tenant: Some(tenant.to_owned()), ..AddJob::default() });
    for first in (0..jobs).step_by(BATCH) {
        let batch = (first..jobs.min(first + BATCH)).map(|_| job()).collect();
        client.add_many(batch).await.unwrap();
    }
}

/// A worker that runs one job at a time, each until the test ends it.
struct OneByOne {
    started: mpsc::UnboundedReceiver<String>,
    go_on: mpsc::UnboundedSender<()>,
    said: Option<String>,
    /// The duration of the longest run so far.
    longest: Duration,
    _worker: AbortOnDropHandle<turnwise_client::Result<()>>,
}

impl OneByOne {
    fn start(server: &Server) -> OneByOne {
        let client = Client::new(server.url()).unwrap();
        let (tell, started) = mpsc::unbounded_channel();
        let (go_on, may_end) = mpsc::unbounded_channel();
        let may_end = Arc::new(Mutex::new(may_end));
        let handler = move |run: Run| {
            let (tell, may_end) = (tell.clone(), may_end.clone());
            async move {
                tell.send(run.job.tenant.clone()).unwrap();
                may_end.lock().await.recv().await;
                Outcome::completed(&Value::Null)
            }
        };
        let worker =
            async move { work(&client, WorkerOptions::new(T), handler, CancellationToken::new()).await };
        let _worker = AbortOnDropHandle::new(tokio::spawn(worker));
        OneByOne { started, go_on, said: None, longest: Duration::ZERO, _worker }
    }

    /// The tenant whose job runs next. The job runs until [`end`](OneByOne::end).
    async fn next(&mut self) -> String {
        if let Some(tenant) = self.said.take() {
            return tenant;
        }
        let started = tokio::time::timeout(PATIENCE, self.started.recv()).await;
        started.expect("no job is started").unwrap()
    }

    /// Makes [`next`](OneByOne::next) return this tenant again.
    fn unsaid(&mut self, tenant: String) {
        self.said = Some(tenant);
    }

    /// Ends the running job.
    fn end(&self) {
        self.go_on.send(()).unwrap();
    }
}

#[tokio::test]
async fn a_tenant_with_one_job_is_served_at_once_beside_one_with_thousands() {
    let home = Home::new("");
    let server = home.serve().await;
    add(&server, "many", backlog()).await;
    let mut worker = OneByOne::start(&server);
    let mut until = async |tenant: &str| {
        let mut before = 0;
        while worker.next().await != tenant {
            worker.end();
            before += 1;
        }
        worker.end();
        before
    };
    assert_eq!(until("many").await, 0);
    for tenant in (0..10).map(|n| format!("one-{n}")) {
        add(&server, &tenant, 1).await;
        // One job may be running, and one on its way to the worker. The expected cost of this tenant's job is estimated
        // from other tenants' runs. So after a long run among these, a few more short jobs may come first, but not five
        // thousand.
        let before = until(&tenant).await;
        println!("{tenant}: {before} jobs came before it");
        assert!(before <= 20, "{before} jobs came before the one of {tenant}");
    }
    assert!(server.terminate().await.success());
}

/// Checks that the tenant had this part of the time of this many runs. A run's time lasts until the next run begins, because the
/// worker always has a job.
///
/// A scheduler that stops no run deviates by up to one run at both ends of the measurement, however long these runs are. If the
/// machine pauses for a second during a run, that run's tenant has a second more, and other tenants get it back afterwards.
async fn has_its_part(tenant: &str, expected: f64, worker: &mut OneByOne, runs: usize) {
    let (mut of_tenant, mut all, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    let mut runs_now = worker.next().await;
    let mut since = Instant::now();
    for _ in 0..runs {
        // Long enough that the time of a run is much longer than that of its requests.
        tokio::time::sleep(Duration::from_millis(20)).await;
        worker.end();
        let next = worker.next().await;
        let took = since.elapsed();
        since = Instant::now();
        all += took;
        worker.longest = worker.longest.max(took);
        if runs_now == tenant {
            of_tenant += took;
            count += 1;
        }
        runs_now = next;
    }
    worker.unsaid(runs_now);
    let part = of_tenant.as_secs_f64() / all.as_secs_f64();
    let told = format!(
        "{tenant}: {count} of {runs} runs, {:.1}% of {all:?}; the longest took {:?}",
        part * 100.0,
        worker.longest
    );
    println!("{told}");
    // The charged time is a little shorter than the time measured here.
    let allowed = 0.07 + 2.0 * worker.longest.as_secs_f64() / all.as_secs_f64();
    assert!((part - expected).abs() < allowed, "{told}, and not {:.1}%", expected * 100.0);
}

#[tokio::test]
async fn backlogs_shrink_in_proportion_to_shares_and_follow_their_changes() {
    let home = Home::new("[shares]\nlow = 50\n");
    let server = home.serve().await;
    add(&server, "low", 1_000).await;
    add(&server, "high", backlog()).await;
    let mut worker = OneByOne::start(&server);
    // Shares of 100 and 50.
    has_its_part("high", 2.0 / 3.0, &mut worker, 90).await;
    let shares = "/_node/_local/_config/shares/low";
    assert_eq!(server.put(shares, &json!("300")).await, "50");
    // Shares of 100 and 300.
    has_its_part("high", 1.0 / 4.0, &mut worker, 90).await;
    assert!(server.terminate().await.success());
}
