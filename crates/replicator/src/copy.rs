//! The work on one batch: what does the target lack, read it, write it.

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

/// Copies batches; shared by all that are in flight.
pub(crate) struct Copier {
    target: Peer,
    fetcher: Fetcher,
    pub tally: Tally,
}

impl Copier {
    pub fn new(source: Peer, target: Peer, replication: &Replication) -> Self {
        Self { fetcher: Fetcher::new(source, replication.use_bulk_get), target, tally: Tally::default() }
    }

    /// Copies what the target lacks of `batch`. When it answers, everything of it is on the target or was refused there.
    pub async fn copy(&self, batch: Batch) -> Result<(), Error> {
        self.tally.revisions_checked.add(batch.revisions);
        let missing = revs_diff::missing(&self.target, batch.revs).await?;
        let revisions = missing.iter().map(|missing| missing.revs.len() as u64).sum();
        self.tally.missing_revisions_found.add(revisions);
        let mut sink = Writer { copier: self, buffer: WriteBuffer::default() };
        for part in missing.chunks(BULK_GET_DOCS) {
            self.copy_part(part, &mut sink).await?;
        }
        sink.buffer.flush(&self.target, &self.tally).await
    }

    async fn copy_part(&self, part: &[Missing], sink: &mut Writer<'_>) -> Result<(), Error> {
        self.fetcher.fetch(part, sink, &self.tally).await
    }
}

/// Gathers documents until a write is worth while.
struct Writer<'a> {
    copier: &'a Copier,
    buffer: WriteBuffer,
}

impl Sink for Writer<'_> {
    fn doc(&mut self, doc: &[u8]) {
        self.buffer.push(doc);
    }

    fn doc_with_stubs(&mut self, _id: &str, doc: &[u8]) {
        self.buffer.push(doc);
    }

    async fn breathe(&mut self) -> Result<(), Error> {
        if self.buffer.is_full() {
            self.buffer.flush(&self.copier.target, &self.copier.tally).await?;
        }
        Ok(())
    }
}
