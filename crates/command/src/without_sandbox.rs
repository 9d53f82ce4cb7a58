//! Stands for [`system`](../system.rs) where turnwise has no sandbox: commands end with their process group.

use std::fs::File;
use std::io;

use rustix::process::Pid;

use crate::sandbox::User;

/// Does nothing.
///
/// # Errors
/// None.
pub fn hide_from_commands() -> io::Result<()> {
    Ok(())
}

pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

pub(crate) fn end_with_parent() -> io::Result<()> {
    Ok(())
}

pub(crate) fn no_new_privileges() -> io::Result<()> {
    Ok(())
}

pub(crate) fn close_descriptors() -> io::Result<()> {
    Ok(())
}

pub(crate) fn find_user(_name: &str) -> io::Result<Option<User>> {
    Err(io::Error::other("commands can have a user of their own on Linux only"))
}

pub(crate) fn become_user(_user: &User) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn groups_of_children(first: Pid, mut then: impl FnMut(Pid)) -> io::Result<()> {
    then(first);
    Ok(())
}

pub(crate) fn unnamed_file() -> io::Result<File> {
    tempfile::tempfile()
}
