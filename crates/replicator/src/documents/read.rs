//! Reads single documents, and pages of them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use turnwise_queue::{Keyspace, read_pieces};
use turnwise_store::{Isolation, RangeRead, Transaction};

use super::rows::{self, decode};
use super::{DocTx, Error, Result, Revision};

/// A document without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// In the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// The current revision.
    pub rev: Revision,
    /// Whether it is a tombstone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// The number of the write that created this revision.
    pub sequence: i64,
    /// The hashes of earlier revisions, latest first, as far as they are stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<String>,
}

impl Head {
    /// Whether the document is or was in this revision, as far as its history is stored.
    pub fn has(&self, rev: &Revision) -> bool {
        let back = match self.rev.generation.checked_sub(rev.generation) {
            None => return false,
            Some(0) => return self.rev == *rev,
            Some(back) => usize::try_from(back).unwrap_or(usize::MAX),
        };
        self.ancestors.get(back - 1) == Some(&rev.hash)
    }
}

/// A document as it is stored.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its id, revision and history.
    pub head: Head,
    /// Its members except `_id` and `_rev`. Holds secrets: see [`redaction`](super::redaction).
    pub body: Map<String, Value>,
}

impl DocTx<'_> {
    /// The document's head, also of a tombstone.
    pub(crate) async fn head(self) -> turnwise_queue::Result<Option<Head>> {
        let DocTx { tx, keys, db, id } = self;
        let head: Option<Head> = rows::read(tx, &keys.document(db, id), "document head").await?;
        Ok(head.map(|head| Head { id: id.to_owned(), ..head }))
    }

    /// The body of a document that has a head.
    pub(crate) async fn body(self) -> turnwise_queue::Result<Map<String, Value>> {
        let bytes = read_pieces(self.tx, &self.keys.body(self.db, self.id)).await?;
        decode("document body", &bytes)
    }
}

/// A document in its current revision. `rev`, if given, must be the current revision or its tombstone.
///
/// # Errors
/// `Missing` and `Deleted`; those of [`databases::check`](super::databases::check).
pub async fn get(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    id: &str,
    rev: Option<&Revision>,
) -> Result<Document> {
    super::databases::check(tx, keys, db).await?;
    let doc = DocTx { tx, keys, db, id };
    let head = doc.head().await?.ok_or(Error::Missing)?;
    match rev {
        Some(rev) if *rev != head.rev => return Err(Error::Missing),
        None if head.deleted => return Err(Error::Deleted),
        _ => {}
    }
    Ok(Document { head, body: doc.body().await? })
}

/// A range of document ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The first id, inclusive.
    pub from: Option<String>,
    /// The last id, inclusive.
    pub to: Option<String>,
    /// Excludes `to` itself.
    pub exclusive_end: bool,
    /// From last to first; `from` is then the larger id.
    pub descending: bool,
}

/// One page of documents.
#[derive(Debug, Clone)]
pub struct Page {
    /// The existing documents, without tombstones.
    pub heads: Vec<Head>,
    /// Where the next page begins, if there may be more.
    pub next: Option<Bytes>,
}

/// One page of documents. Reads at most `limit` rows, tombstones included, from `from` on if it is given.
pub async fn page(
    tx: &Transaction,
    keys: &Keyspace,
    db: &str,
    stretch: &Stretch,
    next: Option<Bytes>,
    limit: usize,
) -> Result<Page> {
    let (mut begin, mut end) = keys.documents(db);
    let (low, high) = match stretch.descending {
        false => (&stretch.from, &stretch.to),
        true => (&stretch.to, &stretch.from),
    };
    let after = |id: &str| turnwise_store::key::successor(&keys.document(db, id));
    if let Some(low) = low {
        let excluded = stretch.exclusive_end && stretch.descending;
        begin = if excluded { after(low) } else { keys.document(db, low) };
    }
    if let Some(high) = high {
        let excluded = stretch.exclusive_end && !stretch.descending;
        end = if excluded { keys.document(db, high) } else { after(high) };
    }
    match next {
        Some(next) if stretch.descending => end = next,
        Some(next) => begin = next,
        None => {}
    }
    let read = RangeRead { begin, end, limit, reverse: stretch.descending };
    let rows = tx.range_with(read, Isolation::Snapshot).await?;
    let next = match rows.last() {
        Some((last, _)) if rows.len() == limit => {
            Some(if stretch.descending { last.clone() } else { turnwise_store::key::successor(last) })
        }
        _ => None,
    };
    let mut heads = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        let head: Head = decode("document head", &value)?;
        if !head.deleted {
            heads.push(Head { id: keys.parse_document(&key)?, ..head });
        }
    }
    Ok(Page { heads, next })
}

/// The head of one document for a request to `_all_docs` by key; tombstones included.
pub async fn by_key(tx: &Transaction, keys: &Keyspace, db: &str, id: &str) -> Result<Option<Head>> {
    Ok(DocTx { tx, keys, db, id }.head().await?)
}

/// The document of a head that was read in the same transaction.
pub async fn with_body(tx: &Transaction, keys: &Keyspace, db: &str, head: Head) -> Result<Document> {
    let body = DocTx { tx, keys, db, id: &head.id }.body().await?;
    Ok(Document { head, body })
}
