//! The audit log: a line for each request that changes something.
//!
//! `{"at":"…","who":"user:jan","address":"10.0.0.7","method":"PUT","path":"/v1/jobs/mail/a/priority","status":200}`. A line has
//! no query and no body, so it has no options and no secrets. Without a status, the client closed the connection before the
//! response. What workers do for their jobs is in the histories of the jobs.
//! While the file cannot be written, requests that change something are refused. So at most the requests that were under way
//! when it failed have no line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use turnwise_telemetry::ThrottledLog;

use super::{Caller, Who};

/// Paths of CouchDB's API that read although they take a body.
const READS: [&str; 5] = ["_all_docs", "_bulk_get", "_changes", "_ensure_full_commit", "_revs_diff"];

/// The most bytes of a path in a line.
const MAX_PATH_BYTES: usize = 1024;

/// The most bytes of the file that one request reads.
const MAX_READ_BYTES: u64 = 256 << 10;

/// The file.
pub struct Audit {
    path: PathBuf,
    /// `None` after a failure: the next request opens it again.
    file: Mutex<Option<File>>,
    /// The lines of senders without credentials, or with wrong ones.
    strangers: ThrottledLog,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When the request arrived, as RFC 3339.
    pub at: String,
    /// Who has sent it; null without credentials.
    pub who: Option<String>,
    /// From which address.
    pub address: IpAddr,
    /// Its method.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// The status of the response. Null if the client closed the connection before it: the change may have been made.
    pub status: Option<u16>,
    /// How many lines of unknown senders were left out before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A request that is under way. Dropping it writes its line, also if the client closes the connection first.
pub struct Audited {
    audit: Arc<Audit>,
    line: Entry,
    /// Whether the sender has no valid credentials, on a store that needs them.
    is_stranger: bool,
}

impl Audited {
    pub fn new(audit: Arc<Audit>, at: String, address: IpAddr, method: &Method, path: &str) -> Audited {
        let path = path[..path.floor_char_boundary(MAX_PATH_BYTES)].to_owned();
        let line =
            Entry { at, who: None, address, method: method.to_string(), path, status: None, left_out: 0 };
        Audited { audit, line, is_stranger: true }
    }

    /// `None` has wrong credentials.
    pub fn sent_by(&mut self, caller: Option<&Caller>) {
        self.line.who = caller.and_then(Caller::name);
        self.is_stranger = caller.is_none_or(|caller| *caller.who() == Who::Nobody);
    }

    /// The request was a login, which has succeeded.
    pub fn logged_in(&mut self, who: Option<String>) {
        self.line.who = who;
        self.is_stranger = false;
    }

    pub fn ended(mut self, status: StatusCode) {
        // What succeeds always has a line.
        self.is_stranger &= !status.is_success();
        self.line.status = Some(status.as_u16());
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if self.is_stranger {
            // Anyone can cause these lines, so their number is limited: they must not fill the disk. A login that succeeds is not
            // one of them ([`Audited::logged_in`]).
            let Some(left_out) = self.audit.strangers.line() else { return };
            self.line.left_out = left_out;
        }
        self.audit.write(&self.line);
    }
}

impl Audit {
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path) -> io::Result<Audit> {
        let file = Mutex::new(Some(append(path)?));
        Ok(Audit { path: path.to_owned(), file, strangers: ThrottledLog::new() })
    }

    /// Opens the file again, after it was renamed.
    pub fn reopen(&self) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The last lines, newest first: at most `limit`, and those of the last [`MAX_READ_BYTES`]. Blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last(&self, limit: usize) -> io::Result<Vec<Entry>> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        let begin = length.saturating_sub(MAX_READ_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut text = Vec::new();
        file.take(MAX_READ_BYTES).read_to_end(&mut text)?;
        // The first line may be without its beginning, and the last one without its end. Neither is JSON then.
        let lines = text.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        Ok(lines.take(limit).collect())
    }

    /// Whether a line could be written now.
    pub fn is_ready(&self) -> bool {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            // An empty line shows whether there is room.
            let opened = append(&self.path).and_then(|mut opened| opened.write_all(b"\n").map(|()| opened));
            match opened {
                Ok(opened) => *file = Some(opened),
                Err(_) => return false,
            }
        }
        true
    }

    fn write(&self, line: &Entry) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = append(&self.path).ok();
        }
        let written = match file.as_mut() {
            Some(file) => file.write_all(&text),
            None => Err(io::Error::other("it cannot be opened")),
        };
        if let Err(error) = written {
            tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written: changes are refused");
            *file = None;
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Whether a request changes something that the audit log tells of.
pub fn is_audited(method: &Method, path: &str) -> bool {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return false;
    }
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first = parts.next();
    let (second, rest) = (parts.next(), parts.count());
    // Registering a worker and changing its mode are changes; its heartbeats, reports and ends are not.
    let is_run = first == Some("v1") && second == Some("workers") && rest > 2;
    let reads = *method == Method::POST
        && first != Some("v1")
        && rest == 0
        && second.is_some_and(|second| READS.contains(&second));
    !is_run && !reads
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_are_told_and_reads_and_runs_are_not() {
        for (method, path, audited) in [
            (Method::GET, "/v1/jobs", false),
            (Method::POST, "/v1/jobs", true),
            (Method::POST, "/v1/jobs/mail/_changes/cancel", true),
            (Method::POST, "/v1/workers/mail", true),
            (Method::PUT, "/v1/workers/mail/1", true),
            (Method::PUT, "/v1/nodes/a", true),
            (Method::POST, "/v1/workers/mail/1/ping", false),
            (Method::DELETE, "/v1/workers/mail/1/jobs/a/locks", false),
            (Method::PUT, "/_replicator/d", true),
            (Method::POST, "/_replicator/_all_docs", false),
            (Method::PUT, "/_replicator/_local/_changes", true),
            (Method::PUT, "/_replicator/_design/_changes", true),
            (Method::POST, "/_replicator/_bulk_docs", true),
            (Method::POST, "/_session", true),
            (Method::DELETE, "/v1/tokens/1", true),
            (Method::GET, "/ui/jobs", false),
            (Method::POST, "/ui/jobs/act", true),
        ] {
            assert_eq!(is_audited(&method, path), audited, "{method} {path}");
        }
    }

    #[test]
    fn a_file_that_fails_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        assert!(Audit::open(&folder.path().join("none/audit")).is_err());
        let audit = Audit::open(&path).unwrap();
        let line = |status| Entry {
            at: String::new(),
            who: None,
            address: [10, 0, 0, 7].into(),
            method: "PUT".to_owned(),
            path: "/x".to_owned(),
            status: Some(status),
            left_out: 0,
        };
        audit.write(&line(200));
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        audit.reopen();
        assert!(audit.is_ready());
        audit.write(&line(201));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.trim(),
            r#"{"at":"","who":null,"address":"10.0.0.7","method":"PUT","path":"/x","status":201}"#
        );
        audit.write(&line(202));
        let statuses: Vec<_> = audit.last(10).unwrap().into_iter().map(|entry| entry.status).collect();
        assert_eq!(statuses, [Some(202), Some(201)]);
        assert_eq!(audit.last(1).unwrap().len(), 1);
        // The folder is gone, as on a disk that is not there.
        audit.reopen();
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert!(!audit.is_ready());
        audit.write(&line(202));
        std::fs::create_dir_all(folder.path()).unwrap();
        assert!(audit.is_ready());
    }
}
