//! An endpoint as the user wrote it, which determines a replication's id.
//!
//! CouchDB does not normalize URLs. A host in capitals, a percent-encoded user's name, or `%2f` instead of `%2F` makes
//! another replication, with its own checkpoints. Requests go to the normalized [`crate::endpoint::Endpoint::url`].

use std::collections::BTreeMap;

use serde_json::Value;

use crate::secret::Secret;

/// Headers that CouchDB's replicator sends by itself. They are not part of an id, even if the user sets them.
const OWN_HEADERS: [(&str, &str); 2] =
    [("Accept", "application/json"), ("User-Agent", "CouchDB-Replicator/3.5.0")];
const AUTHORIZATION: &str = "authorization";

/// The parts of an endpoint before normalization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The user's name in the URL, encoded. `None` if the URL has no password, as in `http://user@host/db`.
    pub user: Option<String>,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// From the first slash on, with a slash at the end.
    pub path: String,
    /// In CouchDB's order, without logins and CouchDB's own headers.
    pub headers: Vec<(String, Secret)>,
}

impl Written {
    /// Reads a URL that is known to be valid.
    pub fn of(url: &str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (userinfo, address) = match authority.rsplit_once('@') {
            Some((userinfo, address)) => (Some(userinfo), address),
            None => (None, authority),
        };
        let host = match address.strip_prefix('[').and_then(|address| address.split_once(']')) {
            Some((host, _)) => host,
            None => address.split(':').next().unwrap_or_default(),
        };
        Self {
            user: userinfo.and_then(|userinfo| userinfo.split_once(':')).map(|(user, _)| user.to_owned()),
            host: host.to_owned(),
            path: if path.ends_with('/') { path.to_owned() } else { format!("{path}/") },
            headers: Vec::new(),
        }
    }

    /// Adds the headers of an endpoint's object. A value that is not an object of strings has none.
    pub fn with_headers(self, given: Option<&Value>) -> Self {
        let given = given.and_then(Value::as_object).into_iter().flatten();
        let given = given.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
        // A given header replaces CouchDB's own header of exactly that name.
        let all: BTreeMap<&str, &str> = OWN_HEADERS.into_iter().chain(given).collect();
        let mut headers: Vec<(String, String)> =
            all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(AUTHORIZATION)) {
            headers = without_case(headers);
        }
        let is_login = |name: &str, value: &str| {
            name.eq_ignore_ascii_case(AUTHORIZATION) && basic_authorization(value).is_some()
        };
        headers.retain(|(name, value)| !(OWN_HEADERS.contains(&(name, value)) || is_login(name, value)));
        let headers = headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
        Self { headers, ..self }
    }
}

/// When CouchDB searches for a login, it groups headers by their names in lower case, and joins the values of one name.
fn without_case(headers: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut by_name: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (name, value) in headers {
        match by_name.get_mut(&name.to_ascii_lowercase()) {
            Some((_, values)) => *values = format!("{values}, {value}"),
            None => {
                by_name.insert(name.to_ascii_lowercase(), (name, value));
            }
        }
    }
    by_name.into_values().collect()
}

/// The part after `Basic` of an `Authorization` header that is a login with a password, well formed or not.
pub(crate) fn basic_authorization(value: &str) -> Option<&str> {
    let (scheme, encoded) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then_some(encoded)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn headers_stand_as_in_couchdb() {
        let of = |given: Value| {
            let headers = Written::of("http://h/db").with_headers(Some(&given)).headers;
            headers.iter().map(|(name, value)| format!("{name}:{}", value.reveal())).collect::<Vec<_>>()
        };
        assert_eq!(of(json!({"b": "1", "X": "2"})), ["X:2", "b:1"]);
        assert_eq!(of(json!({"b": "1", "X": "2", "authorization": "Basic !!"})), ["b:1", "X:2"]);
        assert_eq!(
            of(json!({"X": "1", "c": "2", "Authorization": "Bearer b"})),
            ["Authorization:Bearer b", "c:2", "X:1"]
        );
        assert_eq!(of(json!({"Accept": "application/json", "accept": "1"})), ["accept:1"]);
        let joined = of(json!({"accept": "1", "Authorization": "basic dTpw", "a": "2", "A": "3"}));
        assert_eq!(joined, ["A:3, 2", "Accept:application/json, 1"]);
    }

    #[test]
    fn nothing_is_decoded_and_no_case_is_changed() {
        for (url, user, host, path) in [
            ("http://HOST/a%2fb", None, "HOST", "/a%2fb/"),
            ("https://u%40x:p%3A@Host:1/DB/", Some("u%40x"), "Host", "/DB/"),
            ("http://user@host/db", None, "host", "/db/"),
            ("http://:p@host/db//", Some(""), "host", "/db//"),
            ("http://u:p:q@[FE80::A]:5/a:b@c", Some("u"), "FE80::A", "/a:b@c/"),
            ("http://127.1", None, "127.1", "/"),
        ] {
            let written = Written::of(url);
            let found = (written.user.as_deref(), written.host.as_str(), written.path.as_str());
            assert_eq!(found, (user, host, path), "{url}");
        }
    }
}
