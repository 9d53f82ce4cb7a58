//! Runs one process, reads its output, and ends it with all processes that it started.
//!
//! ```text
//! running ── it ends by itself ─────────────────────────────────▶ SIGKILL to what is left of it ─▶ reaped
//!    └────── its time is over, or it must be stopped ─▶ SIGTERM ─▶ its end, at most the grace period ──┘
//! ```

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::group::Group;
use crate::guarded::Guarded;
use crate::lines::{Lines, OnLine, Output};
use crate::{Captured, Guard, Sandbox};

/// How long to wait for remaining output after the command has ended. Only a process that is not of the command and holds the pipe
/// causes this wait.
const DRAIN: Duration = Duration::from_secs(1);
/// The size of the buffer for output.
const PIECE_BYTES: usize = 64 << 10;

/// Variables of turnwise that hold secrets: a token, a password, and URLs that may have a password.
const SECRET_VARIABLES: [&str; 4] =
    ["TURNWISE_TOKEN", "TURNWISE_PASSWORD", "TURNWISE_SERVER", "TURNWISE_STORE"];

/// A process to run.
pub struct Command {
    /// The executable.
    pub program: PathBuf,
    /// The name that it sees as its own, and its arguments.
    pub argv: Vec<OsString>,
    /// Whether it also inherits this process's environment, without the variables that hold turnwise's own secrets.
    pub inherit_env: bool,
    /// Its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory; `None` for this process's.
    pub cwd: Option<PathBuf>,
    /// The input for its stdin; `None` for nothing.
    pub stdin: Option<Vec<u8>>,
    /// How long it may run before it is ended.
    pub timeout: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How many bytes to keep of its stdout, and as many of its stderr.
    pub max_output_bytes: usize,
    /// Gets each line that it prints, while it runs; `None` for nobody. All of its calls are over before [`run`] returns.
    pub on_line: Option<OnLine>,
    /// Runs it, and ends everything that it has started: with the command, and when this process is killed. Without a guard only the
    /// command's process group ends, nothing ends it if this process is killed, and there is no sandbox.
    pub guard: Option<Guard>,
    /// What it may do, if it has a guard. `None` for what this process may do.
    pub sandbox: Option<Sandbox>,
}

impl Command {
    /// The whole environment of the process.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let inherited = self.inherit_env.then(std::env::vars_os).into_iter().flatten();
        let inherited = inherited.filter(|(name, _)| SECRET_VARIABLES.iter().all(|secret| name != secret));
        inherited.chain(self.env.iter().cloned()).collect()
    }
}

/// The result of a process.
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// Why it ended.
    pub cause: Cause,
    /// Its stdout.
    pub stdout: Captured,
    /// Its stderr.
    pub stderr: Captured,
    /// How long it ran.
    pub duration: Duration,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Own,
    /// Its timeout passed.
    TimedOut,
    /// The caller stopped it.
    Stopped,
}

/// Why a process could not be started. The texts repeat nothing of the command.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A permanent error: it can never start like this.
    #[error("{0}")]
    Wrong(String),
    /// A transient error: it may start another time.
    #[error("the command cannot be started now: {0}")]
    NotNow(io::Error),
}

impl StartError {
    /// Divides the errors of a start into permanent and transient ones.
    pub(crate) fn new(error: io::Error) -> StartError {
        let wrong = match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => {
                "argv[0]: the program, or the interpreter that its first line names, is not there"
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                "argv[0] or cwd: the user of commands has no permission for it"
            }
            Some(Errno::NOEXEC) => {
                "argv[0]: this file is no program for this machine, or a script without `#!`"
            }
            Some(Errno::TOOBIG) => {
                "argv, env: together they are longer than the system allows; use stdin or a file"
            }
            _ if error.kind() == io::ErrorKind::InvalidInput => return StartError::nul(),
            _ => return StartError::NotNow(error),
        };
        StartError::Wrong(wrong.to_owned())
    }

    pub(crate) fn nul() -> StartError {
        StartError::Wrong("argv, env and cwd must not contain NUL characters".to_owned())
    }

    pub(crate) fn no_folder() -> StartError {
        StartError::Wrong("cwd: there is no such folder where the command runs".to_owned())
    }
}

/// A process that runs.
enum Running {
    Guarded(Guarded),
    /// Without a guard.
    Group(Group),
}

impl Running {
    async fn start(command: &Command) -> Result<Running, StartError> {
        if command.argv.is_empty() {
            return Err(StartError::Wrong("argv is empty".to_owned()));
        }
        match &command.guard {
            Some(guard) => Guarded::start(guard, command).await.map(Running::Guarded),
            None => Group::start(command).map(Running::Group),
        }
    }

    fn outputs(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let child = match self {
            Running::Guarded(guarded) => &mut guarded.guard,
            Running::Group(group) => &mut group.command,
        };
        (child.stdout.take(), child.stderr.take())
    }

    /// Waits until the command has ended. It may be dropped and called again.
    async fn ended(&mut self) -> Result<(), StartError> {
        match self {
            Running::Guarded(guarded) => guarded.ended().await,
            Running::Group(group) => group.ended().await,
        }
    }

    /// Sends SIGTERM. Returns how long to wait for the end.
    fn stop(&self, grace: Duration) -> Duration {
        match self {
            Running::Guarded(guarded) => guarded.stop(grace),
            Running::Group(group) => group.stop(grace),
        }
    }

    /// Kills what is left.
    async fn reap(&mut self) -> Result<Exit, StartError> {
        match self {
            Running::Guarded(guarded) => guarded.reap().await,
            Running::Group(group) => group.reap().await,
        }
    }
}

/// Runs a process to its end. With a guard, everything that it has started has then ended, too. Dropping the future kills the same.
///
/// # Errors
/// The process could not be started.
pub async fn run(command: Command, stop: CancellationToken) -> Result<Finished, StartError> {
    let started = Instant::now();
    let mut running = Running::start(&command).await?;
    let stdout = Mutex::new(Received::new(&command, Output::Stdout));
    let stderr = Mutex::new(Received::new(&command, Output::Stderr));
    let (out, err) = running.outputs();
    let mut reading = std::pin::pin!(join(read(out, &stdout), read(err, &stderr)));
    let mut open = true;
    let mut timeout = std::pin::pin!(sleep(command.timeout));

    let cause = loop {
        tokio::select! {
            biased;
            ended = running.ended() => {
                ended?;
                break Cause::Own;
            }
            () = stop.cancelled() => break Cause::Stopped,
            () = &mut timeout => break Cause::TimedOut,
            _ = &mut reading, if open => open = false,
        }
    };
    if cause != Cause::Own {
        let mut patience = std::pin::pin!(sleep(Some(running.stop(command.grace))));
        let mut runs = true;
        // Processes that the command has started may need the grace period, too. They exist at least as long as the pipes are
        // open.
        while runs || open {
            tokio::select! {
                biased;
                ended = running.ended(), if runs => {
                    ended?;
                    runs = false;
                }
                _ = &mut reading, if open => open = false,
                () = &mut patience => break,
            }
        }
    }
    let exit = running.reap().await?;
    if open {
        let _ = tokio::time::timeout(DRAIN, reading.as_mut()).await;
    }
    let duration = started.elapsed();
    Ok(Finished { exit, cause, stdout: lock(&stdout).end(), stderr: lock(&stderr).end(), duration })
}

/// What was received of an output.
struct Received<'a> {
    captured: Captured,
    lines: Option<Lines<'a>>,
}

impl<'a> Received<'a> {
    fn new(command: &'a Command, output: Output) -> Received<'a> {
        let lines = command.on_line.as_ref().map(|on_line| Lines::new(output, on_line));
        Received { captured: Captured::new(command.max_output_bytes), lines }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.captured.push(bytes);
        if let Some(lines) = &mut self.lines {
            lines.push(bytes);
        }
    }

    /// The last line may have no end.
    fn end(&mut self) -> Captured {
        if let Some(mut lines) = self.lines.take() {
            lines.end();
        }
        self.captured.clone()
    }
}

/// Sleeps; forever without a duration.
async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, received: &Mutex<Received<'_>>) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = vec![0; PIECE_BYTES];
    // An error ends the loop like the end of the pipe, because no more output can be read.
    while let Ok(n @ 1..) = pipe.read(&mut piece).await {
        lock(received).push(&piece[..n]);
    }
}

fn lock<T>(received: &Mutex<T>) -> MutexGuard<'_, T> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}
