//! The work on one batch: find out what the target lacks, read it, write it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;
use turnwise_outbound::{Error, Peer, Side};

use crate::attachments::{self, Head, Revision};
use crate::changes::{Batch, TargetLeaves};
use crate::database::Info;
use crate::feed_docs::{Demand, FeedDocs};
use crate::fetch::{Fetcher, NotInline, Sink};
use crate::pace::Pace;
use crate::query::DocName;
use crate::revs_diff::{self, Missing};
use crate::spec::Replication;
use crate::stats::Tally;
use crate::write::WriteBuffer;

/// Documents in one `_bulk_get`: enough to make the request's fixed cost negligible, and few enough to repeat when the
/// response breaks off.
pub(crate) const BULK_GET_DOCS: usize = 500;

/// The bytes of documents with attachments that are kept until their attachments are copied; documents beyond are read again.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// Attachments of one document whose total size is at most this travel inside the document, in base64. Separate
/// requests cost CouchDB more: for 2,000 documents with three attachments of 32 kB, the target needs 7.5 CPU seconds
/// inside and 16.6 separately.
const INLINE_BYTES: u64 = 256 * 1024;
/// The same limit where the target has earlier revisions, and so perhaps already has the attachments.
const INLINE_AGAIN_BYTES: u64 = 16 * 1024;
/// The most attachment bytes in one request for documents with attachments inside.
const INLINE_BATCH_BYTES: u64 = 3 * 1024 * 1024;

/// The most such batches in flight concurrently. Each takes some 10 MB of memory. Once both servers are busy, more
/// batches gain nothing.
const INLINE_BATCHES: usize = 4;

/// Revisions about which no `_revs_diff` asks, if the target was empty when the run began. For a small database, these
/// are all revisions, which saves one of about ten requests. If another replication fills the same target, each writes
/// at most this many revisions needlessly. A document that was among them is asked about when it changes: the target may
/// have its attachments.
const FRESH_REVISIONS: u64 = 2_000;

/// Copies batches; all batches in flight share it.
pub(crate) struct Copier {
    pub target: Peer,
    fetcher: Fetcher,
    attachments: attachments::Copier,
    target_is_pouchdb: bool,
    /// Room for [`INLINE_BATCHES`] batches.
    inline_room: Semaphore,
    /// Whether the changes feed should include documents.
    pub demand: Arc<Demand>,
    /// What the target is known to have.
    pub on_target: Arc<TargetLeaves>,
    /// How large batches are.
    pub pace: Arc<Pace>,
    /// What the target is known to lack.
    fresh: Mutex<Fresh>,
    pub tally: Tally,
}

impl Copier {
    /// `on_target` is the target's description. A PouchDB does not accept attachments in the encoding in which CouchDB
    /// stores them.
    pub fn new(
        source: Peer,
        target: Peer,
        replication: &Replication,
        on_target: &Info,
        tally: Tally,
    ) -> Self {
        let (target_is_pouchdb, is_empty) = (on_target.is_pouchdb(), on_target.is_empty());
        let (settings, pace) = (&replication.settings, Arc::new(Pace::new(replication)));
        let (from, to) = (source.clone(), target.clone());
        Self {
            fetcher: Fetcher::new(source, replication, Arc::clone(&pace)),
            attachments: attachments::Copier::new(from, to, settings, target_is_pouchdb),
            target,
            target_is_pouchdb,
            inline_room: Semaphore::new(INLINE_BATCHES),
            pace,
            demand: Arc::new(Demand::new(is_empty)),
            on_target: Arc::default(),
            fresh: Mutex::new(Fresh::new(is_empty)),
            tally,
        }
    }

    /// Copies what the target lacks of `batch`. When it returns, the target has stored or permanently rejected every
    /// document of the batch that the source delivered. Returns whether the source delivered all.
    pub async fn copy(&self, batch: Batch) -> Result<bool, Error> {
        self.tally.doc_write_failures.add(batch.left_out);
        if batch.changes == 0 {
            // The batch only reports how far the feed has come.
            return Ok(true);
        }
        self.tally.revisions_checked.add(batch.revisions);
        if batch.revs.is_empty() {
            // The target is known to have all of it.
            self.demand.learn(batch.revisions, 0);
            return Ok(true);
        }
        let revs = Bytes::from(batch.revs);
        let missing = match self.lacks_all(&revs, batch.revisions) {
            Some(all) => all,
            None => revs_diff::missing(&self.target, revs).await?,
        };
        let revisions = missing.iter().map(|missing| missing.revs.len() as u64).sum();
        self.tally.missing_revisions_found.add(revisions);
        self.on_target.learn(batch.revisions, revisions);
        let mut writer = Writer::new(self);
        let (came, missing) = self.take_from_feed(&batch.docs, missing, &mut writer).await?;
        let could_come = missing.iter().filter(|missing| is_first(missing)).count() as u64;
        self.demand.learn(batch.revisions, if batch.docs.is_empty() { could_come } else { came });
        drop(batch.docs);
        let mut unread = 0;
        if !writer.small.is_empty() || !writer.large.is_empty() {
            unread += self.copy_attachments(&mut writer).await?;
        }
        let mut left = &missing[..];
        while !left.is_empty() {
            let part;
            (part, left) = left.split_at(self.pace.of(Side::Source, BULK_GET_DOCS).min(left.len()));
            unread += self.fetcher.fetch(part, &mut writer, &self.tally).await?;
            // Only after the source's response has been read completely: these requests need connections of their own.
            unread += self.copy_attachments(&mut writer).await?;
        }
        writer.buffer.flush(&self.target, &self.pace, &self.tally).await?;
        Ok(unread == 0)
    }

    /// All of `revs`, if the target is known to lack them.
    fn lacks_all(&self, revs: &[u8], revisions: u64) -> Option<Vec<Missing>> {
        let mut fresh = self.fresh.lock().expect("no thread panics while it holds this lock");
        if fresh.revisions < revisions {
            // Later batches may hold documents of this one.
            *fresh = Fresh::new(false);
            return None;
        }
        revs_diff::all(revs).filter(|all| fresh.take(all, revisions))
    }

    /// Passes missing documents that came with the feed to `writer`. Returns their number, and the remaining documents.
    async fn take_from_feed(
        &self,
        docs: &FeedDocs,
        missing: Vec<Missing>,
        writer: &mut Writer<'_>,
    ) -> Result<(u64, Vec<Missing>), Error> {
        if docs.is_empty() {
            return Ok((0, missing));
        }
        let index = docs.index();
        let (mut came, mut others) = (0, Vec::new());
        for missing in missing {
            let Some(found) = index.find(&missing) else {
                others.push(missing);
                continue;
            };
            match &found.stubs {
                Some(head) => writer.doc_with_stubs(&missing, found.doc, head),
                None => writer.doc(found.doc),
            }
            came += 1;
            writer.flush_if_full().await?;
        }
        self.tally.docs_read.add(came);
        Ok((came, others))
    }

    /// Copies the revisions with attachments that `writer` has collected. Returns how many the source did not deliver.
    async fn copy_attachments(&self, writer: &mut Writer<'_>) -> Result<u64, Error> {
        writer.kept_bytes = 0;
        let mut batches = in_batches(std::mem::take(&mut writer.small));
        let mut others = Vec::new();
        if batches.len() <= 1 {
            // A single batch may share a write with documents that have no attachments.
            for batch in batches {
                others.push(self.fetcher.fetch_inline(batch, writer).await?);
            }
        } else {
            // The next batch is read while one is written.
            let copies = batches.drain(..).map(|batch| self.copy_inline(batch));
            others = stream::iter(copies).buffer_unordered(INLINE_BATCHES).try_collect().await?;
        }
        let large = std::mem::take(&mut writer.large);
        let mut unread = self.attachments.copy(large, &self.tally).await?;
        for (left, refused) in others {
            let asked = left.len() as u64;
            let lacks = self.attachments.copy(left, &self.tally).await?;
            if let Some(error) = refused.filter(|_| lacks < asked) {
                self.fetcher.refuses_inline(&error);
            }
            unread += lacks;
        }
        Ok(unread)
    }

    /// Copies one batch of revisions with small attachments; returns the revisions that did not come.
    async fn copy_inline(&self, batch: Vec<Revision>) -> Result<NotInline, Error> {
        let _room = self.inline_room.acquire().await.expect("never closed");
        let mut waiting = self.target.waiting_bytes();
        waiting.set(INLINE_BATCH_BYTES as usize);
        let mut writer = Writer::new(self);
        let others = self.fetcher.fetch_inline(batch, &mut writer).await?;
        writer.buffer.flush(&self.target, &self.pace, &self.tally).await?;
        Ok(others)
    }
}

/// Documents that a target lacks because it was empty when the run began.
struct Fresh {
    /// How many more revisions count as missing without a request to the target.
    revisions: u64,
    /// The documents that were counted: the target has them, or will have them.
    sent: HashSet<String>,
}

impl Fresh {
    fn new(is_empty: bool) -> Self {
        Self { revisions: if is_empty { FRESH_REVISIONS } else { 0 }, sent: HashSet::new() }
    }

    /// Counts the documents of a batch. Returns whether none of them was counted before.
    fn take(&mut self, batch: &[Missing], revisions: u64) -> bool {
        let lacks_all = !batch.iter().any(|missing| self.sent.contains(&missing.id));
        self.revisions = self.revisions.saturating_sub(revisions);
        match self.revisions {
            // No later batch is counted.
            0 => self.sent = HashSet::new(),
            _ => self.sent.extend(batch.iter().map(|missing| missing.id.clone())),
        }
        lacks_all
    }
}

/// Whether only one revision is missing, and it is of the first generation.
fn is_first(missing: &Missing) -> bool {
    matches!(&missing.revs[..], [rev] if rev.starts_with("1-"))
}

/// Splits into batches of at most [`INLINE_BATCH_BYTES`], in the same order. No single revision has more.
fn in_batches(revisions: Vec<(Revision, u64)>) -> Vec<Vec<Revision>> {
    let (mut batches, mut bytes) = (Vec::new(), u64::MAX);
    for (revision, more) in revisions {
        bytes = bytes.saturating_add(more);
        if bytes > INLINE_BATCH_BYTES {
            batches.push(Vec::new());
            bytes = more;
        }
        batches.last_mut().expect("the first revision has made one").push(revision);
    }
    batches
}

/// Collects documents until a write is worthwhile.
struct Writer<'a> {
    copier: &'a Copier,
    buffer: WriteBuffer,
    /// Revisions whose attachments can travel inside, with the bytes of these attachments.
    small: Vec<(Revision, u64)>,
    /// Revisions whose attachments are streamed.
    large: Vec<Revision>,
    /// How many bytes of their documents are kept.
    kept_bytes: usize,
}

impl<'a> Writer<'a> {
    fn new(copier: &'a Copier) -> Self {
        let buffer = WriteBuffer::new(copier.target.waiting_bytes());
        Self { copier, buffer, small: Vec::new(), large: Vec::new(), kept_bytes: 0 }
    }

    /// The bytes of the attachments, if they can travel inside their document.
    fn inline(&self, missing: &Missing, summary: &attachments::Summary) -> Option<u64> {
        let Copier { target_is_pouchdb, fetcher, .. } = self.copier;
        let limit = match DocName::of(&missing.id) {
            // Inside a document, attachments are not encoded. Between two CouchDBs they stay as stored, so that digests agree.
            DocName::Plain if summary.encoded && !target_is_pouchdb => return None,
            DocName::Plain if missing.possible_ancestors.is_empty() => INLINE_BYTES,
            DocName::Plain => INLINE_AGAIN_BYTES,
            // Where a gateway folds their URLs, there is no other way.
            _ => INLINE_BATCH_BYTES,
        };
        summary.bytes.filter(|&bytes| bytes <= limit && fetcher.has_inline())
    }
}

impl Sink for Writer<'_> {
    fn doc(&mut self, doc: &[u8]) {
        self.buffer.push(doc);
    }

    fn doc_with_stubs(&mut self, missing: &Missing, doc: &[u8], head: &Head<'_>) {
        let summary = head.attachments.map(attachments::summary).unwrap_or_default();
        let mut revision = Revision {
            id: missing.id.clone(),
            rev: head.rev.clone(),
            stubs: None,
            encoded: summary.encoded,
            ancestors: missing.possible_ancestors.clone(),
            follows_login: false,
        };
        if let Some(bytes) = self.inline(missing, &summary) {
            self.small.push((revision, bytes));
            return;
        }
        if self.kept_bytes + doc.len() <= KEPT_BYTES {
            self.kept_bytes += doc.len();
            revision.stubs = Some(doc.to_vec());
        }
        self.large.push(revision);
    }

    async fn flush_if_full(&mut self) -> Result<(), Error> {
        let Copier { target, pace, tally, .. } = self.copier;
        if self.buffer.is_full(target, pace) {
            self.buffer.flush(target, pace, tally).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_was_sent_to_an_empty_target_is_asked_about_when_it_changes() {
        let batch = |ids: &[&str]| -> Vec<Missing> {
            let missing = |id: &&str| Missing {
                id: (*id).to_owned(),
                revs: vec!["1-a".to_owned()],
                possible_ancestors: Default::default(),
            };
            ids.iter().map(missing).collect()
        };
        let mut fresh = Fresh::new(true);
        assert!(fresh.take(&batch(&["a", "b"]), 2));
        assert!(!fresh.take(&batch(&["c", "a"]), 2));
        assert!(!fresh.take(&batch(&["c"]), 1), "it was in a batch that was asked about");
        assert!(fresh.take(&batch(&["d"]), 1));
        assert_eq!(fresh.revisions, FRESH_REVISIONS - 6);
    }

    #[test]
    fn small_attachments_are_asked_for_in_batches_of_bounded_size() {
        let revision = |nth: usize| Revision {
            id: nth.to_string(),
            rev: "1-a".to_owned(),
            stubs: None,
            encoded: false,
            ancestors: Default::default(),
            follows_login: false,
        };
        let sizes = [1, 2, 1, 3, 0, 2];
        let revisions = sizes.into_iter().enumerate().map(|(nth, mib)| (revision(nth), mib << 20)).collect();
        let batches: Vec<usize> = in_batches(revisions).iter().map(Vec::len).collect();
        assert_eq!(batches, [2, 1, 2, 1]);
        assert!(in_batches(Vec::new()).is_empty());
    }
}
