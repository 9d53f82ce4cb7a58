//! `multipart/related` with the document behind its attachments instead of before them: for PouchDB Server as the target.
//!
//! That server dies of an upload that breaks off, so a failing source must not break one off. It does not mind where the document
//! stands, and refuses, without harm, a body that has none: so the document goes last, and a body whose attachments could not be
//! read to their end is closed without it. CouchDB wants the document first and takes nothing of a body that breaks off.

use bytes::Bytes;

use crate::multipart::{self, Event, Parser};

/// Moves the first part of a body behind the others while it passes through.
pub(super) struct DocLast {
    parser: Parser,
    boundary: String,
    doc: Vec<u8>,
    parts: usize,
}

impl DocLast {
    pub fn new(boundary: &str) -> Self {
        Self { parser: Parser::new(boundary), boundary: boundary.to_owned(), doc: Vec::new(), parts: 0 }
    }

    /// Takes a piece of the body and answers what can be sent of it.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Bytes>, multipart::Error> {
        self.parser.push(piece);
        let mut out = Vec::new();
        loop {
            match self.parser.next()? {
                Event::NeedMore | Event::End => return Ok(out),
                Event::Part(headers) => {
                    self.parts += 1;
                    if self.parts > 1 {
                        let mut text = format!("--{}\r\n", self.boundary);
                        for (name, value) in headers.iter() {
                            text.push_str(&format!("{name}: {value}\r\n"));
                        }
                        text.push_str("\r\n");
                        out.push(text.into());
                    }
                }
                Event::Data(piece) if self.parts == 1 => self.doc.extend_from_slice(&piece),
                Event::Data(piece) => out.push(piece),
                Event::PartEnd if self.parts > 1 => out.push(Bytes::from_static(b"\r\n")),
                Event::PartEnd => {}
            }
        }
    }

    /// What is sent at the end: the document.
    pub fn finish(self) -> Result<Bytes, multipart::Error> {
        self.parser.finish()?;
        Ok(doc_part(&self.boundary, &self.doc).into())
    }
}

/// The document as the last part, and the end of the body.
pub(super) fn doc_part(boundary: &str, doc: &[u8]) -> Vec<u8> {
    let head = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n");
    let end = format!("\r\n--{boundary}--");
    [head.as_bytes(), doc, end.as_bytes()].concat()
}

/// The end of a body that has failed, wherever it stands.
pub(super) fn closed_without_doc(boundary: &str) -> Bytes {
    format!("\r\n--{boundary}--").into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BODY: &str = "--b\r\nContent-Type: application/json\r\n\r\n{\"x\":1}\r\n--b\r\nContent-Type: t/p\r\n\r\nabc\r\n--b\r\nX: y\r\n\r\n\r\n--b--";

    #[test]
    fn the_first_part_moves_behind_the_others() {
        for cut in 1..BODY.len() {
            let mut body = DocLast::new("b");
            let mut out = Vec::new();
            for piece in BODY.as_bytes().chunks(cut) {
                out.extend(body.push(piece).unwrap().concat());
            }
            out.extend_from_slice(&body.finish().unwrap());
            assert_eq!(
                String::from_utf8(out).unwrap(),
                "--b\r\ncontent-type: t/p\r\n\r\nabc\r\n--b\r\nx: y\r\n\r\n\r\n--b\r\nContent-Type: application/json\r\n\r\n{\"x\":1}\r\n--b--"
            );
        }
    }

    #[test]
    fn a_body_that_ends_early_has_no_document() {
        let mut body = DocLast::new("b");
        body.push(&BODY.as_bytes()[..BODY.len() - 9]).unwrap();
        assert_eq!(body.finish().unwrap_err(), multipart::Error::Truncated);
    }
}
