//! The short form of `cargo xtask soak`: every kind of fault, a few databases, half a minute.
#![allow(clippy::unwrap_used)]

use turnwise_lab_soak::{Options, run};
use turnwise_testkit::turnwise_binary;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_are_equal_after_everything_has_failed() {
    let options = Options {
        seconds: 20,
        databases: 4,
        writes_per_second: 20.0,
        attachment_max_bytes: 1 << 20,
        settle_seconds: 120,
        couchdb: false,
        gateways: false,
        // With the logs of all other crates, because the test searches the log for secrets.
        log: "debug,turnwise=trace".to_owned(),
        ..Options::new(turnwise_binary())
    };
    run(options).await.unwrap_or_else(|broken| panic!("{broken:#?}"));
}
