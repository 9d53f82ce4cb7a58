//! Options by their path: `instance`, `backend.node`, `disks.name`, `argv.1`.

use std::fmt;
use std::ops::ControlFlow;

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
        let accepted = |value: Option<&Value>| match value {
            Some(value) if is_it(value) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        self.each(options, accepted).is_break()
    }

    /// All values at the path, with lists expanded.
    pub fn find<'a>(&self, options: &'a Value, most: usize) -> PathValues<'a> {
        let mut found = PathValues::default();
        let ended = self.each(options, |value| {
            match value {
                Some(_) if found.values.len() > most => return ControlFlow::Break(()),
                Some(value) => found.values.push(value),
                None => found.missing = true,
            }
            ControlFlow::Continue(())
        });
        found.more = ended.is_break();
        found
    }

    /// Shows `visit` each value at the path, with lists expanded, and `None` for each one that is missing.
    fn each<'a>(
        &self,
        options: &'a Value,
        mut visit: impl FnMut(Option<&'a Value>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let members: Vec<&str> = self.0.split('.').collect();
        each(options, &members, &mut visit)
    }
}

fn each<'a>(
    value: &'a Value,
    members: &[&str],
    visit: &mut impl FnMut(Option<&'a Value>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let next = match (value, members) {
        (Value::Array(elements), [number, rest @ ..]) if number.parse::<usize>().is_ok() => {
            (number.parse().ok().and_then(|number: usize| elements.get(number)), rest)
        }
        (Value::Array(elements), _) if !elements.is_empty() => {
            return elements.iter().try_for_each(|element| each(element, members, visit));
        }
        (Value::Object(object), [member, rest @ ..]) => (object.get(*member), rest),
        (Value::Array(_) | Value::Null, []) => return visit(None),
        (Value::String(text), []) if text.is_empty() => return visit(None),
        (value, []) => return visit(Some(value)),
        (_, _) => return visit(None),
    };
    match next {
        (Some(value), rest) => each(value, rest, visit),
        (None, _) => visit(None),
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct PathValues<'a> {
    /// No lists, nulls or empty texts.
    pub values: Vec<&'a Value>,
    /// Something is missing somewhere: a member, `null`, an empty text or an empty list.
    pub missing: bool,
    /// There are more values than requested.
    pub more: bool,
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
