//! A command without a guard: a child of this process that leads its own process group.
//!
//! A process group is identified by the process id of its leader. The leader is reaped last, so that the system cannot reuse the id while
//! signals are sent to it.

use std::io::{self, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::Child;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::{Command, Exit, StartError, system};

/// A command, and the process group of the command and its children.
pub(crate) struct Group {
    pub command: Child,
    id: Pid,
    /// Signals that a child of this process has ended.
    children: unix::Signal,
}

impl Group {
    pub fn start(command: &Command) -> Result<Group, StartError> {
        // Registered before the start, so that no end is missed.
        let children = signal(SignalKind::child()).map_err(StartError::NotNow)?;
        let mut prepared = tokio::process::Command::new(&command.program);
        prepared.arg0(&command.argv[0]).args(&command.argv[1..]).env_clear().envs(command.environment());
        if let Some(cwd) = &command.cwd {
            prepared.current_dir(cwd);
        }
        prepared.stdin(stdin(command.stdin.as_deref()).map_err(StartError::NotNow)?);
        prepared.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
        let started = prepared.spawn().map_err(|error| match &command.cwd {
            Some(cwd) if !cwd.is_dir() => StartError::no_folder(),
            _ => StartError::new(error),
        })?;
        let id = started.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let id = id.ok_or_else(|| StartError::NotNow(io::Error::other("the process has no number")))?;
        Ok(Group { command: started, id, children })
    }

    /// Waits until the command has ended, without reaping it. It may be dropped and called again.
    pub async fn ended(&mut self) -> Result<(), StartError> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while matches!(waitid(WaitId::Pid(self.id), look), Ok(None) | Err(Errno::INTR)) {
            self.children.recv().await;
        }
        Ok(())
    }

    /// Sends SIGTERM to the group. Returns how long to wait for its end.
    pub fn stop(&self, grace: Duration) -> Duration {
        self.signal(Signal::TERM);
        grace
    }

    /// Sends a signal to the group. A child that was reaped has no process id, and is skipped.
    fn signal(&self, signal: Signal) {
        if self.command.id().is_some() {
            // An error means that the group has ended, and is ignored.
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Kills the group, and reaps the command.
    pub async fn reap(&mut self) -> Result<Exit, StartError> {
        self.signal(Signal::KILL);
        let status = self.command.wait().await.map_err(StartError::NotNow)?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => unreachable!("a process that was reaped has exited or was killed"),
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The runtime reaps dropped children later.
        self.signal(Signal::KILL);
    }
}

/// The stdin of a process. The whole input is there before the process starts. With a pipe, this process might be killed
/// while it writes, and the command would act on a part of its input as if it were all.
fn stdin(input: Option<&[u8]>) -> io::Result<Stdio> {
    let Some(input) = input else { return Ok(Stdio::null()) };
    let mut file = system::unnamed_file()?;
    file.write_all(input)?;
    file.rewind()?;
    Ok(file.into())
}
