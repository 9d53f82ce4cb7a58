//! The short form of `cargo xtask chaos`: half a minute on the embedded store.
#![allow(clippy::unwrap_used)]

use turnwise_lab_chaos::{Engine, Options, run};
use turnwise_testkit::turnwise_binary;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_job_ends_once_whatever_fails() {
    let options = Options {
        seconds: 26,
        clients: 8,
        workers: 12,
        jobs_per_second: 25.0,
        // Shorter than usual, so that each kind of fault occurs once. A full disk needs root; the test reports the
        // kinds that it skips.
        calm_ms: (100, 1_000),
        fault_ms: (200, 5_000),
        quiet_ms: (2_000, 4_000),
        ..Options::new(turnwise_binary(), Engine::Embedded)
    };
    run(options).await.unwrap_or_else(|broken| panic!("{broken:#?}"));
}
