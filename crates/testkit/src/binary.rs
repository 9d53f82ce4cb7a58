//! The binary `turnwise`, for tests of other packages. Only tests of its own package have its path from cargo (`CARGO_BIN_EXE_turnwise`).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The binary that cargo has built into the same folder as the running test program. `cargo test --workspace` builds both.
///
/// # Panics
/// If it is missing, or older than one of its sources.
pub fn turnwise_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test program knows its path");
    // Test programs are in `deps`, binaries in the folder above.
    let binary = test.ancestors().nth(2).expect("a test program is in cargo's folder").join("turnwise");
    let built = modified(&binary);
    assert!(built.is_some(), "{} is missing: run `cargo build -p turnwise`", binary.display());
    // "BINARY: SOURCE SOURCE…"
    let sources = std::fs::read_to_string(binary.with_extension("d")).expect("cargo lists the sources");
    for source in sources.split_whitespace().skip(1) {
        let is_newer = modified(Path::new(source)) > built;
        assert!(!is_newer, "{source} is newer than {}: run `cargo build -p turnwise`", binary.display());
    }
    binary
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}
