//! Processes that do not outlive the one that runs them.
//!
//! A process that is killed with SIGKILL cannot end its children. A guard can: a small process that leads the command's process
//! group and holds the read end of a pipe whose other end only the running process has. When that ends, however it ends, the
//! kernel closes the pipe, and the guard ends the group: SIGTERM, and SIGKILL after the grace period.
//!
//! Compared with Linux' parent death signal a guard reaches the command's own children, too, and is not confused by threads that
//! end. It is there before the command is, so there is no moment at which the command is unprotected. What neither can reach is a
//! process that leaves the group on purpose (`setsid`, a shell's job control).

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, getpgrp, getpid, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// How to start a guard: an executable that calls [`guard_main`].
#[derive(Debug, Clone)]
pub struct Guard {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Guard {
    /// This very executable, which calls [`guard_main`] when it is started with these arguments and one more, which is for
    /// `guard_main`.
    ///
    /// # Errors
    /// The path of the executable cannot be found out.
    pub fn this_executable(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Guard> {
        // On Linux this name stays right when the file is replaced by a newer release.
        let own = PathBuf::from("/proc/self/exe");
        let program = if own.exists() { own } else { std::env::current_exe()? };
        Ok(Guard { program, args: args.into_iter().map(Into::into).collect() })
    }

    /// Starts a guard that leads a new process group, for as long as its stdin is open.
    pub(crate) fn start(&self, grace: Duration) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(grace.as_millis().to_string()).arg0("turnwise");
        command.env_clear().current_dir("/");
        // It must not hold the command's pipes open.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0).kill_on_drop(true).spawn()
    }
}

/// What a guard does: waits until whoever started it is gone, and ends its process group then, itself included.
///
/// # Errors
/// It is not the leader of its group, or cannot do its work.
pub fn guard_main(grace: Duration) -> io::Result<()> {
    let group = getpgrp();
    if group != getpid() {
        return Err(io::Error::other("this is for turnwise itself: it leads the process group of a command"));
    }
    // The group is told to stop, the guard does not stop with it. Handlers are enough for that, and commands do not inherit them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _caught = kinds.map(signal).into_iter().collect::<io::Result<Vec<_>>>()?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    kill_process_group(group, Signal::TERM)?;
    std::thread::sleep(grace);
    Ok(kill_process_group(group, Signal::KILL)?)
}
