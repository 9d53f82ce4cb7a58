//! The soak test: `lab/soak`, with a turnwise that is built for speed.

use crate::command::{Result, cargo, run};
use crate::{bench, peers};

/// `cargo xtask soak`: passes all options to the program.
pub fn soak(options: &[&str]) -> Result {
    peers::install()?;
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "turnwise-lab-soak", "--"]);
    if !options.contains(&"--turnwise") && !options.contains(&"--help") {
        run(cargo().args(["build", "--release", "--package", "turnwise"]))?;
        command.arg("--turnwise").arg(bench::target().join("release").join("turnwise"));
    }
    run(command.args(options))
}
