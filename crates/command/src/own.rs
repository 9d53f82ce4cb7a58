//! Processes of turnwise itself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The variable that names the folders of shared libraries.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// This executable, with arguments that make it another process of turnwise.
#[derive(Debug, Clone)]
pub struct Own {
    /// The path of the executable.
    pub program: PathBuf,
    args: Vec<OsString>,
}

impl Own {
    /// This executable with these arguments.
    ///
    /// # Errors
    /// The path of the executable is unknown.
    pub fn with(args: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Own> {
        // On Linux this path stays valid when a newer release replaces the file.
        let own = PathBuf::from("/proc/self/exe");
        let program = if own.exists() { own } else { std::env::current_exe()? };
        Ok(Own { program, args: args.into_iter().map(Into::into).collect() })
    }

    /// The process to start. It inherits no environment: a process that runs jobs may have more rights than they.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0("turnwise").args(&self.args).env_clear();
        // Without it, an executable whose libraries are in their own folder may not start. FoundationDB's client is such a
        // library.
        if let Some(folders) = std::env::var_os(LIBRARIES) {
            command.env(LIBRARIES, folders);
        }
        command
    }
}
