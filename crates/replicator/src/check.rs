//! The invariants of the rows of `_replicator` databases: of one document, of one job that belongs to a document, and
//! of one database. As in [`turnwise_queue::check`], each check is a function from the rows of one snapshot to
//! findings.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value};
use turnwise_queue::check::{Finding, Invariant, Row as Key, whole};
use turnwise_queue::{Job, Keyspace, Then};

use crate::JOB_TYPE;
use crate::doc_processor::{Row, RowState, Summary};
use crate::documents::databases::Database;
use crate::documents::{Counters, Head, local::Local, names};

/// A document: its database and its id.
pub type DocumentKey = (String, String);

/// The rows of one document.
#[derive(Debug, Clone, Default)]
pub struct DocumentRows {
    /// Its head, if the row exists and can be parsed.
    pub head: Option<Head>,
    /// The pieces of its body.
    pub body: BTreeMap<u32, Bytes>,
    /// The numbers of the changes that name it.
    pub changes: BTreeSet<i64>,
    /// The state of its replication, if the row exists and can be parsed.
    pub replication: Option<Row>,
    /// Its entries in the index of unresolved documents.
    pub unresolved: BTreeSet<i64>,
    /// Its entries in the index of filter functions to check again.
    pub filter_checks: BTreeSet<i64>,
    /// The rows that cannot be parsed.
    pub unreadable: Vec<Finding>,
}

impl DocumentRows {
    /// Adds a row, if it belongs to a document.
    pub fn add(&mut self, row: &Key, key: &[u8], value: &Bytes) {
        match row {
            Key::Document(..) => self.head = self.read(key, value),
            Key::Replication(..) => self.replication = self.read(key, value),
            Key::Body(_, _, n) => {
                self.body.insert(*n, value.clone());
            }
            Key::Change(_, sequence) => {
                self.changes.insert(*sequence);
            }
            Key::Unresolved(due_us, ..) => {
                self.unresolved.insert(*due_us);
            }
            Key::FilterCheck(check_us, ..) => {
                self.filter_checks.insert(*check_us);
            }
            _ => {}
        }
    }

    fn read<T: serde::de::DeserializeOwned>(&mut self, key: &[u8], value: &[u8]) -> Option<T> {
        match serde_json::from_slice(value) {
            Ok(read) => Some(read),
            Err(error) => {
                self.unreadable.push(Finding::new(Invariant::Readable, key, error.to_string()));
                None
            }
        }
    }
}

/// The reason why the value of a row of a `_replicator` database cannot be parsed; `None` if it can. Rows of other
/// families always can.
pub fn unreadable(row: &Key, value: &[u8]) -> Option<String> {
    let read = match row {
        Key::Database(_) => serde_json::from_slice::<Database>(value).map(drop),
        Key::Sequence(_) => serde_json::from_slice::<Counters>(value).map(drop),
        Key::Document(..) => serde_json::from_slice::<Head>(value).map(drop),
        Key::Local(..) => serde_json::from_slice::<Local>(value).map(drop),
        Key::Change(..) => serde_json::from_slice::<String>(value).map(drop),
        Key::Replication(..) => serde_json::from_slice::<Row>(value).map(drop),
        Key::Mirror(_) => serde_json::from_slice::<serde::de::IgnoredAny>(value).map(drop),
        _ => Ok(()),
    };
    read.err().map(|error| error.to_string())
}

/// Whether a document exists and has a replication, finished or not.
pub fn is_replicated(id: &str, head: &Head) -> bool {
    !head.deleted && !names::is_design(id)
}

/// The document that a job belongs to, as long as its row must name the job. A job that has ended, or that is about to
/// be removed, has none.
pub fn document_of(job: &Job) -> Option<DocumentKey> {
    if job.job_type != JOB_TYPE || job.state().is_final() || job.then() == Then::Remove {
        return None;
    }
    let summary = Summary::of(job)?;
    summary.document().map(|(db, id)| (db.to_owned(), id.to_owned()))
}

/// Checks the rows of one document. `job` is the one that its replication's row names.
pub fn check_document(
    keys: &Keyspace,
    (db, id): &DocumentKey,
    rows: &DocumentRows,
    database: Option<&Database>,
    job: Option<&Job>,
) -> Vec<Finding> {
    let mut found = Found { keys, db, id, rows, findings: rows.unreadable.clone() };
    if found.findings.is_empty() {
        match &rows.head {
            Some(head) => found.document(head, database, job),
            None => found.orphans(),
        }
    }
    found.findings
}

/// What was found in the rows of one document.
struct Found<'a> {
    keys: &'a Keyspace,
    db: &'a str,
    id: &'a str,
    rows: &'a DocumentRows,
    findings: Vec<Finding>,
}

impl Found<'_> {
    fn add(&mut self, invariant: Invariant, key: Bytes, problem: impl Into<String>) {
        self.findings.push(Finding::new(invariant, &key, problem));
    }

    /// Reports the rows of a document that does not exist.
    fn orphans(&mut self) {
        let Self { keys, db, id, rows, .. } = *self;
        for sequence in &rows.changes {
            let key = keys.change(db, *sequence);
            self.add(Invariant::Changed, key, "it names a document that does not exist");
        }
        for n in rows.body.keys() {
            self.add(Invariant::BodyWhole, keys.body_piece(db, id, *n), "there is no document");
        }
        if rows.replication.is_some() {
            self.add(Invariant::Scheduled, keys.replication(db, id), "there is no document");
        }
        self.entries(None, "there is no document", "there is no document");
    }

    /// Reports the entries in the indexes of unresolved documents and of filter checks that a document's row does not name.
    fn entries(&mut self, row: Option<&Row>, unresolved: &str, checked: &str) {
        let Self { keys, db, id, rows, .. } = *self;
        let (due_us, check_us) = (row.and_then(|row| row.due_us), row.and_then(|row| row.check_us));
        for other in rows.unresolved.iter().filter(|other| due_us != Some(**other)) {
            self.add(Invariant::Resolved, keys.unresolved_entry(*other, db, id), unresolved);
        }
        for other in rows.filter_checks.iter().filter(|other| check_us != Some(**other)) {
            self.add(Invariant::Resolved, keys.filter_check(*other, db, id), checked);
        }
    }

    fn document(&mut self, head: &Head, database: Option<&Database>, job: Option<&Job>) {
        let Self { keys, db, id, rows, .. } = *self;
        let head_key = keys.document(db, id);
        let Some(database) = database else {
            return self.add(Invariant::DatabaseThere, head_key, "there is no database of this name");
        };
        if !rows.changes.contains(&head.sequence) {
            self.add(Invariant::Changed, head_key.clone(), format!("there is no change {}", head.sequence));
        }
        for other in rows.changes.iter().filter(|sequence| **sequence != head.sequence) {
            let problem = format!("the document's latest change is {}", head.sequence);
            self.add(Invariant::Changed, keys.change(db, *other), problem);
        }
        if let Err((n, problem)) = check_body(&rows.body) {
            self.add(Invariant::BodyWhole, keys.body_piece(db, id, n), problem);
        }
        match &rows.replication {
            Some(row) => self.replication(head, row, job),
            None => {
                // The deletion of a database removes these rows first.
                if is_replicated(id, head) && !database.deleting {
                    self.add(Invariant::Scheduled, head_key, "there is no row for its replication");
                }
                self.entries(None, "no document waits for it", "the document has no replication");
            }
        }
    }

    /// Checks the row of a document's replication.
    fn replication(&mut self, head: &Head, row: &Row, job: Option<&Job>) {
        let Self { keys, db, id, rows, .. } = *self;
        let row_key = || keys.replication(db, id);
        if !is_replicated(id, head) {
            let problem = "the document is deleted, or describes no replication";
            self.add(Invariant::Scheduled, row_key(), problem);
        } else if row.rev != head.rev {
            let problem =
                format!("it is about revision {}, and the document has revision {}", row.rev, head.rev);
            self.add(Invariant::Scheduled, row_key(), problem);
        }
        let waits = matches!(row.state, RowState::Initializing | RowState::Error);
        if waits != row.due_us.is_some() {
            let problem =
                format!("it is {:?} and has {} due time", row.state, if waits { "no" } else { "a" });
            self.add(Invariant::Resolved, row_key(), problem);
        }
        if let Some(due_us) = row.due_us.filter(|due_us| !rows.unresolved.contains(due_us)) {
            self.add(Invariant::Resolved, row_key(), format!("there is no entry at {due_us}"));
        }
        if row.check_us.is_some() && row.state != RowState::Scheduled {
            let problem = format!("it is {:?}, but has a time to check its filter again", row.state);
            self.add(Invariant::Resolved, row_key(), problem);
        }
        if let Some(check_us) = row.check_us.filter(|check_us| !rows.filter_checks.contains(check_us)) {
            let problem = format!("there is no check of its filter at {check_us}");
            self.add(Invariant::Resolved, row_key(), problem);
        }
        self.entries(Some(row), "no document waits for it", "the document's row names another time");
        let problem = match (&row.job, job) {
            (None, _) if row.state == RowState::Scheduled => "it is scheduled and names no job".to_owned(),
            (None, _) => return,
            (Some(_), _) if row.state != RowState::Scheduled => {
                format!("it is {:?} and names a job", row.state)
            }
            (Some(name), None) => format!("its job {name} does not exist"),
            (Some(_), Some(job)) if document_of(job).is_some_and(|(of, doc)| of == db && doc == id) => return,
            (Some(name), Some(_)) => {
                format!("its job {name} has ended, is about to be removed, or belongs to another document")
            }
        };
        self.add(Invariant::DocumentsJob, row_key(), problem);
    }
}

/// Checks that the pieces form a JSON object.
fn check_body(pieces: &BTreeMap<u32, Bytes>) -> Result<(), (u32, String)> {
    if pieces.is_empty() {
        return Err((0, "it has no pieces".to_owned()));
    }
    whole(&pieces.iter().map(|(n, piece)| (*n, piece.len())).collect())?;
    let mut body = BytesMut::with_capacity(pieces.values().map(Bytes::len).sum());
    pieces.values().for_each(|piece| body.extend_from_slice(piece));
    // The parser's message is left out, because it may repeat secrets.
    serde_json::from_slice::<Map<String, Value>>(&body)
        .map(drop)
        .map_err(|_| (0, "it is not a JSON object".to_owned()))
}

/// Checks that the row of a job's document names the job. `row` is the row of this document.
pub fn check_documents_job(keys: &Keyspace, job: &Job, row: Option<&Row>) -> Option<Finding> {
    let (db, id) = document_of(job)?;
    let known = row.and_then(|row| row.job.as_ref()) == Some(&job.id);
    let problem = || format!("document {id:?} of {db:?} does not name this job");
    (!known).then(|| Finding::new(Invariant::DocumentsJob, &keys.job(JOB_TYPE, &job.id), problem()))
}

impl Counters {
    /// Counts a head.
    pub fn count(&mut self, head: &Head) {
        self.documents += u64::from(!head.deleted);
        self.deleted += u64::from(head.deleted);
        self.sequence = self.sequence.max(head.sequence);
    }
}

/// Checks a database that has rows. `counted` are the numbers of the heads of its documents.
pub fn check_database(
    keys: &Keyspace,
    db: &str,
    database: Option<&Database>,
    counters: Option<&Counters>,
    counted: &Counters,
) -> Option<Finding> {
    let (key, sequence) = (keys.database(db), keys.sequence(db));
    let Some(database) = database else {
        return Some(Finding::new(Invariant::DatabaseThere, &key, "there are rows, but no database"));
    };
    if database.deleting {
        return None;
    }
    let Some(counters) = counters else {
        return Some(Finding::new(Invariant::Counted, &key, "it has no update sequence"));
    };
    let problem = || format!("{} are stored, and the documents are {}", words(counters), words(counted));
    (counters != counted).then(|| Finding::new(Invariant::Counted, &sequence, problem()))
}

fn words(Counters { sequence, documents, deleted }: &Counters) -> String {
    format!("{documents} documents, {deleted} deleted, sequence {sequence}")
}
