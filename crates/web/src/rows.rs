//! A JSON body as the positions of its rows: a tree would take forty times as much memory as the text.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Maximum number of members in a body beside its rows.
const MAX_MEMBERS: usize = 100;
/// Longest text of such a member, in bytes.
const MAX_MEMBER_BYTES: usize = 64 << 10;

/// The elements of an array, or the members of an object, in order.
#[derive(Debug, Default)]
pub struct Rows {
    text: Bytes,
    /// Begin and end of each row. Bodies have at most 4 GB.
    places: Vec<(u32, u32)>,
}

/// A body that is an object with rows in one of its members.
#[derive(Debug, Default)]
pub struct Listed {
    /// The other members.
    pub members: Map<String, Value>,
    /// The member with the rows, if it is present; `Err` if it is no array.
    pub rows: Option<Result<Rows, NoArray>>,
}

/// A value that should be an array has another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoArray;

impl Rows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The size of the text that contains the rows.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The text of a row.
    pub fn get(&self, nth: usize) -> &[u8] {
        let (begin, end) = self.places[nth];
        &self.text[begin as usize..end as usize]
    }

    /// The text of each row.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|nth| self.get(nth))
    }

    /// The elements of a text that should be an array.
    pub fn of_array(text: Bytes) -> serde_json::Result<Result<Rows, NoArray>> {
        elements(&text, serde_json::from_slice(&text)?)
    }

    /// The members of a text that should be an object: two rows per member, its name and its value.
    pub fn of_object(text: Bytes) -> serde_json::Result<Rows> {
        let mut json = serde_json::Deserializer::from_slice(&text);
        let places = json.deserialize_map(Members(&text))?;
        json.end()?;
        Ok(Rows { text: text.clone(), places })
    }
}

impl Listed {
    /// Reads a body whose rows are the member `name`.
    pub fn parse(text: Bytes, name: &str) -> serde_json::Result<Listed> {
        let mut json = serde_json::Deserializer::from_slice(&text);
        let listed = json.deserialize_map(Outer { text: &text, name })?;
        json.end()?;
        Ok(listed)
    }
}

/// The position of a part within a text.
fn place(text: &Bytes, part: &RawValue) -> (u32, u32) {
    let begin = part.get().as_ptr() as usize - text.as_ptr() as usize;
    // Bodies are limited far below this.
    let at = |position: usize| u32::try_from(position).unwrap_or(u32::MAX);
    (at(begin), at(begin + part.get().len()))
}

/// The elements of a part of a text that should be an array.
fn elements(text: &Bytes, array: &RawValue) -> serde_json::Result<Result<Rows, NoArray>> {
    if !array.get().starts_with('[') {
        return Ok(Err(NoArray));
    }
    let places = serde_json::Deserializer::from_str(array.get()).deserialize_seq(Elements(text))?;
    Ok(Ok(Rows { text: text.clone(), places }))
}

struct Outer<'a> {
    text: &'a Bytes,
    name: &'a str,
}

impl<'de> Visitor<'de> for Outer<'_> {
    type Value = Listed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
        let mut listed = Listed::default();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let value = map.next_value::<&RawValue>()?;
            if name == self.name {
                listed.rows = Some(elements(self.text, value).map_err(A::Error::custom)?);
                continue;
            }
            let value = value.get();
            if value.len() > MAX_MEMBER_BYTES || listed.members.len() >= MAX_MEMBERS {
                return Err(A::Error::custom("too many or too large members beside the rows"));
            }
            listed.members.insert(name.into_owned(), serde_json::from_str(value).map_err(A::Error::custom)?);
        }
        Ok(listed)
    }
}

/// Reads the positions of an array's elements.
struct Elements<'a>(&'a Bytes);

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = Vec<(u32, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut places = Vec::new();
        while let Some(part) = seq.next_element::<&RawValue>()? {
            places.push(place(self.0, part));
        }
        Ok(places)
    }
}

struct Members<'a>(&'a Bytes);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Vec<(u32, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut places = Vec::new();
        while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            places.extend([place(self.0, name), place(self.0, value)]);
        }
        Ok(places)
    }
}

/// A set of names, in about as much memory as their text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameSet {
    text: String,
    /// Begin and end of each name, in the order of the names.
    places: Vec<(u32, u32)>,
}

impl NameSet {
    /// The set of these names; `None` if a name is missing.
    pub fn insert_all(names: impl Iterator<Item = Option<String>>) -> Option<NameSet> {
        let mut set = NameSet::default();
        for name in names {
            let begin = u32::try_from(set.text.len()).ok()?;
            set.text.push_str(&name?);
            set.places.push((begin, u32::try_from(set.text.len()).ok()?));
        }
        let NameSet { text, places } = &mut set;
        let name = |&(begin, end): &(u32, u32)| &text[begin as usize..end as usize];
        places.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        Some(set)
    }

    /// Whether the name is in the set.
    pub fn contains(&self, name: &str) -> bool {
        let of = |&(begin, end): &(u32, u32)| &self.text[begin as usize..end as usize];
        self.places.binary_search_by(|place| of(place).cmp(name)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn listed(text: &'static str) -> serde_json::Result<Listed> {
        Listed::parse(Bytes::from_static(text.as_bytes()), "docs")
    }

    #[test]
    fn rows_are_found_at_their_positions() {
        let found = listed(r#" {"new_edits": false, "docs" : [ {"a": "]"} ,2, "\"x", [] ], "x": {"y": 1}} "#)
            .unwrap();
        assert_eq!(Value::Object(found.members), serde_json::json!({"new_edits": false, "x": {"y": 1}}));
        let rows = found.rows.unwrap().unwrap();
        assert_eq!(
            rows.iter().map(|row| std::str::from_utf8(row).unwrap()).collect::<Vec<_>>(),
            [r#"{"a": "]"}"#, "2", r#""\"x""#, "[]"]
        );
        for other in ["{}", "1", "-1", "1.5", "true", "null", "\"[1]\""] {
            let found = Listed::parse(format!("{{\"docs\": {other}}}").into(), "docs").unwrap();
            assert_eq!(found.rows.unwrap().unwrap_err(), NoArray, "{other}");
        }
        assert!(listed("{}").unwrap().rows.is_none());
        for wrong in
            ["", "[]", "{", r#"{"docs": [1}"#, r#"{"docs": [1,]}"#, r#"{"docs": []} x"#, r#"{"docs": [01]}"#]
        {
            assert!(listed(wrong).is_err(), "{wrong}");
        }
        let large = format!("{{\"x\": \"{}\"}}", "x".repeat(MAX_MEMBER_BYTES));
        assert!(Listed::parse(large.into(), "docs").is_err());
    }

    #[test]
    fn members_are_pairs_of_rows() {
        let rows = Rows::of_object(Bytes::from_static(br#"{"a\"": ["1-x"], "b": 2}"#)).unwrap();
        let shown: Vec<_> = rows.iter().map(|row| std::str::from_utf8(row).unwrap()).collect();
        assert_eq!(shown, [r#""a\"""#, r#"["1-x"]"#, r#""b""#, "2"]);
        assert!(Rows::of_object(Bytes::from_static(b"[]")).is_err());
    }

    #[test]
    fn a_set_of_names_has_its_names() {
        let names = ["b", "", "a", "b", "\u{e9}"];
        let set = NameSet::insert_all(names.iter().map(|name| Some((*name).to_owned()))).unwrap();
        assert!(names.iter().all(|name| set.contains(name)));
        assert!(!set.contains("c") && !set.contains("bb"));
        assert_eq!(NameSet::insert_all([Some("a".to_owned()), None].into_iter()), None);
    }
}
