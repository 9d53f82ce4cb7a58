//! Runs one process in its own process group, reads its output, and ends it with all processes that it started.
//!
//! ```text
//! running ── it ends by itself ─────────────────────────────────▶ SIGKILL to what is left of its group ─▶ reaped
//!    └────── its time is over, or it must be stopped ─▶ SIGTERM ─▶ its end, at most the grace period ──┘
//! ```
//!
//! A process group is identified by the process id of its leader. The leader (the guard, or else the command) is reaped last, so
//! that the system cannot reuse the id while signals are sent to it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join;
#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, kill_process_group, waitid,
};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Captured, Guard};

/// How long to wait for remaining output after the group has ended. Only a process that left the group and holds the pipe causes
/// this wait.
const DRAIN: Duration = Duration::from_secs(1);
/// How long a command may live on after its guard if one signal has ended both.
const TOGETHER: Duration = Duration::from_millis(200);
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
    /// Ends it when this process is killed.
    pub guard: Option<Guard>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Runs a process to its end. Its process group has then ended, too. Dropping the future kills the group.
///
/// # Errors
/// The process could not be started.
pub async fn run(command: Command, stop: CancellationToken) -> Result<Finished, StartError> {
    let started = Instant::now();
    let mut group = Group::start(&command)?;
    let stdout = Mutex::new(Captured::new(command.max_output_bytes));
    let stderr = Mutex::new(Captured::new(command.max_output_bytes));
    let (out, err) = (group.command.stdout.take(), group.command.stderr.take());
    let mut reading = std::pin::pin!(join(read(out, &stdout), read(err, &stderr)));
    let mut open = true;
    let mut timeout = std::pin::pin!(sleep(command.timeout));

    let cause = loop {
        tokio::select! {
            biased;
            ended = group.ended() => match ended {
                Member::Command => break Cause::Own,
                Member::Guard => {
                    group.signal(Signal::KILL);
                    group.reap().await.map_err(StartError::NotNow)?;
                    return Err(StartError::NotNow(io::Error::other("its guard has ended before it")));
                }
            },
            () = stop.cancelled() => break Cause::Stopped,
            () = &mut timeout => break Cause::TimedOut,
            _ = &mut reading, if open => open = false,
        }
    };
    if cause != Cause::Own {
        group.signal(Signal::TERM);
        let mut grace = std::pin::pin!(sleep(Some(command.grace)));
        let mut running = true;
        // Processes that the command has started may need the grace period, too. They exist at least as long as the pipes are
        // open.
        while running || open {
            tokio::select! {
                biased;
                _ = group.ended(), if running => running = false,
                _ = &mut reading, if open => open = false,
                () = &mut grace => break,
            }
        }
    }
    group.signal(Signal::KILL);
    if open {
        let _ = tokio::time::timeout(DRAIN, reading.as_mut()).await;
    }
    let status = group.reap().await.map_err(StartError::NotNow)?;
    let exit = exit(status);
    let duration = started.elapsed();
    let captured = |captured: &Mutex<Captured>| lock(captured).clone();
    Ok(Finished { exit, cause, stdout: captured(&stdout), stderr: captured(&stderr), duration })
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => unreachable!("a process that was reaped has exited or was killed"),
    }
}

/// Sleeps; forever without a duration.
async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, captured: &Mutex<Captured>) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = vec![0; PIECE_BYTES];
    // An error ends the loop like the end of the pipe, because no more output can be read.
    while let Ok(n @ 1..) = pipe.read(&mut piece).await {
        lock(captured).push(&piece[..n]);
    }
}

fn lock(captured: &Mutex<Captured>) -> MutexGuard<'_, Captured> {
    captured.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stdin of a process. The whole input is there before the process starts. With a pipe, this process might be killed
/// while it writes. The command would then act on a part of its input as if it were all, until its guard ends it.
fn stdin(input: Option<&[u8]>) -> io::Result<Stdio> {
    let Some(input) = input else { return Ok(Stdio::null()) };
    let mut file = unnamed_file()?;
    file.write_all(input)?;
    file.rewind()?;
    Ok(file.into())
}

/// A file in memory: the input may contain secrets.
#[cfg(target_os = "linux")]
fn unnamed_file() -> io::Result<File> {
    Ok(memfd_create("stdin", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
fn unnamed_file() -> io::Result<File> {
    tempfile::tempfile()
}

/// A child of this process that a group has.
enum Member {
    Command,
    Guard,
}

/// A command, and the process group of the command and its children.
struct Group {
    id: Pid,
    guard: Option<Child>,
    command: Child,
    pid: Pid,
    /// Signals that a child of this process has ended.
    children: unix::Signal,
}

impl Group {
    fn start(command: &Command) -> Result<Group, StartError> {
        // Registered before the start, so that no end is missed.
        let children = signal(SignalKind::child()).map_err(StartError::NotNow)?;
        let guard = match &command.guard {
            Some(guard) => Some(guard.start(command.grace).map_err(StartError::NotNow)?),
            None => None,
        };
        let leader = guard.as_ref().map(pid).transpose()?;
        let mut prepared = tokio::process::Command::new(&command.program);
        let (name, args) =
            command.argv.split_first().ok_or_else(|| StartError::Wrong("argv is empty".into()))?;
        prepared.arg0(name).args(args);
        if !command.inherit_env {
            prepared.env_clear();
        }
        for secret in SECRET_VARIABLES {
            prepared.env_remove(secret);
        }
        prepared.envs(command.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &command.cwd {
            prepared.current_dir(cwd);
        }
        prepared.stdin(stdin(command.stdin.as_deref()).map_err(StartError::NotNow)?);
        prepared.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        prepared.process_group(leader.map_or(0, Pid::as_raw_pid));
        let started = prepared.spawn().map_err(|error| refused(error, command.cwd.as_deref()))?;
        let pid = pid(&started)?;
        Ok(Group { id: leader.unwrap_or(pid), guard, command: started, pid, children })
    }

    /// Waits until the command has ended, or its guard, without reaping it. It may be dropped and called again.
    async fn ended(&mut self) -> Member {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let lives = |pid| matches!(waitid(WaitId::Pid(pid), look), Ok(None) | Err(Errno::INTR));
        loop {
            if !lives(self.pid) {
                return Member::Command;
            }
            if self.guard.is_some() && !lives(self.id) {
                // One signal to the group may end both, and the guard may be the first.
                let (pid, children) = (self.pid, &mut self.children);
                let command = async {
                    while lives(pid) {
                        children.recv().await;
                    }
                };
                let both = tokio::time::timeout(TOGETHER, command).await.is_ok();
                return if both { Member::Command } else { Member::Guard };
            }
            self.children.recv().await;
        }
    }

    /// Sends a signal to the rest of the group. A child that was reaped has no process id, and is skipped.
    fn signal(&self, signal: Signal) {
        // An error means that the process has ended, and is ignored.
        if self.guard.as_ref().unwrap_or(&self.command).id().is_some() {
            let _ = kill_process_group(self.id, signal);
        }
        // The command may have left the group by itself. If it has not, it must not get the signal twice: some programs abort
        // without cleanup on a second SIGTERM.
        let has_left = getpgid(Some(self.pid)).is_ok_and(|group| group != self.id);
        if has_left && self.command.id().is_some() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Reaps the children after SIGKILL.
    async fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.command.wait().await;
        if let Some(guard) = &mut self.guard {
            guard.wait().await?;
        }
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The runtime reaps dropped children later.
        self.signal(Signal::KILL);
    }
}

fn pid(child: &Child) -> Result<Pid, StartError> {
    let raw = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    raw.ok_or_else(|| StartError::NotNow(io::Error::other("the process has no number")))
}

/// Divides the errors of a start into permanent and transient ones.
fn refused(error: io::Error, cwd: Option<&Path>) -> StartError {
    let errno = Errno::from_io_error(&error);
    let no_folder = cwd.is_some_and(|cwd| !cwd.is_dir());
    let wrong = match errno {
        _ if no_folder => "cwd: there is no such folder where the command runs",
        Some(Errno::NOENT) => {
            "argv[0]: the program, or the interpreter that its first line names, is not there"
        }
        Some(Errno::ACCESS | Errno::PERM) => "argv[0] or cwd: the server's user has no permission for it",
        Some(Errno::NOEXEC) => "argv[0]: this file is no program for this machine, or a script without `#!`",
        Some(Errno::TOOBIG) => {
            "argv, env: together they are longer than the system allows; use stdin or a file"
        }
        _ if error.kind() == io::ErrorKind::InvalidInput => {
            "argv, env and cwd must not contain NUL characters"
        }
        _ => return StartError::NotNow(error),
    };
    StartError::Wrong(wrong.to_owned())
}
