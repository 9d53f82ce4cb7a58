//! Requests to one database of a CouchDB.

use std::time::Duration;

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use turnwise_outbound::{AuthPlugin, Client, Fault, PeerSettings};
use turnwise_replicator::upstream::Address;
use turnwise_replicator::{Remote, encode};
use url::Url;

/// How long the server of a database that a URL names may send nothing in answer to a request that needs no index.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may send nothing in answer to a request that waits for an index. It goes on building after that.
const MAX_SILENCE: Duration = Duration::from_secs(600);
/// How often the deletion of a design document is tried that other clients change.
const MAX_DELETES: usize = 10;
/// The part of an unexpected answer that an error shows, in characters.
const SHOWN_CHARS: usize = 300;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL of the database, or the design document, is not valid.
    #[error("{0}")]
    Invalid(String),
    /// There was no answer.
    #[error("no answer: {}", .0.of_server())]
    NoAnswer(turnwise_outbound::Error),
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
            Error::NoAnswer(_) => true,
            Error::Refused { status, .. } => {
                !self.is_wrong_design()
                    && (status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS)
            }
            _ => false,
        }
    }

    /// Whether the server gave no answer.
    pub(crate) fn is_no_answer(&self) -> bool {
        matches!(self, Error::NoAnswer(_))
    }

    /// Whether the server sent nothing for too long, on a connection that did not break.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Error::NoAnswer(error) if error.is_silence())
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
#[derive(Debug, Clone)]
pub struct Database {
    server: Remote,
    /// Its path at the server.
    path: String,
}

impl Database {
    /// The database with this URL, `http://user:password@host:port/db`, on connections of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such URL, or no connections can be opened on this machine.
    pub fn new(url: &str) -> Result<Database, Error> {
        // Without the text: it may hold a password.
        let wrong =
            || Error::Invalid("expected the URL of a database, http://user:password@host:port/db".into());
        let mut server = Url::parse(url).map_err(|_| wrong())?;
        let path = server.path().trim_end_matches('/').to_owned();
        let (above, name) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
        let name = percent_decode_str(name).decode_utf8().map_err(|_| wrong())?;
        server.set_path(above);
        server.set_query(None);
        server.set_fragment(None);
        let address = Address::parse(server.as_str()).map_err(|_| wrong())?;
        let client = Client::new().map_err(|error| Error::Invalid(error.to_string()))?;
        // A few requests are not worth a session.
        let settings = PeerSettings {
            auth_plugins: vec![AuthPlugin::Basic],
            connection_timeout: ANSWER_TIMEOUT,
            ..PeerSettings::default()
        };
        Ok(Database::of(&Remote::new(&address, &settings, &client), &name))
    }

    /// The database with this name, on the connections of `server`.
    pub fn of(server: &Remote, name: &str) -> Database {
        Database { server: server.clone(), path: encode(name) }
    }

    /// Sends a request. `path` is relative to the database, percent-encoded, with its query. Returns `None` if what it names does not
    /// exist. A request that is `patient` may wait for an index.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patient: bool,
    ) -> Result<Option<Value>, Error> {
        let separator = if path.is_empty() || path.starts_with('?') { "" } else { "/" };
        let of_server = format!("{}{separator}{path}", self.path);
        let silence = patient.then_some(MAX_SILENCE);
        let error = match self.server.request(method.clone(), &of_server, body, silence).await {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let turnwise_outbound::Error::Peer(peer) = &error else { return Err(Error::NoAnswer(error)) };
        let Fault::Status { status, error: name, reason, .. } = &peer.fault else {
            return Err(Error::NoAnswer(error));
        };
        let Ok(status) = StatusCode::from_u16(*status) else { return Err(Error::NoAnswer(error)) };
        let reason: String = format!("{name}: {reason}").chars().take(SHOWN_CHARS).collect();
        // A database that does not exist is an error, a document is not.
        if status == StatusCode::NOT_FOUND && reason.contains("missing") | reason.contains("deleted") {
            return Ok(None);
        }
        let path = path.split('?').next().unwrap_or_default().to_owned();
        Err(Error::Refused { method, path, status, reason })
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
            let path = format!("{}?rev={}", design_path(name), encode(rev));
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
    format!("_design/{}", encode(name))
}
