//! The binary `turnwise`, for tests of other packages. Only tests of its own package have its path from cargo (`CARGO_BIN_EXE_turnwise`).

use std::path::PathBuf;

/// The binary in the folder in which cargo has built the running test program. `cargo test --workspace` builds it before it runs a test. A
/// test of one package uses the binary of an earlier build.
///
/// # Panics
/// If it is missing.
pub fn turnwise_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test program knows its path");
    // Test programs are in `deps`, binaries in the folder above.
    let binary = test.ancestors().nth(2).expect("a test program is in cargo's folder").join("turnwise");
    assert!(binary.is_file(), "{} is missing: run `cargo build -p turnwise-cli`", binary.display());
    binary
}
