//! The slower way: each attachment is read in a separate request.

use turnwise_outbound::{Error, Fault, Request};

use super::frame::{Frame, frame};
use super::stubs::{self, Stub};
use super::{Copier, CopyResult, Filler, Revision};
use crate::query::{DocName, Query, doc_path, encode_segment};
use crate::stats::Tally;

/// Why an attachment is not read by itself.
const DOTS: &str = "an attachment with `.` or `..` in its URL is not read separately";

impl Copier {
    /// One attempt to copy `revision`, attachment by attachment.
    pub(super) async fn send_pieces(
        &self,
        revision: &mut Revision,
        tally: &Tally,
    ) -> Result<CopyResult, Error> {
        let doc = match revision.stubs.take() {
            Some(doc) => doc,
            None => self.read_stubs(revision).await?,
        };
        let announced = stubs::announce(&doc).map_err(|cause| self.fault(revision, Fault::Malformed(cause)));
        // Kept for another attempt.
        revision.stubs = Some(doc);
        let following = announced?;
        let may_be_folded = |stub: &Stub| matches!(stub.name.as_str(), "." | "..");
        if DocName::of(&revision.id) == DocName::Dots || following.stubs.iter().any(may_be_folded) {
            // Where a gateway folds such segments, the answer would be something else of the source.
            return Ok(CopyResult::Absent(self.fault(revision, Fault::Unexpected(DOTS.to_owned()))));
        }
        let (frame, body) = frame(&following, self.target_is_pouchdb);
        self.put(revision, body, tally, async |filler| {
            self.fill(revision, &following.stubs, frame, filler).await
        })
        .await
    }

    async fn read_stubs(&self, revision: &Revision) -> Result<Vec<u8>, Error> {
        let query = Query::of([("rev", &revision.rev), ("revs", "true"), ("att_encoding_info", "true")]);
        let most = self.source.max_document_bytes();
        let mut answer = self.source.send(&Request::get(query.on(&doc_path(&revision.id)))).await?;
        match answer.bytes_up_to(most).await? {
            Some(doc) => Ok(doc),
            None => Err(answer.fault(Fault::TooLarge(most))),
        }
    }

    async fn fill(
        &self,
        revision: &Revision,
        stubs: &[Stub],
        frame: Frame,
        filler: Filler,
    ) -> Result<(), Error> {
        for (stub, before) in stubs.iter().zip(frame.before) {
            let query = Query::of([("rev", &revision.rev)]);
            let path = format!("{}/{}", doc_path(&revision.id), encode_segment(&stub.name));
            // This connection is not counted. It is part of the request to the target, which is counted, and must not
            // wait for another one.
            let request = Request::get(query.on(&path)).accept("*/*").uncounted();
            let mut answer = self.source.send(&request).await?;
            if !filler.attachment(stub, before, &mut answer).await? {
                return Ok(());
            }
        }
        filler.send(frame.end).await;
        Ok(())
    }
}
