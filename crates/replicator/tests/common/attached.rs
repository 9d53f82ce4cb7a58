//! A source with attachments of any size, which it generates while it sends them.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use turnwise_testkit::{Asked, Fake, Reply, Step};

const PIECE_BYTES: u64 = 64 << 10;

/// One attachment of a document without other content.
#[derive(Clone, Copy)]
pub struct Attached {
    /// Its length.
    pub bytes: u64,
    /// The pause after each 64 kB.
    pub pause: Duration,
}

impl Attached {
    /// Sent as fast as possible.
    pub fn of(bytes: u64) -> Self {
        Self { bytes, pause: Duration::ZERO }
    }

    /// Puts the document, with a stub, into `source`. Requests for the whole revision get it with the attachment.
    pub fn put(self, source: &Fake, id: &str, rev: &str) {
        source.put([self.doc(id, rev, "stub")]);
        let (id, rev) = (id.to_owned(), rev.to_owned());
        source.rule(move |asked| wants(asked, &id, &rev).then(|| self.whole(&id, &rev)));
    }

    fn doc(self, id: &str, rev: &str, how: &str) -> Value {
        let mut stub = json!({
            "content_type": "application/octet-stream", "length": self.bytes, "digest": "md5-x", "revpos": 1,
        });
        stub[how] = json!(true);
        let revisions = json!({"start": 1, "ids": [rev.trim_start_matches("1-")]});
        json!({"_id": id, "_rev": rev, "_revisions": revisions, "_attachments": {"a": stub}})
    }

    /// CouchDB's response to `open_revs`.
    pub fn whole(self, id: &str, rev: &str) -> Reply {
        let doc = self.doc(id, rev, "follows");
        let length = self.bytes;
        let head = format!(
            "--M\r\nContent-Type: multipart/related; boundary=\"R\"\r\n\r\n--R\r\nContent-Type: application/json\r\n\r\n{doc}\
             \r\n--R\r\nContent-Disposition: attachment; filename=\"a\"\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        let piece = Bytes::from(vec![b'x'; PIECE_BYTES as usize]);
        let pieces = (0..self.bytes.div_ceil(PIECE_BYTES)).flat_map(move |nth| {
            let bytes = (length - nth * PIECE_BYTES).min(PIECE_BYTES) as usize;
            [Step::Send(piece.slice(..bytes)), Step::Pause(self.pause)]
        });
        let end = Step::Send("\r\n--R--\r\n--M--".into());
        let steps =
            stream::iter([Step::Send(head.into())]).chain(stream::iter(pieces)).chain(stream::iter([end]));
        Reply::stream(200, steps.boxed()).content_type("multipart/mixed; boundary=\"M\"")
    }
}

/// Whether the request asks for this revision with its attachments.
pub fn wants(asked: &Asked, id: &str, rev: &str) -> bool {
    let accepts = asked.headers.iter().any(|(name, value)| name == "accept" && value == "multipart/mixed");
    let revs = asked.parameter("open_revs").unwrap_or_default();
    accepts
        && asked.path == format!("/{}", turnwise_testkit::encode_segment(id))
        && revs.contains(&format!("\"{rev}\""))
}

/// Puts revision `1-b` of a document with an attachment of three bytes into `source`, which accepts any id and name.
pub fn small(source: &Fake, id: &str, name: &str) {
    let (id, name) = (id.to_owned(), name.to_owned());
    let with = move |how: &str, value: Value| {
        let mut attachment = json!({
            "content_type": "application/octet-stream", "length": 3, "digest": "md5-kC+90rHfDE9wtKXSNSXpMg==", "revpos": 1,
        });
        attachment[how] = value;
        let revisions = json!({"start": 1, "ids": ["b"]});
        json!({"_id": id, "_rev": "1-b", "_revisions": revisions, "_attachments": {&name: attachment}})
    };
    let stub = with("stub", json!(true));
    let id = stub["_id"].as_str().unwrap().to_owned();
    source.put([stub]);
    source.rule(move |asked| {
        if asked.path == "/_bulk_get" && asked.parameter("attachments") == Some("true") {
            let whole = with("data", json!("QUJD"));
            return Some(Reply::json(200, &json!({"results": [{"id": &id, "docs": [{"ok": whole}]}]})));
        }
        if !wants(asked, &id, "1-b") {
            return None;
        }
        let doc = with("follows", json!(true));
        let body = format!(
            "--M\r\nContent-Type: multipart/related; boundary=\"R\"\r\n\r\n--R\r\nContent-Type: application/json\r\n\r\n{doc}\
             \r\n--R\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nABC\r\n--R--\r\n--M--"
        );
        let reply = Reply::steps(200, [Step::Send(body.into())]);
        Some(reply.content_type("multipart/mixed; boundary=\"M\""))
    });
}
