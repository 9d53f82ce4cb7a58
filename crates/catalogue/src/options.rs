//! Options by their path: `instance`, `backend.node`, `disks.name`, `argv.1`.

use std::fmt;

use serde_json::Value;

/// Most members in a path.
const MAX_DEPTH: usize = 8;
/// Longest path, in bytes.
const MAX_BYTES: usize = 256;

/// The path to an option: member names, separated by dots. At a list it continues with each element, or with one element if the
/// next member is a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path(String);

impl Path {
    /// # Errors
    /// What is wrong, and how to correct it.
    pub fn parse(text: &str) -> Result<Path, (String, String)> {
        let wrong = |problem: &str, fix: &str| Err((problem.to_owned(), fix.to_owned()));
        if text.is_empty() {
            return wrong("names no option", "name one, as in \"instance\" or \"disks.node\"");
        }
        if text.len() > MAX_BYTES || text.split('.').count() > MAX_DEPTH {
            let fix = format!("at most {MAX_DEPTH} members and {MAX_BYTES} bytes are possible");
            return wrong("names an option that lies too deep", &fix);
        }
        let odd =
            |c: char| c.is_control() || c.is_whitespace() || matches!(c, '{' | '}' | '?' | '=' | '"' | '\'');
        if text.contains(odd) {
            return wrong(
                "has a character that the path of an option cannot have",
                "write the names of its members with dots between them, as in \"disks.node\"",
            );
        }
        if text.split('.').any(str::is_empty) {
            return wrong(
                "has an empty member in the path of an option",
                "write one dot between two members",
            );
        }
        Ok(Path(text.to_owned()))
    }

    /// The value at the path, if the path passes lists only by number. `null` counts as missing.
    pub fn value<'a>(&self, options: &'a Value) -> Option<&'a Value> {
        let step = |value: &'a Value, member: &str| match value {
            Value::Object(members) => members.get(member),
            Value::Array(elements) => elements.get(member.parse::<usize>().ok()?),
            _ => None,
        };
        let value = self.0.split('.').try_fold(options, step)?;
        Some(value).filter(|value| !value.is_null())
    }

    /// Whether a value at the path, with lists expanded, is one that `is_it` accepts. Reads all of them: their number is bounded by the
    /// size of the options, and a bound here would let a long list hide what a condition asks for.
    pub fn any(&self, options: &Value, is_it: impl Fn(&Value) -> bool) -> bool {
        let members: Vec<&str> = self.0.split('.').collect();
        any(options, &members, &is_it)
    }

    /// All values at the path, with lists expanded.
    pub fn find<'a>(&self, options: &'a Value, most: usize) -> PathValues<'a> {
        let mut found = PathValues::default();
        let members: Vec<&str> = self.0.split('.').collect();
        found.walk(options, &members, most);
        found
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The values at a path.
#[derive(Debug, Default)]
pub(crate) struct PathValues<'a> {
    /// No lists, nulls or empty texts.
    pub values: Vec<&'a Value>,
    /// Something is missing somewhere: a member, `null`, an empty text or an empty list.
    pub missing: bool,
    /// There are more values than requested.
    pub more: bool,
}

impl<'a> PathValues<'a> {
    fn walk(&mut self, value: &'a Value, members: &[&str], most: usize) {
        if self.values.len() > most {
            self.more = true;
            return;
        }
        match (value, members) {
            (Value::Array(elements), [number, rest @ ..]) if number.parse::<usize>().is_ok() => {
                let element = number.parse().ok().and_then(|number: usize| elements.get(number));
                match element {
                    Some(element) => self.walk(element, rest, most),
                    None => self.missing = true,
                }
            }
            (Value::Array(elements), _) => {
                self.missing |= elements.is_empty();
                for element in elements {
                    if self.more {
                        return;
                    }
                    self.walk(element, members, most);
                }
            }
            (Value::Null, _) => self.missing = true,
            (Value::String(text), []) if text.is_empty() => self.missing = true,
            (value, []) => self.values.push(value),
            (Value::Object(object), [member, rest @ ..]) => match object.get(*member) {
                Some(value) => self.walk(value, rest, most),
                None => self.missing = true,
            },
            (_, _) => self.missing = true,
        }
    }
}

/// The values are those of [`PathValues`].
fn any(value: &Value, members: &[&str], is_it: &impl Fn(&Value) -> bool) -> bool {
    match (value, members) {
        (Value::Array(elements), [number, rest @ ..]) if number.parse::<usize>().is_ok() => {
            let element = number.parse().ok().and_then(|number: usize| elements.get(number));
            element.is_some_and(|element| any(element, rest, is_it))
        }
        (Value::Array(elements), _) => elements.iter().any(|element| any(element, members, is_it)),
        (Value::Null, _) => false,
        (Value::String(text), []) if text.is_empty() => false,
        (value, []) => is_it(value),
        (Value::Object(object), [member, rest @ ..]) => {
            object.get(*member).is_some_and(|value| any(value, rest, is_it))
        }
        (_, _) => false,
    }
}

/// The type of a value, in words.
pub(crate) fn what(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_goes_through_objects_and_lists() {
        let options = json!({"a": {"b": "x"}, "disks": [{"node": "n1"}, {"node": ["n2", "n3"]}, {}], "argv": ["p", "q"]});
        let found = |path: &str| {
            let path = Path::parse(path).unwrap();
            let found = path.find(&options, 10);
            (found.values.into_iter().cloned().collect::<Vec<_>>(), found.missing)
        };
        assert_eq!(found("a.b"), (vec![json!("x")], false));
        assert_eq!(found("disks.node"), (vec![json!("n1"), json!("n2"), json!("n3")], true));
        assert_eq!(found("argv.1"), (vec![json!("q")], false));
        assert_eq!(found("argv.2"), (vec![], true));
        assert_eq!(found("a.b.c"), (vec![], true));
        assert_eq!(found("none"), (vec![], true));
    }

    #[test]
    fn an_empty_value_is_missing() {
        for empty in [json!(null), json!(""), json!([]), json!([[]])] {
            let options = json!({"a": empty});
            let found = Path::parse("a").unwrap().find(&options, 10);
            assert!(found.missing && found.values.is_empty(), "{options}");
        }
    }

    #[test]
    fn no_more_is_read_than_requested() {
        let many: Vec<usize> = (0..100).collect();
        let options = json!({"a": many});
        let found = Path::parse("a").unwrap().find(&options, 10);
        assert!(found.more);
        assert_eq!(found.values.len(), 11);
    }

    #[test]
    fn a_wrong_path_is_refused() {
        for wrong in ["", ".", "a.", "a..b", "a b", "{a}", "a?", "a.b.c.d.e.f.g.h.i"] {
            assert!(Path::parse(wrong).is_err(), "{wrong}");
        }
    }
}
