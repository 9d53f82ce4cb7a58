//! A command with a guard, as the process sees it that runs it.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;

use crate::cgroup::Cgroup;
use crate::guard::{KILL, Message, STOP};
use crate::{Command, Exit, Guard, StartError, launch};

/// How long after the grace period a guard may take to report the end of its command.
const MARGIN: Duration = Duration::from_secs(5);

/// A guard that runs a command. Dropping it kills the command and everything that it has started.
pub(crate) struct Guarded {
    pub guard: Child,
    requests: OwnedWriteHalf,
    messages: Lines<BufReader<OwnedReadHalf>>,
    /// Whether the guard has received its command, and takes requests.
    started: bool,
    exit: Option<Exit>,
}

impl Guarded {
    pub async fn start(guard: &Guard, command: &Command) -> Result<Guarded, StartError> {
        let message = launch::message(command).map_err(StartError::NotNow)?;
        let (own, its) = UnixStream::pair().map_err(StartError::NotNow)?;
        own.set_nonblocking(true).map_err(StartError::NotNow)?;
        let socket = tokio::net::UnixStream::from_std(own).map_err(StartError::NotNow)?;
        let guard = guard.start(command.grace, its).map_err(StartError::NotNow)?;
        let (messages, requests) = socket.into_split();
        let messages = BufReader::new(messages).lines();
        let mut guarded = Guarded { guard, requests, messages, started: false, exit: None };
        // If it fails, the guard has ended, and the next message is missing.
        let _ = guarded.requests.write_all(&message).await;
        match guarded.message().await {
            Ok(Message::Started) => {
                guarded.started = true;
                Ok(guarded)
            }
            Ok(Message::Refused(refusal)) => {
                guarded.guard.wait().await.map_err(StartError::NotNow)?;
                Err(refusal.into())
            }
            Ok(Message::Ended(_)) => Err(StartError::NotNow(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next message. It may be dropped and called again.
    async fn message(&mut self) -> Result<Message, StartError> {
        match self.messages.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(|error| StartError::NotNow(error.into())),
            Ok(None) | Err(_) => {
                self.kill_guard().await;
                Err(StartError::NotNow(io::Error::other("its guard has ended before it")))
            }
        }
    }

    /// Ends a guard that does not end its command. The system kills the command with it, and the control group has the rest.
    async fn kill_guard(&mut self) {
        let guard = self.guard.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // An error means that it has ended.
        let _ = self.guard.start_kill();
        // Before it is reaped: afterwards its id, which names the group, may be that of another guard.
        if let Some(group) = guard.and_then(Cgroup::left_by) {
            let _ = tokio::task::spawn_blocking(|| drop(group)).await;
        }
        let _ = self.guard.wait().await;
    }

    /// Waits until nothing of the command is left. It may be dropped and called again.
    pub async fn ended(&mut self) -> Result<(), StartError> {
        if self.exit.is_none() {
            self.exit = match self.message().await? {
                Message::Ended(exit) => Some(exit),
                Message::Started | Message::Refused(_) => None,
            };
        }
        Ok(())
    }

    /// Sends SIGTERM to the command and everything that it has started, and SIGKILL after the grace period. Returns how long that may take.
    pub fn stop(&self, grace: Duration) -> Duration {
        // An error means that the guard has ended.
        let _ = self.requests.try_write(&[STOP]);
        grace.saturating_add(MARGIN)
    }

    /// Ends the guard. It has ended already, unless something has stopped it.
    pub async fn reap(&mut self) -> Result<Exit, StartError> {
        if let Some(exit) = self.exit {
            self.guard.wait().await.map_err(StartError::NotNow)?;
            return Ok(exit);
        }
        self.kill_guard().await;
        Err(StartError::NotNow(io::Error::other("its guard does not report its end")))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A guard without its whole command starts none. The runtime reaps it later.
        if self.started {
            let _ = self.requests.try_write(&[KILL]);
        }
    }
}
