//! Writes a data set into a database.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{Attachment, Dataset, Leaf, Loaded};
use crate::{Database, encode_segment};

/// The number of revisions in one `_bulk_docs`.
const BATCH: usize = 500;

/// The number of concurrent requests: enough to keep CouchDB busy on a small machine.
const IN_FLIGHT: usize = 4;

/// The largest total size of a leaf's attachments that are written inline, in base64, in bytes. Larger ones are streamed.
pub(super) const INLINE_MAX_BYTES: usize = 64 << 10;

/// The boundary of the multipart bodies. It is too long to occur in the random bytes of an attachment.
const BOUNDARY: &str = "turnwise-testkit-0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// The size of the chunks of a multipart body, in bytes.
const PIECE_BYTES: usize = 64 << 10;

impl Dataset {
    /// Writes the whole data set into `database`, which must exist. Panics if the server refuses any of it.
    pub async fn load(&self, database: &Database) -> Loaded {
        let mut loaded = Loaded::default();
        let mut batch = Vec::with_capacity(BATCH);
        let mut batches = Vec::new();
        let mut streamed = Vec::new();
        for document in self.iter() {
            loaded.documents += 1;
            loaded.live_documents += usize::from(!document.winner().deleted);
            for leaf in &document.leaves {
                loaded.leaves += 1;
                loaded.attachments += leaf.attachments.len();
                loaded.attachment_bytes += attachment_bytes(leaf) as u64;
                if attachment_bytes(leaf) <= INLINE_MAX_BYTES {
                    batch.push(inline(leaf, &document.id));
                } else {
                    streamed.push((document.id.clone(), leaf.clone()));
                }
            }
            if batch.len() >= BATCH {
                batches.push(std::mem::take(&mut batch));
            }
            if batches.len() >= IN_FLIGHT {
                write_batches(database, std::mem::take(&mut batches)).await;
            }
        }
        batches.push(batch);
        write_batches(database, batches).await;
        for (id, leaf) in streamed {
            put_streamed(database, &id, &leaf).await;
        }
        loaded
    }
}

async fn write_batches(database: &Database, batches: Vec<Vec<Value>>) {
    let writes = batches.into_iter().map(|batch| async move { database.put_revisions(&batch).await });
    stream::iter(writes).buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
}

fn attachment_bytes(leaf: &Leaf) -> usize {
    leaf.attachments.iter().map(|attachment| attachment.bytes.len()).sum()
}

/// The leaf's JSON with its attachments inline.
fn inline(leaf: &Leaf, id: &str) -> Value {
    let mut doc = leaf.to_json(id);
    for Attachment { name, content_type, bytes } in &leaf.attachments {
        doc["_attachments"][name] = json!({ "content_type": content_type, "data": STANDARD.encode(bytes) });
    }
    doc
}

/// Writes a leaf as `multipart/related`. In this form, servers accept large attachments without holding them as text.
async fn put_streamed(database: &Database, id: &str, leaf: &Leaf) {
    let mut doc = leaf.to_json(id);
    for Attachment { name, content_type, bytes } in &leaf.attachments {
        doc["_attachments"][name] =
            json!({ "follows": true, "content_type": content_type, "length": bytes.len() });
    }
    let mut body = format!("--{BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{doc}").into_bytes();
    // The parts must have the order of the keys in the document, which serde_json sorts.
    let mut attachments: Vec<&Attachment> = leaf.attachments.iter().collect();
    attachments.sort_by(|left, right| left.name.cmp(&right.name));
    for Attachment { name, content_type, bytes } in attachments {
        let head = format!(
            "\r\n--{BOUNDARY}\r\nContent-Disposition: attachment; filename=\"{name}\"\r\n\
             Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            bytes.len()
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
    }
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--").as_bytes());

    let body = Bytes::from(body);
    let length = body.len();
    let pieces = (0..length).step_by(PIECE_BYTES).map(move |start| {
        Ok::<_, std::convert::Infallible>(body.slice(start..length.min(start + PIECE_BYTES)))
    });
    let answer = database
        .client()
        .put(format!("{}/{}?new_edits=false", database.url(), encode_segment(id)))
        .header("content-type", format!("multipart/related; boundary=\"{BOUNDARY}\""))
        .header("content-length", length)
        .body(reqwest::Body::wrap_stream(stream::iter(pieces)))
        .send()
        .await
        .unwrap_or_else(|error| panic!("PUT {id}: {error:?}"));
    let status = answer.status();
    assert!(status.is_success(), "PUT {id} answered {status} {:?}", answer.text().await);
}
