//! Redaction: requests to peers carry the passwords of replication documents, but readers of the documents see
//! [`HIDDEN`] instead.
//!
//! The forces: a response must never contain a password. A client that reads a document, changes a field and writes it
//! back must not destroy the password. A user who may write a document must not be able to send an unknown password to
//! a server of their choice. [`hide`] therefore replaces each secret by [`HIDDEN`], and [`restore`] puts the stored
//! secret back where a write contains [`HIDDEN`]. This requires that the URL still names the same server and user.
//! Other writes are rejected, because they would store a password of five stars that fails hours later.
//!
//! The secrets are: the password of a URL, every value under `headers`, and every string under `auth` except the user's name.

use serde_json::{Map, Value};
use turnwise_outbound::HIDDEN;
use url::Url;

use super::{Error, Result};

/// The fields that hold an endpoint: a URL, or an object with one.
const ENDPOINTS: [&str; 5] = ["source", "target", "source_proxy", "target_proxy", "proxy"];
/// The strings below `auth` that are not secret.
const NAMES: [&str; 2] = ["username", "name"];

/// Hides every secret of a document.
pub fn hide(body: &mut Map<String, Value>) {
    for field in ENDPOINTS {
        match body.get_mut(field) {
            Some(Value::String(url)) => *url = hide_url(url),
            Some(Value::Object(endpoint)) => hide_endpoint(endpoint),
            _ => {}
        }
    }
}

fn hide_endpoint(endpoint: &mut Map<String, Value>) {
    for (name, value) in endpoint {
        match (name.as_str(), value) {
            ("url", Value::String(url)) => *url = hide_url(url),
            ("headers" | "auth", value) => hide_all(value),
            (name, Value::String(text)) if name.to_ascii_lowercase().contains("password") => {
                HIDDEN.clone_into(text)
            }
            _ => {}
        }
    }
}

fn hide_all(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (_, value) in members.iter_mut().filter(|(name, _)| !NAMES.contains(&name.as_str())) {
                hide_all(value);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(hide_all),
        Value::Null | Value::Bool(_) => {}
        Value::String(_) | Value::Number(_) => *value = Value::from(HIDDEN),
    }
}

/// A URL with [`HIDDEN`] instead of its password.
pub fn hide_url(url: &str) -> String {
    match password(url) {
        Some(place) if !place.is_empty() => format!("{}{HIDDEN}{}", &url[..place.start], &url[place.end..]),
        _ => url.to_owned(),
    }
}

/// The position of a URL's password. In a text that is not a URL, everything that might be a password counts.
fn password(url: &str) -> Option<std::ops::Range<usize>> {
    let begin = url.find("://").map_or(0, |at| at + "://".len());
    let end = url[begin..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| begin + at);
    let within = |end: usize| {
        let at = url[begin..end].rfind('@')?;
        let colon = url[begin..begin + at].find(':')?;
        Some(begin + colon + 1..begin + at)
    };
    match within(end) {
        None if Url::parse(url).is_err() || begin == 0 => within(url.len()),
        found => found,
    }
}

/// Puts the secrets of the `stored` document where `body` has [`HIDDEN`].
///
/// # Errors
/// `Invalid` where no secret is stored in this position, or where it belongs to another server or user.
pub fn restore(body: &mut Map<String, Value>, stored: Option<&Map<String, Value>>) -> Result<()> {
    for field in ENDPOINTS {
        // The proxy sees the secret, so another proxy could send it to the author of the document.
        let stored = stored.filter(|stored| same_proxy(field, body, stored));
        let Some(new) = body.get_mut(field) else { continue };
        let old = stored.and_then(|stored| stored.get(field));
        match new {
            Value::String(url) => restore_url(field, url, old.and_then(Value::as_str))?,
            Value::Object(endpoint) => restore_endpoint(field, endpoint, old.and_then(Value::as_object))?,
            _ => {}
        }
    }
    Ok(())
}

fn restore_url(field: &str, url: &mut String, stored: Option<&str>) -> Result<()> {
    let Some(place) = password(url).filter(|place| &url[place.clone()] == HIDDEN) else { return Ok(()) };
    let known =
        stored.filter(|stored| same_server(stored, url)).and_then(|stored| Some((stored, password(stored)?)));
    let Some((stored, secret)) = known else { return Err(hidden(field)) };
    url.replace_range(place, &stored[secret]);
    Ok(())
}

fn restore_endpoint(
    field: &str,
    endpoint: &mut Map<String, Value>,
    stored: Option<&Map<String, Value>>,
) -> Result<()> {
    // A header may redirect the request, so a client that changes one must send the secrets again.
    let stored = stored.filter(|stored| same_headers(endpoint.get("headers"), stored.get("headers")));
    let trusted = match (endpoint.get("url"), stored.and_then(|stored| stored.get("url"))) {
        (Some(Value::String(new)), Some(Value::String(old))) => same_server(old, new),
        _ => false,
    };
    for (name, value) in endpoint {
        let at = format!("{field}.{name}");
        let old = stored.and_then(|stored| stored.get(name));
        match (name.as_str(), value) {
            ("url", Value::String(url)) => restore_url(&at, url, old.and_then(Value::as_str))?,
            (name, value)
                if ["headers", "auth"].contains(&name) || name.to_ascii_lowercase().contains("password") =>
            {
                restore_all(&at, value, old.filter(|_| trusted))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn restore_all(at: &str, value: &mut Value, stored: Option<&Value>) -> Result<()> {
    match value {
        Value::String(text) if text == HIDDEN => *value = stored.ok_or_else(|| hidden(at))?.clone(),
        Value::Object(members) => {
            // A client that keeps the secrets must keep the login that they belong to.
            let stored = stored.and_then(Value::as_object);
            let same_user =
                NAMES.iter().all(|name| stored.is_none_or(|stored| stored.get(*name) == members.get(*name)));
            for (name, value) in members.iter_mut() {
                let old = stored.filter(|_| same_user).and_then(|stored| member(stored, name));
                restore_all(&format!("{at}.{name}"), value, old)?;
            }
        }
        Value::Array(values) => {
            let stored = stored.and_then(Value::as_array);
            for (n, value) in values.iter_mut().enumerate() {
                restore_all(&format!("{at}[{n}]"), value, stored.and_then(|stored| stored.get(n)))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A member whose name may be written in another case.
fn member<'a>(of: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    of.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Whether an endpoint's headers equal the stored ones, or have [`HIDDEN`] in their place.
fn same_headers(new: Option<&Value>, stored: Option<&Value>) -> bool {
    let none = Map::new();
    let (Some(new), Some(stored)) =
        (new.map_or(Some(&none), Value::as_object), stored.map_or(Some(&none), Value::as_object))
    else {
        return new == stored;
    };
    new.len() == stored.len()
        && new
            .iter()
            .all(|(name, value)| member(stored, name).is_some_and(|old| value == HIDDEN || value == old))
}

/// Whether both documents use the same proxy for the endpoint `field`.
fn same_proxy(field: &str, a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let own = match field {
        "source" => "source_proxy",
        "target" => "target_proxy",
        _ => return true,
    };
    let proxy = |document: &Map<String, Value>| {
        let named = [own, "proxy"].into_iter().filter_map(|name| document.get(name)?.as_str());
        named.filter(|url| !url.is_empty()).map(str::to_owned).next()
    };
    match (proxy(a), proxy(b)) {
        (None, None) => true,
        (Some(a), Some(b)) => same_server(&a, &b),
        _ => false,
    }
}

/// Whether two URLs name the same server and, if they name a user, the same user.
fn same_server(a: &str, b: &str) -> bool {
    match (Url::parse(a), Url::parse(b)) {
        (Ok(a), Ok(b)) => {
            (a.scheme(), a.host(), a.port_or_known_default(), a.username())
                == (b.scheme(), b.host(), b.port_or_known_default(), b.username())
        }
        _ => a == b,
    }
}

fn hidden(at: &str) -> Error {
    Error::Invalid(format!(
        "{at}: `{HIDDEN}` stands for a secret that is not shown, and there is none stored for this server, user and headers; \
         give the secret itself"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn hidden_of(value: Value) -> Value {
        let mut body = map(value);
        hide(&mut body);
        Value::Object(body)
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("http://h/db", "http://h/db"),
            ("http://u@h/db", "http://u@h/db"),
            ("http://u:@h/db", "http://u:@h/db"),
            ("http://u:pw@h:5984/db@x:y", "http://u:*****@h:5984/db@x:y"),
            ("https://u:p@ss:w@h/", "https://u:*****@h/"),
            ("https://h:80/db@x", "https://h:80/db@x"),
            ("http://u:p@h?x=@", "http://u:*****@h?x=@"),
            // These are not URLs, so hiding too much is better than too little.
            ("http://u:pa/ss@h/db", "http://u:*****@h/db"),
            ("u:pw@h/db", "u:*****@h/db"),
            ("local", "local"),
        ] {
            assert_eq!(hide_url(url), shown);
        }
    }

    #[test]
    fn headers_and_auth_are_hidden_but_for_the_name() {
        let body = json!({"source": {"url": "http://u:1@h/db", "headers": {"Authorization": "Basic c", "x": 5},
            "auth": {"basic": {"username": "u", "password": "2"}, "other": ["3", {"token": "4"}]}},
            "target": "http://t/db", "proxy": "http://p:pw@proxy", "selector": {"password": "kept"}});
        let shown = json!({"source": {"url": "http://u:*****@h/db",
            "headers": {"Authorization": "*****", "x": "*****"},
            "auth": {"basic": {"username": "u", "password": "*****"}, "other": ["*****", {"token": "*****"}]}},
            "target": "http://t/db", "proxy": "http://p:*****@proxy", "selector": {"password": "kept"}});
        assert_eq!(hidden_of(body), shown);
    }

    #[test]
    fn a_hidden_document_can_be_written_back() {
        let stored = map(json!({"source": {"url": "http://u:1@h/db", "headers": {"Cookie": "c", "x": "5"},
            "auth": {"basic": {"username": "u", "password": "2"}}}, "target": "http://t:secret@t/db"}));
        let mut body = stored.clone();
        hide(&mut body);
        assert_ne!(body, stored);
        body.insert("continuous".into(), json!(true));
        // Other databases of the same server, and other parameters, keep the password.
        body.insert("target".into(), json!("http://t:*****@t/other"));
        restore(&mut body, Some(&stored)).unwrap();
        assert_eq!(body["source"], stored["source"]);
        assert_eq!(body["target"], json!("http://t:secret@t/other"));
    }

    #[test]
    fn a_hidden_secret_goes_through_no_other_proxy() {
        let stored = map(json!({"source": "http://u:secret@h/db", "target": "http://t/db",
            "source_proxy": "socks5://p:hunter2@proxy"}));
        let mut shown = stored.clone();
        hide(&mut shown);
        assert_eq!(shown["source_proxy"], "socks5://p:*****@proxy");
        let mut same = shown.clone();
        restore(&mut same, Some(&stored)).unwrap();
        assert_eq!(same, stored);
        // The proxy of the other side never gets the secret.
        let mut other_side = shown.clone();
        other_side.insert("target_proxy".into(), json!("http://evil"));
        restore(&mut other_side, Some(&stored)).unwrap();
        for proxy in ["http://evil", "socks5://proxy:1", "socks5://evil@proxy", ""] {
            let mut changed = shown.clone();
            changed.insert("source_proxy".into(), json!(proxy));
            let error = restore(&mut changed, Some(&stored)).unwrap_err().to_string();
            assert!(error.starts_with("source: "), "{proxy}: {error}");
        }
        let mut new = map(json!({"source": "http://u:*****@h/db", "proxy": "http://evil"}));
        let unproxied = map(json!({"source": "http://u:secret@h/db"}));
        assert!(restore(&mut new, Some(&unproxied)).is_err());
    }

    #[test]
    fn a_hidden_secret_does_not_go_with_other_headers() {
        let stored = map(
            json!({"source": {"url": "http://u:1@h/db", "headers": {"Cookie": "c", "X-Route": "a"},
            "auth": {"basic": {"username": "u", "password": "2"}}}, "target": {"url": "http://t:secret@t/db"}}),
        );
        let mut shown = stored.clone();
        hide(&mut shown);
        // The displayed document may be written back, even with known values, or with names in another case.
        for headers in
            [json!({"Cookie": "*****", "X-Route": "*****"}), json!({"cookie": "*****", "x-route": "a"})]
        {
            let mut same = shown.clone();
            same["source"]["headers"] = headers;
            restore(&mut same, Some(&stored)).unwrap();
            assert_eq!(same["source"]["auth"], stored["source"]["auth"]);
            assert_eq!(same["source"]["url"], stored["source"]["url"]);
        }
        for headers in [
            json!({"Cookie": "*****", "X-Route": "evil"}),
            json!({"Cookie": "*****", "X-Route": "*****", "X-Forwarded-Host": "evil"}),
            json!({"Cookie": "*****"}),
            json!({}),
            Value::Null,
        ] {
            let mut changed = shown.clone();
            changed["source"]["headers"] = headers.clone();
            let error = restore(&mut changed, Some(&stored)).unwrap_err().to_string();
            assert!(error.starts_with("source"), "{headers}: {error}");
        }
        let mut added = shown.clone();
        added["target"]["headers"] = json!({"X-Route": "evil"});
        assert!(restore(&mut added, Some(&stored)).unwrap_err().to_string().starts_with("target.url"));
    }

    #[test]
    fn a_hidden_secret_goes_to_no_other_server_and_to_no_other_user() {
        let stored = map(json!({"source": {"url": "http://h/db", "headers": {"Cookie": "c"},
            "auth": {"basic": {"username": "u", "password": "2"}}}, "target": "http://t:secret@t/db"}));
        for (changed, at) in [
            (json!({"target": "http://t:*****@evil/db"}), "target"),
            (json!({"target": "https://t:*****@t/db"}), "target"),
            (json!({"target": "http://t:*****@t:81/db"}), "target"),
            (json!({"target": "http://root:*****@t/db"}), "target"),
            (
                json!({"source": {"url": "http://evil/db", "headers": {"Cookie": "*****"}}}),
                "source.headers.Cookie",
            ),
            (
                json!({"source": {"url": "http://h/db", "headers": {"Other": "*****"}}}),
                "source.headers.Other",
            ),
            (
                json!({"source": {"url": "http://evil/db", "auth": {"basic": {"username": "u", "password": "*****"}}}}),
                "source.auth.basic.password",
            ),
            (
                json!({"source": {"url": "http://h/db", "auth": {"basic": {"username": "v", "password": "*****"}}}}),
                "source.auth.basic.password",
            ),
            (json!({"source": "http://u:*****@h/db"}), "source"),
        ] {
            let error = restore(&mut map(changed.clone()), Some(&stored)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{at}: ")), "{changed}: {error}");
        }
        let mut copied = map(json!({"target": "http://t:*****@t/db"}));
        assert!(restore(&mut copied, None).is_err());
    }
}
