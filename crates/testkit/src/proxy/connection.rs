//! One client's connection through the proxy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::fault::error_body;
use super::gateway::{Gzip, write_page};
use super::log::Request;
use super::wire::{Body, Framing, Head, Reader, write_end, write_piece};
use super::{Fault, Shared, multipart, updates};

/// How many times per second a slow response is written.
const SLOW_STEPS_PER_SECOND: u64 = 20;

/// The size of a multipart response's chunks, in bytes. It is odd, so that chunks end at every position in boundaries and
/// part heads eventually.
const MULTIPART_CHUNK_BYTES: usize = 1_021;

/// Whether the connection can take another request.
#[derive(PartialEq, Eq)]
pub(super) enum After {
    Next,
    Close,
    /// The connection ends with a TCP RST.
    Reset,
}

/// Serves one client until it disconnects, or a fault ends the connection.
pub(super) async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let _ = client.set_nodelay(true);
    let (reader, mut writer) = client.into_split();
    let mut reader = Reader::new(reader);
    // An error means that the other side has disconnected, or that a fault ends the connection. In both cases it ends here.
    while let Ok(Some(head)) = reader.head(true).await {
        let mut request = Request::new(&head);
        let fault = shared.fault_for(&request);
        request.fault = (fault != Fault::None).then(|| fault.clone());
        let number = shared.log.add(request);
        let mut exchange =
            Exchange { shared: &shared, number, head: &head, reader: &mut reader, writer: &mut writer };
        match exchange.run(fault).await {
            Ok(After::Next) if !head.closes() => {}
            Ok(After::Reset) => {
                let _ = writer.as_ref().set_zero_linger();
                // A drop would first end the stream properly.
                writer.forget();
                return;
            }
            _ => return,
        }
    }
}

/// One request and its response.
pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) number: usize,
    pub(super) head: &'a Head,
    pub(super) reader: &'a mut Reader<OwnedReadHalf>,
    pub(super) writer: &'a mut OwnedWriteHalf,
}

impl Exchange<'_> {
    async fn run(&mut self, fault: Fault) -> io::Result<After> {
        match fault {
            Fault::Status(status) => self.answer(status, &error_body(status)).await,
            Fault::Answer { status, body } => self.answer(status, &body).await,
            Fault::Page(status) => self.answer_page(status).await,
            Fault::Lost { status } => self.lose(status).await,
            Fault::BodyRefused { lingers } => self.refuse_body(lingers).await,
            Fault::InvalidJson => self.answer(200, "{\"results\":[{\"seq\":1,\"id\":\"tru").await,
            Fault::Multipart => self.answer_multipart(false).await,
            Fault::TruncatedMultipart => self.answer_multipart(true).await,
            Fault::None if updates::answers(&self.head.path) && self.shared.updates.get().is_some() => {
                let updates = self.shared.updates.get().expect("just seen");
                self.answer_updates(updates).await
            }
            Fault::None
            | Fault::Down
            | Fault::Reset { .. }
            | Fault::Truncated { .. }
            | Fault::HangMidBody { .. }
            | Fault::Impatient { .. }
            | Fault::Gzip
            | Fault::Slow { .. } => self.relay(&fault).await,
        }
    }

    /// Reads the request's body, for the log.
    pub(super) async fn drain(&mut self) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        if self.head.header("expect").is_some() {
            self.writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let mut body = Body::new(self.head.request_framing()?);
        while let Some(piece) = body.next(self.reader).await? {
            self.shared.log.update(self.number, |request| request.add_body(&piece));
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// Responds instead of the peer.
    pub(super) async fn answer(&mut self, status: u16, body: &str) -> io::Result<After> {
        self.drain().await?;
        self.answer_drained(status, body).await
    }

    /// The same, after the request's body was read.
    pub(super) async fn answer_drained(&mut self, status: u16, body: &str) -> io::Result<After> {
        let authenticate = if status == 401 { "WWW-Authenticate: Basic realm=\"server\"\r\n" } else { "" };
        let answer = format!(
            "HTTP/1.1 {status} Fault\r\nContent-Type: application/json\r\n{authenticate}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let body = if self.head.method == "HEAD" { "" } else { body };
        self.writer.write_all(format!("{answer}{body}").as_bytes()).await?;
        self.answered(status, body.len());
        Ok(After::Next)
    }

    /// Requests JSON from the peer, and responds with multipart.
    async fn answer_multipart(&mut self, truncated: bool) -> io::Result<After> {
        let body = self.drain().await?;
        let url = format!("http://{}{}", self.shared.upstream, self.head.path);
        let request = match self.head.method.as_str() {
            "GET" => self.shared.client.get(format!("{url}&attachments=true")),
            _ => self.shared.client.post(url).header(CONTENT_TYPE, "application/json").body(body),
        };
        let mut request = request.header(ACCEPT, "application/json");
        if let Some(authorization) = self.head.header("authorization") {
            request = request.header("authorization", authorization);
        }
        let answer = request.send().await.map_err(io::Error::other)?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(io::Error::other)?;
        if status != 200 {
            return self.answer(status, &text).await;
        }
        let mut body = multipart::body(&serde_json::from_str(&text)?);
        if truncated {
            body.truncate(body.len() * 2 / 3);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
            multipart::content_type()
        );
        self.writer.write_all(head.as_bytes()).await?;
        for chunk in body.chunks(MULTIPART_CHUNK_BYTES) {
            write_piece(self.writer, Framing::Chunked, chunk).await?;
        }
        write_end(self.writer, Framing::Chunked).await?;
        self.answered(200, body.len());
        Ok(After::Next)
    }

    pub(super) fn answered(&self, status: u16, body_bytes: usize) {
        self.shared.log.update(self.number, |request| {
            request.status = Some(status);
            request.answer_bytes = body_bytes as u64;
            request.answered = true;
        });
    }

    /// Forwards the request and the response, both streaming and at the same time: a peer may respond before it has read
    /// the whole request.
    async fn relay(&mut self, fault: &Fault) -> io::Result<After> {
        let (shared, number, head) = (self.shared, self.number, self.head);
        if *fault == (Fault::Reset { after: 0 }) {
            self.drain().await?;
            return Ok(After::Reset);
        }
        let upstream = TcpStream::connect(&shared.upstream).await?;
        upstream.set_nodelay(true)?;
        let (answers, mut requests) = upstream.into_split();
        let framing = head.request_framing()?;
        let all_sent = AtomicBool::new(framing == Framing::Length(0));
        let reader = &mut *self.reader;

        // Ends only when the client disconnects. Nothing waits for the response then.
        let client_side = async {
            let mut body = Body::new(framing);
            let mut peer_reads = requests.write_all(&head.raw).await.is_ok();
            while let Some(piece) = body.next(reader).await? {
                shared.log.update(number, |request| request.add_body(&piece));
                peer_reads = peer_reads && write_piece(&mut requests, framing, &piece).await.is_ok();
            }
            if peer_reads {
                // A peer that has stopped reading is sending a response, which is still forwarded.
                let _ = write_end(&mut requests, framing).await;
            }
            all_sent.store(body.is_done(), Ordering::Relaxed);
            reader.closed().await
        };
        let answer = relay_answer(shared, number, head, fault, Reader::new(answers), self.writer);
        tokio::select! {
            // Both may be ready. The response takes precedence.
            biased;
            after = answer => match after? {
                After::Next if !all_sent.load(Ordering::Relaxed) => Ok(After::Close),
                after => Ok(after),
            },
            gone = client_side => gone.map(|()| After::Close),
        }
    }
}

/// Forwards a response as far as the fault allows.
async fn relay_answer(
    shared: &Shared,
    number: usize,
    request: &Head,
    fault: &Fault,
    mut reader: Reader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
) -> io::Result<After> {
    let patience = match fault {
        Fault::Impatient { after_ms } => Duration::from_millis(*after_ms),
        _ => Duration::MAX,
    };
    let (head, framing) = loop {
        let Ok(head) = timeout(patience, reader.head(false)).await else {
            shared.log.update(number, |request| request.status = Some(504));
            write_page(writer, request, 504, "close").await?;
            return Ok(After::Close);
        };
        let Some(head) = head? else { return Ok(After::Close) };
        if head.status >= 200 {
            let framing = head.answer_framing(&request.method)?;
            break (head, framing);
        }
        writer.write_all(&head.raw).await?;
    };
    shared.log.update(number, |request| request.status = Some(head.status));

    let mut limit = match fault {
        Fault::Reset { after } | Fault::Truncated { after } | Fault::HangMidBody { after } => *after,
        _ => u64::MAX,
    };
    let cuts = matches!(fault, Fault::Reset { .. } | Fault::Truncated { .. } | Fault::HangMidBody { .. });
    match framing {
        Framing::Length(0) if cuts => return cut(fault).await,
        Framing::Length(length) if cuts => limit = limit.min(length - 1),
        _ => {}
    }
    let gzip = if *fault == Fault::Gzip { Gzip::begin(request, &head, framing) } else { None };
    let mut body = Body::new(framing);
    let ends = framing == Framing::UntilClose || head.closes();
    let (mut gzip, framing) = match gzip {
        Some((gzip, head)) => {
            writer.write_all(&head).await?;
            (Some(gzip), Framing::Chunked)
        }
        None => {
            writer.write_all(&head.raw).await?;
            (None, framing)
        }
    };
    loop {
        // A gateway that loses its patience within a body can only end it.
        let Ok(piece) = timeout(patience, body.next(&mut reader)).await else { return Ok(After::Close) };
        let Some(piece) = piece? else { break };
        let passed = piece.slice(..piece.len().min(usize::try_from(limit).unwrap_or(usize::MAX)));
        limit -= passed.len() as u64;
        shared.log.update(number, |request| request.answer_bytes += passed.len() as u64);
        match &mut gzip {
            Some(gzip) => write_piece(writer, framing, &gzip.piece(&passed)?).await?,
            None => write_paced(fault, writer, framing, &passed).await?,
        }
        if passed.len() < piece.len() {
            return cut(fault).await;
        }
    }
    if cuts {
        return cut(fault).await;
    }
    if let Some(gzip) = gzip {
        write_piece(writer, framing, &gzip.end()?).await?;
    }
    write_end(writer, framing).await?;
    shared.log.update(number, |request| request.answered = true);
    Ok(if ends { After::Close } else { After::Next })
}

/// Ends a response in the middle: with a reset, with the end of the connection, or by hanging.
async fn cut(fault: &Fault) -> io::Result<After> {
    match fault {
        Fault::HangMidBody { .. } => std::future::pending().await,
        Fault::Truncated { .. } => Ok(After::Close),
        _ => Ok(After::Reset),
    }
}

/// Writes a chunk at the fault's pace, or immediately.
async fn write_paced(
    fault: &Fault,
    writer: &mut OwnedWriteHalf,
    framing: Framing,
    piece: &Bytes,
) -> io::Result<()> {
    let Fault::Slow { bytes_per_second } = fault else {
        return write_piece(writer, framing, piece).await;
    };
    let step_bytes = usize::try_from(bytes_per_second / SLOW_STEPS_PER_SECOND).unwrap_or(usize::MAX).max(1);
    for step in piece.chunks(step_bytes) {
        write_piece(writer, framing, step).await?;
        let pause_us = step.len() as u64 * 1_000_000 / (*bytes_per_second).max(1);
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
    }
    Ok(())
}
