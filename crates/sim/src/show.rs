//! Text for rows, in traces and reports.

use bytes::Bytes;
use turnwise_store::tuple::{Element, unpack};

/// Longer values are cut: of a history with twenty entries, only the newest ones matter.
const MAX_VALUE: usize = 700;

/// A row as `("jobs", "t0", "a") = {…}`.
pub fn row(key: &Bytes, value: Option<&Bytes>) -> String {
    match value {
        None => format!("{} cleared", self::key(key)),
        Some(value) if value.is_empty() => self::key(key),
        Some(value) => format!("{} = {}", self::key(key), self::value(value)),
    }
}

/// A key as a tuple.
pub fn key(key: &Bytes) -> String {
    let Ok(elements) = unpack::<Vec<Element<'_>>>(key) else {
        return format!("{key:?}");
    };
    let words: Vec<String> = elements.iter().skip(1).map(element).collect();
    format!("({})", words.join(", "))
}

fn element(element: &Element<'_>) -> String {
    match element {
        Element::String(text) => text.to_string(),
        Element::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn value(value: &Bytes) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains(|c: char| c.is_control()) => match text.char_indices().nth(MAX_VALUE) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        },
        _ => value.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
