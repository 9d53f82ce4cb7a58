//! Builds all test programs and runs several at the same time. Most of them wait more than they compute: for a heartbeat
//! timeout, a server's start, a disk. So they begin while cargo still compiles others. `cargo test` compiles all first, and
//! then runs one after another.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};

use crate::command::{self, Beside, Failure, cargo, root};
use crate::{bench, failures};

/// The number of test programs that run at the same time. Two keep the processors busy; with more, servers of tests do not answer in time.
const AT_ONCE: usize = 2;
/// The number of tests that such a program runs at the same time, per processor; the test harness runs one. Programs that kill nodes or
/// measure keep to that.
const TESTS_PER_PROCESSOR: usize = 2;
/// Tells the test harness how many tests run at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// The packages whose test programs kill nodes that must come back in time, or need the binary, or have transactions of at most
/// five seconds on real stores. They run when the others have ended, and all is compiled and checked.
const FAULTS: [&str; 4] = ["crates/cli", "crates/store", "lab/chaos", "lab/soak"];
/// The targets of these packages that need the whole machine, because they measure slots, memory and times under load. They run last, one
/// after the other.
const ALONE: [&str; 3] = ["chaos", "end_to_end", "soak"];
/// Compilers and checks leave the processor to the test programs: these have timeouts.
const LOW_PRIORITY: [&str; 3] = ["nice", "-n", "10"];
/// How many lines are repeated of a program that fails without the name of a failed test.
const LAST_LINES: usize = 40;

/// A program that cargo has built from tests.
#[derive(Debug, PartialEq)]
struct Program {
    /// The folder of its package, which is its working directory.
    package: PathBuf,
    executable: PathBuf,
}

/// Gives a command the environment of `tests`.
fn set_env(command: &mut Command, tests: &Command) {
    command.envs(tests.get_envs().filter_map(|(key, value)| Some((key, value?))));
}

/// The same `cargo test` as `tests`, with further arguments.
fn cargo_test(tests: &Command, arguments: &[&str]) -> Command {
    let mut command = low_priority(&cargo());
    set_env(&mut command, tests);
    command.args(tests.get_args()).args(arguments);
    command
}

/// The same program without arguments, in the root of the repository, at a low priority.
fn low_priority(program: &Command) -> Command {
    let mut command = Command::new(LOW_PRIORITY[0]);
    command.args(&LOW_PRIORITY[1..]).arg(program.get_program()).current_dir(root());
    command
}

/// Cargo, while it builds the test programs. It is killed when this is dropped.
pub struct Build {
    child: Beside,
    /// The programs, each as soon as it is built.
    programs: Receiver<Program>,
}

impl Build {
    /// Begins to build what the `cargo test` of `tests` runs.
    pub fn start(tests: &Command) -> Result<Build, Failure> {
        let mut command = cargo_test(tests, &["--no-run", "--message-format", "json-render-diagnostics"]);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(cannot_run)?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, programs) = mpsc::channel();
        std::thread::spawn(move || {
            for program in output.lines().map_while(Result::ok).filter_map(|line| program(&line)) {
                if sender.send(program).is_err() {
                    return;
                }
            }
        });
        Ok(Build { child: Beside(child), programs })
    }

    /// Passes each program on when it is built. Fails if something could not be built.
    fn each(&mut self, take: impl FnMut(Program)) -> command::Result {
        self.programs.iter().for_each(take);
        command::judge(&cargo(), self.child.0.wait().map_err(cannot_run)?)
    }
}

fn cannot_run(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot run cargo: {error}"))
}

/// Does what the `cargo test` of `tests` does: runs all test programs, and the tests in the documentation. Once all is built,
/// it also runs the command `beside`, if there is one, beside the programs that may share the processors. The output of a program is
/// printed when it has ended. Fails if a program fails; all run nevertheless. Failures are repeated at the end.
pub fn run(mut build: Build, tests: &Command, beside: Option<&str>) -> command::Result {
    let run = Run { tests, failed: Mutex::default(), given_up: AtomicBool::new(false) };
    let (mut faults, mut alone) = (Vec::new(), Vec::new());
    let (begin, first) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run.programs(first.into_iter(), AT_ONCE));
        let built = build.each(|program| match (program.is_alone(), program.has_faults()) {
            (true, _) => alone.push(program),
            (false, true) => faults.push(program),
            (false, false) => begin.send(program).expect("it is received until all are built"),
        });
        drop(begin);
        if built.is_err() {
            run.given_up.store(true, Ordering::Relaxed);
            return built;
        }
        // One after another: cargo locks the folder in which it builds.
        let others = scope.spawn(|| {
            let documentation = cargo_test(tests, &["--doc"]);
            run.one("     Running documentation", documentation, &run.file("documentation"));
            if let Some(beside) = beside {
                let command = low_priority(&Command::new(beside));
                run.one(&format!("     Running {beside}"), command, &run.file("beside"));
            }
        });
        first.join().expect("it does not panic");
        others.join().expect("it does not panic");
        run.programs(faults.into_iter(), AT_ONCE);
        run.programs(alone.into_iter(), 1);
        Ok(())
    })?;
    let failed = run.failed.into_inner().expect("no thread panics with it");
    for failure in &failed {
        println!("\nFAILED: {failure}");
    }
    match failed.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} tests failed"))),
    }
}

/// What the threads of a run share.
struct Run<'a> {
    /// The `cargo test` whose programs run.
    tests: &'a Command,
    /// The failures, in the order in which the programs ended; also held while the output of a program is printed.
    failed: Mutex<Vec<String>>,
    /// No further program begins.
    given_up: AtomicBool,
}

impl Run<'_> {
    /// Runs programs, several at the same time.
    fn programs(&self, programs: impl Iterator<Item = Program> + Send, at_once: usize) {
        let programs = Mutex::new(programs);
        let next = || programs.lock().expect("no thread panics with it").next();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(program) = next().filter(|_| !self.given_up.load(Ordering::Relaxed)) {
                        let file = program.executable.with_extension("output");
                        self.one(&program.header(), program.command(self.tests), &file);
                    }
                });
            }
        });
    }

    fn file(&self, name: &str) -> PathBuf {
        bench::target().join(name).with_extension("output")
    }

    /// Runs a program to its end. Then prints its output, which is in a file until then.
    fn one(&self, header: &str, mut command: Command, file: &Path) {
        let ended = output(&mut command, file);
        let mut failed = self.failed.lock().expect("no thread panics with it");
        println!("{header}");
        let (output, passed) =
            ended.unwrap_or_else(|error| (format!("cannot run it: {error}\n").into_bytes(), false));
        let failures = failures::pass_on(output.as_slice(), &mut std::io::stdout());
        let failures = failures.unwrap_or_else(|error| vec![error.to_string()]);
        if !passed && failures.is_empty() {
            failed.push(format!("{}\n{}", header.trim(), failures::last_lines(&output, LAST_LINES)));
        }
        failed.extend(failures);
    }
}

/// Runs a program. Returns its output, and whether it succeeded.
fn output(command: &mut Command, path: &Path) -> std::io::Result<(Vec<u8>, bool)> {
    // A file rather than a pipe: a process that a failed test has left behind may keep it open.
    let file = File::create(path)?;
    let status = command.stdout(file.try_clone()?).stderr(file).stdin(Stdio::null()).status()?;
    let output = std::fs::read(path)?;
    std::fs::remove_file(path)?;
    Ok((output, status.success()))
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

    fn header(&self) -> String {
        format!("     Running {} ({})", self.package.display(), self.executable.display())
    }

    fn command(&self, tests: &Command) -> Command {
        let mut command = Command::new(&self.executable);
        set_env(&mut command, tests);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        if !self.has_faults() && std::env::var_os(TEST_THREADS).is_none() {
            let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            command.env(TEST_THREADS, (TESTS_PER_PROCESSOR * processors).to_string());
        }
        command
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
