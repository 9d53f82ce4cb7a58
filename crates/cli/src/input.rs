//! What commands read: files, stdin, and secrets.

use std::env::VarError;
use std::io::{self, Read};
use std::path::Path;

use anyhow::anyhow;

use crate::Failure;

/// Opens a file; `-` is stdin.
pub(crate) fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    Ok(match file.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(std::fs::File::open(file)?),
    })
}

/// A secret: the first line of the file that an option names, or else a variable. No error contains it.
pub(crate) fn secret(option: &str, file: Option<&Path>, variable: &str) -> Result<Option<String>, Failure> {
    if let Some(file) = file {
        return first_line(option, file).map(Some);
    }
    match std::env::var(variable) {
        Ok(secret) => Ok(Some(secret).filter(|secret| !secret.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Failure::Usage(anyhow!("{variable}: it is not UTF-8"))),
    }
}

/// The first line of a file that holds a secret. No error contains the content.
pub(crate) fn first_line(option: &str, file: &Path) -> Result<String, Failure> {
    let wrong =
        |problem: &dyn std::fmt::Display| Failure::Usage(anyhow!("{option} {}: {problem}", file.display()));
    let text = open(file).and_then(io::read_to_string).map_err(|error| wrong(&error))?;
    let line = text.lines().next().filter(|line| !line.trim().is_empty());
    line.map(str::to_owned).ok_or_else(|| wrong(&"its first line is empty"))
}
