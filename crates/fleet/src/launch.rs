//! The start of a worker process.
//!
//! The supervisor starts a *launcher*: the same binary, with a clean environment. It becomes the leader of a session, and reads from its stdin
//! what to run. It gets that only after its process id is in the state file, and executes the command in its own place, under the same
//! id. If the supervisor is killed before, the pipe closes, and the launcher ends without having run anything. A process that runs a
//! command is therefore always in the state file. The environment holds a token, so it is on no command line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::setsid;
use rustix::stdio::dup2_stdin;
use serde::{Deserialize, Serialize};

/// The exit code of a launcher that cannot execute its command, as that of shells.
pub const NOT_EXECUTED: u8 = 127;
/// The largest message to a launcher, in bytes. The system allows less for a command line and its environment.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;

/// What to run. There is no `Debug`, because it holds a token.
#[derive(Serialize, Deserialize)]
pub(crate) struct Spec {
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}

/// Tells a launcher what to run.
pub(crate) fn release(launcher: &mut Child, spec: &Spec) -> io::Result<()> {
    let mut message = serde_json::to_vec(spec)?;
    // An incomplete message has no end.
    message.push(b'\n');
    let mut pipe = launcher.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    pipe.write_all(&message)
}

/// The main function of a launcher: becomes the worker. It returns only if it cannot, or if the supervisor has ended.
///
/// # Errors
/// The system has refused a step; or there is nothing to run.
pub fn launch_main() -> io::Result<()> {
    turnwise_command::hide_from_commands()?;
    setsid()?;
    let mut message = Vec::new();
    io::stdin().lock().take(MAX_MESSAGE_BYTES).read_to_end(&mut message)?;
    if message.pop() != Some(b'\n') {
        return Err(io::Error::other("the fleet has ended before this worker has started"));
    }
    let spec: Spec = serde_json::from_slice(&message)?;
    let Some((name, args)) = spec.argv.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    dup2_stdin(&File::open("/dev/null")?)?;
    let mut command = Command::new(&spec.program);
    command.arg0(name).args(args).env_clear().envs(spec.env);
    let error = command.exec();
    Err(io::Error::new(error.kind(), format!("cannot execute {}: {error}", spec.program.display())))
}
