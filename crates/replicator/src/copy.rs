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

/// Copies batches; shared by all that are in flight.
pub(crate) struct Copier {
    target: Peer,
    fetcher: Fetcher,
    attachments: attachments::Copier,
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
            tally: Tally::default(),
        }
    }

    /// Copies what the target lacks of `batch`. When it answers, everything of it is on the target or was refused there.
    pub async fn copy(&self, batch: Batch) -> Result<(), Error> {
        self.tally.revisions_checked.add(batch.revisions);
        let missing = revs_diff::missing(&self.target, batch.revs).await?;
        let revisions = missing.iter().map(|missing| missing.revs.len() as u64).sum();
        self.tally.missing_revisions_found.add(revisions);
        let mut sink =
            Writer { copier: self, buffer: WriteBuffer::default(), revisions: Vec::new(), kept_bytes: 0 };
        for part in missing.chunks(BULK_GET_DOCS) {
            self.fetcher.fetch(part, &mut sink, &self.tally).await?;
            // Only now that the source's answer has been read: these requests need connections of their own.
            sink.kept_bytes = 0;
            self.attachments.copy(std::mem::take(&mut sink.revisions), &self.tally).await?;
        }
        sink.buffer.flush(&self.target, &self.tally).await
    }
}

/// Gathers documents until a write is worth while.
struct Writer<'a> {
    copier: &'a Copier,
    buffer: WriteBuffer,
    /// Revisions with attachments.
    revisions: Vec<Revision>,
    /// How much of their documents is kept.
    kept_bytes: usize,
}

impl Sink for Writer<'_> {
    fn doc(&mut self, doc: &[u8]) {
        self.buffer.push(doc);
    }

    fn doc_with_stubs(&mut self, missing: &Missing, doc: &[u8], head: &Head<'_>) {
        let keep = self.kept_bytes + doc.len() <= KEPT_BYTES;
        if keep {
            self.kept_bytes += doc.len();
        }
        self.revisions.push(Revision {
            id: missing.id.clone(),
            rev: head.rev.clone(),
            stubs: keep.then(|| doc.to_vec()),
            encoded: head.attachments.is_some_and(attachments::has_encoded),
            ancestors: missing.possible_ancestors.clone(),
        });
    }

    async fn breathe(&mut self) -> Result<(), Error> {
        if self.buffer.is_full() {
            self.buffer.flush(&self.copier.target, &self.copier.tally).await?;
        }
        Ok(())
    }
}
