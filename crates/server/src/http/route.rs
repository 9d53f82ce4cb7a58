//! Routing: a pure function from a path to a target.
//!
//! Database names contain slashes. Clients write them in two ways: as one segment, `prefix%2F_replicator` (CouchDB's
//! way), or unencoded. So the segments up to the one that ends in `_replicator` are joined.

use percent_encoding::percent_decode_str;
use turnwise_replicator::documents::names;

use super::config;
use super::error::ApiError;

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Root,
    Up,
    AllDbs,
    Uuids,
    Session,
    Membership,
    ActiveTasks,
    Replicate,
    SchedulerJobs,
    SchedulerJob(String),
    /// All databases, or one of them.
    SchedulerDocs(Option<String>),
    SchedulerDoc(String, String),
    /// A node, or its configuration.
    Node(String, config::Part),
    /// A database, or a part of it.
    Db(String, Part),
    /// A server-level path that does not exist.
    Unknown,
}

/// A part of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Itself,
    AllDocs,
    BulkDocs,
    BulkGet,
    Changes,
    EnsureFullCommit,
    RevsDiff,
    Security,
    Doc(String),
    /// The id without `_local/`.
    Local(String),
    Attachment,
    /// A path with an underscore that replicator databases do not support.
    Unknown(String),
}

/// Parses a request's path.
///
/// # Errors
/// If the decoded path is not UTF-8, or if a scheduler document's path is incomplete.
pub(crate) fn target(path: &str) -> Result<Target, ApiError> {
    let decode = |segment: &str| {
        let decoded = percent_decode_str(segment).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| ApiError::bad_request("the path is not UTF-8"))
    };
    let raw = path.split('/').filter(|segment| !segment.is_empty());
    let segments = raw.map(decode).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    Ok(match names[..] {
        [] => Target::Root,
        ["_up"] => Target::Up,
        ["_all_dbs"] => Target::AllDbs,
        ["_uuids"] => Target::Uuids,
        ["_session"] => Target::Session,
        ["_membership"] => Target::Membership,
        ["_active_tasks"] => Target::ActiveTasks,
        ["_replicate"] => Target::Replicate,
        ["_scheduler", "jobs"] => Target::SchedulerJobs,
        // A client may have decoded a `+` as a space, as in forms. Ids contain no spaces.
        ["_scheduler", "jobs", id] => Target::SchedulerJob(id.replace(' ', "+")),
        ["_scheduler", "docs"] => Target::SchedulerDocs(None),
        ["_scheduler", "docs", ref rest @ ..] => scheduler_docs(rest)?,
        ["_scheduler", ..] => Target::Unknown,
        ["_node", name, ref rest @ ..] => match node(rest) {
            Some(part) => Target::Node(name.to_owned(), part),
            None => Target::Unknown,
        },
        _ => match split_database(&names) {
            Some((db, rest)) => Target::Db(db, part(rest)),
            None if names[0].starts_with('_') => Target::Unknown,
            // An ordinary database, which a later check rejects by name.
            None => Target::Db(names[0].to_owned(), part(&names[1..])),
        },
    })
}

/// Splits off the first segments, which form the name of a replicator database.
fn split_database<'a>(names: &'a [&'a str]) -> Option<(String, &'a [&'a str])> {
    let last = names.iter().position(|name| *name == names::REPLICATOR || name.ends_with(names::SUFFIX))?;
    let db = names[..=last].join("/");
    names::is_replicator(&db).then(|| (db, &names[last + 1..]))
}

fn scheduler_docs(rest: &[&str]) -> Result<Target, ApiError> {
    match split_database(rest) {
        Some((db, [])) => Ok(Target::SchedulerDocs(Some(db))),
        Some((db, [id])) => Ok(Target::SchedulerDoc(db, (*id).to_owned())),
        _ => Err(ApiError::bad_request("Invalid path")),
    }
}

fn node(rest: &[&str]) -> Option<config::Part> {
    match *rest {
        [] => Some(config::Part::Node),
        ["_config"] => Some(config::Part::All),
        ["_config", section] => Some(config::Part::Section(section.to_owned())),
        // A tenant is a key, and may contain slashes. As in a database's name, they need not be encoded.
        ["_config", section, ref key @ ..] => Some(config::Part::Value(section.to_owned(), key.join("/"))),
        _ => None,
    }
}

fn part(rest: &[&str]) -> Part {
    match *rest {
        [] => Part::Itself,
        ["_all_docs"] => Part::AllDocs,
        ["_bulk_docs"] => Part::BulkDocs,
        ["_bulk_get"] => Part::BulkGet,
        ["_changes"] => Part::Changes,
        ["_ensure_full_commit"] => Part::EnsureFullCommit,
        ["_revs_diff"] => Part::RevsDiff,
        ["_security"] => Part::Security,
        ["_local", ref id @ ..] if !id.is_empty() => Part::Local(id.join("/")),
        ["_design", name] => Part::Doc(format!("_design/{name}")),
        ["_design", _, ..] => Part::Attachment,
        [id] => match id.strip_prefix("_local/") {
            Some(local) => Part::Local(local.to_owned()),
            None if id.starts_with('_') && !id.starts_with("_design/") => Part::Unknown(id.to_owned()),
            None => Part::Doc(id.to_owned()),
        },
        [name, ..] if name.starts_with('_') => Part::Unknown(name.to_owned()),
        _ => Part::Attachment,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn db(name: &str, part: Part) -> Target {
        Target::Db(name.to_owned(), part)
    }

    fn doc(id: &str) -> Part {
        Part::Doc(id.to_owned())
    }

    #[test]
    fn databases_are_named_in_one_segment_or_plainly() {
        for path in ["/a%2Fb%2F_replicator/x", "/a/b/_replicator/x", "/a%2fb/_replicator//x"] {
            assert_eq!(target(path).unwrap(), db("a/b/_replicator", doc("x")), "{path}");
        }
        assert_eq!(target("/_replicator/").unwrap(), db("_replicator", Part::Itself));
        assert_eq!(target("/_replicator/_all_docs").unwrap(), db("_replicator", Part::AllDocs));
        assert_eq!(target("/other/x").unwrap(), db("other", doc("x")));
        assert_eq!(target("/Bad/_replicator").unwrap(), db("Bad", Part::Unknown("_replicator".into())));
    }

    #[test]
    fn document_ids_are_decoded_once_and_a_plus_stays() {
        let of = |path: &str| target(path).unwrap();
        assert_eq!(of("/_replicator/a%2Fb%2520+c"), db("_replicator", doc("a/b%20+c")));
        assert_eq!(of("/_replicator/_design/x"), db("_replicator", doc("_design/x")));
        assert_eq!(of("/_replicator/_design%2Fx"), db("_replicator", doc("_design/x")));
        assert_eq!(of("/_replicator/_local/a%2Fb"), db("_replicator", Part::Local("a/b".into())));
        assert_eq!(of("/_replicator/_local%2Fx"), db("_replicator", Part::Local("x".into())));
        assert_eq!(of("/_replicator/x/file"), db("_replicator", Part::Attachment));
        assert_eq!(of("/_replicator/_find"), db("_replicator", Part::Unknown("_find".into())));
        assert!(target("/_replicator/%ff").is_err());
    }

    #[test]
    fn scheduler_paths_name_jobs_and_documents() {
        let of = |path: &str| target(path).unwrap();
        assert_eq!(of("/_scheduler/jobs/abc+continuous"), Target::SchedulerJob("abc+continuous".into()));
        assert_eq!(of("/_scheduler/jobs/abc%2Bcontinuous"), Target::SchedulerJob("abc+continuous".into()));
        assert_eq!(of("/_scheduler/docs/"), Target::SchedulerDocs(None));
        let (whole, one) = (Target::SchedulerDocs(Some("x/_replicator".into())), "x/_replicator".to_owned());
        assert_eq!(of("/_scheduler/docs/x/_replicator"), whole);
        assert_eq!(of("/_scheduler/docs/x%2F_replicator"), whole);
        assert_eq!(of("/_scheduler/docs/x/_replicator/d%2Fe"), Target::SchedulerDoc(one, "d/e".into()));
        for path in ["/_scheduler/docs/x", "/_scheduler/docs/_replicator/a/b"] {
            assert!(target(path).is_err(), "{path}");
        }
        assert_eq!(of("/_scheduler"), Target::Unknown);
        let node = |part| Target::Node("a@b:1".into(), part);
        assert_eq!(of("/_node/a@b:1"), node(config::Part::Node));
        assert_eq!(of("/_node/a%40b:1/_config"), node(config::Part::All));
        let key = config::Part::Value("replicator.shares".into(), "x/_replicator".into());
        for path in ["x%2F_replicator", "x/_replicator"] {
            assert_eq!(of(&format!("/_node/a@b:1/_config/replicator.shares/{path}")), node(key.clone()));
        }
        assert_eq!(of("/_node/_local/_stats"), Target::Unknown);
        assert_eq!(of("/_node"), Target::Unknown);
        assert_eq!(of("/_utils"), Target::Unknown);
    }
}
