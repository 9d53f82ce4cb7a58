//! Small files that the configuration names: certificates, and keys of JSON Web Tokens.

use std::path::Path;

/// Largest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file.
///
/// # Errors
/// It cannot be read, or is too large, in one line that names it.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    let problem = |problem: String| format!("{}: {problem}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| problem(error.to_string()))?.len();
    if bytes > MAX_BYTES {
        return Err(problem(format!("has {bytes} bytes; at most {MAX_BYTES} are read")));
    }
    std::fs::read(file).map_err(|error| problem(error.to_string()))
}
