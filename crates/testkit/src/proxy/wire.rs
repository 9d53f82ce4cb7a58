//! The part of HTTP/1.1's framing that shows where a message ends.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest head (request or status line, and header fields), in bytes. A larger one is refused.
const HEAD_MAX_BYTES: usize = 1 << 20;

/// The highest number of header fields in one head.
const HEADERS_MAX: usize = 128;

/// The receiving half of a connection, with the bytes that were read ahead.
pub(crate) struct Reader<R> {
    stream: R,
    buffer: BytesMut,
}

/// A message's head: its bytes as received, and their meaning.
pub(crate) struct Head {
    pub raw: Bytes,
    /// Method and path of a request; empty for a response.
    pub method: String,
    pub path: String,
    /// 0 for a request.
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// How a message's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After this many bytes.
    Length(u64),
    /// With an empty chunk.
    Chunked,
    /// With the connection.
    UntilClose,
}

/// A reader of one body, chunk by chunk, without its framing.
pub(crate) struct Body {
    framing: Framing,
    /// The remaining bytes of the body (`Length`) or of the current chunk (`Chunked`).
    left: u64,
    done: bool,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Reads more. Returns `false` at the end of the stream. Loses no data when cancelled.
    async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(32 << 10);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    /// Returns when the sender has closed its side. Keeps what the sender sends before.
    pub async fn closed(&mut self) -> io::Result<()> {
        while self.buffer.len() < HEAD_MAX_BYTES {
            if !self.fill().await? {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// The next head, parsed as a request or as a response. `None` if the stream ends before it.
    pub async fn head(&mut self, is_request: bool) -> io::Result<Option<Head>> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
            if let Some(mut head) = Head::parse(&self.buffer, is_request, &mut fields)? {
                let length = head.raw.len();
                head.raw = self.buffer.split_to(length).freeze();
                return Ok(Some(head));
            }
            if self.buffer.len() > HEAD_MAX_BYTES {
                return Err(broken("the head is too long"));
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(broken("a head broke off")) };
            }
        }
    }

    /// A line of chunked framing, without its line end.
    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buffer.split_to(end + 2);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !self.fill().await? {
                return Err(broken("a chunk broke off"));
            }
        }
    }
}

impl Head {
    /// Parses a head at the start of `bytes`. `None` if it is not complete.
    fn parse<'b>(
        bytes: &'b [u8],
        is_request: bool,
        fields: &mut [httparse::Header<'b>],
    ) -> io::Result<Option<Self>> {
        let invalid = |error: httparse::Error| broken(&error.to_string());
        let (length, method, path, status, fields): (_, _, _, _, &[httparse::Header]) = if is_request {
            let mut request = httparse::Request::new(fields);
            let httparse::Status::Complete(length) = request.parse(bytes).map_err(invalid)? else {
                return Ok(None);
            };
            (length, request.method.unwrap_or(""), request.path.unwrap_or(""), 0, request.headers)
        } else {
            let mut answer = httparse::Response::new(fields);
            let httparse::Status::Complete(length) = answer.parse(bytes).map_err(invalid)? else {
                return Ok(None);
            };
            (length, "", "", answer.code.unwrap_or(0), answer.headers)
        };
        let text = |field: &httparse::Header| {
            (field.name.to_ascii_lowercase(), String::from_utf8_lossy(field.value).into_owned())
        };
        Ok(Some(Self {
            raw: Bytes::copy_from_slice(&bytes[..length]),
            method: method.to_owned(),
            path: path.to_owned(),
            status,
            headers: fields.iter().map(text).collect(),
        }))
    }

    /// A header field by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the connection ends after this message.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn declared_framing(&self) -> io::Result<Option<Framing>> {
        if self
            .header("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"))
        {
            return Ok(Some(Framing::Chunked));
        }
        let length = self.header("content-length").map(|value| value.trim().parse::<u64>());
        let length = length.transpose().map_err(|_| broken("a Content-Length that is no number"))?;
        Ok(length.map(Framing::Length))
    }

    /// The framing of this request's body.
    pub fn request_framing(&self) -> io::Result<Framing> {
        Ok(self.declared_framing()?.unwrap_or(Framing::Length(0)))
    }

    /// The framing of this response's body, for a request with `method`.
    pub fn answer_framing(&self, method: &str) -> io::Result<Framing> {
        if method == "HEAD" || matches!(self.status, 100..=199 | 204 | 304) {
            return Ok(Framing::Length(0));
        }
        Ok(self.declared_framing()?.unwrap_or(Framing::UntilClose))
    }
}

impl Body {
    pub fn new(framing: Framing) -> Self {
        let left = if let Framing::Length(length) = framing { length } else { 0 };
        Self { framing, left, done: framing == Framing::Length(0) }
    }

    /// Whether the whole body was read.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The next chunk, or `None` after the last one.
    pub async fn next<R: AsyncRead + Unpin>(&mut self, reader: &mut Reader<R>) -> io::Result<Option<Bytes>> {
        if self.done {
            return Ok(None);
        }
        if self.framing == Framing::Chunked && self.left == 0 {
            let line = reader.line().await?;
            let size = line.split(';').next().unwrap_or("").trim();
            self.left = u64::from_str_radix(size, 16).map_err(|_| broken("a chunk without a size"))?;
            if self.left == 0 {
                // Trailers are dropped, because no peer sends any.
                while !reader.line().await?.is_empty() {}
                self.done = true;
                return Ok(None);
            }
        }
        if reader.buffer.is_empty() && !reader.fill().await? {
            if self.framing == Framing::UntilClose {
                self.done = true;
                return Ok(None);
            }
            return Err(broken("a body broke off"));
        }
        let available = reader.buffer.len();
        if self.framing == Framing::UntilClose {
            return Ok(Some(reader.buffer.split_to(available).freeze()));
        }
        let take = available.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let piece = reader.buffer.split_to(take).freeze();
        self.left -= take as u64;
        match self.framing {
            Framing::Chunked if self.left == 0 => {
                reader.line().await?;
            }
            _ => self.done = self.left == 0 && self.framing != Framing::Chunked,
        }
        Ok(Some(piece))
    }
}

/// Writes a chunk of a body in its framing.
pub(crate) async fn write_piece<W: AsyncWrite + Unpin>(
    stream: &mut W,
    framing: Framing,
    piece: &[u8],
) -> io::Result<()> {
    if framing != Framing::Chunked {
        return stream.write_all(piece).await;
    }
    // An empty chunk would end the body.
    if piece.is_empty() {
        return Ok(());
    }
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    stream.write_all(&chunk).await
}

/// Writes the end of a body in its framing.
pub(crate) async fn write_end<W: AsyncWrite + Unpin>(stream: &mut W, framing: Framing) -> io::Result<()> {
    if framing == Framing::Chunked { stream.write_all(b"0\r\n\r\n").await } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn body(framing: Framing, text: &'static str) -> (io::Result<Vec<u8>>, BytesMut) {
        let mut reader = Reader::new(text.as_bytes());
        let mut body = Body::new(framing);
        let mut bytes = Vec::new();
        loop {
            match body.next(&mut reader).await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Ok(None) => return (Ok(bytes), reader.buffer),
                Err(error) => return (Err(error), reader.buffer),
            }
        }
    }

    #[tokio::test]
    async fn bodies_end_where_their_framing_says() {
        let (bytes, rest) = body(Framing::Chunked, "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: 1\r\n\r\nGET").await;
        assert_eq!((bytes.unwrap(), &rest[..]), (b"abcde".to_vec(), &b"GET"[..]));
        let (bytes, rest) = body(Framing::Length(3), "abcde").await;
        assert_eq!((bytes.unwrap(), &rest[..]), (b"abc".to_vec(), &b"de"[..]));
        let (bytes, _) = body(Framing::UntilClose, "abcde").await;
        assert_eq!(bytes.unwrap(), b"abcde");
    }

    #[tokio::test]
    async fn bodies_that_break_off_are_errors() {
        assert!(body(Framing::Chunked, "5\r\nabc").await.0.is_err());
        assert!(body(Framing::Chunked, "3\r\nabc\r\n").await.0.is_err());
        assert!(body(Framing::Length(9), "abc").await.0.is_err());
    }
}
