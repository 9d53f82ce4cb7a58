//! What gateways do to requests and responses: they refuse, lose, compress and give up.

use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use super::connection::{After, Exchange};
use super::wire::{Body, Framing, Head, Reader, write_end, write_piece};

/// How long a connection stays open after a body was refused, so that its client reads the response. As nginx's `lingering_timeout`.
const LINGER: Duration = Duration::from_secs(5);

/// A gateway's page for a status.
fn page(status: u16) -> String {
    let text = match status {
        403 => "Forbidden",
        405 => "Not Allowed",
        408 => "Request Time-out",
        413 => "Request Entity Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        _ => "Error",
    };
    format!(
        "<html>\r\n<head><title>{status} {text}</title></head>\r\n<body>\r\n<center><h1>{status} {text}</h1></center>\r\n</body>\r\n</html>\r\n"
    )
}

impl Exchange<'_> {
    /// Responds with a page, and reads the request's body first.
    pub(super) async fn answer_page(&mut self, status: u16) -> io::Result<After> {
        self.drain().await?;
        self.write_page(status, "keep-alive").await?;
        Ok(After::Next)
    }

    /// Refuses a body that was not read. A client that still sends may not get the response, unless the proxy lingers.
    pub(super) async fn refuse_body(&mut self, lingers: bool) -> io::Result<After> {
        self.write_page(413, "close").await?;
        if lingers {
            let mut body = Body::new(self.head.request_framing()?);
            let rest = async { while let Ok(Some(_)) = body.next(self.reader).await {} };
            let _ = tokio::time::timeout(LINGER, rest).await;
            return Ok(After::Close);
        }
        Ok(After::Reset)
    }

    /// Sends the request to the peer, waits for its response to begin, and drops it.
    pub(super) async fn lose(&mut self, status: u16) -> io::Result<After> {
        let body = self.drain().await?;
        let upstream = TcpStream::connect(&self.shared.upstream).await?;
        let (answers, mut requests) = upstream.into_split();
        let framing = self.head.request_framing()?;
        requests.write_all(&self.head.raw).await?;
        write_piece(&mut requests, framing, &body).await?;
        write_end(&mut requests, framing).await?;
        let mut answers = Reader::new(answers);
        while answers.head(false).await?.is_some_and(|head| head.status < 200) {}
        self.write_page(status, "keep-alive").await?;
        Ok(After::Next)
    }

    async fn write_page(&mut self, status: u16, connection: &str) -> io::Result<()> {
        let bytes = write_page(self.writer, self.head, status, connection).await?;
        self.answered(status, bytes);
        Ok(())
    }
}

/// Writes a response with a page, and returns the size of the page.
pub(super) async fn write_page(
    writer: &mut OwnedWriteHalf,
    request: &Head,
    status: u16,
    connection: &str,
) -> io::Result<usize> {
    let body = page(status);
    let head = format!(
        "HTTP/1.1 {status} Gateway\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
        body.len()
    );
    let shown = if request.method == "HEAD" { "" } else { &body };
    writer.write_all(format!("{head}{shown}").as_bytes()).await?;
    Ok(shown.len())
}

/// Compresses the body of one response, piece by piece.
pub(super) struct Gzip(GzEncoder<Vec<u8>>);

impl Gzip {
    /// A compressor and the response's new head, if the client accepts gzip, and the response has a body in plain text.
    pub fn begin(request: &Head, answer: &Head, framing: Framing) -> Option<(Gzip, Vec<u8>)> {
        let accepts = request.header("accept-encoding").is_some_and(|accepted| accepted.contains("gzip"));
        let is_text = answer.header("content-type").is_some_and(|kind| {
            ["json", "text/"].iter().any(|text| kind.contains(text)) && !kind.contains("event-stream")
        });
        let is_plain = answer.header("content-encoding").is_none();
        if !(accepts && is_text && is_plain) || answer.status != 200 || framing == Framing::Length(0) {
            return None;
        }
        let mut head = format!("HTTP/1.1 {} Gateway\r\n", answer.status);
        for (name, value) in &answer.headers {
            match name.as_str() {
                "content-length" | "transfer-encoding" => {}
                // What is compressed is not the same bytes.
                "etag" if !value.starts_with("W/") => head.push_str(&format!("etag: W/{value}\r\n")),
                _ => head.push_str(&format!("{name}: {value}\r\n")),
            }
        }
        head.push_str(
            "content-encoding: gzip\r\nvary: accept-encoding\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        Some((Gzip(GzEncoder::new(Vec::new(), Compression::fast())), head.into_bytes()))
    }

    /// The compressed form of a piece, which the client can decode at once.
    pub fn piece(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        self.0.write_all(piece)?;
        self.0.flush()?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// The last bytes.
    pub fn end(self) -> io::Result<Vec<u8>> {
        self.0.finish()
    }
}
