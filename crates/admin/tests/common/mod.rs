//! Stores for tests.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tempfile::TempDir;
use turnwise_queue::claims::{self, Ending, Park};
use turnwise_queue::{Claim, Context, Format, Keyspace, NewJob, Parked, Worker, jobs, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{KeyValue, Store, runtime};

/// An embedded store in its own folder.
pub struct Home {
    pub store: Store,
    _folder: TempDir,
}

impl Home {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durable: false, ..Options::default() };
        let engine = Embedded::open_with(folder.path(), options).unwrap();
        Home { store: Store::new(engine, Arc::new(runtime::System)), _folder: folder }
    }
}

/// All rows of a store.
pub async fn all_rows(store: &Store) -> Vec<KeyValue> {
    let mut scan = turnwise_admin::scan::Scan::new(store, turnwise_admin::scan::everything());
    let mut rows = Vec::new();
    while let Some(row) = scan.next().await.unwrap() {
        rows.push(row);
    }
    rows
}

fn json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap()
}

/// Adds jobs of type `t`: most are pending, others delayed, running, or in each final state; some have large options.
pub async fn fill(store: &Store, uuid: &str, count: usize) {
    let keys = &Keyspace::default();
    let uuid = Bytes::from(serde_json::to_string(uuid).unwrap());
    store
        .transact(|tx| {
            let uuid = uuid.clone();
            async move {
                tx.set(keys.format(), Format::current())?;
                tx.set(keys.server_uuid(), uuid)?;
                let worker = Worker { health_timeout_us: 1_000_000, ..Worker::new("worker", "node", 1, 10) };
                workers::register(&tx, keys, "t", &worker)
            }
        })
        .await
        .unwrap();
    for begin in (0..count).step_by(100) {
        let end = count.min(begin + 100);
        store.transact(|tx| async move { fill_some(&tx, keys, begin..end).await }).await.unwrap();
    }
}

async fn fill_some(
    tx: &turnwise_store::Transaction,
    keys: &Keyspace,
    numbers: std::ops::Range<usize>,
) -> turnwise_queue::Result<()> {
    for n in numbers {
        let now_us = i64::try_from(n).unwrap() + 1_000;
        let id = format!("job-{n}");
        let size = if n % 500 == 7 { 200_000 } else { 50 };
        let mut new = NewJob::new("t", &id, json(format!("\"{}\"", "x".repeat(size))));
        new.not_before_us = (n % 10 == 1).then_some(i64::MAX / 2);
        if n % 10 == 8 {
            new.spec.tags = ["eu", "nightly"].map(str::to_owned).into();
        }
        jobs::add(tx, keys, &new, now_us).await?;
        let claim = Claim { worker: "worker".into(), number: n as u64 + 1 };
        let ending = match n % 10 {
            2 => Ending::completed(json("1".into())),
            3 => Ending::Failed("no".into()),
            4 => Ending::Crashed { error: "ouch".into(), retry_us: Some(i64::MAX / 2) },
            9 => {
                let at = Parked { group: format!("server {}", n % 3), key: format!("db{n}") };
                Ending::Parked(Park { at, token: n.to_string(), not_before_us: i64::MAX / 2 })
            }
            5 if n % 50 == 5 => {
                claims::claim(Context::new(tx, keys, "t", now_us, 20), &id, &claim).await?;
                continue;
            }
            _ => continue,
        };
        claims::claim(Context::new(tx, keys, "t", now_us, 20), &id, &claim).await?;
        claims::end(Context::new(tx, keys, "t", now_us, 20), &id, &claim, &ending, None, None).await?;
    }
    Ok(())
}
