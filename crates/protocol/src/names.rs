//! The rules for types, ids and names, shared by the server, its clients and the schema.
//!
//! The bounds keep keys far below the store's limit of 10 kB. Control characters could forge lines in logs and terminals. A job must be reachable
//! under its path, so `.` and `..` are no ids: clients resolve them before they send the request.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Longest job type, in bytes.
pub const MAX_TYPE_BYTES: usize = 64;
/// Longest job id, in bytes.
pub const MAX_ID_BYTES: usize = 512;
/// Longest tenant or user name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;
/// Longest name of a task, in bytes.
pub const MAX_TASK_BYTES: usize = 64;
/// Longest name of a group, in bytes.
pub const MAX_GROUP_BYTES: usize = 58;
/// Longest name of a worker, in bytes.
pub const MAX_WORKER_NAME_BYTES: usize = 128;

/// A job type: 1 to 64 letters, digits, `_`, `-` and `.`; not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = "mail", min_length = 1, max_length = 64, pattern = r"^(?!\.{1,2}$)[A-Za-z0-9_.-]+$")]
pub struct JobType(pub String);

/// A job's id, unique within its type: at most 512 bytes without control characters; not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(
    example = "mail-17",
    min_length = 1,
    max_length = 512,
    pattern = r"^(?!\.{1,2}$)[^\u0000-\u001f\u007f-\u009f]+$"
)]
pub struct JobId(pub String);

/// The name of a tenant or a user: at most 512 bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = "acme", min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
pub struct Name(pub String);

/// The name of a task: at most 64 bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(
    example = "send_welcome",
    min_length = 1,
    max_length = 64,
    pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
)]
pub struct TaskName(pub String);

/// A tag: 1 to 64 letters (a to z and A to Z), digits and `_`, `-`, `.`, `:`, `/`, `@`, `+`. A condition needs no quotes around it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = "nightly", min_length = 1, max_length = 64, pattern = r"^[A-Za-z0-9_.:/@+-]+$")]
pub struct Tag(pub String);

/// The name of a group: 1 to 58 letters (a to z and A to Z), digits and `_`, `-`, `.`, `:`, `+`; not `.` or `..`. A condition needs no quotes around it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = "import-7", min_length = 1, max_length = 58, pattern = r"^(?!\.{1,2}$)[A-Za-z0-9_.:+-]+$")]
pub struct GroupName(pub String);

/// A worker's id, assigned by the server. It belongs to one registration, and the server never assigns it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = "000643d1a2b3c4d5-9f3a1c5e7b2d4860", pattern = "^[0-9a-f]{16}-[0-9a-f]{16}$")]
pub struct WorkerId(pub String);

/// What is wrong with a name, and which names are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field of the request.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for Problem {}

/// Checks a job type.
///
/// # Errors
/// What is wrong with it.
pub fn check_type(job_type: &str) -> Result<(), Problem> {
    check("type", job_type, MAX_TYPE_BYTES)?;
    if is_plain(job_type) {
        return Ok(());
    }
    let problem = "may have letters, digits, `_`, `-` and `.` only, and is not `.` or `..`".to_owned();
    Err(Problem { field: "type", problem })
}

/// Checks a job's id.
///
/// # Errors
/// What is wrong with it.
pub fn check_id(id: &str) -> Result<(), Problem> {
    check("id", id, MAX_ID_BYTES)?;
    match is_dots(id) {
        true => Err(Problem { field: "id", problem: "`.` and `..` cannot be reached under a path".into() }),
        false => Ok(()),
    }
}

/// Checks the name of a tenant, a user or a worker. `field` states which of them it is.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(field: &'static str, name: &str) -> Result<(), Problem> {
    check(field, name, if field == "name" { MAX_WORKER_NAME_BYTES } else { MAX_NAME_BYTES })
}

/// Checks the name of a task.
///
/// # Errors
/// What is wrong with it.
pub fn check_task(task: &str) -> Result<(), Problem> {
    check("task", task, MAX_TASK_BYTES)
}

/// Checks the name of a group. `field` states where it is.
///
/// # Errors
/// What is wrong with it.
pub fn check_group(field: &'static str, name: &str) -> Result<(), Problem> {
    check(field, name, MAX_GROUP_BYTES)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:+".contains(&byte);
    if name.bytes().all(is_allowed) && !is_dots(name) {
        return Ok(());
    }
    let problem =
        "may have letters a to z and A to Z, digits and _ - . : + only, and is not `.` or `..`".to_owned();
    Err(Problem { field, problem })
}

/// Whether a string has the form of a worker's id: two numbers of 16 hexadecimal digits with a `-` between them.
pub fn is_worker_id(id: &str) -> bool {
    let hex =
        |part: &str| part.len() == 16 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    id.split_once('-').is_some_and(|(time, random)| hex(time) && hex(random))
}

/// Whether a name has letters, digits, `_`, `-` and `.` only, and is not `.` or `..`.
pub fn is_plain(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.bytes().all(allowed) && !is_dots(name)
}

fn is_dots(name: &str) -> bool {
    name == "." || name == ".."
}

fn check(field: &'static str, name: &str, limit: usize) -> Result<(), Problem> {
    let problem = match name.len() {
        0 => "must not be empty".to_owned(),
        n if n > limit => format!("has {n} bytes; at most {limit} are allowed"),
        _ if name.chars().any(char::is_control) => "must not have control characters".to_owned(),
        _ => return Ok(()),
    };
    Err(Problem { field, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_within_their_bounds_are_right() {
        assert_eq!(check_type(&"a".repeat(MAX_TYPE_BYTES)), Ok(()));
        assert_eq!(check_type("Send_mail-2.x"), Ok(()));
        assert_eq!(check_id(&"é".repeat(MAX_ID_BYTES / 2)), Ok(()));
        assert_eq!(check_id("a/b c?d#e%2F…"), Ok(()));
        assert_eq!(check_name("tenant", "Ä GmbH"), Ok(()));
        assert!(is_worker_id("000643d1a2b3c4d5-9f3a1c5e7b2d4860"));
    }

    #[test]
    fn others_are_told_what_is_wrong() {
        for job_type in ["", "a b", "ä", ".", "..", "a/b", "a\0", &"a".repeat(MAX_TYPE_BYTES + 1)] {
            assert!(check_type(job_type).is_err(), "{job_type:?}");
        }
        for id in ["", ".", "..", "a\0b", "a\nb", "\u{9f}", &"é".repeat(MAX_ID_BYTES / 2 + 1)] {
            assert!(check_id(id).is_err(), "{id:?}");
        }
        let long = check_name("user", &"u".repeat(MAX_NAME_BYTES + 1));
        assert_eq!(
            long.map_err(|problem| problem.to_string()),
            Err("user: has 513 bytes; at most 512 are allowed".to_owned())
        );
        assert!(check_name("name", &"w".repeat(MAX_WORKER_NAME_BYTES + 1)).is_err());
        for id in ["", "x", "000643d1a2b3c4d5_9f3a1c5e7b2d4860", "000643D1A2B3C4D5-9f3a1c5e7b2d4860"] {
            assert!(!is_worker_id(id), "{id:?}");
        }
    }
}
