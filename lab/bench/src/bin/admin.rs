//! Measures rows per second of copy, check and dump: `cargo run --release -p turnwise-lab-bench --bin admin -- JOBS [URL]`. The URL is an
//! empty shared store to copy to and back. Six of ten jobs are pending, two have ended, and two are delayed or crashing; some run. One
//! job in 500 has 200 kB of options.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "it uses a part")]
#[path = "../../../../crates/admin/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use turnwise_admin::copy::Copy;
use turnwise_admin::scan::{Scan, everything};
use turnwise_admin::{check, dump};
use turnwise_lab_bench as _;
use turnwise_queue::Keyspace;
use turnwise_store::{Store, StoreUrl, runtime};

async fn open(url: &StoreUrl) -> Store {
    turnwise_store::open(url, Arc::new(runtime::System)).await.unwrap()
}

/// Copies, and returns the checksum.
async fn copied(what: &str, source: &Store, is_shared: bool, target: &Store) -> String {
    let (source, target) = (source.clone(), target.clone());
    let copy =
        Copy { source, from: what.to_owned(), source_is_shared: is_shared, target, progress: Arc::default() };
    let begun = Instant::now();
    let report = copy.run().await.unwrap();
    say(&format!("copy {what}"), report.rows, begun);
    println!("  {} bytes, sha256 {}", report.bytes, report.checksum);
    report.checksum
}

async fn checked(what: &str, store: &Store, is_shared: bool) {
    let begun = Instant::now();
    let report = check::check(store, is_shared, &check::Progress::default()).await.unwrap();
    assert_eq!(report.findings, []);
    say(&format!("check {what}"), report.rows(), begun);
}

async fn dumped(what: &str, store: &Store) {
    let (begun, keys) = (Instant::now(), Keyspace::default());
    let mut scan = Scan::new(store, everything());
    let (mut rows, mut bytes) = (0, 0);
    while let Some((key, value)) = scan.next().await.unwrap() {
        bytes += dump::line(&keys, &key, &value, false).len();
        rows += 1;
    }
    say(&format!("dump {what}"), rows, begun);
    println!("  {bytes} bytes of text");
}

fn say(what: &str, rows: u64, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{what}: {rows} rows in {seconds:.1} s, {:.0}/s; at most {} kB of memory",
        rows as f64 / seconds,
        memory_kb()
    );
}

/// The peak memory of this process so far, in kB.
fn memory_kb() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("?").to_owned()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(jobs) = arguments.next() else {
        eprintln!("usage: measure JOBS [URL]");
        std::process::exit(2);
    };
    let folder = tempfile::tempdir().unwrap();
    let embedded = |name: &str| StoreUrl::embedded(Path::new(folder.path()).join(name));
    let source = open(&embedded("source")).await;
    let begun = Instant::now();
    common::fill(&source, "u", jobs.parse().unwrap()).await;
    say("fill", jobs.parse().unwrap(), begun);
    checked("embedded", &source, false).await;
    dumped("embedded", &source).await;
    let checksum = copied("embedded to embedded", &source, false, &open(&embedded("target")).await).await;
    if let Some(url) = arguments.next() {
        let shared = open(&url.parse().unwrap()).await;
        assert_eq!(copied("embedded to shared", &source, false, &shared).await, checksum);
        checked("shared", &shared, true).await;
        dumped("shared", &shared).await;
        assert_eq!(
            copied("shared to embedded", &shared, true, &open(&embedded("back")).await).await,
            checksum
        );
    }
}
