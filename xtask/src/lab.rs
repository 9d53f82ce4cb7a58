//! The simulation (`crates/sim`), the soak and the chaos test (`lab/`). Each gets all options of the command.

use std::path::PathBuf;

use crate::command::{Result, cargo, run};
use crate::{bench, foundationdb, peers};

/// `cargo xtask sim`: builds the simulation for speed.
pub fn sim(options: &[&str]) -> Result {
    let program = ["run", "--quiet", "--profile", "sim", "--package", "turnwise-sim", "--"];
    run(cargo().args(program).args(options))
}

/// `cargo xtask soak`: also builds a turnwise for speed, unless there is one.
pub fn soak(options: &[&str]) -> Result {
    peers::install()?;
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "turnwise-lab-soak", "--"]);
    if !options.contains(&"--turnwise") && !options.contains(&"--help") {
        run(cargo().args(["build", "--release", "--package", "turnwise-cli"]))?;
        command.arg("--turnwise").arg(bench::target().join("release").join("turnwise"));
    }
    run(command.args(options))
}

/// `cargo xtask chaos`: also builds a turnwise, unless there is one, and what the store needs.
pub fn chaos(options: &[&str]) -> Result {
    let value = |name: &str| Some(*options.get(1 + options.iter().position(|option| *option == name)?)?);
    let debug = options.contains(&"--debug-build");
    let profile: &[&str] = if debug { &[] } else { &["--release"] };
    let program = ["--quiet", "--package", "turnwise-lab-chaos", "--"];
    let mut command = cargo();
    command.arg("run").args(profile).args(program);
    if options.contains(&"--help") {
        return run(command.arg("--help"));
    }
    let mut build = cargo();
    build.arg("build").args(profile).args(["--package", "turnwise-cli"]);
    match value("--store") {
        Some("etcd") => peers::install_etcd()?,
        Some("foundationdb") => {
            let program = value("--start-foundationdb").map_or_else(foundationdb::program, PathBuf::from);
            let Some(client) = foundationdb::client(&program)? else {
                println!("left out: FoundationDB, which {} would start", program.display());
                return Ok(());
            };
            foundationdb::set_client_env(build.args(["--features", "foundationdb"]), &client);
            foundationdb::set_client_env(&mut command, &client);
            if value("--start-foundationdb").is_none() {
                command.arg("--start-foundationdb").arg(program);
            }
        }
        _ => {}
    }
    if value("--turnwise").is_none() {
        run(&mut build)?;
        let folder = bench::target().join(if debug { "debug" } else { "release" });
        command.arg("--turnwise").arg(folder.join("turnwise"));
    }
    run(command.args(options.iter().filter(|option| **option != "--debug-build")))
}
