//! The benchmarks. Each is an example program of the crate that it measures or that holds its tools.

use crate::command::{Result, cargo, root, run};
use crate::peers;

/// turnwise beside PouchDB's replicator: `crates/testkit/examples/bench_replicate`.
pub fn replicate(options: &[&str]) -> Result {
    peers::install()?;
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |folder| root().join(folder));
    let binary = target.join("release").join("turnwise");
    let example =
        ["--release", "--quiet", "--package", "turnwise-testkit", "--example", "bench_replicate", "--"];
    run(cargo().arg("run").args(example).arg("--turnwise").arg(binary).args(options))
}

/// The embedded store: `crates/store/examples/bench_store.rs`.
pub fn store(options: &[&str]) -> Result {
    let example = ["--release", "--quiet", "--package", "turnwise-store", "--example", "bench_store", "--"];
    run(cargo().arg("run").args(example).args(options))
}
