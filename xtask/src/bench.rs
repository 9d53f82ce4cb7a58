//! The benchmarks. Each is an example program in the crate that it measures or that holds its tools.

use std::path::PathBuf;

use crate::command::{Failure, Result, cargo, root, run};
use crate::peers;

/// turnwise compared with PouchDB's replicator: `crates/testkit/examples/bench_replicate`.
pub fn replicate(options: &[&str]) -> Result {
    peers::install()?;
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    let example =
        ["--release", "--quiet", "--package", "turnwise-testkit", "--example", "bench_replicate", "--"];
    run(cargo().arg("run").args(example).arg("--turnwise").arg(binary).args(options))
}

/// The cost of idle replications between two CouchDBs: `crates/testkit/examples/bench_idle`.
pub fn idle(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    let example = ["--release", "--quiet", "--package", "turnwise-testkit", "--example", "bench_idle", "--"];
    run(cargo().arg("run").args(example).arg("--turnwise").arg(binary).args(options))
}

/// turnwise compared with other job servers: `crates/testkit/examples/bench_queue`.
pub fn queue(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    let apalis = apalis_target().join("release").join("bench-apalis");
    let example = ["--release", "--quiet", "--package", "turnwise-testkit", "--example", "bench_queue", "--"];
    run(cargo()
        .arg("run")
        .args(example)
        .arg("--turnwise")
        .arg(binary)
        .arg("--apalis")
        .arg(apalis)
        .args(options))
}

/// Nodes on a shared store: `crates/testkit/examples/bench_cluster`. Includes FoundationDB only if there is a cluster, because its engine
/// must link libfdb_c.
pub fn cluster(options: &[&str]) -> Result {
    peers::install_etcd()?;
    let mut command = cargo();
    command.args([
        "run",
        "--release",
        "--quiet",
        "--package",
        "turnwise-testkit",
        "--example",
        "bench_cluster",
    ]);
    if std::env::var_os("FDB_CLUSTER_FILE").is_some() {
        command.args(["--features", "turnwise-store/foundationdb"]);
    }
    // The members' data are temporary files. They must be on the disk, not on a file system in memory.
    let dir = target().join("bench-cluster");
    std::fs::create_dir_all(&dir).map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
    run(command.env("TMPDIR", dir).arg("--").args(options))
}

/// Installs the job servers with which [`queue`] compares turnwise.
pub fn setup() -> Result {
    peers::install_servers()?;
    peers::install_bench()?;
    let manifest = root().join("peers/apalis/Cargo.toml");
    let build = ["build", "--release", "--locked", "--manifest-path"];
    run(cargo().args(build).arg(manifest).arg("--target-dir").arg(apalis_target()))
}

/// The folder that cargo builds in.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The build folder for a program of another workspace, so that the two builds do not overwrite each other.
fn apalis_target() -> PathBuf {
    target().join("apalis")
}

/// The embedded store: `crates/store/examples/bench_store.rs`.
pub fn store(options: &[&str]) -> Result {
    let example = ["--release", "--quiet", "--package", "turnwise-store", "--example", "bench_store", "--"];
    run(cargo().arg("run").args(example).args(options))
}
