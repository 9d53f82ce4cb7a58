//! One side of a replication: a database's URL, the login, and the headers of each request.
//!
//! Credentials come from three places, in this order: the `auth` object, the URL's userinfo, and an `Authorization:
//! Basic` header. [`Endpoint`] stores them in one form, so that the same login gives the same replication id.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

use crate::error::FieldError;
use crate::proxy::Proxy;
use crate::secret::{HIDDEN, Scrubber, Secret};
use crate::written::{Written, basic_authorization};

/// A database on a CouchDB-protocol server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Ends in `/`, and has neither userinfo nor query.
    url: Url,
    /// Whether the database is not at the root of its server, as in `http://host/path/db`.
    under_path: bool,
    /// The form that enters replication ids.
    written: Written,
    /// HTTP Basic credentials.
    credentials: Option<Credentials>,
    /// Further headers as the user wrote them, without Basic credentials. Their values may be tokens.
    headers: Vec<(String, Secret)>,
    /// The proxy, if the connection is not direct.
    proxy: Option<Proxy>,
}

/// A user's name and password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The user's name, not secret.
    pub user: String,
    /// The password; empty if the URL has none.
    pub password: Secret,
}

impl Credentials {
    /// The credentials in a URL's userinfo.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        if url.username().is_empty() && url.password().is_none() {
            return None;
        }
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Some(Self {
            user: decode(url.username()),
            password: Secret::new(decode(url.password().unwrap_or_default())),
        })
    }

    /// The userinfo of a URL that is shown: with stars for the password.
    pub(crate) fn shown(&self) -> String {
        format!("{}:{HIDDEN}@", percent_encoding::utf8_percent_encode(&self.user, USERINFO))
    }

    /// The value of `Authorization` that carries the password.
    pub(crate) fn authorization(&self) -> HeaderValue {
        let login = BASE64_STANDARD.encode(format!("{}:{}", self.user, self.password.reveal()));
        let mut value = HeaderValue::from_str(&format!("Basic {login}")).expect("base64 is fit for a header");
        value.set_sensitive(true);
        value
    }
}

impl Endpoint {
    /// Reads an endpoint from the field `field` of a replication document: a URL, or
    /// `{"url", "headers": {…}, "auth": {"basic": {"username", "password"}}}`.
    ///
    /// # Errors
    /// The error names the field and what would be right. It never repeats the URL, which may hold a password.
    pub fn parse(field: &str, value: &Value, schemes: &[String]) -> Result<Self, FieldError> {
        match value {
            Value::String(text) => Self::from_parts(field, text, &Map::new(), schemes),
            Value::Object(object) => {
                let field_url = format!("{field}.url");
                match object.get("url") {
                    Some(Value::String(text)) => Self::from_parts(field, text, object, schemes),
                    Some(_) => Err(FieldError::new(field_url, "must be a string, the database's URL")),
                    None => Err(FieldError::new(field_url, "is missing; give the database's URL")),
                }
            }
            _ => Err(FieldError::new(
                field,
                "must be a URL, or an object with a `url`, and perhaps `headers` and `auth`",
            )),
        }
    }

    fn from_parts(
        field: &str,
        text: &str,
        object: &Map<String, Value>,
        schemes: &[String],
    ) -> Result<Self, FieldError> {
        let mut url = parse_url(field, text, schemes)?;
        let mut written = Written::of(text).with_headers(object.get("headers"));
        let userinfo = Credentials::of(&url);
        if userinfo.is_some() {
            url.set_username("").expect("a URL with a host has a user");
            url.set_password(None).expect("a URL with a host has a password");
        }
        let (mut headers, from_header) = parse_headers(field, object.get("headers"))?;
        let from_object = parse_auth(field, object.get("auth"))?;
        // A user's name without a password is a login here, but not in CouchDB.
        let (named, userinfo) = match written.user {
            Some(_) => (None, userinfo),
            None => (userinfo, None),
        };
        if let Some(login) = from_object.as_ref().or(from_header.as_ref().filter(|_| userinfo.is_none())) {
            written.user = Some(login.user.clone());
        }
        let credentials = from_object.or(userinfo).or(from_header).or(named);
        if credentials.is_some() {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        }
        let under_path = url.path().trim_matches('/').contains('/');
        Ok(Self { url, under_path, written, credentials, headers, proxy: None })
    }

    /// The database's URL without credentials; ends in `/`.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Whether the database, or the server that holds it, is under a path of its host.
    pub(crate) fn is_under_path(&self) -> bool {
        self.under_path
    }

    /// The form that enters replication ids.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The login, unless requests are anonymous.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Further headers of every request, as the user wrote them.
    pub fn headers(&self) -> &[(String, Secret)] {
        &self.headers
    }

    /// The proxy through which the database is reached.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The same database, reached through a proxy.
    pub fn by(self, proxy: Option<Proxy>) -> Self {
        Self { proxy, ..self }
    }

    /// The URL without its password, for display: `http://user:*****@host/db/`.
    pub fn redacted_url(&self) -> String {
        let mut shown = self.url.to_string();
        if let Some(credentials) = &self.credentials {
            shown.insert_str(self.url.scheme().len() + "://".len(), &credentials.shown());
        }
        shown
    }

    /// The database's name, percent-decoded.
    pub fn database(&self) -> String {
        let path = self.url.path().trim_end_matches('/');
        let name = path.rsplit('/').next().unwrap_or(path);
        percent_decode_str(name).decode_utf8_lossy().into_owned()
    }

    /// The server that holds the database, with the same login: the URL without its last segment.
    pub fn server(&self) -> Self {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().pop().push("");
        }
        Self { url, ..self.clone() }
    }

    /// Adds every secret of this endpoint to `scrubber`.
    pub fn add_secrets(&self, scrubber: &mut Scrubber) {
        let of_proxy = self.proxy.as_ref().and_then(Proxy::credentials);
        for Credentials { user, password } in self.credentials.iter().chain(of_proxy) {
            scrubber.add(Some(user), password);
        }
        for (name, value) in &self.headers {
            // Short values of ordinary headers (`1`, `gzip`) would only garble messages.
            if is_secret_name(name) || value.reveal().len() >= MIN_SECRET_BYTES {
                scrubber.add(None, value);
            }
            // A peer may show what it has read from a cookie.
            if name.eq_ignore_ascii_case("cookie") {
                let values = value.reveal().split(';').filter_map(|part| part.split_once('='));
                let values =
                    values.map(|(_, value)| value.trim()).filter(|value| value.len() >= MIN_SECRET_BYTES);
                values.for_each(|value| scrubber.add(None, &Secret::new(value)));
            }
        }
    }
}

/// Characters of a user's name that a URL must encode.
pub(crate) const USERINFO: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A value that is not named like a secret and has fewer bytes is none.
const MIN_SECRET_BYTES: usize = 8;

/// Whether a header or a parameter of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "cookie", "token", "key", "secret", "password"].iter().any(|word| name.contains(word))
}

fn parse_url(field: &str, text: &str, schemes: &[String]) -> Result<Url, FieldError> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(FieldError::new(
            field,
            "must be a full URL like http://host:5984/db; names of local databases are not supported",
        ));
    };
    if !schemes.iter().any(|known| known.eq_ignore_ascii_case(scheme)) {
        let scheme = if scheme.len() <= 16 { scheme } else { "that" };
        return Err(FieldError::new(
            field,
            format!("must start with one of {}; `{scheme}` is not supported", schemes.join("://, ") + "://"),
        ));
    }
    if rest.contains(['?', '#']) {
        return Err(FieldError::new(
            field,
            "must end with the database's name, without a query or a fragment",
        ));
    }
    let mut url =
        Url::parse(text).map_err(|cause| FieldError::new(field, format!("is not a valid URL: {cause}")))?;
    if url.path().trim_matches('/').is_empty() {
        return Err(FieldError::new(field, "names no database; write http://host:5984/db"));
    }
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

type Headers = Vec<(String, Secret)>;

/// The most headers of an endpoint, and their most bytes. Most servers limit a request's head to twice as many bytes.
const MAX_HEADERS: usize = 100;
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Headers that an endpoint may not set, because all jobs share connections. Such a header could make the server see a
/// message's end in the wrong place. The rest would become a part of another job's request. It could also change the
/// connection's protocol, the server that is addressed, or the part of a response that is requested.
const OWN_AFFAIRS: [&str; 4] = [
    // Framing, and the server that is addressed.
    "content-length transfer-encoding host expect",
    // Headers of a connection, not of a request (RFC 9110, 7.6.1; RFC 2616, 13.5.1).
    "connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer trailers upgrade http2-settings",
    // A partial or empty response would be copied as if it were complete.
    "range if-range if-match if-none-match if-modified-since if-unmodified-since",
    // How bodies are encoded.
    "accept-encoding content-encoding content-range",
];

fn parse_headers(field: &str, value: Option<&Value>) -> Result<(Headers, Option<Credentials>), FieldError> {
    let headers = match value {
        None => return Ok((Vec::new(), None)),
        Some(Value::Object(headers)) => headers,
        Some(_) => return Err(FieldError::new(format!("{field}.headers"), "must be an object of strings")),
    };
    let bytes = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
    if headers.len() > MAX_HEADERS || headers.iter().map(bytes).sum::<usize>() > MAX_HEADER_BYTES {
        let problem = format!("must have at most {MAX_HEADERS} members, and {MAX_HEADER_BYTES} bytes");
        return Err(FieldError::new(format!("{field}.headers"), problem));
    }
    let (mut kept, mut credentials) = (Vec::new(), None);
    for (name, value) in headers {
        let at = || format!("{field}.headers.{name}");
        let Value::String(value) = value else {
            return Err(FieldError::new(at(), "must be a string"));
        };
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(FieldError::new(at(), "is not a valid HTTP header name"));
        }
        let mut own_affairs = OWN_AFFAIRS.iter().flat_map(|names| names.split(' '));
        if own_affairs.any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(FieldError::new(
                at(),
                "cannot be chosen: turnwise itself says where a message goes, where it ends and which part of an answer it wants",
            ));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(FieldError::new(at(), "holds characters that an HTTP header may not have"));
        }
        match basic_authorization(value) {
            // Credentials that cannot be decoded are ignored, as in CouchDB.
            Some(encoded) if name.eq_ignore_ascii_case("authorization") => {
                credentials = basic_credentials(encoded).or(credentials);
            }
            _ => kept.push((name.clone(), Secret::new(value.clone()))),
        }
    }
    Ok((kept, credentials))
}

fn basic_credentials(encoded: &str) -> Option<Credentials> {
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(Credentials { user: user.to_owned(), password: Secret::new(password) })
}

fn parse_auth(field: &str, value: Option<&Value>) -> Result<Option<Credentials>, FieldError> {
    let auth = match value {
        None => return Ok(None),
        Some(Value::Object(auth)) => auth,
        Some(_) => return Err(FieldError::new(format!("{field}.auth"), "must be an object")),
    };
    let Some(basic) = auth.get("basic") else {
        return Ok(None);
    };
    let text = |name: &str| match basic.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(FieldError::new(format!("{field}.auth.basic.{name}"), "must be a string")),
        None => Err(FieldError::new(format!("{field}.auth.basic.{name}"), "is missing")),
    };
    if !basic.is_object() {
        return Err(FieldError::new(
            format!("{field}.auth.basic"),
            "must be an object with `username` and `password`",
        ));
    }
    Ok(Some(Credentials { user: text("username")?, password: Secret::new(text("password")?) }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<Endpoint, FieldError> {
        Endpoint::parse("source", &value, &["http".to_owned(), "https".to_owned()])
    }

    #[test]
    fn a_server_is_under_the_path_of_its_databases() {
        for (url, under_path) in [("http://h/db", false), ("http://h/path/db", true)] {
            let database = parse(json!(url)).unwrap();
            assert_eq!(database.is_under_path(), under_path);
            assert_eq!(database.server().is_under_path(), under_path);
        }
    }

    #[test]
    fn a_url_with_a_password_is_shown_without_it() {
        let endpoint = parse(json!("http://admin:s%40cret@127.0.0.1:15984/idsrc")).unwrap();
        assert_eq!(endpoint.redacted_url(), "http://admin:*****@127.0.0.1:15984/idsrc/");
        assert_eq!(endpoint.url().as_str(), "http://127.0.0.1:15984/idsrc/");
        assert_eq!(endpoint.credentials().unwrap().password.reveal(), "s@cret");
        assert!(!format!("{endpoint:?}").contains("cret"));
    }

    #[test]
    fn the_auth_object_beats_the_url_beats_the_header() {
        let header = format!("Basic {}", BASE64_STANDARD.encode("h:3"));
        let all = json!({"url": "http://u:2@h/db", "headers": {"authorization": header},
            "auth": {"basic": {"username": "a", "password": "1"}}});
        let user = |value| parse(value).unwrap().credentials().unwrap().user.clone();
        assert_eq!(user(all), "a");
        assert_eq!(user(json!({"url": "http://u:2@h/db", "headers": {"Authorization": header}})), "u");
        let by_header = parse(json!({"url": "http://h/db", "headers": {"Authorization": header}})).unwrap();
        assert_eq!(by_header.credentials().unwrap().user, "h");
        assert!(by_header.headers().is_empty());
    }

    #[test]
    fn a_bearer_token_stays_a_header_and_is_never_shown() {
        let endpoint =
            parse(json!({"url": "http://h/db", "headers": {"Authorization": "Bearer tok3n"}})).unwrap();
        assert_eq!(endpoint.headers()[0].1.reveal(), "Bearer tok3n");
        assert!(!format!("{endpoint:?}").contains("tok3n"));
        let mut scrubber = Scrubber::default();
        endpoint.add_secrets(&mut scrubber);
        assert_eq!(scrubber.scrub("bad token tok3n"), "bad token *****");
    }

    #[test]
    fn the_values_of_a_cookie_are_never_shown() {
        let endpoint = parse(
            json!({"url": "http://h/db", "headers": {"cookie": "a=b; AuthSession=c00kie+=x;d=abcdefgh"}}),
        );
        let mut scrubber = Scrubber::default();
        endpoint.unwrap().add_secrets(&mut scrubber);
        let told = "no session c00kie+=x, and abcdefgh: a=b; AuthSession=c00kie+=x;d=abcdefgh";
        assert_eq!(scrubber.scrub(told), "no session *****, and *****: *****");
    }

    #[test]
    fn names_with_slashes_are_decoded() {
        assert_eq!(parse(json!("http://h/prefix%2Fdb/")).unwrap().database(), "prefix/db");
    }

    #[test]
    fn headers_that_frame_a_request_are_refused() {
        let with = |name: &str| parse(json!({"url": "http://h/db", "headers": {name: "1"}}));
        for name in [
            "Content-Length",
            "transfer-encoding",
            "CONNECTION",
            "Host",
            "Expect",
            "Upgrade",
            "TE",
            "Trailer",
            "Keep-Alive",
            "Proxy-Connection",
            "Proxy-Authorization",
            "HTTP2-Settings",
            "Range",
            "Content-Encoding",
        ] {
            let error = with(name).unwrap_err();
            assert_eq!(error.field, format!("source.headers.{name}"));
            assert!(error.problem.starts_with("cannot be chosen: "), "{error}");
        }
        // Headers that only describe the request or its login are allowed.
        for name in [
            "Authorization",
            "Cookie",
            "User-Agent",
            "Content-Type",
            "Accept",
            "X-Auth-CouchDB-UserName",
            "Via",
        ] {
            assert!(with(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn errors_name_the_field_and_hide_the_password() {
        for (value, field) in [
            (json!(5), "source"),
            (json!("localdb"), "source"),
            (json!("ftp://u:hunter2@h/db"), "source"),
            (json!("http://u:hunter2@h/"), "source"),
            (json!("http://u:hunter2@h/db?x=1"), "source"),
            (json!("http://u:hunter2@:99999/db"), "source"),
            (json!({"headers": {}}), "source.url"),
            (json!({"url": 1}), "source.url"),
            (json!({"url": "http://h/db", "headers": []}), "source.headers"),
            (json!({"url": "http://h/db", "headers": {"X": 1}}), "source.headers.X"),
            (json!({"url": "http://h/db", "headers": {"X": "x".repeat(20_000)}}), "source.headers"),
            (json!({"url": "http://h/db", "auth": 1}), "source.auth"),
            (
                json!({"url": "http://h/db", "auth": {"basic": {"username": "u"}}}),
                "source.auth.basic.password",
            ),
        ] {
            let error = parse(value.clone()).unwrap_err();
            assert_eq!(error.field, field, "{value}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
