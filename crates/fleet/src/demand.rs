//! Asks the server for the demand of a type, again and again. While the server does not answer, the pauses grow.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use turnwise_client::Client;
use turnwise_client::protocol::Demand;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest pause while the server does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Most workers of a type whose running jobs are read.
const MAX_LISTED: usize = 2_000;

/// What one question has found.
pub(crate) struct Observation {
    pub job_type: String,
    /// The demand, and the running jobs of each worker by its name; or why they are unknown.
    pub seen: Result<(Demand, BTreeMap<String, usize>), String>,
}

/// Asks for ever.
pub(crate) async fn watch(
    client: Client,
    job_type: String,
    drain_target: Duration,
    interval: Duration,
    sender: mpsc::Sender<Observation>,
) {
    let client = client.retry_for(Duration::ZERO);
    let mut pause = interval;
    loop {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, ask(&client, &job_type, drain_target)).await;
        let seen = asked
            .map_err(|_| format!("{} has not answered within {ANSWER_TIMEOUT:?}", client.server()))
            .and_then(|seen| seen.map_err(|error| error.to_string()));
        pause = if seen.is_ok() { interval } else { (pause * 2).min(LONGEST_PAUSE).max(interval) };
        if sender.send(Observation { job_type: job_type.clone(), seen }).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

async fn ask(
    client: &Client,
    job_type: &str,
    drain_target: Duration,
) -> turnwise_client::Result<(Demand, BTreeMap<String, usize>)> {
    let demand = client.demand(job_type, Some(drain_target)).await?;
    let mut running = BTreeMap::new();
    // Only for the choice of which worker stops.
    if demand.wanted_slots < demand.slots {
        let pages = client.workers(Some(job_type));
        let (workers, _) = pages.collect(MAX_LISTED).await?;
        running.extend(
            workers.into_iter().filter_map(|worker| worker.name.map(|name| (name, worker.running.len()))),
        );
    }
    Ok((demand, running))
}
