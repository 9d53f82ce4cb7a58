//! Small files that the configuration names: certificates and keys. And who may use the files that are not for everyone.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Largest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file.
///
/// # Errors
/// It cannot be read, or is too large, in one line that names it.
pub fn read(file: &Path) -> Result<Vec<u8>, String> {
    let problem = |problem: String| format!("{}: {problem}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| problem(error.to_string()))?.len();
    if bytes > MAX_BYTES {
        return Err(problem(format!("has {bytes} bytes; at most {MAX_BYTES} are read")));
    }
    std::fs::read(file).map_err(|error| problem(error.to_string()))
}

/// The permissions that a file must not grant: any to others, and writing to its group.
const PUBLIC: u32 = 0o037;
/// The same, and reading to its group.
const SHARED: u32 = 0o077;

/// Checks that only its owner may use a file with keys. A file of root may be readable for a group: it is how a server that
/// runs as another user gets it.
///
/// # Errors
/// Others may use it, or it cannot be found, in one line that names it and the command that corrects it.
pub fn check_secret(file: &Path) -> Result<(), String> {
    check(file, |owner| if owner == 0 { PUBLIC } else { SHARED }, "600")
}

/// Checks that only its owner may write a file, and only its group may read it, too.
pub fn check_protected(file: &Path) -> Result<(), String> {
    check(file, |_| PUBLIC, "640")
}

fn check(file: &Path, denied: impl Fn(u32) -> u32, right: &str) -> Result<(), String> {
    let file_name = file.display();
    let found = std::fs::metadata(file).map_err(|error| format!("{file_name}: {error}"))?;
    let mode = found.mode() & 0o777;
    // A pipe or a device has its own rules.
    if found.is_file() && mode & denied(found.uid()) != 0 {
        return Err(format!(
            "{file_name}: its mode {mode:o} lets other users in: chmod {right} '{file_name}'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_may_use_is_refused_with_the_command_that_corrects_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a key");
        std::fs::write(&file, "x").unwrap();
        let is_of_root = std::fs::metadata(&file).unwrap().uid() == 0;
        for (mode, secret, protected) in [
            (0o400, true, true),
            (0o600, true, true),
            (0o640, is_of_root, true),
            (0o660, false, false),
            (0o644, false, false),
            (0o604, false, false),
            (0o602, false, false),
        ] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_secret(&file).is_ok(), secret, "{mode:o}");
            assert_eq!(check_protected(&file).is_ok(), protected, "{mode:o}");
        }
        let problem = check_secret(&file).unwrap_err();
        assert!(problem.ends_with(&format!("mode 602 lets other users in: chmod 600 '{}'", file.display())));
        assert!(check_secret(Path::new("/dev/null")).is_ok(), "no file");
        assert!(check_secret(&folder.path().join("none")).unwrap_err().contains("none"));
    }
}
