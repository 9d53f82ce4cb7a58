//! What only Linux can do for a sandbox. [`without_sandbox`](../without_sandbox.rs) takes its place elsewhere.

use std::ffi::CString;
use std::fs::File;
use std::io;

use nix::unistd::{Gid, Uid, getgrouplist, setgid, setgroups, setuid};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, getpid, set_child_subreaper, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{clear_ambient_capability_set, set_no_new_privs};

use crate::sandbox::User;

/// The first descriptor after stdin, stdout and stderr.
const FIRST_OTHER: libc::c_uint = 3;

/// Keeps commands of the same user from this process's memory, environment and descriptors: they can neither read `/proc/PID` nor attach
/// a debugger. This process then dumps no core, and only root can debug or profile it.
///
/// # Errors
/// The system has refused it.
pub fn hide_from_commands() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes this process the parent of every descendant whose own parent ends.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Ends this process when its parent ends.
pub(crate) fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// From here on, no program that this process executes gives it more rights: neither set-user-id nor file capabilities, nor
/// those that a service manager lets it inherit.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    match clear_ambient_capability_set() {
        // A kernel without ambient capabilities.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(set_no_new_privs(true)?)
}

/// Closes all descriptors but the standard ones in the next program. Those of turnwise are closed anyway. But it may have inherited
/// others, and libraries in C may open some. Kernels before 5.11 cannot do this at once.
#[allow(unsafe_code)]
pub(crate) fn close_descriptors() -> io::Result<()> {
    // SAFETY: the flag closes no descriptor now, so that none that Rust owns becomes invalid. The arguments are numbers.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_OTHER, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    match done {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(()),
            error => Err(error),
        },
    }
}

/// Finds a user by name.
pub(crate) fn find_user(name: &str) -> io::Result<Option<User>> {
    let Some(found) = nix::unistd::User::from_name(name)? else { return Ok(None) };
    let groups = getgrouplist(&CString::new(name)?, found.gid)?;
    let groups = groups.into_iter().map(Gid::as_raw).collect();
    Ok(Some(User { uid: found.uid.as_raw(), gid: found.gid.as_raw(), groups }))
}

/// Makes this process one of the user, for good.
pub(crate) fn become_user(user: &User) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    setgroups(&groups)?;
    setgid(Gid::from_raw(user.gid))?;
    Ok(setuid(Uid::from_raw(user.uid))?)
}

/// Calls `then` with the process group of each child of this process, as soon as it finds one: a child that forks must not have much
/// time.
pub(crate) fn groups_of_children(_first: Pid, mut then: impl FnMut(Pid)) -> io::Result<()> {
    let own = getpid();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // A process that has just ended cannot be read. A name may be no UTF-8.
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
        if let Some((parent, group)) = parent_and_group(&String::from_utf8_lossy(&stat))
            && parent == own
        {
            then(group);
        }
    }
    Ok(())
}

/// Reads `PID (NAME) STATE PARENT GROUP …`. The name may contain anything.
fn parent_and_group(stat: &str) -> Option<(Pid, Pid)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(1);
    let mut pid = || Pid::from_raw(fields.next()?.parse().ok()?);
    Some((pid()?, pid()?))
}

/// A file in memory: the input may contain secrets.
pub(crate) fn unnamed_file() -> io::Result<File> {
    Ok(memfd_create("stdin", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_parent_of_a_process() {
        let pid = |raw| Pid::from_raw(raw).unwrap();
        assert_eq!(parent_and_group("7 (a) S 1 (b) S 5 6 6 0 -1"), Some((pid(5), pid(6))));
        assert_eq!(parent_and_group("7 (sh) S 0 0 0 0 -1"), None);
        assert_eq!(parent_and_group("7"), None);
    }
}
