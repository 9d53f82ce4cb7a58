//! Paths and queries: percent-encoded ids and parameters.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Characters that a path segment or a query value may contain unencoded.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The longest path and query. Servers and proxies reject a request line over 8 kB; the rest is for the database's own URL.
pub(crate) const URL_BYTES: usize = 7 * 1024;

/// A path segment or a query value, percent-encoded.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// A path segment. The dots of `.` and `..` are encoded, as CouchDB decodes a path after it has split it. Some gateways fold such
/// segments all the same.
pub(crate) fn encode_segment(text: &str) -> String {
    match text {
        "." | ".." => "%2E".repeat(text.len()),
        text => encode(text),
    }
}

/// A document's path below its database. The slash of `_design/` and `_local/` is not encoded.
pub(crate) fn doc_path(id: &str) -> String {
    for prefix in ["_design/", "_local/"] {
        if let Some(name) = id.strip_prefix(prefix) {
            return format!("{prefix}{}", encode_segment(name));
        }
    }
    encode_segment(id)
}

/// The interval of heartbeats in a feed that breaks off after this much silence, in ms.
pub(crate) fn heartbeat_ms(silence: Duration) -> String {
    (silence / 3).as_millis().max(1).to_string()
}

/// What a URL with an id may name. Ids come from the source, which any of its users may have chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocName {
    /// The document.
    Plain,
    /// The document, or something else if a gateway folds the segments `.` and `..`.
    Dots,
    /// Not a document: a part of the API such as `_security`, or the database.
    Reserved,
}

impl DocName {
    /// The name of a document that a changes feed may report.
    pub fn of(id: &str) -> Self {
        match id.strip_prefix("_design/").unwrap_or(id) {
            "" => Self::Reserved,
            "." | ".." => Self::Dots,
            name if name.len() == id.len() && name.starts_with('_') => Self::Reserved,
            _ => Self::Plain,
        }
    }
}

/// The parameters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(String);

impl Query {
    pub fn of<const N: usize>(parameters: [(&str, &str); N]) -> Self {
        let mut query = Self::default();
        parameters.into_iter().for_each(|(name, value)| query.add(name, value));
        query
    }

    pub fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(&encode(name));
        self.0.push('=');
        self.0.push_str(&encode(value));
    }

    /// Adds a string unchanged, and anything else as JSON.
    pub fn add_json(&mut self, name: &str, value: &Value) {
        match value {
            Value::String(text) => self.add(name, text),
            other => self.add(name, &other.to_string()),
        }
    }

    /// Adds all parameters of `other`.
    pub fn append(&mut self, other: &Self) {
        match other.0.strip_prefix('?') {
            Some(_) if self.0.is_empty() => self.0.push_str(&other.0),
            Some(more) => {
                self.0.push('&');
                self.0.push_str(more);
            }
            None => {}
        }
    }

    /// Adds `values` as a JSON array: the first one, and then as many as keep `path` and the query shorter than
    /// [`URL_BYTES`]. Returns how many were added.
    pub fn add_some<'v>(&mut self, name: &str, values: impl Iterator<Item = &'v str>, path: &str) -> usize {
        // Room for `&`, `=`, and brackets.
        let mut room = URL_BYTES.saturating_sub(path.len() + self.0.len() + name.len() + 8);
        let mut some = Vec::new();
        for value in values {
            let bytes = encode(&format!("{value:?},")).len();
            if bytes > room && !some.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            some.push(value);
        }
        self.add(name, &Value::from(some.clone()).to_string());
        some.len()
    }

    pub fn on(&self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_one_path_segment() {
        assert_eq!(doc_path("a/b c+é?"), "a%2Fb%20c%2B%C3%A9%3F");
        assert_eq!(doc_path("_design/x/y"), "_design/x%2Fy");
    }

    #[test]
    fn no_id_becomes_a_dot_segment_or_leaves_its_database() {
        for (id, path) in [
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("_design/..", "_design/%2E%2E"),
            ("_local/.", "_local/%2E"),
            ("../x", "..%2Fx"),
            ("%2e%2e", "%252e%252e"),
            ("...", "..."),
            ("..\\x", "..%5Cx"),
        ] {
            assert_eq!(doc_path(id), path);
        }
    }

    #[test]
    fn reserved_names_are_no_documents() {
        use DocName::{Dots, Plain, Reserved};
        for (id, name) in [
            ("a", Plain),
            ("_design/a", Plain),
            ("_design/_a", Plain),
            ("...", Plain),
            ("a/..", Plain),
            (".", Dots),
            ("..", Dots),
            ("_design/..", Dots),
            ("", Reserved),
            ("_design/", Reserved),
            ("_security", Reserved),
            ("_local/x", Reserved),
            ("_", Reserved),
        ] {
            assert_eq!(DocName::of(id), name, "{id:?}");
        }
    }

    #[test]
    fn an_array_has_as_many_values_as_the_url_has_room_for() {
        let revs: Vec<String> = (0..1_000).map(|n| format!("{n}-0123456789abcdef0123456789abcdef")).collect();
        for id in ["a".repeat(10), "\u{e9}".repeat(500)] {
            let path = doc_path(&id);
            let mut query = Query::default();
            query.add("revs", "true");
            let some = query.add_some("open_revs", revs.iter().map(String::as_str), &path);
            let bytes = query.on(&path).len();
            assert!((URL_BYTES - 100..=URL_BYTES).contains(&bytes), "{some} revisions, {bytes} bytes");
        }
        // At least one, however long the id is.
        let mut query = Query::default();
        assert_eq!(query.add_some("open_revs", ["1-a", "1-b"].into_iter(), &"a".repeat(9_000)), 1);
    }

    #[test]
    fn parameters_are_encoded() {
        let mut query = Query::default();
        query.add("since", "5-a=b&c");
        query.add_json("n", &serde_json::json!([1, "x"]));
        assert_eq!(query.on("_changes"), "_changes?since=5-a%3Db%26c&n=%5B1%2C%22x%22%5D");
    }
}
