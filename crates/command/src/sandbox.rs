//! What a command may do to the machine: its user, its rights and its limits.
//!
//! The launcher of a command enters the sandbox, and then executes the command. So no code runs between `fork` and `exec`, and no
//! helper needs more rights than turnwise itself.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fchown;
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::system;

/// The sandbox of a command. Its program gains no rights by set-user-id bits or file capabilities, and dumps no core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The user of the command; `None` for this process's. Only root can choose another one.
    pub user: Option<User>,
    /// The limits of each process.
    pub limits: Limits,
}

/// A user, as numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user's id.
    pub uid: u32,
    /// The id of the user's first group.
    pub gid: u32,
    /// The ids of all groups.
    pub groups: Vec<u32>,
}

impl User {
    /// Finds a user of this machine; `None` if there is none of this name.
    ///
    /// # Errors
    /// The machine's users cannot be read.
    pub fn find(name: &str) -> io::Result<Option<User>> {
        system::find_user(name)
    }
}

/// The limits of each process of a command; `None` for this process's own limit. None of them can be raised again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Its memory in bytes: heap and private writable mappings. An address space that is only reserved does not count, because Java, Go and
    /// JavaScript reserve far more than they use.
    pub memory_bytes: Option<usize>,
    /// The number of its open files.
    pub open_files: Option<usize>,
    /// The number of processes and threads of its user, in all commands together. Root has no such limit.
    pub processes: Option<usize>,
    /// The size of a file that it writes.
    pub file_bytes: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: Some(4 << 30),
            // What most systems give a process. A program that uses `select` cannot handle more.
            open_files: Some(1_024),
            processes: Some(4_096),
            file_bytes: None,
        }
    }
}

impl Sandbox {
    /// Puts this process into the sandbox, for good.
    pub(crate) fn enter(&self) -> io::Result<()> {
        if let Some(user) = &self.user {
            // So that programs can open `/dev/stdout` and `/dev/stderr`. Root in a container may lack the right.
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            let _ = fchown(io::stdout().as_fd(), Some(uid), Some(gid));
            let _ = fchown(io::stderr().as_fd(), Some(uid), Some(gid));
            system::become_user(user)?;
        }
        system::no_new_privileges()?;
        let Limits { memory_bytes, open_files, processes, file_bytes } = self.limits;
        limit(Resource::Core, Some(0))?;
        limit(Resource::Nofile, open_files)?;
        limit(Resource::Nproc, processes)?;
        limit(Resource::Fsize, file_bytes)?;
        limit(Resource::Data, memory_bytes)
    }
}

/// Lowers a limit. A limit that is lower already stays.
fn limit(resource: Resource, most: Option<usize>) -> io::Result<()> {
    let Some(most) = most else { return Ok(()) };
    let most = most as u64;
    let most = Some(getrlimit(resource).maximum.map_or(most, |own| own.min(most)));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}
