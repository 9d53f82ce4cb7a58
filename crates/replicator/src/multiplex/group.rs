//! Groups of replications that are watched together: their sources are databases of one server, for one user.

use md5::{Digest, Md5};

use crate::Replication;

/// The name of a replication's group: a digest of everything that determines the responses of its source's server.
/// Passwords are not included, because an attacker could guess them from the digest. If two jobs differ only in their
/// passwords, one job's login watches for both.
///
/// `None` if the source has headers of its own. They may select another user or another server behind the same URL, and
/// their values are as secret as passwords.
pub(super) fn of(replication: &Replication) -> Option<String> {
    let source = &replication.source;
    if !source.headers().is_empty() {
        return None;
    }
    let mut hash = Md5::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    add(source.server().url().as_str());
    add(source.credentials().map_or("", |credentials| &credentials.user));
    // As displayed, without its password.
    add(&source.proxy().map_or_else(String::new, ToString::to_string));
    Some(format!("{:032x}", u128::from_be_bytes(hash.finalize().into())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::Defaults;

    fn of_source(source: Value) -> Option<String> {
        let body = json!({ "source": source, "target": "http://t/x", "continuous": true });
        of(&Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap())
    }

    fn group(source: Value) -> String {
        of_source(source).unwrap()
    }

    #[test]
    fn databases_of_one_server_and_user_are_one_group() {
        let one = group(json!("http://u:p@h:5984/a"));
        assert_eq!(one, group(json!("http://u:other@h:5984/b%2Fc/")));
        assert_eq!(one.len(), 32);
        for other in ["http://v:p@h:5984/a", "http://h:5984/a", "https://u:p@h:5984/a", "http://u:p@h/a"] {
            assert_ne!(one, group(json!(other)), "{other}");
        }
        assert_ne!(one, group(json!("http://u:p@h:5984/prefix/a")));
        let with_login = json!({ "url": "http://h:5984/a", "headers": { "Authorization": "Basic dTpw" } });
        assert_eq!(one, group(with_login), "a login is one wherever it stands");
    }

    #[test]
    fn sources_with_headers_of_their_own_are_in_no_group() {
        for (name, value) in [("x-tenant", "1"), ("Authorization", "Bearer A"), ("Cookie", "AuthSession=x")] {
            let mut source = json!({ "url": "http://h:5984/a", "headers": {} });
            source["headers"][name] = json!(value);
            assert_eq!(of_source(source), None, "{name}");
        }
    }
}
