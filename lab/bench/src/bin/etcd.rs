//! What transactions cost on etcd: `cargo run --profile sim -p turnwise-lab-bench --bin etcd [URL]`.
//!
//! Without a URL it starts three members, on the disk of the temporary folder. Members and measurement share the machine's cores.
//! So the figures compare designs with each other, and are not those of a dedicated cluster.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use turnwise_store::runtime::System;
use turnwise_store::{Error, Isolation, RangeRead, Store, StoreUrl, Transaction};
use turnwise_testkit::EtcdCluster;

const ROUND: Duration = Duration::from_secs(4);
const VALUE: &[u8] = &[b'v'; 300];

type Kind = (&'static str, fn(Transaction, String) -> futures::future::BoxFuture<'static, Result<(), Error>>);

/// Sets one row without reading it.
fn blind(tx: Transaction, name: String) -> futures::future::BoxFuture<'static, Result<(), Error>> {
    Box::pin(async move { tx.set(Bytes::from(format!("blind {name}")), Bytes::from_static(VALUE)) })
}

/// Reads and sets one row.
fn update(tx: Transaction, name: String) -> futures::future::BoxFuture<'static, Result<(), Error>> {
    Box::pin(async move {
        let key = Bytes::from(format!("update {name}"));
        tx.get(&key).await?;
        tx.set(key, Bytes::from_static(VALUE))
    })
}

/// About the work of adding a job: two reads, a range, four writes.
fn job(tx: Transaction, name: String) -> futures::future::BoxFuture<'static, Result<(), Error>> {
    Box::pin(async move {
        let row = |what: &str| Bytes::from(format!("job {name} {what}"));
        tx.get(&row("a")).await?;
        tx.get(&row("b")).await?;
        let read = RangeRead { begin: row("c"), end: row("d"), limit: 5, reverse: false };
        tx.range_with(read, Isolation::Serializable).await?;
        for what in ["a", "b", "c 1", "c 2"] {
            tx.set(row(what), Bytes::from_static(VALUE))?;
        }
        Ok(())
    })
}

async fn round(store: &Store, concurrency: usize, (name, body): Kind) {
    let begun = Instant::now();
    let before = store.counters();
    let tasks: Vec<_> = (0..concurrency)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                for n in 0.. {
                    let started = Instant::now();
                    if started - begun > ROUND {
                        break;
                    }
                    store.transact(|tx| body(tx, format!("{task} {n}"))).await.unwrap();
                    latencies.push(started.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    latencies.sort();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 100].as_secs_f64() * 1e3;
    let counters = store.counters().since(&before);
    println!(
        "{name:>8} x {concurrency:<4} {rate:>7.0}/s   p50 {:>6.1} ms   p99 {:>6.1} ms   conflicts {} unknown {}",
        at(50),
        at(99),
        counters.conflicts,
        counters.unknown_outcomes
    );
}

/// Reads the first rows of a long range repeatedly.
async fn heads(store: &Store) {
    let mut latencies = Vec::new();
    for _ in 0..100 {
        let tx = store.begin().await.unwrap();
        let read = RangeRead {
            begin: Bytes::from_static(b"blind "),
            end: Bytes::from_static(b"blind!"),
            limit: 50,
            reverse: false,
        };
        let started = Instant::now();
        tx.range_with(read, Isolation::Snapshot).await.unwrap();
        latencies.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let first = latencies[0];
    latencies.sort_by(f64::total_cmp);
    println!("the first 50 rows of many: the first time {first:.1} ms, then p50 {:.1} ms", latencies[50]);
}

#[tokio::main]
async fn main() {
    let given = std::env::args().nth(1);
    let cluster = if given.is_none() { EtcdCluster::start().await } else { None };
    let url = given
        .or_else(|| cluster.as_ref().map(|cluster| cluster.url("bench")))
        .expect("a URL, or etcd installed");
    let url: StoreUrl = url.parse().unwrap();
    let store = turnwise_store::open(&url, Arc::new(System)).await.unwrap();
    let kinds: [Kind; 3] = [("blind", blind), ("update", update), ("job", job)];
    for concurrency in [1, 16, 64, 256] {
        for kind in kinds {
            round(&store, concurrency, kind).await;
        }
    }
    heads(&store).await;
}
