//! Writes documents.

use bytes::Bytes;
use serde_json::{Map, Value};
use turnwise_queue::write_pieces;

use super::revision::MAX_FIRST_GENERATION;
use super::rows::{encode, read_counters};
use super::{Counters, DocTx, Error, Head, MAX_BODY_BYTES, Result, Revision, databases, names};

/// The number of earlier revisions whose hashes are stored, so that clients can request a document's history.
const MAX_ANCESTORS: usize = 50;
/// Members that servers add to responses, and that clients send back without a purpose.
const IGNORED: [&str; 7] =
    ["_revisions", "_revs_info", "_conflicts", "_deleted_conflicts", "_local_seq", "_seq", "_access"];
/// Members that a replicator adds to its documents.
pub(crate) const REPLICATION: [&str; 6] = [
    "_replication_state",
    "_replication_state_time",
    "_replication_state_reason",
    "_replication_id",
    "_replication_stats",
    "_replication_start_time",
];

/// A document as a client wants to write it.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The document's id.
    pub id: String,
    /// The revision that the client knows; `None` for a document that it considers new.
    pub rev: Option<Revision>,
    /// Whether to delete the document.
    pub deleted: bool,
    /// All other members.
    pub body: Map<String, Value>,
}

impl Draft {
    /// Reads a document from a client's JSON object. The id comes from the path or from `_id`; otherwise it is `fallback_id`.
    ///
    /// # Errors
    /// `Invalid`, `IllegalId` or `SpecialMember`; also for attachments.
    pub fn parse(id: Option<&str>, mut object: Map<String, Value>, fallback_id: &str) -> Result<Self> {
        let text = |name: &str, value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) if name == "_rev" => Err(Error::Invalid("Invalid rev format".to_owned())),
            Some(_) => Err(Error::IllegalId("Document id must be a string")),
        };
        let own_id = text("_id", object.shift_remove("_id"))?;
        let id = match (id, own_id) {
            (Some(id), Some(own_id)) if id != own_id => {
                return Err(Error::Invalid("Document ID must match the ID in the URL".to_owned()));
            }
            (Some(id), _) => id.to_owned(),
            (None, Some(own_id)) => own_id,
            (None, None) => fallback_id.to_owned(),
        };
        names::check_id(&id)?;
        let rev = text("_rev", object.shift_remove("_rev"))?.map(|rev| rev.parse()).transpose()?;
        let deleted = match object.shift_remove("_deleted") {
            None => false,
            Some(Value::Bool(deleted)) => deleted,
            Some(_) => return Err(Error::Invalid("`_deleted` must be true or false".to_owned())),
        };
        match object.shift_remove("_attachments") {
            None => {}
            Some(Value::Object(attachments)) if attachments.is_empty() => {}
            Some(_) => return Err(Error::Invalid("replication documents have no attachments".to_owned())),
        }
        object.retain(|name, _| !IGNORED.contains(&name.as_str()));
        let special =
            object.keys().find(|name| name.starts_with('_') && !REPLICATION.contains(&name.as_str()));
        if let Some(name) = special {
            return Err(Error::SpecialMember(name.chars().take(100).collect()));
        }
        Ok(Draft { id, rev, deleted, body: object })
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The document.
    pub id: String,
    /// Its new revision.
    pub rev: Revision,
}

/// The right to write one document once or more within a transaction. The document has not changed meanwhile, and the
/// client knows the revision that it replaces.
pub(crate) struct Slot<'a> {
    pub doc: DocTx<'a>,
    head: Option<Head>,
    /// The parent of the next revision.
    parent: Option<Revision>,
    counters: Counters,
}

impl<'a> Slot<'a> {
    /// Opens a document for a client that knows the revision `rev`.
    ///
    /// A document that never existed may be written with any `rev`, and its history continues from there, as in
    /// CouchDB. Documents thus move to turnwise with the response of another server's `_all_docs?include_docs=true`.
    ///
    /// # Errors
    /// `Conflict`; `Invalid` for a new document with an absurd `rev`; those of [`databases::check`].
    pub async fn open(doc: DocTx<'a>, rev: Option<&Revision>) -> Result<Self> {
        let DocTx { tx, keys, db, .. } = doc;
        databases::check(tx, keys, db).await?;
        if names::is_mirror(db) && tx.get(&keys.mirror(db)).await?.is_some() {
            return Err(Error::Mirror);
        }
        let slot = Self::open_current(doc).await?;
        match (&slot.head, rev) {
            (Some(head), Some(rev)) if *rev != head.rev => Err(Error::Conflict),
            (Some(head), None) if !head.deleted => Err(Error::Conflict),
            (None, Some(rev)) if rev.generation > MAX_FIRST_GENERATION => {
                let problem =
                    format!("a new document may continue from generation {MAX_FIRST_GENERATION} at most");
                Err(Error::Invalid(format!("_rev: {problem}")))
            }
            (None, Some(rev)) => Ok(Slot { parent: Some(rev.clone()), ..slot }),
            _ => Ok(slot),
        }
    }

    /// Opens the current document for the server itself. The database must exist.
    pub async fn open_current(doc: DocTx<'a>) -> turnwise_queue::Result<Self> {
        let head = doc.head().await?;
        let parent = head.as_ref().map(|head| head.rev.clone());
        let counters = read_counters(doc.tx, doc.keys, doc.db).await?;
        Ok(Slot { doc, head, parent, counters })
    }

    /// The current document; `None` if there is none, or only a tombstone.
    pub fn current(&self) -> Option<&Head> {
        self.head.as_ref().filter(|head| !head.deleted)
    }

    /// Writes the document's next revision.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn write(&mut self, deleted: bool, body: &Map<String, Value>) -> Result<Written> {
        let bytes = encode(body);
        if bytes.len() > MAX_BODY_BYTES {
            let (id, size) = (self.doc.id.to_owned(), bytes.len());
            return Err(Error::TooLarge { id, size, limit: MAX_BODY_BYTES });
        }
        Ok(self.put(deleted, &bytes)?)
    }

    /// Writes the next revision, whatever its size, because the server's own additions must never make a document too large.
    pub fn put(&mut self, deleted: bool, body: &Bytes) -> turnwise_queue::Result<Written> {
        let DocTx { tx, keys, db, id } = self.doc;
        let rev = Revision::next(self.parent.as_ref(), deleted, body);
        if let Some(head) = &self.head {
            tx.clear(keys.change(db, head.sequence))?;
            self.counters.documents -= u64::from(!head.deleted);
            self.counters.deleted -= u64::from(head.deleted);
        }
        self.counters.sequence += 1;
        self.counters.documents += u64::from(!deleted);
        self.counters.deleted += u64::from(deleted);
        let mut ancestors = self.head.take().map_or_else(Vec::new, |head| head.ancestors);
        if let Some(parent) = self.parent.take() {
            ancestors.insert(0, parent.hash);
            ancestors.truncate(MAX_ANCESTORS);
        }
        let (id, sequence) = (id.to_owned(), self.counters.sequence);
        let head = Head { id: id.clone(), rev: rev.clone(), deleted, sequence, ancestors };
        write_pieces(tx, keys.body(db, &id), |n| keys.body_piece(db, &id, n), body)?;
        tx.set(keys.document(db, &id), encode(&head))?;
        tx.set(keys.change(db, sequence), encode(&id))?;
        tx.set(keys.sequence(db), encode(&self.counters))?;
        self.parent = Some(rev.clone());
        self.head = Some(head);
        Ok(Written { id, rev })
    }
}
