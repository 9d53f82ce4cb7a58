//! Builds all test programs and runs several at the same time. Most of them wait more than they compute: for a heartbeat
//! timeout, a server's start, a disk. `cargo test` runs one after another.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::command::{self, Failure, cargo};
use crate::failures;

/// The number of test programs that run at the same time.
const AT_ONCE: usize = 3;
/// The packages whose test programs kill nodes that must come back in time. They run together when the others have ended:
/// much of their time, they wait for a timeout.
const FAULTS: [&str; 3] = ["crates/cli", "lab/chaos", "lab/soak"];
/// The targets of these packages that need the whole machine, because they measure slots and memory. They run last.
const ALONE: [&str; 1] = ["end_to_end"];

/// A program that cargo has built from tests.
#[derive(Debug, PartialEq)]
struct Program {
    /// The folder of its package, which is its working directory.
    package: PathBuf,
    executable: PathBuf,
}

/// The environment and the arguments for cargo which select what is built, as `tests` has them.
struct Selection {
    environment: Vec<(OsString, Option<OsString>)>,
    arguments: Vec<OsString>,
}

impl Selection {
    fn of(tests: &Command) -> Selection {
        let environment =
            tests.get_envs().map(|(key, value)| (key.to_owned(), value.map(OsString::from))).collect();
        Selection { environment, arguments: tests.get_args().map(OsString::from).collect() }
    }

    /// Gives a command the environment.
    fn set_env(&self, command: &mut Command) {
        for (key, value) in &self.environment {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
    }

    /// The same `cargo test`, with further arguments.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        self.set_env(&mut command);
        command.args(&self.arguments).args(arguments);
        command
    }
}

/// Does what the `cargo test` of `tests` does: runs all test programs, then the tests in the documentation. The output of a
/// program is printed when it has ended. Fails if a program fails; all run nevertheless. Failures are repeated at the end.
pub fn run(tests: &Command) -> command::Result {
    let selection = Selection::of(tests);
    let (alone, others): (VecDeque<_>, VecDeque<_>) =
        build(&selection)?.into_iter().partition(Program::is_alone);
    let (faults, others) = others.into_iter().partition(Program::has_faults);
    // The failures of all programs, in the order in which they ended; also held while a program's output is printed.
    let failed = Mutex::new(Vec::new());
    for (programs, at_once) in [(others, AT_ONCE), (faults, AT_ONCE), (alone, 1)] {
        let queue: Mutex<VecDeque<Program>> = Mutex::new(programs);
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(program) = next(&queue) {
                        let (header, output, passed) = program.run(&selection);
                        let mut failed = failed.lock().expect("no thread panics with it");
                        println!("{header}");
                        let failures = failures::pass_on(output.as_slice(), &mut std::io::stdout());
                        let failures = failures.unwrap_or_else(|error| vec![error.to_string()]);
                        if !passed && failures.is_empty() {
                            failed.push(header.trim().to_owned());
                        }
                        failed.extend(failures);
                    }
                });
            }
        });
    }
    let documentation = failures::repeated(&mut selection.cargo(&["--doc"]));
    let failed = failed.into_inner().expect("no thread panics with it");
    for failure in &failed {
        println!("\nFAILED: {failure}");
    }
    match failed.len() {
        0 => documentation,
        count => Err(Failure::new(format!("{count} tests failed"))),
    }
}

fn next(queue: &Mutex<VecDeque<Program>>) -> Option<Program> {
    queue.lock().expect("no thread panics with it").pop_front()
}

/// Builds the programs.
fn build(selection: &Selection) -> Result<Vec<Program>, Failure> {
    let mut build = selection.cargo(&["--no-run", "--message-format", "json-render-diagnostics"]);
    let cannot = |error: std::io::Error| Failure::new(format!("cannot run cargo: {error}"));
    let mut child = build.stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut programs = Vec::new();
    for line in output.lines() {
        programs.extend(program(&line.map_err(cannot)?));
    }
    command::judge(&build, child.wait().map_err(cannot)?)?;
    Ok(programs)
}

/// The test program that one of cargo's messages names, if it names one.
fn program(message: &str) -> Option<Program> {
    // Its target has a field `test`, too: whether `cargo test` includes it.
    let (_, profile) = message.split_once(r#""profile":{"#)?;
    if !profile.split_once('}')?.0.ends_with(r#""test":true"#) {
        return None;
    }
    let manifest = field(message, "manifest_path")?;
    Some(Program { package: manifest.parent()?.to_owned(), executable: field(message, "executable")? })
}

/// The path in a field of cargo's JSON. No path of a repository needs an escape.
fn field(message: &str, name: &str) -> Option<PathBuf> {
    let (_, value) = message.split_once(&format!(r#""{name}":""#))?;
    Some(PathBuf::from(value.split_once('"')?.0))
}

impl Program {
    fn has_faults(&self) -> bool {
        FAULTS.iter().any(|package| self.package.ends_with(package))
    }

    fn is_alone(&self) -> bool {
        let name = self.executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.has_faults() && ALONE.iter().any(|target| name.starts_with(target))
    }

    /// Runs it. Returns the line that announces it, its output, and whether it succeeded.
    fn run(&self, selection: &Selection) -> (String, Vec<u8>, bool) {
        let header = format!("     Running {} ({})", self.package.display(), self.executable.display());
        match self.output(selection) {
            Ok((output, passed)) => (header, output, passed),
            Err(error) => (header, format!("cannot run it: {error}\n").into_bytes(), false),
        }
    }

    fn output(&self, selection: &Selection) -> std::io::Result<(Vec<u8>, bool)> {
        // A file rather than a pipe: a process that a failed test has left behind may keep it open.
        let path = self.executable.with_extension("output");
        let file = File::create(&path)?;
        let mut command = Command::new(&self.executable);
        selection.set_env(&mut command);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        let status = command.stdout(file.try_clone()?).stderr(file).stdin(Stdio::null()).status()?;
        let output = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        Ok((output, status.success()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn test_programs_are_distinguished_from_other_artifacts() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":"/r/crates/cli/Cargo.toml","target":{{"kind":["test"],"test":true}},"profile":{{"opt_level":"0","test":{test}}},"features":[],"executable":{executable},"fresh":true}}"#
            )
        };
        let built = Program { package: "/r/crates/cli".into(), executable: "/t/deps/end_to_end-1".into() };
        assert_eq!(program(&artifact(true, r#""/t/deps/end_to_end-1""#)), Some(built));
        assert_eq!(program(&artifact(false, r#""/t/turnwise""#)), None);
        assert_eq!(program(&artifact(true, "null")), None);
    }
}
