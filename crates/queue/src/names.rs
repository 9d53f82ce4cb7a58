//! What names may be.

use crate::error::{Error, Result};

/// Longest name of a task, in bytes.
pub const MAX_TASK_BYTES: usize = 64;
/// Longest tag, in bytes.
pub const MAX_TAG_BYTES: usize = 64;
/// Longest class of an error, in bytes; longer ones are cut.
pub const MAX_CLASS_BYTES: usize = 200;

pub(crate) fn check_task(task: &str) -> Result<()> {
    check_name("task", task, MAX_TASK_BYTES)
}

/// Whether a word may be a tag. Conditions name such words without quotes.
///
/// # Errors
/// `Invalid` with the field.
pub fn check_tag(field: &'static str, tag: &str) -> Result<()> {
    check_name(field, tag, MAX_TAG_BYTES)?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/@+".contains(c);
    if tag.chars().all(is_allowed) {
        return Ok(());
    }
    Err(Error::Invalid {
        field,
        problem: "may have letters a to z and A to Z, digits and _ - . : / @ + only".to_owned(),
    })
}

pub(crate) fn check_name(field: &'static str, name: &str, limit: usize) -> Result<()> {
    let problem = match name.len() {
        0 => "must not be empty".to_owned(),
        n if n > limit => format!("has {n} bytes; at most {limit} are allowed"),
        // They would break the lines of logs and tables.
        _ if name.contains(char::is_control) => "must not contain control characters".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Invalid { field, problem })
}
