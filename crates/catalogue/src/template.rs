//! Names and numbers from options: `"{instance}"`, `"{cluster}/{node}"`, `"{node?}"`, `"{group=default}"`.
//!
//! | in braces | the option exists | it is missing |
//! | --- | --- | --- |
//! | `{path}` | its text; one name for each element of a list | the request is unknown |
//! | `{path?}` | the same | the name is omitted |
//! | `{path=text}` | the same | the text |
//!
//! `{{` and `}}` are literal braces. A number is written in digits. Any other value is not a name, and makes the request unknown.

use std::fmt;

use serde_json::Value;
use turnwise_policy::predictive_queue::locks::{MAX_CAPACITY, MAX_RESOURCES, check_name};

use crate::Cause;
use crate::options::{Path, what};

/// Most options that one template may name.
const MAX_PLACES: usize = 4;

/// What is wrong, and how to correct it.
type Problem = (String, String);

/// A template for names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Option(Path, Absent),
}

/// The replacement for a missing option.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Absent {
    Unknown,
    LeftOut,
    Text(String),
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Template {
    /// # Errors
    /// What is wrong, and how to correct it.
    pub fn parse(text: &str) -> Result<Template, Problem> {
        let parts = parts(text)?;
        let places = parts.iter().filter(|part| matches!(part, Part::Option(..))).count();
        if places > MAX_PLACES {
            let fix = format!("at most {MAX_PLACES} can make one name");
            return Err((format!("makes a name of {places} options"), fix));
        }
        if places == 0 {
            let name = if let [Part::Text(name)] = &parts[..] { name.as_str() } else { "" };
            let fix = "write a name, or an option that has one, as in \"{instance}\"";
            check_name(name).map_err(|problem| (problem, fix.to_owned()))?;
        }
        Ok(Template { text: text.to_owned(), parts })
    }

    /// The names: one for each combination of elements of its lists.
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn names(&self, options: &Value) -> Result<Vec<String>, Cause> {
        let mut names = vec![String::new()];
        for part in &self.parts {
            let more = match part {
                Part::Text(text) => vec![text.clone()],
                Part::Option(path, absent) => texts(path, absent, options)?,
            };
            if names.len().saturating_mul(more.len()) > MAX_RESOURCES {
                return Err(Cause::TooMany);
            }
            names =
                names.iter().flat_map(|name| more.iter().map(move |text| format!("{name}{text}"))).collect();
        }
        let bad = names.iter().any(|name| check_name(name).is_err());
        if bad { Err(Cause::NoName { template: self.text.clone() }) } else { Ok(names) }
    }
}

fn texts(path: &Path, absent: &Absent, options: &Value) -> Result<Vec<String>, Cause> {
    let found = path.find(options, MAX_RESOURCES);
    if found.more {
        return Err(Cause::TooMany);
    }
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(Cause::WrongType { option: path.to_string(), is: what(other), wanted: "a name" }),
    };
    let mut texts = found.values.into_iter().map(text).collect::<Result<Vec<String>, Cause>>()?;
    match absent {
        Absent::Unknown if found.missing => return Err(Cause::Missing { option: path.to_string() }),
        Absent::Text(text) if found.missing => texts.push(text.clone()),
        _ => {}
    }
    Ok(texts)
}

fn parts(text: &str) -> Result<Vec<Part>, Problem> {
    let unpaired = |brace: &str| {
        let fix = format!("write \"{{option}}\", or {brace}{brace} for the brace itself");
        (format!("has a {brace} without its other one"), fix)
    };
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if rest[at..].starts_with("{{") || rest[at..].starts_with("}}") {
            literal.push_str(&rest[at..=at]);
            rest = &after[1..];
            continue;
        }
        let inside = match (rest[at..].starts_with('{'), after.find(['{', '}'])) {
            (true, Some(end)) if after[end..].starts_with('}') => &after[..end],
            (true, _) => return Err(unpaired("{")),
            (false, _) => return Err(unpaired("}")),
        };
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        parts.push(option(inside)?);
        rest = &after[inside.len() + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// Parses the text in braces.
fn option(inside: &str) -> Result<Part, Problem> {
    let (path, absent) = match inside.split_once('=') {
        Some((path, "")) => {
            let fix = format!("write {{{path}?}} to leave the name out, or a text after the =");
            return Err((format!("has no text for a missing {path:?}"), fix));
        }
        Some((path, text)) => (path, Absent::Text(text.to_owned())),
        None => match inside.strip_suffix('?') {
            Some(path) => (path, Absent::LeftOut),
            None => (inside, Absent::Unknown),
        },
    };
    Ok(Part::Option(Path::parse(path)?, absent))
}

/// The number of units of each name: a number, or an option with a number. For a list, its length counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Count {
    Fixed(u32),
    Option(Path, Option<u32>),
}

impl Count {
    /// # Errors
    /// What is wrong, and how to correct it.
    pub fn parse(text: &str) -> Result<Count, Problem> {
        let fix = "write a number, an option that is one, as in \"{disks}\", or one with a number for where it is missing, as in \"{disks=1}\"";
        let wrong = |problem: &str| (problem.to_owned(), fix.to_owned());
        match &parts(text)?[..] {
            [Part::Option(path, Absent::Unknown)] => Ok(Count::Option(path.clone(), None)),
            [Part::Option(path, Absent::Text(text))] => match text.parse() {
                Ok(units) if (1..=MAX_CAPACITY).contains(&units) => {
                    Ok(Count::Option(path.clone(), Some(units)))
                }
                _ => Err(wrong("has no number of units for where the option is missing")),
            },
            [Part::Option(_, Absent::LeftOut)] => Err(wrong("leaves a number of units out")),
            _ => Err(wrong("is no number of units")),
        }
    }

    /// The number of units; 0 if nothing is requested.
    ///
    /// # Errors
    /// Why it is unknown.
    pub fn units(&self, options: &Value) -> Result<u32, Cause> {
        let (path, absent) = match self {
            Count::Fixed(units) => return Ok(*units),
            Count::Option(path, absent) => (path, absent),
        };
        let wrong = |value| Cause::WrongType {
            option: path.to_string(),
            is: what(value),
            wanted: "a number of units (0 or more)",
        };
        match path.value(options) {
            None => absent.ok_or_else(|| Cause::Missing { option: path.to_string() }),
            Some(Value::Array(elements)) => Ok(u32::try_from(elements.len()).unwrap_or(u32::MAX)),
            Some(value @ Value::Number(number)) => match number.as_u64() {
                Some(units) => Ok(u32::try_from(units).unwrap_or(u32::MAX)),
                None => Err(wrong(value)),
            },
            Some(value) => Err(wrong(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(template: &str, options: &Value) -> Result<Vec<String>, String> {
        Template::parse(template).unwrap().names(options).map_err(|cause| cause.to_string())
    }

    #[test]
    fn a_template_becomes_names() {
        let options =
            json!({"i": "web1", "n": 7, "nodes": ["a", "b"], "disks": [{"n": "x"}, {"n": "y"}], "e": []});
        for (template, made) in [
            ("plain", vec!["plain"]),
            ("{i}", vec!["web1"]),
            ("{n}", vec!["7"]),
            ("{nodes}", vec!["a", "b"]),
            ("{i}/{nodes}", vec!["web1/a", "web1/b"]),
            ("{nodes}-{disks.n}", vec!["a-x", "a-y", "b-x", "b-y"]),
            ("{{{i}}}", vec!["{web1}"]),
            ("{none?}", vec![]),
            ("{e?}", vec![]),
            ("{none=all of it}", vec!["all of it"]),
            ("{i=other}", vec!["web1"]),
        ] {
            assert_eq!(names(template, &options).unwrap(), made, "{template}");
        }
    }

    #[test]
    fn an_invalid_name_is_reported_without_its_value() {
        let options = json!({"o": {"secret": 1}, "b": true, "long": "x".repeat(200), "c": "a\nb", "many": (0..2000).collect::<Vec<_>>(), "part": ["a", null]});
        for (template, expected) in [
            ("{none}", r#"its option "none" is missing"#),
            ("{part}", r#"its option "part" is missing"#),
            ("{o}", r#"its option "o" is an object, and must be a name"#),
            ("{b?}", r#"its option "b" is a boolean, and must be a name"#),
            ("{long}", "{long} makes a name"),
            ("{c}", "{c} makes a name"),
            ("{many}", "more than 1000"),
        ] {
            let error = names(template, &options).unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn a_wrong_template_is_refused_with_the_fix() {
        for (template, expected) in [
            ("{a", "without its other one"),
            ("a}", "without its other one"),
            ("{a{b}}", "without its other one"),
            ("{}", "names no option"),
            ("{a..b}", "empty member"),
            ("{a b}", "character"),
            ("{a=}", "{a?} to leave"),
            ("", "empty name"),
            ("{a}{b}{c}{d}{e}", "of 5 options"),
        ] {
            let (problem, fix) = Template::parse(template).unwrap_err();
            assert!(format!("{problem}; {fix}").contains(expected), "{template}: {problem}; {fix}");
        }
    }

    #[test]
    fn units_are_numbers_or_the_lengths_of_lists() {
        let options = json!({"n": 3, "l": [1, 2], "none": [], "t": "3", "neg": -1, "f": 1.5, "zero": 0});
        let units =
            |text: &str| Count::parse(text).unwrap().units(&options).map_err(|cause| cause.to_string());
        assert_eq!(
            (units("{n}"), units("{l}"), units("{none}"), units("{zero}")),
            (Ok(3), Ok(2), Ok(0), Ok(0))
        );
        assert_eq!(units("{gone=4}"), Ok(4));
        assert_eq!(units("{gone}"), Err(r#"its option "gone" is missing"#.to_owned()));
        for wrong in ["{t}", "{neg}", "{f}"] {
            assert!(units(wrong).unwrap_err().contains("must be a number of units"), "{wrong}");
        }
        for wrong in ["3", "{a?}", "{a=}", "{a=0}", "{a=x}", "{a}{b}", "x{a}"] {
            assert!(Count::parse(wrong).is_err(), "{wrong}");
        }
    }
}
