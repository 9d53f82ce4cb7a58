//! The benchmarks: the programs of `lab/bench`.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{Failure, Result, cargo, root, run};
use crate::peers;

/// What the benchmark of the queue needs for Celery.
const CELERY: &str = "celery[redis]==5.7.0";

/// What a program needs to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The binary of turnwise, which the option `--turnwise` names.
    Turnwise,
    /// The same, and the packages of `peers/`.
    TurnwiseAndPeers,
    /// The same, and the job server that `--apalis` names ([`setup`]).
    TurnwiseAndApalis,
    Etcd,
    /// The binary of turnwise, and etcd, members on the disk.
    TurnwiseAndEtcd,
    /// etcd, members on the disk, and FoundationDB's engine if there is a cluster of it.
    Cluster,
}

/// The programs of `lab/bench`, which start by these names.
const PROGRAMS: &[(&str, Needs, &str)] = &[
    (
        "replicate",
        Needs::TurnwiseAndPeers,
        "turnwise beside PouchDB's replicator, between the same two servers",
    ),
    ("idle", Needs::Turnwise, "what thousands of idle replications cost between two CouchDBs"),
    ("indexing", Needs::Turnwise, "how late the indexes of a CouchDB are, built by turnwise and by CouchDB"),
    ("store", Needs::Nothing, "the embedded store: enqueue, claim, finish"),
    ("queue", Needs::TurnwiseAndApalis, "jobs/s of turnwise beside other job servers"),
    ("fairness", Needs::Turnwise, "what a tenant with many jobs costs the others, beside other job servers"),
    ("cluster", Needs::Cluster, "jobs/s of 1, 2 and 3 nodes on etcd, and on FoundationDB where there is one"),
    ("contention", Needs::Nothing, "several workers at the head of one queue, on a store that is given"),
    ("etcd", Needs::Etcd, "transactions on etcd"),
    ("admin", Needs::Nothing, "copy, check and dump of a store"),
    ("lists", Needs::Nothing, "pages of lists of jobs"),
    ("logs", Needs::Turnwise, "dispatch of other jobs beside 1,000 jobs that log"),
    ("groups", Needs::Turnwise, "100,000 jobs without a group, in one group, and as arrays"),
    ("schedules", Needs::Turnwise, "10,000 schedules: idle, and all due at one instant"),
    ("rates", Needs::TurnwiseAndEtcd, "100 starts per second on two nodes, one of which is killed"),
    ("unique", Needs::Turnwise, "adds with unique keys beside adds without"),
    ("costs", Needs::Nothing, "processor time of adding, claiming and ending a job"),
    ("reschedule", Needs::Nothing, "one reschedule, one add and one claim among many pending jobs"),
    ("locking", Needs::Nothing, "passes among jobs that lock, by the length of the window"),
];

/// The lines of the usage.
pub fn usage() -> String {
    let line = |(name, _, what): &(&str, Needs, &str)| {
        format!("       cargo xtask bench {:<24}{what}\n", format!("{name} [OPTION]..."))
    };
    PROGRAMS.iter().map(line).collect()
}

/// Builds and runs one of the programs, and what it needs. `None` if there is none of this name.
pub fn bench(name: &str, options: &[&str]) -> Option<Result> {
    let (name, needs, _) = PROGRAMS.iter().find(|(known, ..)| *known == name)?;
    Some(start(name, *needs, options))
}

fn start(name: &str, needs: Needs, options: &[&str]) -> Result {
    let mut features: &[&str] = &[];
    match needs {
        Needs::TurnwiseAndPeers => peers::install()?,
        Needs::Etcd | Needs::TurnwiseAndEtcd => peers::install_etcd()?,
        Needs::Cluster => {
            peers::install_etcd()?;
            // The engine must link libfdb_c.
            if std::env::var_os("FDB_CLUSTER_FILE").is_some() {
                features = &["--features", "foundationdb"];
            }
        }
        Needs::Nothing | Needs::Turnwise | Needs::TurnwiseAndApalis => {}
    }
    let mut program = program(name, features);
    if !matches!(needs, Needs::Nothing | Needs::Etcd | Needs::Cluster) {
        run(cargo().args(["build", "--release", "--package", "turnwise-cli"]))?;
        program.arg("--turnwise").arg(target().join("release").join("turnwise"));
    }
    if needs == Needs::TurnwiseAndApalis {
        program.arg("--apalis").arg(apalis_target().join("release").join("bench-apalis"));
    }
    if matches!(needs, Needs::Cluster | Needs::TurnwiseAndEtcd) {
        // The members' data are temporary files. They must be on the disk, not on a file system in memory.
        let dir = target().join("bench-cluster");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
        program.env("TMPDIR", dir);
    }
    run(program.args(options))
}

/// Installs the job servers with which `bench queue` compares turnwise, and the clients of turnwise in other languages.
pub fn setup() -> Result {
    peers::install_servers()?;
    peers::install_bench()?;
    let client = root().join("clients/python");
    let python = ["--editable".as_ref(), client.as_os_str(), CELERY.as_ref()];
    peers::install_venv(&target().join("bench-python"), CELERY, &python)?;
    let typescript = root().join("clients/typescript");
    for arguments in [&["ci", "--no-progress"][..], &["run", "build"]] {
        run(Command::new("npm").args(arguments).current_dir(&typescript))?;
    }
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

/// Builds and runs a program of the package. Its own arguments follow.
fn program(name: &str, features: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "turnwise-lab-bench", "--bin", name]);
    command.args(features).arg("--");
    command
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Every program of the laboratory starts by its name, and every name is a program.
    #[test]
    fn every_program_of_the_package_is_in_the_table() {
        let manifest = std::fs::read_to_string(root().join("lab/bench/Cargo.toml")).unwrap();
        let bins = manifest.split("[[bin]]").skip(1);
        let mut programs: Vec<&str> =
            bins.map(|bin| bin.split_once("name = \"").unwrap().1.split('"').next().unwrap()).collect();
        let mut known: Vec<&str> = PROGRAMS.iter().map(|(name, ..)| *name).collect();
        programs.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, programs);
    }
}
