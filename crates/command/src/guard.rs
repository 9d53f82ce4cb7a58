//! Guards end commands when the process that runs them dies.
//!
//! A process that is killed with SIGKILL cannot end its children. A guard can. It is a small process that leads the
//! command's process group. It holds the read end of a pipe whose other end only the running process has. When that process
//! ends, for any reason, the kernel closes the pipe. The guard then ends the group: SIGTERM, and SIGKILL after the grace
//! period.
//!
//! Unlike Linux' parent death signal, a guard also reaches the command's own children, and the end of a thread does not trigger
//! it. It starts before the command, so the command is never unprotected. Neither reaches a process that leaves the group on
//! purpose (`setsid`, a shell's job control).

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, getpgrp, getpid, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// The variable that names the folders of shared libraries.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// How to start a guard: an executable that calls [`guard_main`].
#[derive(Debug, Clone)]
pub struct Guard {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Guard {
    /// A guard from the current executable. The executable must call [`guard_main`] when it is started with these arguments. One
    /// further argument is the grace period for `guard_main`, in milliseconds.
    ///
    /// # Errors
    /// The path of the executable is unknown.
    pub fn this_executable(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Guard> {
        // On Linux this path stays valid when a newer release replaces the file.
        let own = PathBuf::from("/proc/self/exe");
        let program = if own.exists() { own } else { std::env::current_exe()? };
        Ok(Guard { program, args: args.into_iter().map(Into::into).collect() })
    }

    /// Starts a guard that leads a new process group, for as long as its stdin is open.
    pub(crate) fn start(&self, grace: Duration) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(grace.as_millis().to_string()).arg0("turnwise");
        command.env_clear().current_dir("/");
        // Without it, an executable whose libraries are in their own folder may not start. FoundationDB's client is such a
        // library.
        if let Some(folders) = std::env::var_os(LIBRARIES) {
            command.env(LIBRARIES, folders);
        }
        // It must not hold the command's pipes open.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0).kill_on_drop(true).spawn()
    }
}

/// The main function of a guard. Waits until the process that started it has ended, and then ends its process group, including
/// itself.
///
/// # Errors
/// The guard is not the leader of its group, or a system call failed.
pub fn guard_main(grace: Duration) -> io::Result<()> {
    let group = getpgrp();
    if group != getpid() {
        return Err(io::Error::other("this is for turnwise itself: it leads the process group of a command"));
    }
    // The signals go to the whole group, and the guard must survive SIGTERM. Handlers suffice for that, and commands do not
    // inherit them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _caught = kinds.map(signal).into_iter().collect::<io::Result<Vec<_>>>()?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    kill_process_group(group, Signal::TERM)?;
    std::thread::sleep(grace);
    Ok(kill_process_group(group, Signal::KILL)?)
}
