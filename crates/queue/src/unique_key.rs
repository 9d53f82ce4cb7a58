//! What is stated of a job's unique key, and the hash that stands for the key.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::encoding::hex;
use crate::error::{Error, Result};
use crate::names::check_name;

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// The most pointers into options that make a key.
pub const MAX_OF: usize = 8;
/// Longest of these pointers, in bytes.
pub const MAX_OF_BYTES: usize = 128;
/// The longest period, in µs: 31 days. Rows of keys outlive their jobs by as much, and count for no quota.
pub const MAX_PERIOD_US: i64 = 31 * 86_400 * 1_000_000;

/// What a client states of a job that is to be the only one with its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// How long the job holds the key.
    pub mode: Mode,
    /// What the key is made of.
    pub by: By,
    /// Which jobs have one key if they state the same.
    pub within: Within,
    /// What happens to a job that is added while another one holds its key.
    pub on_conflict: OnConflict,
}

/// How long a job holds its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Until a worker claims it. A run that returns it to the queue takes the key again, if it is free.
    WhileWaiting,
    /// Until it has ended, or is removed.
    UntilEnd,
    /// For this time after it was added, in µs, also if it has ended, until a client removes it.
    Period(i64),
}

/// What a key is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// This text.
    Key(String),
    /// The members of the options that these JSON pointers name.
    Of(Vec<String>),
    /// All options.
    Options,
}

/// Which jobs have one key if they state the same. They are always of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Within {
    /// Those of one type.
    Type,
    /// Those of one task of a type.
    Task,
    /// All.
    Tenant,
}

/// What happens to a job that is added while another one holds its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// It is not added.
    Keep,
    /// Its options, summary, locks and start time replace those of the other job, if that waits.
    Replace,
    /// The request is refused.
    Reject,
    /// The other job runs once more, with what is stated now, if it runs.
    After,
}

/// The key of a job, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The hash that stands for it.
    pub hash: String,
    /// The row of the key is this job's, until the job gives it up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The row of the key is this job's until this time, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<i64>,
}

impl Unique {
    /// Whether a change of the job's options changes the key that it holds.
    pub(crate) fn follows_options(&self) -> bool {
        !matches!(self.by, By::Key(_)) && !matches!(self.mode, Mode::Period(_))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |problem: String| Err(Error::Invalid { field: "unique", problem });
        if let Mode::Period(us) = self.mode
            && !(1..=MAX_PERIOD_US).contains(&us)
        {
            return invalid("the period must be at most 31 days".to_owned());
        }
        match &self.by {
            By::Key(key) => check_name("unique.key", key, MAX_KEY_BYTES),
            By::Of(pointers) if pointers.is_empty() || pointers.len() > MAX_OF => {
                invalid(format!("`of` has {} pointers; 1 to {MAX_OF} are allowed", pointers.len()))
            }
            By::Of(pointers) => pointers.iter().try_for_each(|pointer| check_pointer(pointer)),
            By::Options => Ok(()),
        }
    }

    /// The hash of the key of such a job. `secret` is the store's, so that who reads rows learns nothing of options by guessing.
    ///
    /// # Errors
    /// `Invalid` for options that cannot be compared.
    pub(crate) fn hash(
        &self,
        secret: &str,
        (tenant, job_type, task): (&str, &str, Option<&str>),
        options: &RawValue,
    ) -> Result<String> {
        let mut parts = Parts(Sha256::new());
        parts.add(b'x', secret);
        parts.add(b't', tenant);
        if self.within != Within::Tenant {
            parts.add(b'j', job_type);
        }
        if self.within == Within::Task {
            parts.add(if task.is_some() { b'k' } else { b'-' }, task.unwrap_or_default());
        }
        let read = || {
            serde_json::from_str::<Value>(options.get()).map_err(|_| Error::Invalid {
                field: "unique",
                problem: "the options cannot be compared: state a key".to_owned(),
            })
        };
        match &self.by {
            By::Key(key) => parts.add(b'K', key),
            By::Of(pointers) => {
                let options = read()?;
                for pointer in pointers {
                    parts.add(b'P', pointer);
                    match options.pointer(pointer) {
                        Some(value) => parts.value(value),
                        None => parts.add(b'-', ""),
                    }
                }
            }
            By::Options => {
                parts.add(b'O', "");
                parts.value(&read()?);
            }
        }
        Ok(hex(&parts.0.finalize()))
    }
}

fn check_pointer(pointer: &str) -> Result<()> {
    check_name("unique.of", pointer, MAX_OF_BYTES)?;
    let is_escaped = |rest: &str| rest.starts_with(['0', '1']);
    if pointer.starts_with('/') && pointer.split('~').skip(1).all(is_escaped) {
        return Ok(());
    }
    let problem =
        "must be JSON pointers, for example /customer; ~1 stands for / in a name, ~0 for ~".to_owned();
    Err(Error::Invalid { field: "unique.of", problem })
}

/// A hash over parts. Each has its kind and its length, so that different parts are never the same bytes.
struct Parts(Sha256);

impl Parts {
    fn add(&mut self, kind: u8, text: &str) {
        self.0.update([kind]);
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
    }

    /// A value: the order of the members of an object does not count.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.add(b'0', ""),
            Value::Bool(is) => self.add(b'b', if *is { "true" } else { "false" }),
            Value::Number(number) => self.add(b'n', &number.to_string()),
            Value::String(text) => self.add(b's', text),
            Value::Array(elements) => {
                self.add(b'[', &elements.len().to_string());
                elements.iter().for_each(|element| self.value(element));
            }
            Value::Object(members) => {
                self.add(b'{', &members.len().to_string());
                let mut members: Vec<_> = members.iter().collect();
                members.sort_unstable_by_key(|(name, _)| *name);
                for (name, value) in members {
                    self.add(b's', name);
                    self.value(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(by: By, within: Within, of: (&str, &str, Option<&str>), options: &str) -> String {
        let unique = Unique { mode: Mode::UntilEnd, by, within, on_conflict: OnConflict::Keep };
        unique.check().unwrap();
        unique.hash("secret", of, &RawValue::from_string(options.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn a_key_is_what_is_stated_and_not_how_it_is_written() {
        let all = |options: &str| hash(By::Options, Within::Type, ("a", "t", None), options);
        assert_eq!(
            all(r#"{"a":1,"b":{"c":[1,"x"],"d":null}}"#),
            all(r#" {"b":{"d":null,"c":[1,"\u0078"]}, "a":1}"#)
        );
        for other in
            [r#"{"a":1}"#, r#"{"a":"1"}"#, r#"{"a":[1]}"#, r#"{"a":null}"#, r#"{}"#, "[]", r#"{"a":{"b":1}}"#]
        {
            let same = [
                r#"{"a":1}"#,
                r#"{"a":"1"}"#,
                r#"{"a":[1]}"#,
                r#"{"a":null}"#,
                r#"{}"#,
                "[]",
                r#"{"a":{"b":1}}"#,
            ]
            .into_iter()
            .filter(|options| all(options) == all(other));
            assert_eq!(same.count(), 1, "{other}");
        }
        let of = |pointers: &[&str], options: &str| {
            let pointers = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
            hash(By::Of(pointers), Within::Type, ("a", "t", None), options)
        };
        assert_eq!(
            of(&["/a/b", "/x~1y"], r#"{"a":{"b":1,"c":2}}"#),
            of(&["/a/b", "/x~1y"], r#"{"a":{"b":1},"z":2}"#)
        );
        assert_ne!(of(&["/a"], r#"{"a":null}"#), of(&["/a"], "{}"));
        assert_ne!(of(&["/a"], r#"{"a":1}"#), of(&["/b"], r#"{"b":1}"#));
        assert_ne!(of(&["/a", "/b"], r#"{"a":1}"#), of(&["/a", "/b"], r#"{"b":1}"#));
    }

    #[test]
    fn no_two_tenants_have_one_key_and_types_and_tasks_as_stated() {
        let key = |within, tenant, job_type, task| {
            hash(By::Key("k".into()), within, (tenant, job_type, task), "{}")
        };
        for within in [Within::Type, Within::Task, Within::Tenant] {
            assert_ne!(key(within, "a", "t", None), key(within, "b", "t", None));
        }
        assert_eq!(key(Within::Type, "a", "t", Some("x")), key(Within::Type, "a", "t", None));
        assert_ne!(key(Within::Type, "a", "t", None), key(Within::Type, "a", "u", None));
        assert_ne!(key(Within::Task, "a", "t", Some("x")), key(Within::Task, "a", "t", None));
        assert_ne!(key(Within::Task, "a", "t", Some("")), key(Within::Task, "a", "t", None));
        assert_eq!(key(Within::Tenant, "a", "t", Some("x")), key(Within::Tenant, "a", "u", None));
        assert_ne!(key(Within::Type, "a", "bt", None), key(Within::Type, "ab", "t", None));
    }

    #[test]
    fn statements_have_bounds() {
        let stated =
            |mode, by| Unique { mode, by, within: Within::Type, on_conflict: OnConflict::Keep }.check();
        let of = |pointers: &[&str]| By::Of(pointers.iter().map(|pointer| (*pointer).to_owned()).collect());
        for (mode, by) in [
            (Mode::Period(0), By::Options),
            (Mode::Period(MAX_PERIOD_US + 1), By::Options),
            (Mode::UntilEnd, By::Key(String::new())),
            (Mode::UntilEnd, By::Key("x".repeat(MAX_KEY_BYTES + 1))),
            (Mode::UntilEnd, of(&[])),
            (Mode::UntilEnd, of(&["/a"; MAX_OF + 1])),
            (Mode::UntilEnd, of(&["a"])),
            (Mode::UntilEnd, of(&["/a~2"])),
            (Mode::UntilEnd, of(&["/a~"])),
        ] {
            assert!(stated(mode, by.clone()).is_err(), "{mode:?} {by:?}");
        }
        stated(Mode::Period(1), of(&["/a~0b/~1"])).unwrap();
    }
}
