//! The simulation: `crates/sim`, built for speed.

use crate::command::{Result, cargo, run};

/// `cargo xtask sim`: passes all options to the program that runs worlds.
pub fn sim(options: &[&str]) -> Result {
    let program = ["run", "--quiet", "--profile", "sim", "--package", "turnwise-sim", "--"];
    run(cargo().args(program).args(options))
}
