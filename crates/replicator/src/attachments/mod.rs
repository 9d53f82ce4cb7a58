//! Revisions with attachments: each is copied separately, as a stream from the source into the target.
//!
//! There are two ways. A source that answers `open_revs` with `multipart/mixed` (CouchDB) returns a whole revision as
//! one `multipart/related` part. Its parts go into the request to the target as they arrive ([`with_document`]). Otherwise each
//! attachment is read separately ([`pieces`]): with PouchDB Server as the source, or as the target of text that CouchDB
//! has gzipped. Neither way holds more of an attachment than a few pieces. Small attachments travel inside their
//! documents: see [`crate::copy`].

mod frame;
mod inlined;
mod parts;
mod pieces;
mod stubs;
mod with_document;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use http::Method;
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::database;
use crate::query::{DocName, doc_path};
use crate::refusal::passes_over_put;
use crate::spec::Defaults;
use crate::stats::Tally;

use frame::Body;
pub(crate) use parts::Parts;
use stubs::Stub;
pub(crate) use stubs::{Head, Summary, summary};
use turnwise_outbound::{BodyError, Error, Fault, Optional, Peer, PeerError, Side, Upload, beginning};
pub(crate) use with_document::absent;

/// Pieces of a body between the source's response and the target's request. Including the connections' buffers, a
/// revision in flight holds less than half a megabyte.
const PIECES: usize = 2;

/// The most bytes of the response to a write.
const ANSWER_BYTES: usize = 64 * 1024;

/// A revision whose attachments are still to be copied.
#[derive(Debug)]
pub(crate) struct Revision {
    pub id: String,
    pub rev: String,
    /// The document with stubs; `None` if it was too large to keep.
    pub stubs: Option<Vec<u8>>,
    /// Whether an attachment is stored gzipped, as CouchDB does with text.
    pub encoded: bool,
    /// Revisions that the target has; their attachments need not be sent.
    pub ancestors: Arc<[String]>,
    /// Whether it is written again because of a new login, after which a rejection is final.
    pub follows_login: bool,
}

/// Copies revisions with attachments.
pub(crate) struct Copier {
    source: Peer,
    target: Peer,
    /// Revisions in flight concurrently.
    at_once: usize,
    target_is_pouchdb: bool,
    /// The wait before a revision that the source does not have is requested again.
    missing_doc_retry: Duration,
}

/// How one attempt to copy a revision ended.
enum CopyResult {
    Written,
    /// The target rejects it permanently ([`crate::refusal`]); counted and skipped.
    Refused,
    /// The source does not return multipart, but answers as this error describes.
    NoMultipart(Error),
    /// An attachment is stored gzipped, and the target does not support that.
    Encoded,
    /// The source reports that it lacks the revision, or parts of it.
    Absent(Error),
}

impl Copier {
    pub fn new(source: Peer, target: Peer, settings: &Defaults, target_is_pouchdb: bool) -> Self {
        let at_once = (settings.peers.http_connections / settings.worker_processes).max(1);
        Self { source, target, at_once, target_is_pouchdb, missing_doc_retry: settings.missing_doc_retry }
    }

    /// Copies all of `revisions`, several concurrently. Returns how many the source did not deliver.
    pub async fn copy(&self, revisions: Vec<Revision>, tally: &Tally) -> Result<u64, Error> {
        let copies = revisions.into_iter().map(|revision| self.copy_one(revision, tally));
        let mut copies = stream::iter(copies).buffer_unordered(self.at_once);
        let mut unread = 0;
        while let Some(was_read) = copies.try_next().await? {
            unread += u64::from(!was_read);
        }
        Ok(unread)
    }

    /// Returns whether the source delivered it.
    async fn copy_one(&self, mut revision: Revision, tally: &Tally) -> Result<bool, Error> {
        if DocName::of(&revision.id) == DocName::Reserved {
            tracing::warn!(doc_id = revision.id, "a document with a reserved name is skipped");
            tally.doc_write_failures.add(1);
            return Ok(true);
        }
        let mut retries = self.source.retries().of_both_sides();
        let mut was_absent = false;
        // The error of a request for the whole revision, while the other way has not succeeded.
        let mut whole_failed: Option<Error> = None;
        loop {
            // PouchDB Server does not support gzipped parts.
            let whole = whole_failed.is_none()
                && self.source.may_use(Optional::Multipart)
                && !(self.target_is_pouchdb && revision.encoded);
            let attempt = if whole {
                self.send_whole(&revision, tally).await
            } else {
                self.send_pieces(&mut revision, tally).await
            };
            let attempt = match attempt {
                Err(error) if error.status() == Some(404) && error.side() == Some(Side::Source) => {
                    database::info_once(&self.source).await.map(|_| CopyResult::Absent(error))
                }
                // The target compares what it receives with the digest that the source states.
                Err(error) if is_digest_mismatch(&error) => {
                    let problem = "an attachment that does not match its digest".to_owned();
                    Ok(CopyResult::Absent(self.fault(&revision, Fault::Unexpected(problem))))
                }
                attempt => attempt,
            };
            let attempt = match attempt {
                Err(error) if is_about_name(&error, &revision.id) => {
                    tracing::warn!(doc_id = revision.id, %error, "the target refuses a document");
                    Ok(CopyResult::Refused)
                }
                attempt => attempt,
            };
            match attempt {
                Ok(CopyResult::Written) => {
                    if let Some(failed) = whole_failed {
                        self.source.refuses(Optional::Multipart, &failed);
                    }
                    tally.docs_written.add(1);
                    return Ok(true);
                }
                Ok(CopyResult::Refused) => {
                    tally.doc_write_failures.add(1);
                    return Ok(true);
                }
                Ok(CopyResult::NoMultipart(answered)) => self.source.refuses(Optional::Multipart, &answered),
                Ok(CopyResult::Encoded) => revision.encoded = true,
                Ok(CopyResult::Absent(error)) if was_absent || !tally.unread.has_patience() => {
                    tally.unread.add(&self.source, &revision.id, 1, &error);
                    return Ok(false);
                }
                Ok(CopyResult::Absent(error)) => {
                    tracing::info!(doc_id = revision.id, "requesting a revision once more: {error}");
                    was_absent = true;
                    (revision.stubs, revision.ancestors) = (None, Arc::default());
                    tokio::time::sleep(self.missing_doc_retry).await;
                }
                // The target has an ancestor but not its attachment: send everything.
                Err(error) if error.status() == Some(412) && !revision.ancestors.is_empty() => {
                    revision.ancestors = Arc::default();
                }
                Err(error) => {
                    revision.follows_login |= error.is_logged_out() && error.side() == Some(Side::Target);
                    let Err(error) = retries.pause(error).await else { continue };
                    let of_source = error.side() == Some(Side::Source) && error.may_concern_request();
                    if whole && of_source {
                        // Each attachment is requested by itself, without retries.
                        whole_failed = Some(error);
                        continue;
                    }
                    let error = whole_failed.take().filter(|_| of_source).unwrap_or(error);
                    tally.unread.judge(&self.source, &revision.id, 1, error).await?;
                    return Ok(false);
                }
            }
        }
    }

    /// Adds the context of a revision at the source to a fault.
    fn fault(&self, revision: &Revision, fault: Fault) -> Error {
        self.source.fault(Method::GET, &doc_path(&revision.id), fault)
    }

    /// Writes one revision. `fill` sends its body into a channel, piece by piece, while the target receives it.
    async fn put<F>(
        &self,
        revision: &Revision,
        body: Body,
        tally: &Tally,
        fill: impl FnOnce(Filler) -> F,
    ) -> Result<CopyResult, Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let (pieces, received) = mpsc::channel(PIECES);
        let failure = Mutex::new(None);
        let fill = async {
            let filler = Filler { pieces };
            if let Err(error) = fill(filler.clone()).await {
                *failure.lock().expect("no thread panics while it holds this lock") = Some(error);
                let end = body.when_failed.ok_or_else(|| "the source broke off".into());
                let _ = filler.pieces.send(end).await;
            }
        };
        let upload = Upload::streamed(received, body.length, body.content_type);
        let upload = upload.after_login(revision.follows_login);
        let (id, path) = (&*revision.id, path(&revision.id));
        let progress = upload.progress();
        let written = async {
            answered(id, self.target.send_upload(Method::PUT, &path, upload).await, self.target_is_pouchdb)
                .await
        };
        tokio::pin!(fill, written);
        let outcome = tokio::select! {
            // A target that rejects early does not wait for the rest.
            outcome = &mut written => outcome,
            () = &mut fill => written.await,
        };
        tally.bytes_written.add(progress.bytes());
        match failure.lock().expect("no thread panics while it holds this lock").take() {
            Some(error) => Err(error),
            None => outcome,
        }
    }

    /// Writes a document whose attachments, if any, are stubs that the target has.
    async fn put_doc(&self, id: &str, doc: Vec<u8>, tally: &Tally) -> Result<CopyResult, Error> {
        tally.bytes_written.add(doc.len() as u64);
        let upload = Upload::from_bytes(doc.into(), "application/json");
        answered(id, self.target.send_upload(Method::PUT, &path(id), upload).await, self.target_is_pouchdb)
            .await
    }
}

fn path(id: &str) -> String {
    format!("{}?new_edits=false", doc_path(id))
}

/// Whether a target has found that an attachment does not match its digest.
fn is_digest_mismatch(error: &Error) -> bool {
    let of_target = |error: &PeerError| match &error.fault {
        Fault::Status { error: name, .. } => error.side == Side::Target && name == "content_md5_mismatch",
        _ => false,
    };
    matches!(error, Error::Peer(error) if of_target(error))
}

/// Whether a target, or a gateway before it, rejects a document because of its name: its URL may lead elsewhere.
fn is_about_name(error: &Error, id: &str) -> bool {
    DocName::of(id) == DocName::Dots
        && error.side() == Some(Side::Target)
        && matches!(error.status(), Some(300..=399 | 400 | 404..=406 | 410 | 412 | 414 | 421 | 422))
}

/// Interprets the target's response to a write.
async fn answered(
    id: &str,
    answer: Result<turnwise_outbound::Answer, Error>,
    target_is_pouchdb: bool,
) -> Result<CopyResult, Error> {
    /// The status alone is not enough, because a proxy in front of the server may return any status.
    #[derive(Deserialize)]
    struct Written {
        #[serde(default)]
        ok: bool,
    }
    match answer {
        Ok(mut answer) => {
            let body = answer.bytes(ANSWER_BYTES).await?;
            match serde_json::from_slice(&body) {
                Ok(Written { ok: true }) => Ok(CopyResult::Written),
                // PouchDB Server lists the documents that it has not written.
                _ if target_is_pouchdb && body.trim_ascii() == b"[]" => Ok(CopyResult::Written),
                _ => {
                    Err(answer.malformed(format!("not that the document was written: {}", beginning(&body))))
                }
            }
        }
        Err(error) if passes_over_put(&error) => {
            tracing::warn!(doc_id = id, %error, "the target refuses a document");
            Ok(CopyResult::Refused)
        }
        Err(error) => Err(error),
    }
}

/// The sending end of a request's body.
#[derive(Clone)]
struct Filler {
    pieces: mpsc::Sender<Result<Bytes, BodyError>>,
}

impl Filler {
    /// Waits for room and adds a piece. A request that has ended ignores it.
    async fn send(&self, piece: impl Into<Bytes>) {
        let _ = self.pieces.send(Ok(piece.into())).await;
    }

    /// Sends an attachment from `body`, as it arrives, after the data before it. Returns whether the request goes on; if it has ended, no
    /// more data need be read.
    async fn attachment(
        &self,
        stub: &Stub,
        before: Vec<u8>,
        body: &mut impl parts::Body,
    ) -> Result<bool, Error> {
        self.send(before).await;
        let mut left = stub.length;
        while let Some(piece) = body.piece().await? {
            if self.pieces.is_closed() {
                return Ok(false);
            }
            left = left
                .checked_sub(piece.len() as u64)
                .ok_or_else(|| body.fault(Fault::Malformed(stub.too_long())))?;
            self.send(piece).await;
        }
        match left {
            0 => Ok(true),
            left => Err(body.fault(Fault::BrokeOff(stub.too_short(left)))),
        }
    }
}
