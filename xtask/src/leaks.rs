//! Secrets that appeared in a log, a panic, an error or a response during the tests. `turnwise_testkit::canary` writes each
//! finding into a file. A test run with such a file has failed, even if every test has passed.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{Failure, Result, remove_folder};

/// The variable that names the folder for findings. It equals `turnwise_testkit::canary::FOLDER_VARIABLE`.
const VARIABLE: &str = "TURNWISE_TEST_LEAKS";

/// The folder for the findings of one run.
pub struct Folder(PathBuf);

impl Folder {
    /// A folder without the findings of an earlier run.
    pub fn empty(folder: PathBuf) -> std::result::Result<Self, Failure> {
        remove_folder(&folder)?;
        Ok(Self(folder))
    }

    /// Sets the folder for the tests of a command.
    pub fn set_env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(VARIABLE, &self.0)
    }

    /// Fails if the run has findings.
    pub fn verdict(&self) -> Result {
        let Ok(files) = self.0.read_dir() else { return Ok(()) };
        let findings = files.flatten().map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
        let findings: Vec<String> = findings.collect();
        if findings.is_empty() {
            return Ok(());
        }
        let count = findings.len();
        Err(Failure::new(format!(
            "secrets appeared in {count} places where they must not be:\n{}",
            findings.concat()
        )))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("turnwise-xtask-{name}-{}", std::process::id()))
    }

    #[test]
    fn one_finding_fails_the_run_and_is_shown() {
        let leaks = Folder::empty(folder("one")).unwrap();
        assert!(leaks.verdict().is_ok(), "there is none");
        std::fs::create_dir_all(&leaks.0).unwrap();
        std::fs::write(leaks.0.join("a"), "a-test: the log: Authorization: Basic abc\n").unwrap();
        let failure = leaks.verdict().unwrap_err();
        assert!(failure.message.contains("Basic abc") && failure.code != 0, "{failure:?}");
        let next = Folder::empty(leaks.0).unwrap();
        assert!(next.verdict().is_ok(), "the next run has no findings");
    }

    #[test]
    fn the_tests_get_the_folder_for_findings() {
        let leaks = Folder::empty(folder("env")).unwrap();
        let mut command = Command::new("true");
        leaks.set_env(&mut command);
        let env: Vec<_> = command.get_envs().collect();
        assert_eq!(env, [(VARIABLE.as_ref(), Some(leaks.0.as_os_str()))]);
    }

    #[test]
    fn both_sides_name_the_folder_alike() {
        let testkit = include_str!("../../crates/testkit/src/canary.rs");
        assert!(testkit.contains(&format!("FOLDER_VARIABLE: &str = \"{VARIABLE}\"")));
    }
}
