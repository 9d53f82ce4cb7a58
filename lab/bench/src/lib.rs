//! Shared by the benchmarks.

use std::path::{Path, PathBuf};

pub mod disk;
pub mod server;

/// The folder `lab/peers/` of this repository: the programs that use other job servers.
pub fn peers_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers")
}
