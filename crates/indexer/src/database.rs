//! Requests to one database of a CouchDB.

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};
use turnwise_outbound::Fault;
use turnwise_replicator::Remote;
use url::Url;

/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a request that the server answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A request that waits for an index sends nothing for hours. Keep-alives show whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a request that waits for an index on shared connections may send nothing. The server goes on building after it.
const SHARED_SILENCE: Duration = Duration::from_secs(600);
/// The largest answer that is read, in bytes: a design document, or a page of ids.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// How often the deletion of a design document is tried that other clients change.
const MAX_DELETES: usize = 10;
/// The part of an unexpected answer that an error shows, in characters.
const SHOWN_CHARS: usize = 300;
/// The characters that are not escaped in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL of the database, or the design document, is not valid.
    #[error("{0}")]
    Invalid(String),
    /// There was no answer.
    #[error("no answer: {problem} ({url})")]
    Unreachable {
        /// The database's URL, without a password.
        url: String,
        /// What went wrong.
        problem: String,
    },
    /// The server refused a request.
    #[error("{status}: {reason} ({method} {path})")]
    Refused {
        /// The request's method.
        method: Method,
        /// Its path in the database.
        path: String,
        /// The status of the answer.
        status: StatusCode,
        /// The server's reason.
        reason: String,
    },
    /// Another client has changed the design document.
    #[error("another client has changed {0} meanwhile. Nothing was replaced: look at it, and deploy again")]
    Changed(String),
    /// The design document has an index of `_find`.
    #[error(
        "{0} has an index of `_find` (language `query`), which cannot be deployed: CouchDB would choose the temporary or the kept version for \
         queries. Create the new index under a new name, and delete the old one when it is built"
    )]
    OfFind(String),
    /// There is no earlier version.
    #[error("{0} has no earlier version to go back to: {1} does not exist")]
    NoEarlier(String, String),
    /// An index is not complete after many attempts.
    #[error("the indexes of {0} are not complete: {1}")]
    Incomplete(String, String),
}

impl Error {
    /// Whether a repetition may succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Unreachable { .. } => true,
            Error::Refused { status, .. } => {
                !self.is_wrong_design()
                    && (status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS)
            }
            _ => false,
        }
    }

    /// Whether the server gave no answer.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Error::Unreachable { .. })
    }

    /// Whether the database, or what was asked for in it, does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Refused { status: StatusCode::NOT_FOUND, .. })
    }

    /// Whether the design document does not compile, or is in a language that the server does not have. To some releases of CouchDB that
    /// is an internal error.
    pub(crate) fn is_wrong_design(&self) -> bool {
        let names = ["compilation_error", "unknown_query_language"];
        matches!(self, Error::Refused { reason, .. } if names.iter().any(|name| reason.contains(name)))
    }
}

/// One database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    way: Way,
    /// Without name and password.
    url: String,
}

/// How requests reach the database.
#[derive(Clone)]
enum Way {
    /// On connections of its own, with this name and password.
    Own { http: reqwest::Client, login: Option<(String, String)> },
    /// On the connections of a process that has many databases of this server.
    Shared(Remote),
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Database {
    /// The database with this URL, `http://user:password@host:port/db`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such URL, or no HTTP client can be created on this machine.
    pub fn new(url: &str) -> Result<Database, Error> {
        // Without the text: it may hold a password.
        let wrong =
            || Error::Invalid("expected the URL of a database, http://user:password@host:port/db".into());
        let mut parsed = Url::parse(url).map_err(|_| wrong())?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.path().trim_matches('/').is_empty() {
            return Err(wrong());
        }
        let decode = |text: &str| {
            percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| wrong())
        };
        let (user, password) = (decode(parsed.username())?, decode(parsed.password().unwrap_or_default())?);
        let login = (!user.is_empty()).then_some((user, password));
        parsed.set_username("").and_then(|()| parsed.set_password(None)).map_err(|()| wrong())?;
        parsed.set_query(None);
        parsed.set_fragment(None);
        // An error means that another part of the process has installed a provider; that one works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_keepalive(KEEPALIVE);
        // Without TLS roots on this machine, `https` servers cannot be trusted, but `http` still works.
        let http = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        let http = http.map_err(|error| Error::Invalid(format!("no HTTP client: {error}")))?;
        Ok(Database { way: Way::Own { http, login }, url: parsed.into() })
    }

    /// The database with this name, on the connections of `server`.
    pub fn of(server: &Remote, name: &str) -> Database {
        Database { way: Way::Shared(server.clone()), url: Remote::path(name) }
    }

    /// Its URL, without a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request. `path` is relative to the database, percent-encoded, with its query. Returns `None` if what it names does not
    /// exist. `patient` requests may take for ever.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patient: bool,
    ) -> Result<Option<Value>, Error> {
        let separator = if path.is_empty() || path.starts_with('?') { "" } else { "/" };
        let url = format!("{}{separator}{path}", self.url.trim_end_matches('/'));
        let (status, reason) = match &self.way {
            Way::Shared(server) => {
                let silence = patient.then_some(SHARED_SILENCE);
                let error = match server.request(method.clone(), &url, body, silence).await {
                    Ok(answer) => return Ok(Some(answer)),
                    Err(error) => error,
                };
                let no_answer = || Error::Unreachable { url: path.to_owned(), problem: error.of_server() };
                let turnwise_outbound::Error::Peer(peer) = &error else { return Err(no_answer()) };
                let Fault::Status { status, error: name, reason, .. } = &peer.fault else {
                    return Err(no_answer());
                };
                let status = StatusCode::from_u16(*status).map_err(|_| no_answer())?;
                (status, format!("{name}: {reason}").chars().take(SHOWN_CHARS).collect::<String>())
            }
            Way::Own { http, login } => match self.own(http, login, &method, &url, body, patient).await? {
                Ok(answer) => return Ok(Some(answer)),
                Err(refused) => refused,
            },
        };
        // A database that does not exist is an error, a document is not.
        if status == StatusCode::NOT_FOUND && reason.contains("missing") | reason.contains("deleted") {
            return Ok(None);
        }
        let path = path.split('?').next().unwrap_or_default().to_owned();
        Err(Error::Refused { method, path, status, reason })
    }

    /// Sends a request on a connection of its own. Returns the answer, or the status and the reason of a refusal.
    async fn own(
        &self,
        http: &reqwest::Client,
        login: &Option<(String, String)>,
        method: &Method,
        url: &str,
        body: Option<&Value>,
        patient: bool,
    ) -> Result<Result<Value, (StatusCode, String)>, Error> {
        let unreachable = |error: reqwest::Error| Error::Unreachable {
            url: self.url.clone(),
            problem: causes(&error.without_url()),
        };
        let mut request = http.request(method.clone(), url);
        if let Some((user, password)) = login {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        if !patient {
            request = request.timeout(ANSWER_TIMEOUT);
        }
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Error::Invalid(format!(
                    "{}: the answer is larger than {MAX_ANSWER_BYTES} bytes",
                    url.strip_prefix(&self.url).unwrap_or_default()
                )));
            }
            bytes.extend_from_slice(&chunk);
        }
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status.is_success() {
            return Ok(Ok(body));
        }
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let reason = match (text("error"), text("reason")) {
            (error, reason) if error.is_empty() && reason.is_empty() => {
                String::from_utf8_lossy(&bytes).chars().take(SHOWN_CHARS).collect()
            }
            (error, reason) => format!("{error}: {reason}").chars().take(SHOWN_CHARS).collect::<String>(),
        };
        Ok(Err((status, reason)))
    }

    /// `GET`, of something that exists.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Error> {
        let found = self.send(Method::GET, path, None, false).await?;
        found.ok_or_else(|| Error::Refused {
            method: Method::GET,
            path: path.to_owned(),
            status: StatusCode::NOT_FOUND,
            reason: "it does not exist".to_owned(),
        })
    }

    /// A design document, by its name without `_design/`; `None` if it does not exist.
    pub(crate) async fn design(&self, name: &str) -> Result<Option<Map<String, Value>>, Error> {
        match self.send(Method::GET, &design_path(name), None, false).await? {
            Some(Value::Object(doc)) => Ok(Some(doc)),
            Some(_) => Err(Error::Invalid(format!("_design/{name} is no JSON object"))),
            None => Ok(None),
        }
    }

    /// Writes a design document, in place of the revision `rev`. Returns whether it was written: not if there is another revision.
    pub(crate) async fn put_design(
        &self,
        name: &str,
        rev: Option<&str>,
        content: &Map<String, Value>,
    ) -> Result<bool, Error> {
        let mut doc = content.clone();
        doc.extend(rev.map(|rev| ("_rev".to_owned(), json!(rev))));
        let doc = Value::Object(doc);
        match self.send(Method::PUT, &design_path(name), Some(&doc), false).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { status: StatusCode::CONFLICT, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a design document, if it exists. Returns whether it did.
    pub(crate) async fn delete_design(&self, name: &str) -> Result<bool, Error> {
        for _ in 0..MAX_DELETES {
            let Some(doc) = self.design(name).await? else { return Ok(false) };
            let rev = doc.get("_rev").and_then(Value::as_str).unwrap_or_default();
            let path = format!("{}?rev={}", design_path(name), utf8_percent_encode(rev, SEGMENT));
            match self.send(Method::DELETE, &path, None, false).await {
                Ok(_) => return Ok(true),
                // Another client has changed it: it is read again.
                Err(Error::Refused { status: StatusCode::CONFLICT, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Changed(format!("_design/{name}")))
    }
}

/// The path of a design document in its database.
pub(crate) fn design_path(name: &str) -> String {
    format!("_design/{}", segment(name))
}

/// A segment of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
