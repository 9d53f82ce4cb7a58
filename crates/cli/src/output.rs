//! Results on stdout.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::anyhow;

use crate::failure::Failure;
use crate::printable::Printable;

/// Whether a line could not be written.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a line of results. Foreign text cannot control the terminal. A command goes on if the reader has closed the pipe (`| head`): its
/// exit code says how it ended. If the line cannot be written for another reason, as on a full disk, the command [fails](has_failed) at its end.
pub fn say(line: Arguments<'_>) {
    if let Err(error) = write_line(line)
        && error.kind() != ErrorKind::BrokenPipe
        && !FAILED.swap(true, Relaxed)
    {
        tell!("turnwise: cannot write to stdout: {error}");
    }
}

/// Prints a value as indented JSON.
pub fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(error.into()))?;
    say!("{text}");
    Ok(())
}

/// Whether [`say()`] could not write a line.
pub fn has_failed() -> bool {
    FAILED.load(Relaxed)
}

/// Prints a line in the same form, for a caller that must know whether it was written.
pub fn write_line(line: Arguments<'_>) -> io::Result<()> {
    // stdout writes at the end of each line.
    writeln!(io::stdout(), "{}", Printable(line))
}

/// Whether the reader has closed the pipe (`| head`), which is no error.
pub fn is_done(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(anyhow!("cannot write to stdout: {error}").into()),
    }
}
