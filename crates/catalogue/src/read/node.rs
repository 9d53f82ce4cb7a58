//! A value at its place in a file, for errors that name the place.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::Result;
use crate::Wrong;

#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// The offsets where its lines begin.
    pub lines: &'a [usize],
}

impl File<'_> {
    /// The line of a byte offset, from 1.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at).max(1)
    }

    pub fn wrong(&self, at: usize, place: &str, problem: impl Into<String>, fix: impl Into<String>) -> Wrong {
        Wrong {
            file: self.name.to_owned(),
            line: self.line(at),
            place: place.to_owned(),
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    pub fn not_toml(&self, error: &toml::de::Error) -> Wrong {
        let at = error.span().map_or(0, |span| span.start);
        let problem = error.message().replace('\n', ", ");
        let fix = match problem.contains("duplicate") {
            true => "it stands above already: make one entry of both",
            false => "the file must be TOML",
        };
        self.wrong(at, "", problem, fix)
    }
}

/// One value of the file, with its path.
#[derive(Clone)]
pub(super) struct Node<'a> {
    file: File<'a>,
    path: String,
    at: usize,
}

impl<'a> Node<'a> {
    pub fn new(file: File<'a>, path: String, at: usize) -> Node<'a> {
        Node { file, path, at }
    }

    pub fn line(&self) -> usize {
        self.file.line(self.at)
    }

    pub fn wrong(&self, problem: impl Into<String>, fix: impl Into<String>) -> Wrong {
        self.file.wrong(self.at, &self.path, problem, fix)
    }

    fn unlike(&self, value: &DeValue<'_>, wanted: &str) -> Wrong {
        let is = match value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.wrong(format!("is {is}"), format!("it must be {wanted}"))
    }

    pub fn table<'v, 't>(&self, value: &'v DeValue<'t>, wanted: &str) -> Result<&'v DeTable<'t>> {
        value.as_table().ok_or_else(|| self.unlike(value, wanted))
    }

    pub fn list<'v, 't>(&self, value: &'v DeValue<'t>, wanted: &str) -> Result<&'v DeArray<'t>> {
        value.as_array().ok_or_else(|| self.unlike(value, wanted))
    }

    pub fn text<'v>(&self, value: &'v DeValue<'_>, wanted: &str) -> Result<&'v str> {
        value.as_str().ok_or_else(|| self.unlike(value, wanted))
    }

    pub fn boolean(&self, value: &DeValue<'_>, wanted: &str) -> Result<bool> {
        value.as_bool().ok_or_else(|| self.unlike(value, wanted))
    }

    pub fn number(&self, value: &DeValue<'_>, wanted: &str) -> Result<i64> {
        let number = value.as_integer().ok_or_else(|| self.unlike(value, wanted))?;
        i64::from_str_radix(number.as_str(), number.radix())
            .map_err(|_| self.wrong(format!("is {number}"), format!("it must be {wanted}")))
    }

    /// Refuses unknown members of a table.
    pub fn only(&self, table: &DeTable<'_>, known: &[&str]) -> Result<()> {
        match self.members(table).find(|(name, ..)| !known.contains(name)) {
            Some((_, node, _)) => {
                Err(node.wrong("there is no such member", format!("there are {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }

    /// The members of a table, in alphabetical order.
    pub fn members<'v, 't>(
        &self,
        table: &'v DeTable<'t>,
    ) -> impl Iterator<Item = (&'v str, Node<'a>, &'v DeValue<'t>)> {
        table.iter().map(|(key, value)| {
            let name: &str = key.get_ref();
            // A name with dots is quoted, so that the place is unambiguous.
            let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_".contains(c));
            let name_there = if plain { name.to_owned() } else { format!("{name:?}") };
            let path = match self.path.is_empty() {
                true => name_there,
                false => format!("{}.{name_there}", self.path),
            };
            (name, Node::new(self.file, path, key.span().start), value.get_ref())
        })
    }

    /// One member of a table.
    pub fn member<'v, 't>(&self, table: &'v DeTable<'t>, name: &str) -> Option<(Node<'a>, &'v DeValue<'t>)> {
        self.members(table).find(|(member, ..)| *member == name).map(|(_, node, value)| (node, value))
    }

    /// Reads one member of a table; `None` if it is not there.
    pub fn optional<T>(
        &self,
        table: &DeTable<'_>,
        name: &str,
        read: impl FnOnce(&Node<'a>, &DeValue<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.member(table, name).map(|(node, value)| read(&node, value)).transpose()
    }

    /// The elements of a list.
    pub fn elements<'v, 't>(
        &self,
        list: &'v DeArray<'t>,
    ) -> impl Iterator<Item = (Node<'a>, &'v DeValue<'t>)> {
        list.iter().enumerate().map(|(n, value): (usize, &Spanned<DeValue<'t>>)| {
            let path = format!("{}[{n}]", self.path);
            (Node::new(self.file, path, value.span().start), value.get_ref())
        })
    }
}
