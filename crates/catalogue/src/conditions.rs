//! The conditions of a request: `when = { … }`, `unless = { … }`.

use serde_json::Value;

use crate::options::Path;

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
        match self {
            Is::Present => path.any(options, |_| true),
            Is::Absent => !path.any(options, |_| true),
            Is::OneOf(these) => path.any(options, |value| these.contains(value)),
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
    fn every_element_of_a_list_counts() {
        let mut nodes: Vec<String> = (0..5_000).map(|n| format!("n{n}")).collect();
        nodes.push("last".to_owned());
        let when = Conditions { when: vec![is("nodes", Is::OneOf(vec![json!("last")]))], unless: Vec::new() };
        assert!(when.hold(&json!({"nodes": nodes})), "a long list does not hide its end");
    }

    #[test]
    fn a_missing_option_is_not_false() {
        let off = Is::OneOf(vec![json!(false)]);
        let holds = |is: &Is, options: Value| is.holds(&Path::parse("a").unwrap(), &options);
        assert!(!holds(&off, json!({})) && holds(&off, json!({"a": false})));
        assert!(holds(&Is::Absent, json!({})) && !holds(&Is::Absent, json!({"a": false})));
    }
}
