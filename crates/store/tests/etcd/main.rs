//! The engine on etcd, on a real cluster of three members: the conformance suite, and members that fail, are stopped, are full,
//! or require passwords.
//!
//! Without etcd on the machine all of these tests are skipped, which one line reports.

#![allow(clippy::unwrap_used)]

mod conformance;
mod errors;
mod faults;
mod heads;
mod stamps;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use turnwise_store::runtime::System;
use turnwise_store::{Store, StoreUrl};

/// A prefix that no other test uses.
fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn open(url: &str) -> turnwise_store::Result<Store> {
    let url: StoreUrl = url.parse().unwrap();
    turnwise_store::open(&url, Arc::new(System)).await
}

fn key(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

/// Sets a row, with retries.
async fn set(store: &Store, name: &'static str, value: &'static str) {
    store
        .transact::<_, turnwise_store::Error, _, _>(|tx| async move { tx.set(key(name), key(value)) })
        .await
        .unwrap();
}

/// Reads the current value, with retries.
async fn get(store: &Store, name: &'static str) -> Option<Bytes> {
    store
        .transact::<_, turnwise_store::Error, _, _>(|tx| async move { tx.get(&key(name)).await })
        .await
        .unwrap()
}
