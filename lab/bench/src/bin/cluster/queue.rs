//! The transactions of this benchmark other than the queue's own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use turnwise_queue::{Keyspace, NewJob, State, jobs};
use turnwise_store::{Isolation, RangeRead, Store, StoreUrl, runtime};

pub const JOB_TYPE: &str = "noop";
/// The time between two checks whether all ends are recorded.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The number of rows that one transaction clears.
const CLEARED: usize = 100;

pub async fn open(url: &StoreUrl) -> Result<Store, String> {
    turnwise_store::open(url, Arc::new(runtime::System)).await.map_err(|error| error.to_string())
}

/// Writes one small row of this writer, without a read.
pub async fn put(store: &Store, writer: usize) {
    let key = Bytes::from(turnwise_store::tuple::pack(&("bench", writer)));
    let put = store.transact(|tx| {
        let key = key.clone();
        async move { tx.set(key, Bytes::from_static(b"{}")) }
    });
    put.await.expect("the store takes rows");
}

/// Adds the jobs with these numbers in one transaction.
pub async fn add(store: &Store, numbers: std::ops::Range<usize>) {
    let new: Vec<NewJob> = numbers
        .map(|number| {
            let options = RawValue::from_string(number.to_string()).expect("a number is JSON");
            NewJob::new(JOB_TYPE, &format!("job-{number:012}"), options)
        })
        .collect();
    let (keys, new, now_us) = (&Keyspace::default(), &new, store.runtime().now_us());
    let added = store.transact(|tx| async move {
        for new in new {
            jobs::add_once(&tx, keys, new, now_us).await?;
        }
        Ok::<_, turnwise_queue::Error>(())
    });
    added.await.expect("the store takes jobs");
}

/// Waits until the ends of all `jobs` jobs that were ever added are recorded. All must be added before the call.
pub async fn ended(store: &Store, jobs: usize) {
    while waits(store).await || !last_ended(store, jobs).await {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Whether the queue holds a job: pending, delayed or active.
async fn waits(store: &Store) -> bool {
    let keys = Keyspace::default();
    let tx = store.begin().await.expect("the store can be read");
    for (begin, end) in [keys.pending(JOB_TYPE), keys.delayed(JOB_TYPE), keys.active(JOB_TYPE)] {
        let read = RangeRead { begin, end, limit: 1, reverse: false };
        if !tx.range_with(read, Isolation::Snapshot).await.expect("the store can be read").is_empty() {
            return true;
        }
    }
    false
}

async fn last_ended(store: &Store, jobs: usize) -> bool {
    let id = format!("job-{:012}", jobs - 1);
    let tx = store.begin().await.expect("the store can be read");
    let job = jobs::get(&tx, &Keyspace::default(), JOB_TYPE, &id).await.expect("the record is sound");
    job.is_some_and(|job| job.state().is_final())
}

/// Checks that every job exists, and completed at its first attempt.
pub async fn check(store: &Store, jobs: usize) -> Result<(), String> {
    const PAGE: usize = 1_000;
    let (mut after, mut completed) = (None::<String>, 0);
    loop {
        let tx = store.begin().await.expect("the store can be read");
        let page = jobs::list(&tx, &Keyspace::default(), JOB_TYPE, after.as_deref(), PAGE).await;
        let page = page.map_err(|error| error.to_string())?;
        completed += page.iter().filter(|job| job.state() == State::Completed && job.attempts == 1).count();
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
    }
    if completed == jobs { Ok(()) } else { Err(format!("{completed} of {jobs} jobs have ended well")) }
}

/// Removes everything under the store's prefix, because the cluster may continue to exist.
pub async fn clear(store: &Store) {
    let everything = (Bytes::new(), Bytes::from_static(b"\xff"));
    loop {
        let tx = store.begin().await.expect("the store can be read");
        let (begin, end) = everything.clone();
        let read = RangeRead { begin, end, limit: CLEARED, reverse: false };
        let rows = tx.range_with(read, Isolation::Snapshot).await.expect("the store can be read");
        if rows.is_empty() {
            return;
        }
        for (key, _) in rows {
            tx.clear(key).expect("a key that was read");
        }
        tx.commit().await.expect("nobody else uses these rows");
    }
}
