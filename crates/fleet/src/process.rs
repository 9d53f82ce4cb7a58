//! One worker process: a child of this supervisor, or one that an earlier supervisor has started.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};

use turnwise_command::Own;

use crate::launch::{self, Spec};
use crate::state::Record;
use crate::system;

/// A worker process.
pub(crate) struct Process {
    pub record: Record,
    /// `None` for a process of an earlier supervisor.
    child: Option<Child>,
    /// Whether it has got SIGKILL.
    pub is_killed: bool,
}

impl Process {
    /// Starts a launcher. It runs nothing before [`Process::release`].
    pub fn start(launcher: &Own, mut record: Record) -> io::Result<Process> {
        let mut child = launcher.command().stdin(Stdio::piped()).spawn()?;
        record.pid = child.id();
        let Some(ticks) = system::started(record.pid) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other(
                "/proc does not show the processes of this user: mount it without hidepid",
            ));
        };
        record.started_ticks = ticks;
        Ok(Process { record, child: Some(child), is_killed: false })
    }

    /// Lets the launcher become the worker.
    pub fn release(&mut self, spec: &Spec) -> io::Result<()> {
        match &mut self.child {
            Some(child) => launch::release(child, spec),
            None => Ok(()),
        }
    }

    /// A process of an earlier supervisor, if it still runs.
    pub fn adopt(record: Record) -> Option<Process> {
        let runs = system::started(record.pid) == Some(record.started_ticks);
        if !runs {
            // What it has left behind.
            system::kill_group(record.pid, record.started_ticks, false);
        }
        runs.then_some(Process { record, child: None, is_killed: false })
    }

    /// How it has ended, if it has. What is left of its group is killed before it is reaped, while its id is not used again.
    pub fn ended(&mut self) -> Option<String> {
        let Record { pid, started_ticks, .. } = self.record;
        match &mut self.child {
            Some(child) => {
                if !system::has_ended(pid) {
                    return None;
                }
                system::kill_group(pid, started_ticks, true);
                Some(child.wait().map_or_else(|error| error.to_string(), describe))
            }
            None if system::started(pid) == Some(started_ticks) => None,
            None => {
                system::kill_group(pid, started_ticks, false);
                Some("it was started by an earlier fleet process, so its status is unknown".to_owned())
            }
        }
    }

    /// Sends SIGTERM to the process, and not to its children: it decides how its jobs end.
    pub fn stop(&mut self, now_ms: u64) {
        self.record.stopping_ms = Some(now_ms);
        system::terminate(self.record.pid, self.record.started_ticks);
    }

    /// Sends SIGKILL to the process and its group.
    pub fn kill(&mut self) {
        self.is_killed = true;
        system::kill_group(self.record.pid, self.record.started_ticks, self.child.is_some());
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if code == i32::from(launch::NOT_EXECUTED) => {
            format!("exit code {code}, as when a program cannot be executed")
        }
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}
