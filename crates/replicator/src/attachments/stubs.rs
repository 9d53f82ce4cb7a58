//! A document's `_attachments`, rewritten without touching the rest of the document.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What of a document with stubs matters here.
#[derive(Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(rename = "_rev")]
    pub rev: String,
    #[serde(borrow, rename = "_attachments")]
    pub attachments: Option<&'a RawValue>,
}

/// One attachment as its stub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stub {
    pub name: String,
    pub content_type: String,
    /// Bytes, not encoded.
    pub length: u64,
}

/// A document whose attachments follow it.
#[derive(Debug)]
pub(super) struct Following {
    /// The document's text, with `"follows":true` for each stub.
    pub doc: Vec<u8>,
    /// In the order in which they follow.
    pub stubs: Vec<Stub>,
}

/// Whether one of the stubs says that its attachment is stored encoded.
pub(crate) fn has_encoded(attachments: &RawValue) -> bool {
    memchr::memmem::find(attachments.get().as_bytes(), b"\"encoding\"").is_some()
}

/// Announces the attachments of `doc` as following it, unencoded.
///
/// # Errors
/// What is wrong with the document.
pub(super) fn announce(doc: &[u8]) -> Result<Following, String> {
    let head: Head<'_> = serde_json::from_slice(doc).map_err(|cause| cause.to_string())?;
    let attachments = head.attachments.ok_or("a document without the attachments that it had")?.get();
    let mut described: Map<String, Value> =
        serde_json::from_str(attachments).map_err(|cause| cause.to_string())?;
    let mut stubs = Vec::with_capacity(described.len());
    for (name, stub) in &mut described {
        let stub = stub.as_object_mut().ok_or("an attachment that is no object")?;
        let length = stub.get("length").and_then(Value::as_u64).ok_or("an attachment without its length")?;
        let content_type =
            stub.get("content_type").and_then(Value::as_str).unwrap_or("application/octet-stream");
        stubs.push(Stub { name: name.clone(), content_type: content_type.to_owned(), length });
        stub.remove("stub");
        stub.remove("encoded_length");
        if stub.remove("encoding").is_some() {
            // The digest of the encoded bytes, which are not what is sent.
            stub.remove("digest");
        }
        stub.insert("follows".to_owned(), Value::Bool(true));
    }
    let described = Value::Object(described).to_string();
    // Both are slices of one text: their distance is where the attachments stand.
    let at = attachments.as_ptr() as usize - doc.as_ptr() as usize;
    let doc = [&doc[..at], described.as_bytes(), &doc[at + attachments.len()..]].concat();
    Ok(Following { doc, stubs })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_attachments_are_rewritten() {
        let doc = r#"{"_id":"a", "n":1.0,"_attachments":{"b.txt":{"content_type":"text/plain","length":5,"digest":"md5-x","encoding":"gzip","encoded_length":25,"stub":true,"revpos":2},"a":{"content_type":"x/y","length":0,"digest":"md5-y","stub":true}},"_rev":"1-a"}"#;
        let following = announce(doc.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(following.doc).unwrap(),
            r#"{"_id":"a", "n":1.0,"_attachments":{"b.txt":{"content_type":"text/plain","length":5,"revpos":2,"follows":true},"a":{"content_type":"x/y","length":0,"digest":"md5-y","follows":true}},"_rev":"1-a"}"#
        );
        let stub = |name: &str, content_type: &str, length| Stub {
            name: name.to_owned(),
            content_type: content_type.to_owned(),
            length,
        };
        assert_eq!(following.stubs, [stub("b.txt", "text/plain", 5), stub("a", "x/y", 0)]);
    }

    #[test]
    fn a_stub_without_a_length_is_an_error() {
        assert!(announce(br#"{"_rev":"1-a","_attachments":{"a":{"stub":true}}}"#).is_err());
    }
}
