//! Results on stdout.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use crate::printable::Printable;

/// Prints a line of results. Foreign text cannot control the terminal. If the reader has closed the pipe (`| head`), the command is done:
/// the process ends with success. If the line cannot be written for another reason, as on a full disk, it ends with a failure. So a
/// command calls it only once it has nothing else to do.
pub fn say(line: Arguments<'_>) {
    match write_line(line) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(0),
        Err(error) => {
            tell!("cannot write to stdout: {error}");
            exit(1)
        }
    }
}

/// Prints a line in the same form, for a caller that goes on or that ends by itself if it cannot be written.
pub fn write_line(line: Arguments<'_>) -> io::Result<()> {
    // stdout writes at the end of each line.
    writeln!(io::stdout(), "{}", Printable(line))
}

/// Prints a line of a server, which goes on whatever happens to stdout.
pub fn announce(line: Arguments<'_>) {
    let _ = write_line(line);
}
