//! The start of a guarded command.
//!
//! The guard starts a *launcher*: the same binary, with a clean environment. It reads from its stdin what to run, enters the sandbox, and
//! executes the command in its own place. So the command is a child of the guard, its environment affects nothing of turnwise, and
//! nothing secret is on a command line.
//!
//! What to run is a head with two lengths, a [`Spec`] as JSON, and the command's input. A launcher that does not receive all of it runs nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use rustix::io::Errno;
use rustix::process::setsid;
use rustix::stdio::dup2_stdin;
use serde::{Deserialize, Serialize};

use crate::{Command, Sandbox, StartError, system};

/// The size of the head: the lengths of the spec and of the input.
const HEAD_BYTES: usize = 16;

/// What to run. There is no `Debug`, because it may contain secrets.
#[derive(Serialize, Deserialize)]
pub(crate) struct Spec {
    program: OsString,
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: OsString,
    has_input: bool,
    sandbox: Option<Sandbox>,
}

/// Why a launcher has not executed the command.
#[derive(Serialize, Deserialize)]
pub(crate) struct Refusal {
    step: Step,
    /// The system's error; `None` for an argument with a NUL character.
    errno: Option<i32>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum Step {
    Prepare,
    Cwd,
    Program,
}

/// What a launcher reads.
pub(crate) fn message(command: &Command) -> io::Result<Vec<u8>> {
    let has_user = command.sandbox.as_ref().is_some_and(|sandbox| sandbox.user.is_some());
    let cwd = match &command.cwd {
        Some(cwd) => cwd.clone(),
        // Another user may not be able to use this process's folder.
        None if has_user => "/".into(),
        None => std::env::current_dir().unwrap_or_else(|_| "/".into()),
    };
    let spec = Spec {
        program: std::path::absolute(&command.program)?.into(),
        argv: command.argv.clone(),
        env: command.environment(),
        cwd: cwd.into(),
        has_input: command.stdin.is_some(),
        sandbox: command.sandbox.clone(),
    };
    let spec = serde_json::to_vec(&spec)?;
    let input = command.stdin.as_deref().unwrap_or_default();
    let mut message = Vec::with_capacity(HEAD_BYTES + spec.len() + input.len());
    message.extend((spec.len() as u64).to_le_bytes());
    message.extend((input.len() as u64).to_le_bytes());
    message.extend(spec);
    message.extend(input);
    Ok(message)
}

/// Passes what to run from one stream to another.
pub(crate) fn relay(mut from: &UnixStream, mut to: &UnixStream) -> io::Result<()> {
    let head = read_head(from)?;
    to.write_all(&head.0.to_le_bytes())?;
    to.write_all(&head.1.to_le_bytes())?;
    copy(&mut from, &mut to, head.0.saturating_add(head.1))
}

fn read_head(mut from: &UnixStream) -> io::Result<(u64, u64)> {
    let mut read = || {
        let mut length = [0; HEAD_BYTES / 2];
        from.read_exact(&mut length).map(|()| u64::from_le_bytes(length))
    };
    Ok((read()?, read()?))
}

fn copy(from: &mut impl Read, to: &mut impl Write, bytes: u64) -> io::Result<()> {
    match io::copy(&mut from.take(bytes), to)? {
        copied if copied == bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The main function of a launcher: becomes the command.
pub(crate) fn launch() -> io::Result<()> {
    // This stream closes when the command starts.
    let guard = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (spec_bytes, input_bytes) = read_head(&guard)?;
    let mut spec = Vec::new();
    copy(&mut &guard, &mut spec, spec_bytes)?;
    let spec: Spec = serde_json::from_slice(&spec)?;
    let input = match spec.has_input {
        true => {
            let mut file = system::unnamed_file()?;
            copy(&mut &guard, &mut file, input_bytes)?;
            file.rewind()?;
            file
        }
        false => File::open("/dev/null")?,
    };
    let Err((step, error)) = execute(&spec, &input);
    let nul = error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none();
    let errno = if nul { None } else { Some(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())) };
    Ok(serde_json::to_writer(&guard, &Refusal { step, errno })?)
}

fn execute(spec: &Spec, input: &File) -> Result<std::convert::Infallible, (Step, io::Error)> {
    let prepare = |error| (Step::Prepare, error);
    // A session of its own: no process of the command is in a group with others, and none can write to the terminal of the person
    // who has started turnwise.
    setsid().map_err(|error| prepare(error.into()))?;
    dup2_stdin(input).map_err(|error| prepare(error.into()))?;
    system::close_descriptors().map_err(prepare)?;
    if let Some(sandbox) = &spec.sandbox {
        sandbox.enter().map_err(prepare)?;
    }
    // A change of the user cancels it, so it comes after that.
    system::end_with_parent().map_err(prepare)?;
    std::env::set_current_dir(&spec.cwd).map_err(|error| (Step::Cwd, error))?;
    let mut command = std::process::Command::new(&spec.program);
    command.arg0(&spec.argv[0]).args(&spec.argv[1..]).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    Err((Step::Program, command.exec()))
}

impl From<Refusal> for StartError {
    fn from(refusal: Refusal) -> StartError {
        let Refusal { step, errno } = refusal;
        let error = || io::Error::from_raw_os_error(errno.unwrap_or(0));
        match (step, errno.map(Errno::from_raw_os_error)) {
            (_, None) => StartError::nul(),
            (Step::Prepare, _) => StartError::NotNow(error()),
            (Step::Cwd, Some(Errno::NOENT | Errno::NOTDIR)) => StartError::no_folder(),
            (Step::Cwd | Step::Program, _) => StartError::new(error()),
        }
    }
}
