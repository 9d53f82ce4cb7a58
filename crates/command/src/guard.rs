//! Guards run commands and end them: with the job, and when the process that runs them dies.
//!
//! ```text
//! turnwise ── socket ── guard ── command ── its children, and what they start
//! ```
//!
//! A guard is a small process between turnwise and one command. It is the *subreaper* of the command: when a process of the
//! command ends, its children become children of the guard, also if they have left the command's process group and session. So
//! the guard can kill its children until none is left, and then nothing of the command is left.
//!
//! A process that is killed with SIGKILL cannot end its children. A guard can: when that process ends, for any reason, the kernel
//! closes the socket. The guard then ends the command as if it had been asked to: SIGTERM, and SIGKILL after the grace period.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process_group, wait};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::Instant;

use crate::cgroup::Cgroup;
use crate::launch::{Refusal, launch, relay};
use crate::{Exit, Own, system};

/// The argument of a launcher, where a guard has its grace period.
const LAUNCH: &str = "launch";
/// Requests SIGTERM, and SIGKILL after the grace period.
pub(crate) const STOP: u8 = b's';
/// Requests SIGKILL at once.
pub(crate) const KILL: u8 = b'k';
/// While the guard ends a command, it looks this often for processes that have become its children.
const ROUND: Duration = Duration::from_millis(20);

/// What a guard reports: each message is a line of JSON.
#[derive(Serialize, Deserialize)]
pub(crate) enum Message {
    /// The command has started.
    Started,
    /// The command cannot be started. The guard ends.
    Refused(Refusal),
    /// The command has ended like this, and nothing of it is left. The guard ends.
    Ended(Exit),
}

/// How to start a guard: an executable that calls [`guard_main`].
#[derive(Debug, Clone)]
pub struct Guard(Own);

impl Guard {
    /// A guard from the current executable. The executable must call [`guard_main`] when it is started with these arguments and
    /// a further one, which is the argument of `guard_main`.
    ///
    /// # Errors
    /// The path of the executable is unknown.
    pub fn this_executable(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Guard> {
        Own::with(args).map(Guard)
    }

    /// Starts a guard with this end of a socket as its stdin. The command inherits its stdout and stderr.
    pub(crate) fn start(&self, grace: Duration, socket: UnixStream) -> io::Result<Child> {
        let mut command = Command::from(self.0.command());
        command.current_dir("/").arg(grace.as_millis().to_string());
        command.stdin(OwnedFd::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).spawn()
    }
}

/// The main function of a guard, and of the launcher that it starts. A guard returns when nothing of its command is left.
///
/// # Errors
/// The guard is not the leader of its group, or a system call failed.
pub fn guard_main(argument: &str) -> io::Result<()> {
    // Commands of the same user must not read what other jobs run.
    system::hide_from_commands()?;
    if argument == LAUNCH {
        return launch();
    }
    let grace = argument.parse().map(Duration::from_millis).map_err(io::Error::other)?;
    if getpgrp() != getpid() {
        return Err(io::Error::other("this is for turnwise itself: it runs a command"));
    }
    system::adopt_orphans()?;
    // A service manager may signal all processes of turnwise, and the guard must outlive its command. Handlers suffice for that, and
    // commands do not inherit them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _caught = kinds.map(signal).into_iter().collect::<io::Result<Vec<_>>>()?;
    // Registered before the start, so that no end is missed.
    let children = signal(SignalKind::child())?;
    drop(entered);

    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (own, its) = UnixStream::pair()?;
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // One expression, so that this process does not keep the launcher's end of the socket.
    let launcher = Own::with(&args[..args.len() - 1])?
        .command()
        .arg(LAUNCH)
        .current_dir("/")
        .stdin(OwnedFd::from(its))
        .spawn()?;
    // Before it knows what to run, so that no process of the command is outside.
    let cgroup = Cgroup::with(launcher.id());
    // It must not hold the command's pipes open.
    let null = File::options().write(true).open("/dev/null")?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    relay(&socket, &own)?;
    // The launcher's end closes when the command starts.
    let mut refusal = Vec::new();
    (&own).read_to_end(&mut refusal)?;
    if !refusal.is_empty() {
        return send(&socket, &Message::Refused(serde_json::from_slice(&refusal)?));
    }
    // From here on, an error must not end the guard. If the process that runs the command has ended, the socket says so again.
    let _ = send(&socket, &Message::Started);
    let command = i32::try_from(launcher.id()).ok().and_then(Pid::from_raw);
    let command = command.ok_or(Errno::SRCH)?;
    let family = Family { command, cgroup, exit: None, asked: HashSet::new() };
    let exit = runtime.block_on(family.supervise(socket.try_clone()?, children, grace))?;
    send(&socket, &Message::Ended(exit))
}

fn send(mut socket: &UnixStream, message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

/// The processes of a command. All of them are children of this process, or become so when their own parents end.
struct Family {
    command: Pid,
    cgroup: Option<Cgroup>,
    exit: Option<Exit>,
    /// The process groups that have got SIGTERM. Some programs abort without cleanup on a second one.
    asked: HashSet<Pid>,
}

impl Family {
    /// Waits until nothing of the command is left, and ends the rest when it is time.
    async fn supervise(
        mut self,
        socket: UnixStream,
        mut children: unix::Signal,
        grace: Duration,
    ) -> io::Result<Exit> {
        socket.set_nonblocking(true)?;
        let mut socket = tokio::net::UnixStream::from_std(socket)?;
        let mut connected = true;
        let mut deadline: Option<Instant> = None;
        while self.reap()? {
            if self.exit.is_some() && deadline.is_none() {
                deadline = Some(Instant::now());
            }
            match deadline {
                Some(deadline) if deadline <= Instant::now() => self.kill()?,
                Some(_) => self.ask()?,
                None => {}
            }
            let round = async {
                match deadline {
                    Some(_) => tokio::time::sleep(ROUND).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = children.recv() => {}
                request = socket.read_u8(), if connected => {
                    connected = request.is_ok();
                    let time = if matches!(request, Ok(KILL)) { Duration::ZERO } else { grace };
                    let until = Instant::now() + time;
                    deadline = Some(deadline.map_or(until, |earlier| earlier.min(until)));
                }
                () = round => {}
            }
        }
        self.exit.ok_or_else(|| io::Error::other("the command has no end"))
    }

    /// Reaps what has ended. Returns whether something is left.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.command => self.exit = exit(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(true),
                Err(Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends SIGTERM to all children that have not got it.
    fn ask(&mut self) -> io::Result<()> {
        system::groups_of_children(self.command, |group| {
            if self.asked.insert(group) {
                signal_group(group, Signal::TERM);
            }
        })
    }

    /// Sends SIGKILL to all children, and to those of their children that are in the same groups. The rest become children
    /// when these have ended.
    fn kill(&self) -> io::Result<()> {
        if let Some(cgroup) = &self.cgroup {
            // Without it, the rounds go on, and find what it would have killed.
            let _ = cgroup.kill();
        }
        system::groups_of_children(self.command, |group| signal_group(group, Signal::KILL))
    }
}

/// Signals a process group of the command. It contains a child that is not reaped, so no other group can have the same id. A command has a session
/// of its own, so the group has no other processes.
fn signal_group(group: Pid, signal: Signal) {
    // An error means that the group has ended, and is ignored.
    let _ = kill_process_group(group, signal);
}

fn exit(status: WaitStatus) -> Option<Exit> {
    status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
}
