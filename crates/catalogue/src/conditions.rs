//! The conditions of a request: `when = { … }`, `unless = { … }`.

use serde_json::Value;

use crate::options::{Path, PathValues};

/// When a request applies. `when` holds if each of its members does. `unless` is its exact opposite: it excludes the request if
/// each of its members holds. So of two requests with the same conditions, one in `when` and one in `unless`, exactly one
/// applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Conditions {
    pub when: Vec<(Path, Is)>,
    pub unless: Vec<(Path, Is)>,
}

/// What an option must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Is {
    /// The option exists, and is not null, an empty text or an empty list.
    Present,
    /// The opposite of `Present`.
    Absent,
    /// The option, or one of its elements, is one of these.
    OneOf(Vec<Value>),
}

/// Most elements of one option that a condition reads.
const MAX_ELEMENTS: usize = 1_000;

impl Conditions {
    /// Whether the request always applies.
    pub fn is_none(&self) -> bool {
        self.when.is_empty() && self.unless.is_empty()
    }

    /// Whether the request applies to a job with these options.
    pub fn hold(&self, options: &Value) -> bool {
        let all = |conditions: &[(Path, Is)]| conditions.iter().all(|(path, is)| is.holds(path, options));
        all(&self.when) && (self.unless.is_empty() || !all(&self.unless))
    }
}

impl Is {
    fn holds(&self, path: &Path, options: &Value) -> bool {
        let PathValues { values, .. } = path.find(options, MAX_ELEMENTS);
        match self {
            Is::Present => !values.is_empty(),
            Is::Absent => values.is_empty(),
            Is::OneOf(these) => values.iter().any(|value| these.contains(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is(path: &str, is: Is) -> (Path, Is) {
        (Path::parse(path).unwrap(), is)
    }

    #[test]
    fn all_of_when_must_hold_and_unless_is_the_opposite() {
        let both = vec![is("a", Is::OneOf(vec![json!(1)])), is("b", Is::Present)];
        let when = Conditions { when: both.clone(), unless: Vec::new() };
        let unless = Conditions { when: Vec::new(), unless: both };
        for (options, held) in [
            (json!({"a": 1, "b": "x"}), true),
            (json!({"a": [2, 1], "b": "x"}), true),
            (json!({"a": 1}), false),
            (json!({"a": 1, "b": ""}), false),
            (json!({"a": "1", "b": "x"}), false),
            (json!({}), false),
        ] {
            assert_eq!(when.hold(&options), held, "{options}");
            assert_eq!(unless.hold(&options), !held, "{options}");
        }
    }

    #[test]
    fn a_missing_option_is_not_false() {
        let off = Is::OneOf(vec![json!(false)]);
        let holds = |is: &Is, options: Value| is.holds(&Path::parse("a").unwrap(), &options);
        assert!(!holds(&off, json!({})) && holds(&off, json!({"a": false})));
        assert!(holds(&Is::Absent, json!({})) && !holds(&Is::Absent, json!({"a": false})));
    }
}
