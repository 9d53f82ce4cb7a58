//! Members of options that no one but a job's worker sees.
//!
//! *Model.* A type names the members as JSON pointers, and what is shown is made of the stored options each time: a change of the type's pointers
//! holds at once, also for jobs that were added before. What cannot be read is hidden as a whole. The types of the server itself hide
//! everything: their options have passwords and programs.
//!
//! *Cost.* Each level that a pointer names is read once more, so a pointer of 100 levels reads 4 MB of options 100 times at most. Only operators
//! write pointers.

use std::borrow::Cow;
use std::fmt;

use async_recursion::async_recursion as boxed;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use turnwise_store::Transaction;

use crate::error::Error;
use crate::{Job, Keyspace, Result, jobs, type_terms};

/// What stands for a hidden member.
pub const HIDDEN: &str = "*****";
/// The same, as JSON.
const HIDDEN_JSON: &str = "\"*****\"";
/// The pointer that hides all options.
pub const ALL: &str = "/";
/// The most pointers of a type.
pub const MAX_SECRETS: usize = 100;
/// The longest pointer, in bytes.
const MAX_POINTER_BYTES: usize = 200;
/// Stands for any member, or any element of an array.
const ANY: &str = "*";

/// Which members of options are hidden.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// The names that lead to each of them, from outside to inside; none for all options.
    paths: Vec<Vec<String>>,
}

impl Secrets {
    /// The members that these pointers name.
    pub fn new(pointers: &[String]) -> Secrets {
        Secrets { paths: pointers.iter().map(|pointer| path(pointer)).collect() }
    }

    /// All members.
    pub fn all() -> Secrets {
        Secrets { paths: vec![Vec::new()] }
    }

    /// Those of the jobs of a type.
    pub async fn of_type(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Secrets> {
        if type_terms::is_of_server(job_type) {
            return Ok(Secrets::all());
        }
        let stated = type_terms::stated(tx, keys, job_type).await?;
        Ok(stated.map(|terms| Secrets::new(&terms.secrets)).unwrap_or_default())
    }

    /// Whether all options are hidden.
    pub fn hide_all(&self) -> bool {
        self.paths.iter().any(Vec::is_empty)
    }

    /// Whether any member is hidden.
    pub fn hide_some(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether the member at a path is hidden, or is part of one that is.
    pub fn hide(&self, member: &[String]) -> bool {
        let names = |(hidden, name): (&String, &String)| hidden == name || hidden == ANY;
        self.paths.iter().any(|path| path.len() <= member.len() && path.iter().zip(member).all(names))
    }

    /// Whether these options have a hidden member.
    pub fn hide_some_of(&self, options: &RawValue) -> bool {
        let paths: Vec<&[String]> = self.paths.iter().map(Vec::as_slice).collect();
        write(options.get(), &paths, &mut String::new())
    }

    /// The options without the hidden members.
    pub fn without(&self, options: &RawValue) -> Box<RawValue> {
        if self.paths.is_empty() {
            return options.to_owned();
        }
        let paths: Vec<&[String]> = self.paths.iter().map(Vec::as_slice).collect();
        let mut shown = String::with_capacity(options.get().len());
        write(options.get(), &paths, &mut shown);
        RawValue::from_string(shown).expect("parts of JSON, in the form of JSON")
    }
}

/// The options of a job without what its type hides.
#[boxed]
pub async fn shown_options(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<Box<RawValue>> {
    let secrets = Secrets::of_type(tx, keys, &job.job_type).await?;
    if secrets.hide_all() {
        return Ok(hidden());
    }
    Ok(secrets.without(&jobs::options(tx, keys, job).await?))
}

/// The same, if they have at most so many bytes. Reads little more than these.
#[boxed]
pub async fn small_shown_options(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    max_bytes: usize,
) -> Result<Option<Box<RawValue>>> {
    let secrets = Secrets::of_type(tx, keys, &job.job_type).await?;
    if secrets.hide_all() {
        return Ok(Some(hidden()));
    }
    let options = jobs::small_options(tx, keys, job, max_bytes).await?;
    let shown = options.map(|options| secrets.without(&options));
    Ok(shown.filter(|options| options.get().len() <= max_bytes))
}

fn hidden() -> Box<RawValue> {
    RawValue::from_string(HIDDEN_JSON.to_owned()).expect("a text is JSON")
}

pub(crate) fn check(pointers: &[String]) -> Result<()> {
    let invalid = |problem| Err(Error::Invalid { field: "secrets", problem });
    if pointers.len() > MAX_SECRETS {
        return invalid(format!("has {} pointers; at most {MAX_SECRETS} are allowed", pointers.len()));
    }
    for pointer in pointers {
        if !pointer.starts_with('/') || pointer.len() > MAX_POINTER_BYTES {
            return invalid(format!(
                "must be JSON pointers of at most {MAX_POINTER_BYTES} bytes, like \"/smtp/password\", or \"/\" for all options"
            ));
        }
        // Such a pointer would name nothing, and hide nothing.
        if pointer.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return invalid("has a pointer with a ~ that is neither ~0 (for ~) nor ~1 (for /)".to_owned());
        }
    }
    Ok(())
}

/// The members that a pointer names, from outside to inside; none for all options.
fn path(pointer: &str) -> Vec<String> {
    match pointer.strip_prefix('/') {
        None | Some("") => Vec::new(),
        Some(path) => path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect(),
    }
}

/// Writes a value without the members at these paths. Returns whether there were any.
fn write(value: &str, paths: &[&[String]], to: &mut String) -> bool {
    if paths.iter().any(|path| path.is_empty()) {
        to.push_str(HIDDEN_JSON);
        return true;
    }
    let text = value.trim_start();
    if paths.is_empty() || !text.starts_with(['{', '[']) {
        to.push_str(value);
        return false;
    }
    let begin = to.len();
    let mut json = serde_json::Deserializer::from_str(text);
    let parts = Parts { paths, to };
    let written = match text.starts_with('{') {
        true => json.deserialize_map(parts),
        false => json.deserialize_seq(parts),
    };
    // Options that were stored are JSON. If they are not, it is not known what is in them.
    written.unwrap_or_else(|_| {
        to.truncate(begin);
        to.push_str(HIDDEN_JSON);
        true
    })
}

/// Writes the members of an object, or the elements of an array, one after the other: as they were written, in their order, and with repetitions.
/// Tells whether some are hidden.
struct Parts<'a, 'p> {
    paths: &'a [&'p [String]],
    to: &'a mut String,
}

impl<'p> Parts<'_, 'p> {
    /// The paths below a part. A name that is no Unicode (`None`) is not one that a path can have.
    fn below(&self, name: Option<&str>) -> Vec<&'p [String]> {
        let named = self.paths.iter().filter(|path| {
            path.first().is_some_and(|first| first == ANY || name.is_some_and(|name| first == name))
        });
        named.map(|path| &path[1..]).collect()
    }
}

impl<'de> Visitor<'de> for Parts<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<bool, A::Error> {
        let (mut between, mut hides) = ('{', false);
        while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            self.to.push(between);
            self.to.push_str(name.get());
            self.to.push(':');
            let name: Option<Cow<'_, str>> = serde_json::from_str(name.get()).ok();
            let below = self.below(name.as_deref());
            hides |= write(value.get(), &below, self.to);
            between = ',';
        }
        self.to.push_str(if between == '{' { "{}" } else { "}" });
        Ok(hides)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<bool, A::Error> {
        let (mut number, mut hides) = (0_usize, false);
        while let Some(value) = seq.next_element::<&RawValue>()? {
            self.to.push(if number == 0 { '[' } else { ',' });
            let below = self.below(Some(&number.to_string()));
            hides |= write(value.get(), &below, self.to);
            number += 1;
        }
        self.to.push_str(if number == 0 { "[]" } else { "]" });
        Ok(hides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(options: &str, pointers: &[&str]) -> String {
        let pointers: Vec<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
        check(&pointers).unwrap();
        let (secrets, options) =
            (Secrets::new(&pointers), RawValue::from_string(options.to_owned()).unwrap());
        let shown = secrets.without(&options).get().to_owned();
        assert_eq!(secrets.hide_some_of(&options), shown.contains(HIDDEN), "{pointers:?}");
        shown
    }

    #[test]
    fn hidden_members_are_gone_and_others_are_as_they_were_written() {
        let options = r#"{"n": 1.50e3, "token":"hunter2","smtp":{"host":"h","password":["hunter2"]},"a/b":{"~":"hunter2"}, "token" : "hunter2 again",
            "list":[{"key":"hunter2","n":12345678901234567890123},{"key":2}]}"#;
        let hidden =
            shown(options, &["/token", "/smtp/password", "/a~1b/~0", "/list/*/key", "/missing/x", "/n/x"]);
        assert!(!hidden.contains("hunter2"), "{hidden}");
        assert_eq!(
            hidden,
            r#"{"n":1.50e3,"token":"*****","smtp":{"host":"h","password":"*****"},"a/b":{"~":"*****"},"token":"*****","list":[{"key":"*****","n":12345678901234567890123},{"key":"*****"}]}"#
        );
        assert_eq!(shown(options, &[]), options);
        assert_eq!(shown(options, &["/"]), "\"*****\"");
        assert_eq!(shown("[1,[2]]", &["/1/0"]), "[1,[\"*****\"]]");
        assert_eq!(shown("7", &["/x"]), "7");
        assert_eq!(shown(r#"{"to\u006ben":1}"#, &["/token"]), r#"{"to\u006ben":"*****"}"#);
        assert_eq!(shown(r#" { } "#, &["/token"]), "{}");
        assert_eq!(shown("[ ]", &["/*"]), "[]");
    }

    #[test]
    fn a_pointer_names_what_its_escapes_and_stars_say() {
        for (pointer, hidden) in [
            ("/a~1b", r#"{"a/b":"*****","a":{"b":2},"~1":3,"*":4,"":5}"#),
            ("/a/b", r#"{"a/b":1,"a":{"b":"*****"},"~1":3,"*":4,"":5}"#),
            ("/~01", r#"{"a/b":1,"a":{"b":2},"~1":"*****","*":4,"":5}"#),
            ("/*", r#"{"a/b":"*****","a":"*****","~1":"*****","*":"*****","":"*****"}"#),
            ("/*/b", r#"{"a/b":1,"a":{"b":"*****"},"~1":3,"*":4,"":5}"#),
            ("//b", r#"{"a/b":1,"a":{"b":2},"~1":3,"*":4,"":5}"#),
            ("/a/b/c", r#"{"a/b":1,"a":{"b":2},"~1":3,"*":4,"":5}"#),
        ] {
            let options = r#"{"a/b":1,"a":{"b":2},"~1":3,"*":4,"":5}"#;
            assert_eq!(shown(options, &[pointer]), hidden, "{pointer}");
        }
        // Also in arrays, at any depth, and a longer pointer shows nothing that a shorter one hides.
        assert_eq!(
            shown(r#"[[{"k":1}],{"k":2}]"#, &["/*/*/k", "/1/k"]),
            r#"[[{"k":"*****"}],{"k":"*****"}]"#
        );
        assert_eq!(shown(r#"{"a":{"b":1}}"#, &["/a/b", "/a"]), r#"{"a":"*****"}"#);
        assert_eq!(shown("\"hunter2\"", &["/x", "/"]), "\"*****\"");
        // Names of elements are written without leading zeros.
        assert_eq!(shown("[1,2]", &["/00", "/-", "/01"]), "[1,2]");
    }

    #[test]
    fn what_cannot_be_read_hides_no_secret_less() {
        // A name that is no Unicode: only `*` names it, and it keeps no other member from being hidden.
        let odd = r#"{"\ud800":"x","token":"hunter2","a":{"\udfff":"hunter2"}}"#;
        assert_eq!(
            shown(odd, &["/token", "/a/*"]),
            r#"{"\ud800":"x","token":"*****","a":{"\udfff":"*****"}}"#
        );
        let mut wrong = String::new();
        assert!(write("{\"a\":1,\"token\":\"hunter2\"", &[&["token".to_owned()]], &mut wrong));
        assert_eq!(wrong, "\"*****\"");
    }

    #[test]
    fn deep_and_large_options_are_shown() {
        let deep = format!("{}\"hunter2\"{}", "{\"a\":".repeat(99), "}".repeat(99));
        assert!(!shown(&deep, &["/a".repeat(99).as_str()]).contains("hunter2"));
        assert!(!shown(&deep, &["/*".repeat(99).as_str()]).contains("hunter2"));
        let deeper = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(shown(&deeper, &["/*".repeat(100).as_str()]).len(), 2 * 100 + HIDDEN.len() + 2);
        let large = format!("[{}{{}}]", r#"{"key":"hunter2","n":1},"#.repeat(100_000));
        assert!(!shown(&large, &vec!["/*/key"; MAX_SECRETS]).contains("hunter2"));
    }

    #[test]
    fn a_pointer_begins_with_a_slash() {
        for wrong in ["", "token", "~/x", "/a~", "/a~2", "/~~0", "/a~/b"] {
            assert!(check(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert!(check(&vec!["/a".to_owned(); MAX_SECRETS + 1]).is_err());
        assert!(check(&["/".repeat(201)]).is_err());
    }
}
