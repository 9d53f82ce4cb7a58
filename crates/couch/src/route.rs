//! Routing: a pure function from a path to a target, and what each target needs.
//!
//! Database names contain slashes. Clients write them in two ways: as one segment, `prefix%2F_replicator` (CouchDB's
//! way), or unencoded. So the segments up to the one that ends in `_replicator` are joined.

use axum::http::Method;
use percent_encoding::percent_decode_str;
use turnwise_metrics::{self as metrics, UNKNOWN};
use turnwise_replicator::documents::names;
use turnwise_web::access::rights::Right::{self, Anyone, Metrics, Operate, Read, Write};
use turnwise_web::error::ApiError;

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
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
    Node(String, NodePart),
    /// The metrics, of the node under this name if the path names one.
    Metrics(Option<String>, metrics::Part),
    /// A database, or a part of it.
    Db(String, Part),
    /// A server-level path that does not exist.
    Unknown,
}

/// The part of a node's configuration that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePart {
    /// The node itself.
    Node,
    All,
    Section(String),
    Value(String, String),
}

/// A part of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
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
pub fn target(path: &str) -> Result<Target, ApiError> {
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
        ["metrics"] => Target::Metrics(None, metrics::Part::Own),
        ["_node", name, "_prometheus"] => Target::Metrics(Some(name.to_owned()), metrics::Part::Prometheus),
        ["_node", name, "_system"] => Target::Metrics(Some(name.to_owned()), metrics::Part::System),
        ["_node", name, "_stats", ref path @ ..] => {
            let path = path.iter().map(|part| (*part).to_owned()).collect();
            Target::Metrics(Some(name.to_owned()), metrics::Part::Stats(path))
        }
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

/// The pattern of a path.
pub fn pattern(path: &str) -> &'static str {
    target(path).map_or(UNKNOWN, |target| target.pattern())
}

impl Target {
    /// Its path without names and ids, for metrics.
    pub fn pattern(&self) -> &'static str {
        self.row().0
    }

    /// What a request needs. `HEAD` counts as `GET`.
    pub fn needed(&self, method: &Method) -> Right {
        let (_, reading, writing) = self.row();
        if *method == Method::GET { reading } else { writing }
    }
}

/// The table of targets: the pattern of the path, and what requests need with `GET` and with other methods. The compiler checks that every
/// target has a row.
macro_rules! targets {
    ($($target:pat => $pattern:expr, $reading:ident, $writing:ident;)+) => {
        /// All values of [`Target::pattern`].
        pub const PATTERNS: &[&str] = &[$($pattern),+];

        impl Target {
            fn row(&self) -> (&'static str, Right, Right) {
                match self {
                    $($target => ($pattern, $reading, $writing),)+
                }
            }
        }
    };
}

targets! {
    Target::Root => "/", Anyone, Anyone;
    Target::Up => "/_up", Anyone, Anyone;
    Target::AllDbs => "/_all_dbs", Read, Read;
    Target::Uuids => "/_uuids", Anyone, Anyone;
    Target::Session => "/_session", Anyone, Anyone;
    Target::Membership => "/_membership", Operate, Operate;
    Target::ActiveTasks => "/_active_tasks", Read, Read;
    Target::Replicate => "/_replicate", Write, Write;
    Target::SchedulerJobs => "/_scheduler/jobs", Read, Read;
    Target::SchedulerJob(_) => "/_scheduler/jobs/{id}", Read, Read;
    Target::SchedulerDocs(None) => "/_scheduler/docs", Read, Read;
    Target::SchedulerDocs(Some(_)) => "/_scheduler/docs/{db}", Read, Read;
    Target::SchedulerDoc(..) => "/_scheduler/docs/{db}/{id}", Read, Read;
    Target::Node(_, NodePart::Node) => "/_node/{node}", Operate, Operate;
    Target::Node(_, NodePart::All) => "/_node/{node}/_config", Operate, Operate;
    Target::Node(_, NodePart::Section(_)) => "/_node/{node}/_config/{section}", Operate, Operate;
    Target::Node(_, NodePart::Value(..)) => "/_node/{node}/_config/{section}/{key}", Operate, Operate;
    Target::Metrics(_, metrics::Part::Own) => "/metrics", Metrics, Metrics;
    Target::Metrics(_, metrics::Part::Prometheus) => "/_node/{node}/_prometheus", Metrics, Metrics;
    Target::Metrics(_, metrics::Part::Stats(_)) => "/_node/{node}/_stats", Metrics, Metrics;
    Target::Metrics(_, metrics::Part::System) => "/_node/{node}/_system", Metrics, Metrics;
    Target::Db(_, Part::Itself) => "/{db}", Read, Write;
    // These read, also where a body names what.
    Target::Db(_, Part::AllDocs) => "/{db}/_all_docs", Read, Read;
    Target::Db(_, Part::BulkGet) => "/{db}/_bulk_get", Read, Read;
    Target::Db(_, Part::Changes) => "/{db}/_changes", Read, Read;
    Target::Db(_, Part::EnsureFullCommit) => "/{db}/_ensure_full_commit", Read, Read;
    Target::Db(_, Part::RevsDiff) => "/{db}/_revs_diff", Read, Read;
    Target::Db(_, Part::BulkDocs) => "/{db}/_bulk_docs", Read, Write;
    Target::Db(_, Part::Security) => "/{db}/_security", Read, Write;
    Target::Db(_, Part::Doc(_)) => "/{db}/{id}", Read, Write;
    Target::Db(_, Part::Local(_)) => "/{db}/_local/{id}", Read, Write;
    Target::Db(_, Part::Attachment) => "/{db}/{id}/{attachment}", Read, Write;
    Target::Db(_, Part::Unknown(_)) => UNKNOWN, Read, Write;
    Target::Unknown => UNKNOWN, Anyone, Anyone;
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

fn node(rest: &[&str]) -> Option<NodePart> {
    match *rest {
        [] => Some(NodePart::Node),
        ["_config"] => Some(NodePart::All),
        ["_config", section] => Some(NodePart::Section(section.to_owned())),
        // A tenant is a key, and may contain slashes. As in a database's name, they need not be encoded.
        ["_config", section, ref key @ ..] => Some(NodePart::Value(section.to_owned(), key.join("/"))),
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
    fn the_pattern_of_every_target_is_among_the_patterns() {
        let paths =
            PATTERNS.iter().map(|pattern| pattern.replace("{db}", "_replicator").replace(['{', '}'], ""));
        for (path, pattern) in paths.zip(PATTERNS).filter(|(_, pattern)| **pattern != UNKNOWN) {
            assert_eq!(target(&path).unwrap().pattern(), *pattern, "{path}");
        }
        assert_eq!(target("/_utils").unwrap().pattern(), UNKNOWN);
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
        assert_eq!(of("/_node/a@b:1"), node(NodePart::Node));
        assert_eq!(of("/_node/a%40b:1/_config"), node(NodePart::All));
        let key = NodePart::Value("replicator.shares".into(), "x/_replicator".into());
        for path in ["x%2F_replicator", "x/_replicator"] {
            assert_eq!(of(&format!("/_node/a@b:1/_config/replicator.shares/{path}")), node(key.clone()));
        }
        assert_eq!(of("/_node/_local/_stat"), Target::Unknown);
        let local = Some("_local".to_owned());
        let stats = metrics::Part::Stats(vec!["couch_replicator".to_owned(), "jobs".to_owned()]);
        assert_eq!(of("/_node/_local/_stats/couch_replicator/jobs"), Target::Metrics(local, stats));
        assert_eq!(of("/metrics/"), Target::Metrics(None, metrics::Part::Own));
        assert_eq!(of("/_node"), Target::Unknown);
        assert_eq!(of("/_utils"), Target::Unknown);
    }
}
