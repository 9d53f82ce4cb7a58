//! Shared by the benchmarks.

use std::path::{Path, PathBuf};

pub mod disk;
pub mod http_client;
pub mod server;

/// The allocator of the shipped binary, for what runs within the benchmarks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The folder `lab/peers/` of this repository: the programs that use other job servers.
pub fn peers_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers")
}

/// Why a package of npm cannot be used here, if it cannot.
pub fn missing_package(package: &str) -> Option<String> {
    let folder = peers_folder().join("node_modules").join(package);
    (!folder.is_dir() || !server::is_installed("node")).then(|| format!("npm's {package} is not installed"))
}

/// Creates an empty folder.
pub fn empty(dir: &Path) -> Result<PathBuf, String> {
    remove(dir)?;
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir.to_owned())
}

/// Removes a folder, if it exists.
pub fn remove(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}
