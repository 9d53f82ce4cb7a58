//! CouchDB's `multipart/mixed` responses to `open_revs` and `_bulk_get`, generated from the JSON responses that every peer
//! supports.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const MIXED: &str = "mixed-5d2f0c7e9b1a48d6a3f4";
const RELATED: &str = "related-71c9e4b08a2d4f6fb5c3";

/// The `Content-Type` of the response.
pub(super) fn content_type() -> String {
    format!("multipart/mixed; boundary=\"{MIXED}\"")
}

/// The body of the response, from `[{"ok": doc}, {"missing": rev}, …]` or `{"results": [{"docs": […]}, …]}`, with inline
/// attachments.
pub(super) fn body(answer: &Value) -> Vec<u8> {
    let mut body = Vec::new();
    let results = answer["results"].as_array().into_iter().flatten();
    let docs = results.filter_map(|result| result["docs"].as_array()).flatten();
    for entry in answer.as_array().into_iter().flatten().chain(docs) {
        body.extend_from_slice(format!("--{MIXED}\r\n").as_bytes());
        match entry.get("ok") {
            Some(doc) if doc.get("_attachments").is_some() => related(&mut body, doc),
            Some(doc) => {
                body.extend_from_slice(format!("Content-Type: application/json\r\n\r\n{doc}").as_bytes())
            }
            None => {
                let part = format!("Content-Type: application/json; error=\"true\"\r\n\r\n{entry}");
                body.extend_from_slice(part.as_bytes());
            }
        }
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{MIXED}--").as_bytes());
    body
}

/// A document with its attachments, each as its own part.
fn related(body: &mut Vec<u8>, doc: &Value) {
    let mut doc = doc.clone();
    let mut parts = Vec::new();
    if let Some(attachments) = doc["_attachments"].as_object_mut() {
        for (name, attachment) in attachments {
            let data = attachment["data"].as_str().unwrap_or_default();
            let bytes = STANDARD.decode(data).expect("a peer gives attachments in base64");
            if let Some(fields) = attachment.as_object_mut() {
                fields.remove("data");
                fields.insert("length".to_owned(), json!(bytes.len()));
                fields.insert("follows".to_owned(), json!(true));
            }
            let head = format!(
                "Content-Disposition: attachment; filename=\"{name}\"\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
                attachment["content_type"].as_str().unwrap_or_default(),
                bytes.len()
            );
            parts.push((head, bytes));
        }
    }
    let head = format!(
        "Content-Type: multipart/related; boundary=\"{RELATED}\"\r\n\r\n\
         --{RELATED}\r\nContent-Type: application/json\r\n\r\n{doc}"
    );
    body.extend_from_slice(head.as_bytes());
    for (head, bytes) in parts {
        body.extend_from_slice(format!("\r\n--{RELATED}\r\n{head}").as_bytes());
        body.extend_from_slice(&bytes);
    }
    body.extend_from_slice(format!("\r\n--{RELATED}--").as_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_document_becomes_parts() {
        let doc = json!({ "_id": "x", "_attachments": { "a": { "content_type": "text/plain", "data": "aGVsbG8=" } } });
        let body = String::from_utf8(body(&json!([{ "ok": doc }, { "missing": "1-a" }]))).unwrap();
        assert!(body.starts_with(&format!(
            "--{MIXED}\r\nContent-Type: multipart/related; boundary=\"{RELATED}\"\r\n\r\n"
        )));
        assert!(body.contains("\"follows\":true") && body.contains("\"length\":5"), "{body}");
        assert!(
            body.contains(&format!("Content-Length: 5\r\n\r\nhello\r\n--{RELATED}--\r\n--{MIXED}\r\n")),
            "{body}"
        );
        assert!(
            body.ends_with(&format!("error=\"true\"\r\n\r\n{{\"missing\":\"1-a\"}}\r\n--{MIXED}--")),
            "{body}"
        );
    }
}
