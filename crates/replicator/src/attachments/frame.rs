//! The `multipart/related` body of a write: the document, with a delimiter and headers around each attachment.
//!
//! CouchDB expects the document first, and discards an upload that breaks off. PouchDB Server crashes on an upload that
//! breaks off, so a failing source must not cause that. It accepts the document at any position, and rejects a body
//! without one, harmlessly. For PouchDB Server the document therefore comes last. If the attachments could not be read
//! to their end, the body is closed without it.

use bytes::Bytes;
use rand::Rng;

use super::stubs::{Following, Stub};

/// The properties of a request's body, without its content.
pub(super) struct Body {
    pub content_type: String,
    /// `None`: the length is unknown (chunked). A body of known length costs CouchDB two thirds of the CPU.
    pub length: Option<u64>,
    /// Ends a body whose source has failed. `None` breaks the request off.
    pub when_failed: Option<Bytes>,
}

/// The data around the attachments.
pub(super) struct Frame {
    /// The data before each attachment: the document (before the first, unless it comes last), a delimiter, and headers.
    pub before: Vec<Vec<u8>>,
    pub end: Vec<u8>,
}

/// The frame of a body with `following`, and the properties of this body.
pub(super) fn frame(following: &Following, doc_last: bool) -> (Frame, Body) {
    let boundary = format!("{:032x}", rand::rng().random::<u128>());
    let frame = Frame::new(following, &boundary, doc_last);
    let body = Body {
        content_type: format!("multipart/related; boundary=\"{boundary}\""),
        // A body that may end early cannot state its length.
        length: (!doc_last).then(|| frame.length(&following.stubs)),
        when_failed: doc_last.then(|| format!("\r\n--{boundary}--").into()),
    };
    (frame, body)
}

impl Frame {
    fn new(following: &Following, boundary: &str, doc_last: bool) -> Self {
        let json = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n");
        let mut before = Vec::with_capacity(following.stubs.len());
        for (nth, stub) in following.stubs.iter().enumerate() {
            let mut text = Vec::new();
            if nth == 0 && !doc_last {
                text.extend_from_slice(json.as_bytes());
                text.extend_from_slice(&following.doc);
            }
            if nth > 0 || !doc_last {
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(part_headers(boundary, stub).as_bytes());
            before.push(text);
        }
        let mut end = b"\r\n".to_vec();
        if doc_last {
            end.extend_from_slice(json.as_bytes());
            end.extend_from_slice(&following.doc);
            end.extend_from_slice(b"\r\n");
        }
        end.extend_from_slice(format!("--{boundary}--").as_bytes());
        Self { before, end }
    }

    fn length(&self, stubs: &[Stub]) -> u64 {
        let frame: usize = self.before.iter().map(Vec::len).sum::<usize>() + self.end.len();
        frame as u64 + stubs.iter().map(|stub| stub.length).sum::<u64>()
    }
}

fn part_headers(boundary: &str, stub: &Stub) -> String {
    let name = header_text(&stub.name).replace('"', "%22");
    let content_type = header_text(&stub.content_type);
    let encoding = match &stub.encoding {
        Some(encoding) => format!("Content-Encoding: {}\r\n", header_text(encoding)),
        None => String::new(),
    };
    let length = stub.length;
    format!(
        "--{boundary}\r\nContent-Disposition: attachment; filename=\"{name}\"\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n{encoding}\r\n"
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

    #[test]
    fn the_frame_is_a_proper_multipart_body_of_the_length_it_says() {
        let stub = |name: &str, length| Stub {
            name: name.to_owned(),
            content_type: "x/y".to_owned(),
            length,
            encoding: None,
        };
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

    #[test]
    fn a_body_that_failed_is_closed_without_its_document() {
        let stub = Stub { name: "a".to_owned(), content_type: "x/y".to_owned(), length: 9, encoding: None };
        let following = Following { doc: b"{\"_id\":\"a\"}".to_vec(), stubs: vec![stub] };
        let (frame, body) = frame(&following, true);
        let text = [&frame.before[0][..], b"abc", &body.when_failed.unwrap()[..]].concat();
        assert!(!String::from_utf8(text).unwrap().contains("_id"));
        assert_eq!(body.length, None);
    }
}
