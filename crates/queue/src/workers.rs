//! Who works: membership and liveness as rows.

use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::claims::take_back;
use crate::error::corrupt;
use crate::rows::{decode, encode, read_job};
use crate::{Error, Keyspace, Result};

/// Workers that a listing reads at most.
const MAX_WORKERS: usize = 10_000;

/// What is known of a registered worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its id, used once: a restarted process registers under a new one. In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// The node it runs on, as the API shows it.
    pub node: String,
    /// When it registered, in µs.
    pub started_us: i64,
    /// Jobs it runs at most.
    pub slots: usize,
}

/// Adds a worker to the membership.
pub fn register(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &Worker) -> Result<()> {
    tx.set(keys.worker(job_type, &worker.id), encode(worker))?;
    tx.set(keys.health(job_type, &worker.id), encode(&0_u64))?;
    Ok(tx.set_versionstamp(keys.workers_versionstamp(job_type))?)
}

/// Shows that a worker lives: moves its health counter.
pub async fn ping(tx: &Transaction, keys: &Keyspace, job_type: &str, worker: &str) -> Result<()> {
    if tx.get(&keys.worker(job_type, worker)).await?.is_none() {
        return Err(Error::Halt);
    }
    let health = keys.health(job_type, worker);
    let counter: u64 = match tx.get(&health).await? {
        Some(value) => decode("health counter", &value)?,
        None => 0,
    };
    Ok(tx.set(health, encode(&(counter + 1)))?)
}

/// All registered workers of a type, sorted by id.
pub async fn list(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Vec<Worker>> {
    let rows = tx.range(&keys.workers(job_type), MAX_WORKERS).await?;
    rows.into_iter()
        .map(|(key, value)| {
            let mut worker: Worker = decode("worker row", &value)?;
            worker.id =
                keys.parse_worker(&key).ok_or_else(|| corrupt("worker key", "not a tuple of four"))?;
            Ok(worker)
        })
        .collect()
}

/// Removes a worker from the membership: by itself when it leaves, by others when it is dead. Its jobs are
/// pending again. Handles up to `limit` of them; returns whether it is done, so that the caller goes on in
/// another transaction. From the first one on the worker is no member: all of its writes answer `Halt`.
pub async fn remove(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    worker: &str,
    limit: usize,
    now_us: i64,
    max_history: usize,
) -> Result<bool> {
    if tx.get(&keys.worker(job_type, worker)).await?.is_some() {
        tx.clear(keys.worker(job_type, worker))?;
        tx.clear(keys.health(job_type, worker))?;
        tx.clear(keys.signal(job_type, worker))?;
        tx.set_versionstamp(keys.workers_versionstamp(job_type))?;
    }
    let rows = tx.range(&keys.active_of(job_type, worker), limit).await?;
    let done = rows.len() < limit;
    for (key, _) in rows {
        let (_, id) = keys.parse_active(&key).ok_or_else(|| corrupt("active key", "not a tuple of five"))?;
        let Some(mut job) = read_job(tx, keys, job_type, &id).await? else {
            return Err(corrupt("active row", "has no job record"));
        };
        let Some(claim) = job.claim.clone().filter(|claim| claim.worker == worker) else {
            return Err(corrupt("active row", "its job has another claim"));
        };
        take_back(tx, keys, &mut job, &claim, now_us, max_history).await?;
    }
    Ok(done)
}
