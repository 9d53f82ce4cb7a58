//! A job's options, as conditions test them.
//!
//! *Hidden members.* Whether a condition holds tells what an option is, so a condition is asked as often as it takes to find out. A hidden member
//! is therefore no value that is compared, and not even the text that stands for it elsewhere: every comparison with it is unknown, whatever it
//! is, and also if it is missing.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_policy::eligibility::condition::{Number, Value};
use turnwise_store::Transaction;

use crate::secrets::Secrets;
use crate::{Job, Keyspace, Result, jobs};

/// A job's options, and which of them are hidden.
pub struct TestedOptions {
    options: Option<Box<RawValue>>,
    secrets: Secrets,
}

impl TestedOptions {
    /// Those of a job. Reads none if its type hides all.
    pub async fn of(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<TestedOptions> {
        let secrets = Secrets::of_type(tx, keys, &job.job_type).await?;
        let options = match secrets.hide_all() {
            true => None,
            false => Some(jobs::options(tx, keys, job).await?),
        };
        Ok(TestedOptions { options, secrets })
    }

    /// Options that are all hidden.
    pub fn hidden() -> TestedOptions {
        TestedOptions { options: None, secrets: Secrets::all() }
    }

    /// Their members.
    pub fn members(&self) -> Members<'_> {
        Members {
            secrets: &self.secrets,
            root: Member::of(self.options.as_deref().map_or("null", RawValue::get)),
        }
    }
}

/// The members of a job's options, which are parsed as far as conditions ask for them. Numbers keep their digits.
pub struct Members<'a> {
    secrets: &'a Secrets,
    root: Member<'a>,
}

impl Members<'_> {
    /// The member at a path, if a condition can test it.
    pub fn option(&self, path: &[String]) -> Option<Value> {
        match self.secrets.hide(path) {
            true => Some(Value::Hidden),
            false => self.root.option(path),
        }
    }
}

struct Member<'a> {
    json: &'a str,
    members: OnceCell<Option<HashMap<Cow<'a, str>, Member<'a>>>>,
}

impl<'a> Member<'a> {
    fn of(json: &'a str) -> Self {
        Member { json, members: OnceCell::new() }
    }

    fn option(&self, path: &[String]) -> Option<Value> {
        match path {
            [] => value(self.json),
            [name, rest @ ..] => self.members().as_ref()?.get(name.as_str())?.option(rest),
        }
    }

    fn members(&self) -> &Option<HashMap<Cow<'a, str>, Member<'a>>> {
        self.members.get_or_init(|| {
            let members: HashMap<Name<'a>, &'a RawValue> = serde_json::from_str(self.json).ok()?;
            Some(members.into_iter().map(|(Name(name), json)| (name, Member::of(json.get()))).collect())
        })
    }
}

/// The name of a member. It is borrowed from the options, unless it is escaped there.
#[derive(PartialEq, Eq, Hash, Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value of JSON, if a condition can test it.
fn value(json: &str) -> Option<Value> {
    let json = json.trim();
    Some(match json.as_bytes().first()? {
        b'"' => Value::Text(serde_json::from_str(json).ok()?),
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'n' => Value::Null,
        b'[' | b'{' => return None,
        _ => Value::Number(Number::parse(json)?),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tested(json: &str, pointers: &[&str]) -> TestedOptions {
        let pointers: Vec<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
        let options = Some(RawValue::from_string(json.to_owned()).unwrap());
        TestedOptions { options, secrets: Secrets::new(&pointers) }
    }

    fn path(path: &str) -> Vec<String> {
        path.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn members_are_found_with_their_digits() {
        let json = r#"{"a": {"b": 9007199254740993, "c\u0061": "x\n", "l": [1]}, "a.b": 1, "t": true, "z": null, "f": 1.50, "dup": 1, "dup": 2}"#;
        let options = tested(json, &[]);
        let members = options.members();
        let option = |text: &str| members.option(&path(text));
        let number = |text: &str| Some(Value::Number(Number::parse(text).unwrap()));
        assert_eq!(option("a.b"), number("9007199254740993"));
        assert_eq!(option("a.ca"), Some(Value::Text("x\n".to_owned())));
        assert_eq!((option("t"), option("z")), (Some(Value::Bool(true)), Some(Value::Null)));
        assert_eq!((option("f"), option("dup")), (number("1.5"), number("2")));
        for none in ["a", "a.l", "a.l.0", "a.x", "t.x", "none"] {
            assert_eq!(option(none), None, "{none}");
        }
        assert_eq!(TestedOptions::hidden().members().option(&path("a")), Some(Value::Hidden));
    }

    #[test]
    fn a_hidden_member_is_hidden_also_where_it_is_missing_and_below() {
        let json = r#"{"a": {"b": 1, "c": 2}, "d": "x", "e\u002a": 1, "list": [{"key": 1}]}"#;
        let options = tested(json, &["/a/b", "/d", "/none", "/x/*/y", "/e*"]);
        let members = options.members();
        for hidden in ["a.b", "a.b.c", "d", "d.e", "none", "none.x", "x.1.y", "x.1.y.z", "e*"] {
            assert_eq!(members.option(&path(hidden)), Some(Value::Hidden), "{hidden}");
        }
        assert_eq!(members.option(&path("a.c")), Some(Value::Number(2.into())));
        for none in ["a", "x", "x.1", "x.y", "e"] {
            assert_eq!(members.option(&path(none)), None, "{none}");
        }
    }
}
