//! The chaos test: `lab/chaos`, with a turnwise that is built for it.

use std::path::PathBuf;

use crate::command::{Result, cargo, run};
use crate::{bench, foundationdb, peers};

/// `cargo xtask chaos`: builds what the store needs, and passes all options to the program.
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
    build.arg("build").args(profile).args(["--package", "turnwise"]);
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
