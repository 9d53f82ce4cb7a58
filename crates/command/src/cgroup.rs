//! A control group per command, where the system has delegated this process's own one to it.
//!
//! The kernel then kills everything of the command at once: processes that fork faster than a guard finds them, and those of a command that has
//! killed its guard. Without a control group the guard is enough for all others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, geteuid, getpid};

/// Where systemd is in charge of all control groups, if it runs.
const SYSTEMD: &str = "/run/systemd/system";
/// How systemd marks a group that it leaves to its processes: `Delegate=yes`.
const DELEGATED: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// How often to try to remove a group: what is in it ends after SIGKILL, unless the kernel waits for a device.
const REMOVALS: u32 = 1_000;
/// The time between two of these attempts.
const ROUND: Duration = Duration::from_millis(1);

/// The control group of a guard's command. Dropping it kills what is in it, and removes it. This may block for a second.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates the group of this guard's command, and moves a process into it; `None` where that is impossible.
    pub fn with(process: u32) -> Option<Cgroup> {
        let path = path(getpid())?;
        // One of the same name is left of a guard that was killed.
        fs::create_dir(&path).or_else(|error| if path.is_dir() { Ok(()) } else { Err(error) }).ok()?;
        let group = Cgroup(path);
        // Kernels before 5.14 cannot kill a group.
        let usable = group.0.join("cgroup.kill").exists();
        (usable && fs::write(group.0.join("cgroup.procs"), process.to_string()).is_ok()).then_some(group)
    }

    /// The group of the command of a guard that has ended, if it has left one.
    pub fn left_by(guard: Pid) -> Option<Cgroup> {
        path(guard).filter(|path| path.is_dir()).map(Cgroup)
    }

    /// Sends SIGKILL to everything in it.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.kill();
        // The kernel still counts a process for a moment after it was reaped. An empty group that stays costs little.
        for _ in 0..REMOVALS {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(ROUND);
        }
    }
}

fn path(guard: Pid) -> Option<PathBuf> {
    Some(own()?.join(format!("turnwise-{}", guard.as_raw_pid())))
}

/// The folder of this process's own group, if it may create others in it.
fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = folder(&groups, &mounts)?;
    // Root may do it everywhere. But where systemd runs, it manages the groups that it has not delegated.
    let delegated = |path: &Path| {
        DELEGATED.iter().any(|name| {
            let mut value = [0; 8];
            matches!(rustix::fs::getxattr(path, *name, &mut value[..]), Ok(1) if value[0] == b'1')
        })
    };
    (!geteuid().is_root() || !Path::new(SYSTEMD).exists() || delegated(&own)).then_some(own)
}

/// Finds the folder of the group of version 2, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn folder(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let within = Path::new(group).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ").then(|| Path::new(point).join(within))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_group_depends_on_what_is_mounted() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let of = |group: &str, mounts: &str| folder(group, mounts);
        let expected = Some(PathBuf::from("/sys/fs/cgroup/system.slice/turnwise.service"));
        assert_eq!(of("0::/system.slice/turnwise.service\n", mounts), expected);
        assert_eq!(of("1:cpu:/x\n0::/\n", mounts), Some("/sys/fs/cgroup/".into()));
        assert_eq!(of("1:cpu:/x\n", mounts), None);
        let part = "30 24 0:26 /a /mnt rw - cgroup2 cgroup2 rw\n";
        assert_eq!((of("0::/a/b\n", part), of("0::/b\n", part)), (Some("/mnt/b".into()), None));
    }
}
