//! Paths and queries: percent-encoded ids and parameters.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What may stand unencoded in a path segment or a query value.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A path segment or a query value.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// A document's path below its database. The slash of `_design/` and `_local/` stays one.
pub(crate) fn doc_path(id: &str) -> String {
    for prefix in ["_design/", "_local/"] {
        if let Some(name) = id.strip_prefix(prefix) {
            return format!("{prefix}{}", encode(name));
        }
    }
    encode(id)
}

/// The parameters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(String);

impl Query {
    pub fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(&encode(name));
        self.0.push('=');
        self.0.push_str(&encode(value));
    }

    /// A string as it is, anything else as JSON.
    pub fn add_json(&mut self, name: &str, value: &Value) {
        match value {
            Value::String(text) => self.add(name, text),
            other => self.add(name, &other.to_string()),
        }
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
    fn parameters_are_encoded() {
        let mut query = Query::default();
        query.add("since", "5-a=b&c");
        query.add_json("n", &serde_json::json!([1, "x"]));
        assert_eq!(query.on("_changes"), "_changes?since=5-a%3Db%26c&n=%5B1%2C%22x%22%5D");
    }
}
