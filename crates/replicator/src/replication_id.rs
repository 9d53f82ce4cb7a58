//! Replication ids, version 4, exactly as CouchDB computes them.
//!
//! The id depends on what a replication copies, from where to where, and with which login. Two requests with the same
//! id are the same job, and the id names the checkpoints on both sides. It is the hex MD5 of Erlang's external term
//! format of `[ServerUuid, Source, Target | What]`. With the uuid of a CouchDB server, turnwise therefore resumes from
//! the checkpoints of that server.

use std::fmt;

use md5::{Digest, Md5};
use turnwise_outbound::{Endpoint, Secret};

use crate::external_term::Term;
use crate::selector;
use crate::spec::{Filter, Replication};

/// A replication's id: the base names its checkpoints, the whole names the job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicationId {
    /// 32 hexadecimal digits; the name of the `_local` documents.
    pub base: String,
    /// `+continuous`, `+create_target`, both, or nothing.
    pub suffix: String,
}

/// The full id, as it is displayed and as jobs are named.
impl fmt::Display for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.base, self.suffix)
    }
}

/// The id of `replication` on the server `server_uuid`.
///
/// `filter_code` is the source text of the filter function, which [`crate::filter_code`] fetches. It is used only if
/// [`needs_filter_code`].
pub fn full(replication: &Replication, server_uuid: &str, filter_code: Option<&str>) -> ReplicationId {
    let mut suffix = String::new();
    if replication.continuous {
        suffix.push_str("+continuous");
    }
    if replication.create_target {
        suffix.push_str("+create_target");
    }
    ReplicationId { base: base(replication, server_uuid, filter_code), suffix }
}

/// The part of the id that names the checkpoints.
fn base(replication: &Replication, server_uuid: &str, filter_code: Option<&str>) -> String {
    let mut terms =
        vec![Term::binary(server_uuid), endpoint(&replication.source), endpoint(&replication.target)];
    match &replication.filter {
        None => {}
        Some(Filter::DocIds(ids)) => terms.push(Term::List(ids.iter().map(|id| Term::binary(id)).collect())),
        Some(Filter::Selector(selector)) => terms.push(Term::json(&selector::normal_form(selector))),
        Some(Filter::Function { name, query_params }) => {
            let code = if needs_filter_code(replication) {
                trim_code(filter_code.unwrap_or_default())
            } else {
                name
            };
            terms.push(Term::binary(code));
            terms.push(Term::object(query_params));
        }
    }
    if replication.winning_revs_only {
        terms.push(Term::binary("winning_revs_only"));
    }
    let digest = Md5::digest(Term::List(terms).to_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the id depends on the source text of a filter function, so that changed code means a new replication.
pub fn needs_filter_code(replication: &Replication) -> bool {
    matches!(&replication.filter, Some(Filter::Function { name, .. }) if !name.starts_with('_'))
}

/// `{remote, User, Host, Port, Path, Headers, undefined}`.
fn endpoint(endpoint: &Endpoint) -> Term {
    let (url, written) = (endpoint.url(), endpoint.written());
    let user = written.user.as_deref().map_or(Term::Atom("undefined"), Term::string);
    let default_port = match (url.scheme(), url.port()) {
        (_, None) => true,
        ("http", Some(port)) => port == 5984,
        (_, Some(_)) => false,
    };
    let port = match url.port() {
        Some(port) if !default_port => Term::Integer(port.into()),
        _ => Term::Atom("default"),
    };
    let header = |(name, value): &(String, Secret)| {
        Term::Tuple(vec![Term::string(name), Term::string(value.reveal())])
    };
    Term::Tuple(vec![
        Term::Atom("remote"),
        user,
        Term::string(&written.host),
        port,
        Term::string(&written.path),
        Term::List(written.headers.iter().map(header).collect()),
        Term::Atom("undefined"),
    ])
}

/// CouchDB trims spaces around code of one line, and leaves longer code unchanged.
fn trim_code(code: &str) -> &str {
    let line = code.strip_suffix('\n').unwrap_or(code);
    if line.contains('\n') || line.len() < code.len() { code } else { code.trim_matches(' ') }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;
    use crate::spec::Defaults;

    #[test]
    fn every_recorded_id_of_couchdb_is_reproduced() {
        let golden: Value =
            serde_json::from_str(include_str!("../tests/golden/replication_ids.json")).unwrap();
        let uuid = golden["server_uuid"].as_str().unwrap();
        let mut wrong = Vec::new();
        for case in golden["cases"].as_array().unwrap() {
            let replication =
                Replication::parse(case["body"].as_object().unwrap(), &Defaults::default()).unwrap();
            let code = case["body"]["filter"].as_str().and_then(|name| golden["filter_code"][name].as_str());
            let id = full(&replication, uuid, code).to_string();
            if id != case["_local_id"].as_str().unwrap() {
                wrong.push(case["name"].clone());
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn the_way_to_an_endpoint_is_no_part_of_the_id() {
        let id = |extra: Value| {
            let mut body = serde_json::json!({"source": "http://a/db", "target": "http://b/db"});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            full(&Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap(), "uuid", None)
        };
        let proxied = serde_json::json!({"source_proxy": "http://p", "socket_options": "[{nodelay, false}]"});
        assert_eq!(id(proxied), id(serde_json::json!({})));
    }

    #[test]
    fn spaces_around_a_line_of_code_do_not_count() {
        assert_eq!(trim_code("  function(d){return true} "), "function(d){return true}");
        assert_eq!(trim_code(" a\n b "), " a\n b ");
    }
}
