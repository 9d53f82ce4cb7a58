//! The long way: each attachment is read by itself, and the `multipart/related` body is put together on the way.

use rand::Rng;

use super::doc_last::{closed_without_doc, doc_part};
use super::stubs::{self, Following, Stub};
use super::{Body, Copier, Filler, Outcome, Revision};
use crate::error::{Error, Fault};
use crate::http::Request;
use crate::query::{Query, doc_path, encode};
use crate::stats::Tally;

/// A document with stubs that was not kept; CouchDB's limit is 8 MB.
const DOC_BYTES: usize = 256 * 1024 * 1024;

impl Copier {
    /// One attempt to copy `revision`, attachment by attachment.
    pub(super) async fn send_pieces(&self, revision: &mut Revision, tally: &Tally) -> Result<Outcome, Error> {
        let doc = match revision.stubs.take() {
            Some(doc) => doc,
            None => self.read_stubs(revision).await?,
        };
        let announced = stubs::announce(&doc).map_err(|cause| {
            let path = doc_path(&revision.id);
            self.source.fault(http::Method::GET, &path, Fault::Malformed(cause))
        });
        // Kept for another attempt.
        revision.stubs = Some(doc);
        let following = announced?;
        let boundary = format!("{:032x}", rand::rng().random::<u128>());
        let frame = Frame::new(&following, &boundary, self.target_is_pouchdb);
        let body = Body {
            content_type: format!("multipart/related; boundary=\"{boundary}\""),
            // A body that may end early cannot promise a length.
            length: (!self.target_is_pouchdb).then(|| frame.length(&following.stubs)),
            when_failed: self.target_is_pouchdb.then(|| closed_without_doc(&boundary)),
        };
        self.put(&revision.id, body, tally, async |filler| {
            self.fill(revision, &following.stubs, frame, filler).await
        })
        .await
    }

    async fn read_stubs(&self, revision: &Revision) -> Result<Vec<u8>, Error> {
        let mut query = Query::default();
        query.add("rev", &revision.rev);
        query.add("revs", "true");
        query.add("att_encoding_info", "true");
        self.source.send(&Request::get(query.on(&doc_path(&revision.id)))).await?.bytes(DOC_BYTES).await
    }

    async fn fill(
        &self,
        revision: &Revision,
        stubs: &[Stub],
        frame: Frame,
        filler: Filler,
    ) -> Result<(), Error> {
        for (stub, before) in stubs.iter().zip(frame.before) {
            filler.send(before).await;
            let mut query = Query::default();
            query.add("rev", &revision.rev);
            let path = format!("{}/{}", doc_path(&revision.id), encode(&stub.name));
            // Not counted as a connection: this one is part of the request to the target, which is, and must not wait for one.
            let request = Request::get(query.on(&path)).accept("*/*").uncounted();
            let mut answer = self.source.send(&request).await?;
            let mut left = stub.length;
            while let Some(piece) = answer.chunk().await? {
                if filler.is_closed() {
                    return Ok(());
                }
                left = left.checked_sub(piece.len() as u64).ok_or_else(|| {
                    answer.malformed(format!("an attachment of more than its {} bytes", stub.length))
                })?;
                filler.send(piece).await;
            }
            if left > 0 {
                let problem = format!("{left} of {} bytes of an attachment are missing", stub.length);
                return Err(answer.fault(Fault::BrokeOff(problem)));
            }
        }
        filler.send(frame.end).await;
        Ok(())
    }
}

/// What stands around the attachments.
struct Frame {
    /// Before each attachment: the document (before the first, unless it comes last), a delimiter, and headers.
    before: Vec<Vec<u8>>,
    end: Vec<u8>,
}

impl Frame {
    fn new(following: &Following, boundary: &str, doc_last: bool) -> Self {
        let mut before = Vec::with_capacity(following.stubs.len());
        for (nth, stub) in following.stubs.iter().enumerate() {
            let mut text = Vec::new();
            if nth == 0 && !doc_last {
                text.extend_from_slice(
                    format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").as_bytes(),
                );
                text.extend_from_slice(&following.doc);
            }
            if nth > 0 || !doc_last {
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(part_headers(boundary, stub).as_bytes());
            before.push(text);
        }
        let end = if doc_last {
            [b"\r\n", &*doc_part(boundary, &following.doc)].concat()
        } else {
            format!("\r\n--{boundary}--").into_bytes()
        };
        Self { before, end }
    }

    fn length(&self, stubs: &[Stub]) -> u64 {
        let frame: usize = self.before.iter().map(Vec::len).sum::<usize>() + self.end.len();
        frame as u64 + stubs.iter().map(|stub| stub.length).sum::<u64>()
    }
}

fn part_headers(boundary: &str, stub: &Stub) -> String {
    format!(
        "--{boundary}\r\nContent-Disposition: attachment; filename=\"{}\"\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
        header_text(&stub.name).replace('"', "%22"),
        header_text(&stub.content_type),
        stub.length
    )
}

/// A header's value cannot hold line breaks.
fn header_text(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::multipart::{Event, Parser};

    #[test]
    fn the_frame_is_a_proper_multipart_body_of_the_length_it_says() {
        let stub =
            |name: &str, length| Stub { name: name.to_owned(), content_type: "x/y".to_owned(), length };
        let following =
            Following { doc: b"{\"_id\":\"a\"}".to_vec(), stubs: vec![stub("a \"b\"", 3), stub("c", 0)] };
        for doc_last in [false, true] {
            let frame = Frame::new(&following, "bound", doc_last);
            let length = frame.length(&following.stubs);
            let body = [&frame.before[0][..], b"abc", &frame.before[1][..], b"", &frame.end[..]].concat();
            assert_eq!(body.len() as u64, length);
            let mut expected = vec![b"abc".to_vec(), Vec::new()];
            expected.insert(if doc_last { 2 } else { 0 }, b"{\"_id\":\"a\"}".to_vec());
            assert_eq!(contents(&body), expected);
        }
    }

    fn contents(body: &[u8]) -> Vec<Vec<u8>> {
        let mut parser = Parser::new("bound");
        parser.push(body);
        let mut contents: Vec<Vec<u8>> = Vec::new();
        loop {
            match parser.next().unwrap() {
                Event::Part(_) => contents.push(Vec::new()),
                Event::Data(data) => contents.last_mut().unwrap().extend_from_slice(&data),
                Event::PartEnd => {}
                Event::End | Event::NeedMore => break,
            }
        }
        parser.finish().unwrap();
        contents
    }
}
