//! The work on one batch: what does the target lack, read it, write it.

use crate::attachments::{self, Head, Revision};
use crate::changes::Batch;
use crate::error::Error;
use crate::fetch::{Fetcher, Sink};
use crate::http::Peer;
use crate::revs_diff::{self, Missing};
use crate::spec::Replication;
use crate::stats::Tally;
use crate::write::WriteBuffer;

/// Documents in one `_bulk_get`: enough to make the request's own cost vanish, few enough to be asked again when
/// the answer breaks off.
const BULK_GET_DOCS: usize = 500;

/// How much of documents with attachments is kept until their turn comes; the others are read again.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// Attachments of one document that are no larger than this together travel inside it, in base64: a request of its own
/// costs CouchDB more (2,000 documents with three of 32 kB: 7.5 CPU seconds at the target inside, 16.6 by themselves).
const INLINE_BYTES: u64 = 256 * 1024;
/// Where the target has earlier revisions, and so perhaps the attachments, sending them again is worth while up to here.
const INLINE_AGAIN_BYTES: u64 = 16 * 1024;
/// Attachments in one request for documents with attachments inside.
const INLINE_BATCH_BYTES: u64 = 3 * 1024 * 1024;

/// Copies batches; shared by all that are in flight.
pub(crate) struct Copier {
    target: Peer,
    fetcher: Fetcher,
    attachments: attachments::Copier,
    target_is_pouchdb: bool,
    pub tally: Tally,
}

impl Copier {
    /// `target_is_pouchdb`: it cannot take attachments in the encoding in which CouchDB stores them.
    pub fn new(source: Peer, target: Peer, replication: &Replication, target_is_pouchdb: bool) -> Self {
        let at_once = (replication.http_connections / replication.worker_processes).max(1);
        Self {
            fetcher: Fetcher::new(source.clone(), replication.use_bulk_get),
            attachments: attachments::Copier::new(source, target.clone(), target_is_pouchdb, at_once),
            target,
            target_is_pouchdb,
            tally: Tally::default(),
        }
    }

    /// Copies what the target lacks of `batch`. When it answers, everything of it is on the target or was refused there.
    pub async fn copy(&self, batch: Batch) -> Result<(), Error> {
        self.tally.revisions_checked.add(batch.revisions);
        let missing = revs_diff::missing(&self.target, batch.revs).await?;
        let revisions = missing.iter().map(|missing| missing.revs.len() as u64).sum();
        self.tally.missing_revisions_found.add(revisions);
        let mut writer = Writer::new(self);
        for part in missing.chunks(BULK_GET_DOCS) {
            self.fetcher.fetch(part, &mut writer, &self.tally).await?;
            // Only now that the source's answer has been read: these requests need connections of their own.
            self.copy_attachments(&mut writer).await?;
        }
        writer.buffer.flush(&self.target, &self.tally).await
    }

    /// Copies the revisions with attachments that `writer` has gathered.
    async fn copy_attachments(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        writer.kept_bytes = 0;
        for batch in in_batches(std::mem::take(&mut writer.small)) {
            let left = self.fetcher.fetch_inline(batch, writer, &self.tally).await?;
            writer.large.extend(left);
        }
        self.attachments.copy(std::mem::take(&mut writer.large), &self.tally).await
    }
}

/// Batches of at most [`INLINE_BATCH_BYTES`], in the same order. No single revision has more.
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

/// Gathers documents until a write is worth while.
struct Writer<'a> {
    copier: &'a Copier,
    buffer: WriteBuffer,
    /// Revisions whose attachments can travel inside, and the bytes of these.
    small: Vec<(Revision, u64)>,
    /// Those whose attachments are streamed.
    large: Vec<Revision>,
    /// How much of their documents is kept.
    kept_bytes: usize,
}

impl<'a> Writer<'a> {
    fn new(copier: &'a Copier) -> Self {
        Self { copier, buffer: WriteBuffer::default(), small: Vec::new(), large: Vec::new(), kept_bytes: 0 }
    }

    /// Whether attachments travel inside their document.
    fn inline(&self, missing: &Missing, summary: &attachments::Summary) -> Option<u64> {
        if matches!(missing.id.as_str(), "." | "..") {
            // No URL can name these documents, so there is no other way.
            return summary
                .bytes
                .filter(|&bytes| bytes <= INLINE_BATCH_BYTES && self.copier.fetcher.has_inline());
        }
        // Inside, they are not encoded; between two CouchDBs they stay as they are stored, so that digests agree.
        let as_stored = !summary.encoded || self.copier.target_is_pouchdb;
        let limit = if missing.possible_ancestors.is_empty() { INLINE_BYTES } else { INLINE_AGAIN_BYTES };
        summary.bytes.filter(|&bytes| bytes <= limit && as_stored && self.copier.fetcher.has_inline())
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

    async fn breathe(&mut self) -> Result<(), Error> {
        if self.buffer.is_full() {
            self.buffer.flush(&self.copier.target, &self.copier.tally).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_attachments_are_asked_for_in_batches_of_bounded_size() {
        let revision = |nth: usize| Revision {
            id: nth.to_string(),
            rev: "1-a".to_owned(),
            stubs: None,
            encoded: false,
            ancestors: Vec::new(),
        };
        let sizes = [1, 2, 1, 3, 0, 2];
        let revisions = sizes.into_iter().enumerate().map(|(nth, mib)| (revision(nth), mib << 20)).collect();
        let batches: Vec<usize> = in_batches(revisions).iter().map(Vec::len).collect();
        assert_eq!(batches, [2, 1, 2, 1]);
        assert!(in_batches(Vec::new()).is_empty());
    }
}
