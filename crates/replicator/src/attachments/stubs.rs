//! A document's `_attachments`: reading its stubs, and announcing that their content follows.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The longest attachment. The limit keeps the sum of lengths, which a source may invent, from overflowing.
const MAX_LENGTH: u64 = 1 << 40;

/// The relevant members of a document with stubs.
#[derive(Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(rename = "_rev")]
    pub rev: String,
    #[serde(borrow, rename = "_attachments")]
    pub attachments: Option<&'a RawValue>,
}

/// The summary of all stubs of one document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub count: usize,
    /// Total bytes; `None` if a stub has no length, or an absurd one.
    pub bytes: Option<u64>,
    /// Whether any attachment is stored encoded.
    pub encoded: bool,
}

/// The summary of `attachments`; empty if they cannot be parsed.
pub(crate) fn summary(attachments: &RawValue) -> Summary {
    #[derive(Deserialize)]
    struct Entry {
        length: Option<u64>,
        encoding: Option<IgnoredAny>,
    }
    let entries: HashMap<Cow<'_, str>, Entry> = serde_json::from_str(attachments.get()).unwrap_or_default();
    Summary {
        count: entries.len(),
        bytes: entries.values().map(|entry| entry.length.filter(|&length| length <= MAX_LENGTH)).sum(),
        encoded: entries.values().any(|entry| entry.encoding.is_some()),
    }
}

/// One attachment as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stub {
    pub name: String,
    pub content_type: String,
    /// Length in bytes, as it travels.
    pub length: u64,
    /// Encoding, as it travels.
    pub encoding: Option<String>,
}

impl Stub {
    pub fn too_long(&self) -> String {
        format!("an attachment of more than its {} bytes", self.length)
    }

    pub fn too_short(&self, left: u64) -> String {
        format!("{left} of {} bytes of an attachment are missing", self.length)
    }
}

/// A document whose attachments follow it.
#[derive(Debug)]
pub(super) struct Following {
    /// The document's text, with `"follows":true` for each stub.
    pub doc: Vec<u8>,
    /// In the order in which they follow.
    pub stubs: Vec<Stub>,
}

/// Reads what follows `doc`, a document with `follows` in its stubs.
///
/// # Errors
/// The problem of the document.
pub(super) fn following(doc: Vec<u8>) -> Result<Following, String> {
    let head: Head<'_> = serde_json::from_slice(&doc).map_err(|cause| cause.to_string())?;
    let described: Map<String, Value> = match head.attachments {
        Some(attachments) => serde_json::from_str(attachments.get()).map_err(|cause| cause.to_string())?,
        None => Map::new(),
    };
    let mut stubs = Vec::new();
    for (name, stub) in &described {
        if stub["follows"] == Value::Bool(true) {
            let encoding = stub["encoding"].as_str().map(str::to_owned);
            let length = if encoding.is_some() { &stub["encoded_length"] } else { &stub["length"] };
            stubs.push(read(name, stub, length, encoding)?);
        }
    }
    Ok(Following { doc, stubs })
}

/// Announces that the attachments of `doc`, a document with stubs, follow it unencoded.
///
/// # Errors
/// The problem of the document.
pub(super) fn announce(doc: &[u8]) -> Result<Following, String> {
    let head: Head<'_> = serde_json::from_slice(doc).map_err(|cause| cause.to_string())?;
    let attachments = head.attachments.ok_or("a document without the attachments that it had")?.get();
    let mut described: Map<String, Value> =
        serde_json::from_str(attachments).map_err(|cause| cause.to_string())?;
    let mut stubs = Vec::with_capacity(described.len());
    for (name, stub) in &mut described {
        stubs.push(read(name, stub, &stub["length"], None)?);
        let stub = stub.as_object_mut().ok_or("an attachment that is no object")?;
        stub.remove("stub");
        stub.remove("encoded_length");
        if stub.remove("encoding").is_some() {
            // The digest is that of the encoded bytes, which are not what is sent.
            stub.remove("digest");
        }
        stub.insert("follows".to_owned(), Value::Bool(true));
    }
    let described = Value::Object(described).to_string();
    // Both are slices of one text, so their distance is the position of the attachments.
    let at = attachments.as_ptr() as usize - doc.as_ptr() as usize;
    let doc = [&doc[..at], described.as_bytes(), &doc[at + attachments.len()..]].concat();
    Ok(Following { doc, stubs })
}

fn read(name: &str, stub: &Value, length: &Value, encoding: Option<String>) -> Result<Stub, String> {
    let length = length.as_u64().ok_or("an attachment without its length")?;
    if length > MAX_LENGTH {
        return Err(format!("an attachment of {length} bytes"));
    }
    let content_type = stub["content_type"].as_str().unwrap_or("application/octet-stream").to_owned();
    Ok(Stub { name: name.to_owned(), content_type, length, encoding })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stub(name: &str, content_type: &str, length: u64, encoding: Option<&str>) -> Stub {
        Stub {
            name: name.to_owned(),
            content_type: content_type.to_owned(),
            length,
            encoding: encoding.map(str::to_owned),
        }
    }

    #[test]
    fn only_the_attachments_are_rewritten() {
        let doc = r#"{"_id":"a", "n":1.0,"_attachments":{"b.txt":{"content_type":"text/plain","length":5,"digest":"md5-x","encoding":"gzip","encoded_length":25,"stub":true,"revpos":2},"a":{"content_type":"x/y","length":0,"digest":"md5-y","stub":true}},"_rev":"1-a"}"#;
        let following = announce(doc.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(following.doc).unwrap(),
            r#"{"_id":"a", "n":1.0,"_attachments":{"b.txt":{"content_type":"text/plain","length":5,"revpos":2,"follows":true},"a":{"content_type":"x/y","length":0,"digest":"md5-y","follows":true}},"_rev":"1-a"}"#
        );
        assert_eq!(following.stubs, [stub("b.txt", "text/plain", 5, None), stub("a", "x/y", 0, None)]);
    }

    #[test]
    fn following_attachments_are_sent_as_stored_and_stubs_are_not_sent() {
        let doc = br#"{"_rev":"1-a","_attachments":{"b.txt":{"content_type":"text/plain","length":5,"encoding":"gzip","encoded_length":25,"follows":true},"old":{"length":9,"stub":true},"a":{"length":3,"follows":true}}}"#;
        let following = following(doc.to_vec()).unwrap();
        assert_eq!(following.doc, doc);
        assert_eq!(
            following.stubs,
            [stub("b.txt", "text/plain", 25, Some("gzip")), stub("a", "application/octet-stream", 3, None)]
        );
    }

    #[test]
    fn a_stub_without_a_length_is_an_error() {
        assert!(announce(br#"{"_rev":"1-a","_attachments":{"a":{"stub":true}}}"#).is_err());
    }

    #[test]
    fn the_summary_adds_up() {
        let summary = |text: &str| summary(serde_json::from_str(text).unwrap());
        let both = summary(r#"{"a":{"length":3},"b":{"length":4,"encoding":"gzip"}}"#);
        assert_eq!(both, Summary { count: 2, bytes: Some(7), encoded: true });
        assert_eq!(summary(r#"{"a":{"length":3},"b":{}}"#).bytes, None);
        assert_eq!(summary("{}").count, 0);
        // The sum would be 0 if it wrapped.
        let half = format!(r#"{{"length":{}}}"#, 1u64 << 63);
        assert_eq!(summary(&format!(r#"{{"a":{half},"b":{half}}}"#)).bytes, None);
    }

    #[test]
    fn an_absurd_length_is_refused() {
        let doc = |length: u64| {
            let text =
                format!(r#"{{"_rev":"1-a","_attachments":{{"a":{{"follows":true,"length":{length}}}}}}}"#);
            following(text.into_bytes()).map(|following| following.stubs[0].length)
        };
        assert_eq!(doc(MAX_LENGTH), Ok(MAX_LENGTH));
        assert_eq!(doc(1 << 62), Err(format!("an attachment of {} bytes", 1u64 << 62)));
    }
}
