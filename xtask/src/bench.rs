//! The benchmarks: the programs of `lab/bench`.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{Failure, Result, cargo, root, run};
use crate::peers;

/// turnwise compared with PouchDB's replicator: `lab/bench/src/bin/replicate`.
pub fn replicate(options: &[&str]) -> Result {
    peers::install()?;
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    run(program("replicate", &[]).arg("--turnwise").arg(binary).args(options))
}

/// The cost of idle replications between two CouchDBs: `lab/bench/src/bin/idle`.
pub fn idle(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    run(program("idle", &[]).arg("--turnwise").arg(binary).args(options))
}

/// Keeping the indexes of a CouchDB up to date, by turnwise and by CouchDB itself: `lab/bench/src/bin/indexing.rs`.
pub fn indexing(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    run(program("indexing", &[]).arg("--turnwise").arg(binary).args(options))
}

/// turnwise compared with other job servers: `lab/bench/src/bin/queue`.
pub fn queue(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    let apalis = apalis_target().join("release").join("bench-apalis");
    run(program("queue", &[]).arg("--turnwise").arg(binary).arg("--apalis").arg(apalis).args(options))
}

/// What many jobs of a tenant cost the others, in turnwise and in other job servers: `lab/bench/src/bin/fairness`.
pub fn fairness(options: &[&str]) -> Result {
    run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
    let binary = target().join("release").join("turnwise");
    run(program("fairness", &[]).arg("--turnwise").arg(binary).args(options))
}

/// Nodes on a shared store: `lab/bench/src/bin/cluster`. Includes FoundationDB only if there is a cluster, because its engine
/// must link libfdb_c.
pub fn cluster(options: &[&str]) -> Result {
    peers::install_etcd()?;
    let foundationdb = ["--features", "foundationdb"];
    let features: &[&str] = if std::env::var_os("FDB_CLUSTER_FILE").is_some() { &foundationdb } else { &[] };
    // The members' data are temporary files. They must be on the disk, not on a file system in memory.
    let dir = target().join("bench-cluster");
    std::fs::create_dir_all(&dir).map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
    run(program("cluster", features).env("TMPDIR", dir).args(options))
}

/// Installs the job servers with which [`queue`] compares turnwise.
pub fn setup() -> Result {
    peers::install_servers()?;
    peers::install_bench()?;
    let manifest = root().join("lab/peers/apalis/Cargo.toml");
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

/// The embedded store: `lab/bench/src/bin/store.rs`.
pub fn store(options: &[&str]) -> Result {
    run(program("store", &[]).args(options))
}

/// Builds and runs a program of the package. Its own arguments follow.
fn program(name: &str, features: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "turnwise-lab-bench", "--bin", name]);
    command.args(features).arg("--");
    command
}
