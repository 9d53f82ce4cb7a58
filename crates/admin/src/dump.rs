//! Rows as text, readable for people and for programs.
//!
//! One row is one line: its key, a tab, its value, both as JSON. A key is the array of the tuple's elements, without the
//! subspace that all keys share (see [`turnwise_queue::check::key_text`]). A value is
//!
//! | text | for |
//! | --- | --- |
//! | `null` | an empty value |
//! | the JSON that is stored | everything except the cases below |
//! | `{"$versionstamp": "hex"}` | the ten bytes of a versionstamp |
//! | `{"$text": "…"}`, `{"$bytes": "hex"}` | a piece of a large value, and anything that is not JSON |
//! | `{"$hidden": bytes}` | what may hold secrets, unless the caller asks for secrets |
//!
//! *Secrets.* Job options and the bodies of replication documents may hold passwords. Unless the caller asks for secrets,
//! the dump hides options and output, also those of schedules and of callbacks of groups, and rows that this release does not know. Of bodies, it hides the parts that [`redaction`]
//! hides, or everything if the body is stored in pieces. It hides users, tokens and the key of sessions. The rest of such a row is JSON with the same meaning. With
//! secrets, a value is shown as it is stored, byte by byte if it fits on one line.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use turnwise_outbound::HIDDEN;
use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_queue::Keyspace;
use turnwise_queue::check::{PIECE_BYTES, Row, WorkerRow, key_text};
use turnwise_replicator::documents::redaction;
use turnwise_store::tuple::{Element, pack};

use crate::scan::KeyRange;

/// A row as a line.
pub fn line(keys: &Keyspace, key: &Bytes, value: &Bytes, with_secrets: bool) -> String {
    format!("{}\t{}", key_text(key), value_text(Row::parse(keys, key).as_ref(), value, with_secrets))
}

fn value_text(row: Option<&Row>, value: &Bytes, with_secrets: bool) -> String {
    if value.is_empty() {
        return "null".to_owned();
    }
    let hidden = || json!({ "$hidden": value.len() }).to_string();
    let stamp = || json!({ "$versionstamp": hex(value) }).to_string();
    // An object without what `hide` hides.
    let without = |hide: fn(&mut Map<String, Value>)| match serde_json::from_slice(value) {
        Ok(mut object) => {
            hide(&mut object);
            Value::Object(object).to_string()
        }
        Err(_) => hidden(),
    };
    match row {
        Some(Row::Roomy(_, Bucket::Rate(_))) => json_line(value),
        Some(Row::Stamp | Row::Wake(_) | Row::Waiting(..) | Row::Membership(_) | Row::Roomy(..)) => stamp(),
        Some(Row::Worker(_, WorkerRow::Signal) | Row::GroupMark(..)) => stamp(),
        Some(Row::Options(..) | Row::ScheduleOptions(..)) if with_secrets => text(value),
        Some(Row::Body(_, _, n)) if with_secrets && (*n > 0 || value.len() == PIECE_BYTES) => text(value),
        None | Some(Row::Secret | Row::Options(..) | Row::Output(..)) if !with_secrets => hidden(),
        Some(Row::ScheduleOptions(..) | Row::ScheduleEnds(_)) if !with_secrets => hidden(),
        Some(Row::Output(_, kind, _)) if kind == "result" => text(value),
        Some(Row::Job(_) | Row::GroupCallback(..)) if !with_secrets => without(|job| {
            if let Some(options) = job.get_mut("options") {
                *options = Value::from(HIDDEN);
            }
        }),
        Some(Row::Body(..)) if !with_secrets => without(redaction::hide),
        _ => json_line(value),
    }
}

/// JSON as it is stored if that is one line, otherwise written again in one line. Other values as tagged text or bytes.
fn json_line(value: &[u8]) -> String {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(value).is_ok();
    match std::str::from_utf8(value) {
        Ok(stored) if is_json && !stored.contains(['\n', '\r', '\t']) => stored.to_owned(),
        Ok(stored) if is_json => {
            serde_json::from_str::<Value>(stored).map_or_else(|_| text(value), |value| value.to_string())
        }
        _ => text(value),
    }
}

fn text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) => json!({ "$text": text }).to_string(),
        Err(_) => json!({ "$bytes": hex(value) }).to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a word, or a JSON array as in the output, for example [\"jobs\",\"replication\"]")]
pub struct NoKey;

/// Parses a key: an array as in the dump's lines, or a first element alone, as a word.
///
/// # Errors
/// [`NoKey`].
pub fn parse_key(text: &str) -> Result<Bytes, NoKey> {
    let elements = match text.trim_start().starts_with(['[', '{']) {
        true => match serde_json::from_str(text).map_err(|_| NoKey)? {
            Value::Array(elements) => elements,
            whole => return Ok(Bytes::from(tagged(&whole, "$bytes").ok_or(NoKey)?)),
        },
        false => vec![Value::from(text)],
    };
    let mut tuple = vec![Element::String("turnwise".into())];
    for element in &elements {
        tuple.push(self::element(element).ok_or(NoKey)?);
    }
    Ok(Bytes::from(pack(&tuple)))
}

fn element(value: &Value) -> Option<Element<'_>> {
    Some(match value {
        Value::Null => Element::Nil,
        Value::Bool(is) => Element::Bool(*is),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Element::Int(number),
            None => Element::Double(number.as_f64()?),
        },
        Value::String(text) => Element::String(text.as_str().into()),
        Value::Array(elements) => Element::Tuple(elements.iter().map(element).collect::<Option<_>>()?),
        Value::Object(_) => Element::Bytes(tagged(value, "$bytes")?.into()),
    })
}

/// The bytes of `{tag: "hex"}`.
fn tagged(value: &Value, tag: &str) -> Option<Vec<u8>> {
    let hex = value.get(tag)?.as_str().filter(|hex| hex.is_ascii() && hex.len() % 2 == 0)?;
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

/// The range of all rows whose key begins with this tuple, including the row with this key.
pub fn below(key: &Bytes) -> KeyRange {
    let mut end = key.to_vec();
    // No element of a tuple begins with this byte.
    end.push(0xff);
    (key.clone(), Bytes::from(end))
}

#[cfg(test)]
mod tests {
    //! The line of every kind of row, what is hidden, and parsing of keys.
    #![allow(clippy::unwrap_used)]

    use turnwise_queue::keyspace::QueuePlace;

    use super::*;

    fn shown(key: Bytes, value: &[u8]) -> [String; 2] {
        let value = Bytes::copy_from_slice(value);
        [false, true].map(|secrets| {
            let line = line(&Keyspace::default(), &key, &value, secrets);
            assert_eq!(line.lines().count(), 1, "{line}");
            let (key_text, value) = line.split_once('\t').unwrap();
            assert_eq!(parse_key(key_text), Ok(key.clone()), "{key_text}");
            serde_json::from_str::<Value>(value).unwrap();
            value.to_owned()
        })
    }

    #[test]
    fn rows_are_lines_and_secrets_are_hidden_unless_asked_for() {
        let keys = Keyspace::default();
        let both = |text: &str| [text.to_owned(), text.to_owned()];
        assert_eq!(shown(keys.pending_entry("t", &QueuePlace::by_time("u", 5), "a\tb\n"), b""), both("null"));
        assert_eq!(
            shown(keys.waiting_entry("t", "u"), b"0123456789"),
            both(r#"{"$versionstamp":"30313233343536373839"}"#)
        );
        assert_eq!(shown(keys.usage_entry("t", "u", "w"), b"{\"tag\":1.5}"), both("{\"tag\":1.5}"));
        assert_eq!(shown(keys.wake("t"), b"0123456789"), both(r#"{"$versionstamp":"30313233343536373839"}"#));
        assert_eq!(shown(keys.format(), b"3"), both("3"));
        assert_eq!(shown(keys.sequence("d"), b"{\n \"a\": 1.50}"), both(r#"{"a":1.5}"#));
        assert_eq!(shown(keys.sequence("d"), b"{\"a\": 1.50}"), both(r#"{"a": 1.50}"#));
        let job = br#"{"state":"pending","options":{"password":"hunter2"},"summary":{}}"#;
        let hidden = r#"{"state":"pending","options":"*****","summary":{}}"#.to_owned();
        assert_eq!(shown(keys.job("t", "a"), job), [hidden, String::from_utf8(job.to_vec()).unwrap()]);
        let callback = br#"{"template":{"type":"t"},"options":{"password":"hunter2"}}"#;
        let hidden = r#"{"template":{"type":"t"},"options":"*****"}"#.to_owned();
        let both_of = [hidden, String::from_utf8(callback.to_vec()).unwrap()];
        assert_eq!(shown(keys.group_callback("t", "g", "complete"), callback), both_of);
        let piece = [r#"{"$hidden":2}"#.to_owned(), r#"{"$text":"\"h"}"#.to_owned()];
        assert_eq!(shown(keys.options_piece("t", "a", 0), b"\"h"), piece);
        assert_eq!(shown(keys.schedule_options_piece("a", 0), b"\"h"), piece);
        assert_eq!(shown(keys.schedule_ends("a"), b"{}"), [r#"{"$hidden":2}"#, "{}"].map(str::to_owned));
        let body = br#"{"source":"http://u:hunter2@h/db"}"#;
        let hidden = r#"{"source":"http://u:*****@h/db"}"#.to_owned();
        assert_eq!(
            shown(keys.body_piece("d", "a", 0), body),
            [hidden, String::from_utf8(body.to_vec()).unwrap()]
        );
        let half = [r#"{"$hidden":2}"#.to_owned(), r#"{"$bytes":"c328"}"#.to_owned()];
        assert_eq!(shown(keys.body_piece("d", "a", 1), b"\xc3\x28"), half);
        let unknown = Bytes::from(pack(&("turnwise", "new", 1)));
        assert_eq!(shown(unknown, b"{}"), [r#"{"$hidden":2}"#, "{}"].map(str::to_owned));
        assert_eq!(shown(Bytes::from_static(b"\x00\xfe"), b"x")[1], r#"{"$text":"x"}"#);
        // A record that cannot be parsed may hold a secret, too.
        assert_eq!(shown(keys.job("t", "a"), b"[1]")[0], r#"{"$hidden":3}"#);
    }

    #[test]
    fn a_prefix_is_a_word_or_an_array() {
        let keys = Keyspace::default();
        let inside = |text: &str, key: &Bytes| {
            let (begin, end) = below(&parse_key(text).unwrap());
            begin <= *key && *key < end
        };
        let job = keys.job("t", "a");
        assert!(
            inside("jobs", &job) && inside(r#"["jobs","t"]"#, &job) && inside(r#"["jobs","t","a"]"#, &job)
        );
        assert!(!inside(r#"["jobs","u"]"#, &job) && !inside("job", &job) && inside("format", &keys.format()));
        for wrong in ["[", "{}", r#"{"$bytes":"0"}"#, r#"[{"$bytes":"zz"}]"#] {
            assert_eq!(parse_key(wrong), Err(NoKey), "{wrong}");
        }
    }
}
