//! Finds the program that a command names, and checks that it is allowed.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The programs that jobs may run.
///
/// A list of names is not a sandbox. An allowed program does what its arguments and its environment state. If a job may run a
/// shell or an interpreter, it can run everything.
#[derive(Debug, Clone, Default)]
pub enum Programs {
    /// All programs.
    #[default]
    All,
    /// Only these. A name allows the program of that name on the `PATH` of this process, a path only itself.
    Only(Vec<String>),
}

impl Programs {
    /// Finds the program that a command's first argument names. It searches `path`, or the `PATH` of this process if that is
    /// `None`. With a list of programs, it searches only the `PATH` of this process, so that a job cannot substitute its own
    /// program.
    ///
    /// # Errors
    /// What is wrong, without repeating the argument, which may be secret.
    pub fn find(&self, name: &str, path: Option<&OsStr>, cwd: Option<&Path>) -> Result<PathBuf, String> {
        let own = std::env::var_os("PATH");
        let found = match self {
            Programs::All => search(name, path.or(own.as_deref()), cwd),
            Programs::Only(allowed) => {
                let found = search(name, own.as_deref(), cwd);
                let same = |allowed: &String| match allowed.contains('/') {
                    true => found.as_deref() == Ok(Path::new(allowed)),
                    false => name == allowed,
                };
                if !allowed.iter().any(same) {
                    return Err(format!(
                        "argv[0]: this program may not be run here; allowed are: {}",
                        allowed.join(", ")
                    ));
                }
                found
            }
        };
        found.map_err(|problem| format!("argv[0]: {problem}"))
    }
}

fn search(name: &str, path: Option<&OsStr>, cwd: Option<&Path>) -> Result<PathBuf, &'static str> {
    if name.contains('/') {
        let program = cwd.unwrap_or(Path::new("")).join(name);
        return match (program.is_file(), is_executable(&program)) {
            (_, true) => Ok(program),
            (true, false) => Err("this file cannot be executed: set its permission with chmod +x"),
            (false, false) => Err("there is no such program"),
        };
    }
    let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let mut candidates = folders.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(name));
    candidates
        .find(|program| is_executable(program))
        .ok_or("there is no such program on the PATH: install it where the command runs, or give its path")
}

fn is_executable(program: &Path) -> bool {
    program.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_searched_and_paths_are_taken() {
        let all = Programs::All;
        let sh = all.find("sh", None, None).unwrap();
        assert!(sh.is_absolute() && sh.ends_with("sh"));
        assert_eq!(all.find("/bin/sh", None, None).unwrap(), Path::new("/bin/sh"));
        assert_eq!(all.find("./sh", None, Some(Path::new("/bin"))).unwrap(), Path::new("/bin/./sh"));
        assert!(all.find("sh", Some(OsStr::new("/nowhere")), None).unwrap_err().contains("PATH"));
        assert!(all.find("/etc/passwd", None, None).unwrap_err().contains("chmod"));
        let problem = all.find("curl -u me:secret", None, None).unwrap_err();
        assert!(!problem.contains("secret"), "{problem}");
    }

    #[test]
    fn a_list_allows_what_it_names_and_nothing_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let fake = folder.path().join("sh");
        std::fs::write(&fake, "").unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        let only = |name: &str| Programs::Only(vec![name.to_owned()]);
        let own = only("sh").find("sh", Some(folder.path().as_os_str()), None).unwrap();
        assert_ne!(own, fake);
        assert!(only("sh").find(fake.to_str().unwrap(), None, None).is_err());
        assert!(only("sh").find("./sh", None, Some(folder.path())).is_err());
        assert!(only(fake.to_str().unwrap()).find(fake.to_str().unwrap(), None, None).is_ok());
        assert!(only(own.to_str().unwrap()).find("sh", None, None).is_ok());
        let problem = only("sh").find("cat", None, None).unwrap_err();
        assert!(problem.contains("allowed are: sh"), "{problem}");
    }
}
