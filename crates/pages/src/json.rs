//! JSON as people read and write it. It is handled as text: numbers, the order of members, and the texts stay as they were written.

use std::fmt;

use serde::de::{Deserialize, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Longest JSON that a page shows, in bytes with its indents.
const MAX_SHOWN_BYTES: usize = 128 << 10;
/// The indent of each level.
const INDENT: &str = "  ";

/// A valid JSON text with a line for each value, and whether that is all of it.
pub(super) fn pretty(json: &str) -> (String, bool) {
    let mut to = String::with_capacity(json.len() * 2);
    let mut depth = 0;
    let mut parts = Parts(json).peekable();
    while let Some(part) = parts.next() {
        if to.len() > MAX_SHOWN_BYTES {
            // One text may be longer.
            to.truncate(to.floor_char_boundary(MAX_SHOWN_BYTES));
            return (to, false);
        }
        match part {
            "{" | "[" => {
                to.push_str(part);
                if let Some(end) = parts.next_if(|next| matches!(*next, "}" | "]")) {
                    to.push_str(end);
                } else {
                    depth += 1;
                    new_line(&mut to, depth);
                }
            }
            "}" | "]" => {
                depth = usize::saturating_sub(depth, 1);
                new_line(&mut to, depth);
                to.push_str(part);
            }
            "," => {
                to.push_str(part);
                new_line(&mut to, depth);
            }
            ":" => to.push_str(": "),
            part => to.push_str(part),
        }
    }
    let is_all = to.len() <= MAX_SHOWN_BYTES;
    to.truncate(to.floor_char_boundary(MAX_SHOWN_BYTES));
    (to, is_all)
}

fn new_line(to: &mut String, depth: usize) {
    to.push('\n');
    (0..depth).for_each(|_| to.push_str(INDENT));
}

/// A valid JSON text without white space between its values.
pub(super) fn compact(json: &str) -> String {
    Parts(json).collect()
}

/// The parts of a JSON text: brackets, commas, colons, texts, and other values.
struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let is_space = |c: char| matches!(c, ' ' | '\n' | '\r' | '\t');
        self.0 = self.0.trim_start_matches(is_space);
        let length = match self.0.chars().next()? {
            '{' | '}' | '[' | ']' | ',' | ':' => 1,
            '"' => {
                let mut is_escaped = false;
                let end = self.0[1..].find(|c| {
                    let ends = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    ends
                });
                end.map_or(self.0.len(), |end| end + 2)
            }
            _ => {
                let ends = |c: char| is_space(c) || matches!(c, '{' | '}' | '[' | ']' | ',' | ':' | '"');
                self.0.find(ends).unwrap_or(self.0.len())
            }
        };
        let (part, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(part)
    }
}

/// The members of an object in their order.
pub(super) struct Members<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// The members whose values are texts of several lines, such as the output of a command, and the JSON of the rest: `None` if nothing is left.
pub(super) fn texts(json: &str) -> (Vec<(String, String)>, Option<String>) {
    let Ok(Members(members)) = serde_json::from_str(json) else { return (Vec::new(), Some(json.to_owned())) };
    let mut texts = Vec::new();
    let mut rest = String::new();
    for (name, value) in members {
        match serde_json::from_str::<String>(value.get()) {
            Ok(text) if text.contains('\n') => texts.push((name, text)),
            _ => {
                let name = serde_json::to_string(&name).expect("a text is JSON");
                rest.push_str(if rest.is_empty() { "{" } else { "," });
                rest.push_str(&format!("{name}:{}", value.get()));
            }
        }
    }
    if texts.is_empty() {
        return (texts, Some(json.to_owned()));
    }
    (texts, (!rest.is_empty()).then(|| rest + "}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_order_and_texts_stay_as_they_were_written() {
        let json = r#" {"z":1.50, "a" : [ 12345678901234567890123, 1E400,{} , [ ] ],"t":"a\\\" ,{: \u00e9","x":{"y":null}} "#;
        let expected = r#"{
  "z": 1.50,
  "a": [
    12345678901234567890123,
    1E400,
    {},
    []
  ],
  "t": "a\\\" ,{: \u00e9",
  "x": {
    "y": null
  }
}"#;
        assert_eq!(pretty(json), (expected.to_owned(), true));
        let short =
            r#"{"z":1.50,"a":[12345678901234567890123,1E400,{},[]],"t":"a\\\" ,{: \u00e9","x":{"y":null}}"#;
        assert_eq!(compact(json), short);
        assert_eq!(compact(expected), short);
        for json in ["5", "\"ü\"", "true", "\"\\\\\""] {
            assert_eq!((pretty(json), compact(json)), ((json.to_owned(), true), json.to_owned()));
        }
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let nested = format!("{}{}{}", "[".repeat(99), "1,".repeat(20_000), "1".to_owned() + &"]".repeat(99));
        for json in [nested, format!("[\"{}\"]", "é".repeat(100_000))] {
            let (shown, is_all) = pretty(&json);
            assert!(!is_all && shown.len() <= MAX_SHOWN_BYTES, "{}", shown.len());
        }
    }

    #[test]
    fn texts_of_several_lines_are_shown_as_such() {
        let (lines, rest) = texts(r#"{"n": 1.0, "log": "a\nb", "m": "x"}"#);
        assert_eq!(lines, [("log".to_owned(), "a\nb".to_owned())]);
        assert_eq!(rest.unwrap(), r#"{"n":1.0,"m":"x"}"#);
        assert_eq!(texts(r#"{"log": "a\n"}"#).1, None);
        assert_eq!(texts("[1]"), (Vec::new(), Some("[1]".to_owned())));
    }
}
