//! What identifies a process on Linux, and signals that reach no other one.

use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

/// Names this boot of the machine and this namespace of process ids. Process ids of another one mean nothing here.
pub(crate) fn place() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

/// When a process has started, in ticks since the boot; `None` if there is no such process, or it has ended and is not reaped.
/// With its id it identifies a process: ids are used again.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and parentheses, and is the second field.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // The 22nd field; the state is the third.
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X" | "x"))
}

fn id(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Sends SIGTERM to a process, if it is still the one that started then.
pub(crate) fn terminate(pid: u32, started_ticks: u64) {
    let Some(id) = id(pid) else { return };
    // The descriptor stays with the process, so that the check holds for the signal, too. Errors mean that it has ended.
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return };
    if started(pid) == Some(started_ticks) {
        let _ = pidfd_send_signal(process, Signal::TERM);
    }
}

/// Sends SIGKILL to a process and its group, or to what is left of the group. The process must be `reapable`, a child of this process that is
/// not reaped, or is compared by its start.
pub(crate) fn kill_group(pid: u32, started_ticks: u64, reapable: bool) {
    let Some(id) = id(pid) else { return };
    let is_another = match std::fs::exists(format!("/proc/{pid}")) {
        // While the group has members, no new process gets its id.
        Ok(false) => false,
        _ => started(pid).is_some_and(|found| found != started_ticks),
    };
    if !reapable && is_another {
        return;
    }
    // An error means that the group has ended, or that its leader has not become one yet.
    if kill_process_group(id, Signal::KILL).is_err()
        && let Ok(process) = pidfd_open(id, PidfdFlags::empty())
        && started(pid) == Some(started_ticks)
    {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Whether a child has ended. It is not reaped.
pub(crate) fn has_ended(pid: u32) -> bool {
    let Some(id) = id(pid) else { return true };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(id), look), Ok(None) | Err(Errno::INTR))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_and_signals_reach_no_other_one() {
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let ticks = started(child.id()).unwrap();
        assert_eq!(started(child.id()), Some(ticks));
        terminate(child.id(), ticks + 1);
        kill_group(child.id(), ticks + 1, false);
        assert!(!has_ended(child.id()));
        assert!(child.try_wait().unwrap().is_none(), "a signal for another process has reached it");
        terminate(child.id(), ticks);
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert_eq!(started(child.id()), None);
    }

    #[test]
    fn a_process_that_has_ended_is_no_process_before_it_is_reaped() {
        let mut child = Command::new("true").spawn().unwrap();
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        assert_eq!(started(child.id()), None);
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn this_boot_has_one_name() {
        assert_eq!(place().unwrap(), place().unwrap());
        assert!(started(std::process::id()).is_some());
    }
}
