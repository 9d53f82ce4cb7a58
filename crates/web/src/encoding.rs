//! `Content-Encoding` of requests: bodies that clients compress, as CouchDB's bulk clients do.
//!
//! Every body is decoded here, before a handler reads it, so the limits of handlers hold for what it decompresses to. A compressed body has no
//! declared length: beyond [`SMALL_BODY_BYTES`](super::room::SMALL_BODY_BYTES), its reader reserves memory for the largest body that it
//! takes. It is decompressed piece by piece, so nothing grows before the reader has counted it. Decoders are bounded in number, in sum and for each
//! identity. A request gets one when a part of its body has arrived, and waits for no memory before that, so requests do not wait for each other in a circle.

use std::io::Write as _;
use std::sync::LazyLock;

use async_recursion::async_recursion as boxed;
use axum::Error;
use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use flate2::write::MultiGzDecoder;
use futures::StreamExt as _;

use crate::Web;
use crate::access::Caller;
use crate::pool::{Pool, PoolPermit};
use crate::v1_error::V1Error;

/// The most bodies that are decompressed at the same time. Each takes about 100 kB, with its window and its output. Others wait, within the
/// time that a client has to send its body.
const MAX_DECODERS: u32 = 1_000;
/// Those of one identity.
const MAX_DECODERS_OF_ONE: u32 = 750;
static DECODERS: LazyLock<Pool> = LazyLock::new(|| Pool::new(MAX_DECODERS, MAX_DECODERS_OF_ONE));
/// The encodings that are read, for the header `Accept-Encoding` of a refusal.
const READ: HeaderValue = HeaderValue::from_static("gzip, identity");

/// Decodes the body of a request, or refuses an encoding that is not read.
#[boxed]
pub async fn decode(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    match is_gzip(request.headers()) {
        Some(false) => {}
        Some(true) => {
            let headers = request.headers_mut();
            headers.remove(header::CONTENT_ENCODING);
            // That of the compressed body.
            headers.remove(header::CONTENT_LENGTH);
            let caller = request.extensions().get::<Caller>().cloned().unwrap_or_else(Caller::nobody);
            request = request.map(|body| gunzip(body, caller));
        }
        None => {
            let reason = "this Content-Encoding is not supported";
            let error = V1Error::bad_content_type(reason, "compress the body with gzip, or not at all");
            let mut response = web.refuse(&request, error);
            response.headers_mut().insert(header::ACCEPT_ENCODING, READ);
            return response;
        }
    }
    next.run(request).await
}

/// Whether a body is compressed with gzip. `None` if it has an encoding that is not read.
fn is_gzip(headers: &HeaderMap) -> Option<bool> {
    let mut is_gzip = false;
    for value in headers.get_all(header::CONTENT_ENCODING) {
        for encoding in value.to_str().ok()?.split(',').map(str::trim) {
            match encoding.to_ascii_lowercase().as_str() {
                "" | "identity" => {}
                // Once: a body that is compressed twice could become a million times as large.
                "gzip" | "x-gzip" if !is_gzip => is_gzip = true,
                _ => return None,
            }
        }
    }
    Some(is_gzip)
}

/// The body is not what `Content-Encoding` says.
#[derive(Debug, thiserror::Error)]
#[error("the body is not complete gzip, as Content-Encoding says")]
struct NotGzip;

/// Why a body ended before its end.
pub fn problem(error: &Error) -> &'static str {
    // Each layer of bodies wraps the error once more.
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    match causes.into_iter().any(<dyn std::error::Error>::is::<NotGzip>) {
        true => "the body is not complete gzip, as Content-Encoding says",
        // The client is gone, and does not read this response.
        false => "the request's body ended early",
    }
}

/// A body that is decompressed as it is read.
fn gunzip(body: Body, caller: Caller) -> Body {
    let body = body.into_data_stream();
    let unzipped = Gunzip { body, caller, unread: Bytes::new(), decoder: None, ended: false };
    // Ends after an error.
    Body::from_stream(futures::stream::try_unfold(unzipped, |mut unzipped| async {
        Ok::<_, Error>(unzipped.next().await?.map(|piece| (piece, unzipped)))
    }))
}

struct Gunzip {
    body: BodyDataStream,
    caller: Caller,
    /// What has arrived and is not decompressed.
    unread: Bytes,
    decoder: Option<(MultiGzDecoder<Vec<u8>>, PoolPermit)>,
    /// Whether the compressed body has ended.
    ended: bool,
}

impl Gunzip {
    /// The next piece of the text, of at most about 64 kB.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let not_gzip = || Error::new(NotGzip);
        loop {
            if let Some((decoder, _)) = &mut self.decoder {
                let piece = std::mem::take(decoder.get_mut());
                if !piece.is_empty() {
                    return Ok(Some(piece.into()));
                }
                if !self.unread.is_empty() {
                    // What has arrived may decompress to much more, and must not keep its thread.
                    tokio::task::coop::consume_budget().await;
                    // One call decompresses at most the decoder's buffer of 32 KiB.
                    match decoder.write(&self.unread) {
                        Ok(read @ 1..) => self.unread.advance(read),
                        Ok(0) | Err(_) => return Err(not_gzip()),
                    }
                    continue;
                }
            }
            if self.ended {
                return Ok(None);
            }
            match self.body.next().await {
                Some(piece) => self.unread = piece?,
                None => {
                    self.ended = true;
                    let (decoder, _) = self.decoder.as_mut().ok_or_else(not_gzip)?;
                    decoder.try_finish().map_err(|_| not_gzip())?;
                }
            }
            if self.decoder.is_none() && !self.unread.is_empty() {
                let permit = DECODERS.take(&self.caller, 1).await;
                self.decoder = Some((MultiGzDecoder::new(Vec::new()), permit));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// The sizes of the pieces, and the text or the problem.
    async fn read(body: Body) -> (usize, Result<Vec<u8>, &'static str>) {
        let mut pieces = gunzip(body, Caller::everyone()).into_data_stream();
        let (mut text, mut largest) = (Vec::new(), 0);
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => {
                    largest = largest.max(piece.len());
                    text.extend_from_slice(&piece);
                }
                Err(error) => {
                    assert!(pieces.next().await.is_none(), "nothing follows an error");
                    return (largest, Err(problem(&error)));
                }
            }
        }
        (largest, Ok(text))
    }

    #[tokio::test]
    async fn a_body_is_decompressed_in_small_pieces_however_it_arrives() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let bomb = vec![b' '; 50 << 20];
        for (text, size) in [(&text, 1_000), (&text, usize::MAX), (&bomb, usize::MAX), (&Vec::new(), 3)] {
            let compressed = gzip(text);
            let pieces: Vec<Result<Bytes, Error>> = compressed
                .chunks(size.min(compressed.len()))
                .map(|piece| Ok(Bytes::copy_from_slice(piece)))
                .collect();
            let (largest, read) = read(Body::from_stream(futures::stream::iter(pieces))).await;
            assert!(read.as_ref() == Ok(text) && largest <= 64 << 10, "{size}: {largest}");
        }
        // Several members, as `cat a.gz b.gz` makes.
        assert_eq!(read(Body::from([gzip(b"a"), gzip(b"b")].concat())).await.1.unwrap(), b"ab");
    }

    #[tokio::test]
    async fn what_is_not_complete_gzip_is_a_problem() {
        let whole = gzip(b"{\"a\": 1}");
        let mut wrong_sum = whole.clone();
        let at = wrong_sum.len() - 6;
        wrong_sum[at] ^= 1;
        let trailing = [whole.clone(), b"{}".to_vec()].concat();
        for body in
            [b"{}".to_vec(), whole[..5].to_vec(), whole[..whole.len() - 1].to_vec(), wrong_sum, trailing]
        {
            let told = read(Body::from(body.clone())).await.1.unwrap_err();
            assert!(told.contains("gzip"), "{body:?}: {told}");
        }
        let broken: [Result<Bytes, Error>; 1] = [Err(Error::new(std::fmt::Error))];
        let told = read(Body::from_stream(futures::stream::iter(broken))).await.1.unwrap_err();
        assert_eq!(told, "the request's body ended early");
    }

    #[test]
    fn gzip_once_and_identity_are_read() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_str(value).unwrap());
            }
            is_gzip(&headers)
        };
        for values in [&[][..], &["identity"], &["", "Identity, identity"]] {
            assert_eq!(of(values), Some(false), "{values:?}");
        }
        for values in [&["gzip"][..], &["X-GZip"], &["identity", "gzip"]] {
            assert_eq!(of(values), Some(true), "{values:?}");
        }
        for values in
            [&["gzip, gzip"][..], &["gzip", "gzip"], &["deflate"], &["br"], &["gzip, br"], &["g zip"]]
        {
            assert_eq!(of(values), None, "{values:?}");
        }
    }
}
