//! Makes a store to measure with: `cargo run --release -p turnwise-admin --example fill -- URL JOBS`. Six of ten jobs are pending,
//! two have ended, two are delayed or crashing, some run; one of 500 has 200 kB of options.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(jobs)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: fill URL JOBS");
        std::process::exit(2);
    };
    let (url, jobs) = (url.parse().unwrap(), jobs.parse().unwrap());
    let store = turnwise_store::open(&url, Arc::new(turnwise_store::runtime::System)).await.unwrap();
    common::fill(&store, "u", jobs).await;
}
