//! `multipart` bodies: parsing them while they arrive, and the frame of those that are sent.
//!
//! [`Parser`] is pure: pieces go in, events come out, and it holds back at most a delimiter's length of a body. It does
//! not parse the content of a part, so that a `multipart/related` part of a `multipart/mixed` response passes through
//! unchanged.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

/// Errors of a multipart body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("a multipart body that ends too early")]
    Truncated,
    #[error("a multipart part without proper headers")]
    Headers,
    #[error("a multipart delimiter with text after it")]
    Delimiter,
}

/// The most bytes in the headers of one part.
const HEADERS_BYTES: usize = 16 * 1024;

/// The next event of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// More of the body is needed.
    NeedMore,
    /// A part begins.
    Part(Headers),
    /// Some of the part's content.
    Data(Bytes),
    /// The part has ended.
    PartEnd,
    /// The body has ended; ignore what follows.
    End,
}

/// A part's headers, with names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, String)>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn parse(text: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(text).map_err(|_| Error::Headers)?;
        let line = |line: &str| {
            let (name, value) = line.split_once(':').ok_or(Error::Headers)?;
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        text.split("\r\n").filter(|text| !text.is_empty()).map(line).collect::<Result<_, _>>().map(Self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preamble,
    /// Behind a delimiter: `--` ends the body, a line break begins a part.
    Delimiter,
    Headers,
    Body,
    Epilogue,
}

/// Parses a body.
#[derive(Debug)]
pub(crate) struct Parser {
    /// `\r\n--boundary`.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

impl Parser {
    pub fn new(boundary: &str) -> Self {
        // The added line break makes the first delimiter look like all the others.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Self { delimiter: format!("\r\n--{boundary}").into_bytes(), buffer, state: State::Preamble }
    }

    /// Adds the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        if self.state != State::Epilogue {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// Call this when the body has ended.
    pub fn finish(&self) -> Result<(), Error> {
        if self.state == State::Epilogue { Ok(()) } else { Err(Error::Truncated) }
    }

    /// The next event in what has been pushed.
    pub fn next(&mut self) -> Result<Event, Error> {
        loop {
            match self.state {
                State::Preamble => match memmem::find(&self.buffer, &self.delimiter) {
                    None => {
                        let keep = self.delimiter.len() - 1;
                        self.buffer.advance(self.buffer.len().saturating_sub(keep));
                        return Ok(Event::NeedMore);
                    }
                    Some(at) => self.pass_delimiter(at),
                },
                State::Delimiter => {
                    let padding = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                    match (self.buffer.get(padding), self.buffer.get(padding + 1)) {
                        (Some(b'-'), Some(b'-')) if padding == 0 => {
                            self.state = State::Epilogue;
                            self.buffer.clear();
                        }
                        (Some(b'\r'), Some(b'\n')) => {
                            // The line break stays: together with an empty line it ends even empty headers.
                            self.buffer.advance(padding);
                            self.state = State::Headers;
                        }
                        (Some(b'-' | b'\r'), None) | (None, _) => return Ok(Event::NeedMore),
                        _ => return Err(Error::Delimiter),
                    }
                }
                State::Headers => match memmem::find(&self.buffer, b"\r\n\r\n") {
                    None if self.buffer.len() > HEADERS_BYTES => return Err(Error::Headers),
                    None => return Ok(Event::NeedMore),
                    Some(at) => {
                        let headers = Headers::parse(&self.buffer[..at])?;
                        // A part without content ends with the line break that ends its headers.
                        self.buffer.advance(at + 4);
                        self.state = State::Body;
                        return Ok(Event::Part(headers));
                    }
                },
                State::Body => match memmem::find(&self.buffer, &self.delimiter) {
                    Some(0) => {
                        self.pass_delimiter(0);
                        return Ok(Event::PartEnd);
                    }
                    Some(at) => return Ok(Event::Data(self.buffer.split_to(at).freeze())),
                    None => {
                        let sure = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                        if sure == 0 {
                            return Ok(Event::NeedMore);
                        }
                        return Ok(Event::Data(self.buffer.split_to(sure).freeze()));
                    }
                },
                State::Epilogue => return Ok(Event::End),
            }
        }
    }

    fn pass_delimiter(&mut self, at: usize) {
        self.buffer.advance(at + self.delimiter.len());
        self.state = State::Delimiter;
    }
}

/// The boundary in a `Content-Type: multipart/…`.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().to_ascii_lowercase().starts_with("multipart/") {
        return None;
    }
    parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case("boundary") && !value.is_empty()).then_some(value)
    })
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
