//! A replication request: the validated fields of a replication document or a `_replicate` body.
//!
//! [`Replication::parse`] reads the JSON object as the user wrote it. The same object becomes the job's options, and
//! the worker that runs the job parses it again. Fields that CouchDB does not know are ignored, as in CouchDB. A known
//! field with a wrong value is an error, which states what would be right.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use turnwise_outbound::{
    AuthPlugin, Client, Endpoint, FieldError, MinimumProgress, Peer, PeerSettings, Proxy, Scrubber, Secret,
    Side, SocketOptions, is_secret_name,
};

use crate::seq::Seq;

/// The type of replication jobs.
pub const JOB_TYPE: &str = "replication";

/// The settings of `[replicator]` that apply where a request does not set its own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Batches that one replication has in flight concurrently. CouchDB: 4.
    pub worker_processes: usize,
    /// Changes per batch; CouchDB: 500. `None`: as many as there are, up to 2,000, because larger writes cost a CouchDB
    /// target half the CPU.
    pub worker_batch_size: Option<usize>,
    /// Requests that one replication has open concurrently. CouchDB: 20.
    pub http_connections: usize,
    /// A request fails after a connection has been silent for this long. CouchDB: 30 s.
    pub connection_timeout: Duration,
    /// Attempts after the first one, per request. CouchDB: 5.
    pub retries_per_request: u32,
    /// Whether checkpoints are written and read on both sides.
    pub use_checkpoints: bool,
    /// Time between two checkpoints. CouchDB: 30 s.
    pub checkpoint_interval: Duration,
    /// Whether `_bulk_get` is tried.
    pub use_bulk_get: bool,
    /// The authentication methods, in the order in which they are tried.
    pub auth_plugins: Vec<AuthPlugin>,
    /// When to renew a session whose cookie states no lifetime. CouchDB: 550 s.
    pub session_refresh_interval: Duration,
    /// Documents with longer ids, in bytes, are skipped and counted as failures. `None`: no limit, as in CouchDB.
    pub max_document_id_length: Option<usize>,
    /// `missing_doc_retry_msec`: the wait before a revision that the source announced but does not have is requested
    /// again. CouchDB: 2 s.
    pub missing_doc_retry: Duration,
    /// `valid_endpoint_protocols`.
    pub endpoint_schemes: Vec<String>,
    /// `valid_proxy_protocols`.
    pub proxy_schemes: Vec<String>,
    /// `socket_options`: options of new sockets.
    pub socket_options: SocketOptions,
    /// Time limit of a request until the end of its response. `None`: no limit while data moves, as in CouchDB.
    pub request_timeout: Option<Duration>,
    /// The minimum progress of responses.
    pub minimum_progress: MinimumProgress,
    /// `max_document_size`: the largest document that is copied, in bytes, without attachments that are streamed. CouchDB
    /// targets accept 8 MB by default.
    pub max_document_bytes: usize,
}

/// Changes per batch if the request sets no number. A CouchDB target is cheapest at this size (7,200 documents/s in
/// batches of 500, 8,200 in batches of 2,000, 4,400 in batches of 25,000).
pub const ADAPTIVE_BATCH_SIZE: usize = 2_000;

impl Default for Defaults {
    fn default() -> Self {
        Self {
            worker_processes: 4,
            worker_batch_size: None,
            http_connections: 20,
            connection_timeout: Duration::from_secs(30),
            retries_per_request: 5,
            use_checkpoints: true,
            checkpoint_interval: Duration::from_secs(30),
            use_bulk_get: true,
            auth_plugins: AuthPlugin::ALL.to_vec(),
            session_refresh_interval: Duration::from_secs(550),
            max_document_id_length: None,
            missing_doc_retry: Duration::from_secs(2),
            endpoint_schemes: vec!["http".to_owned(), "https".to_owned()],
            proxy_schemes: vec!["http".to_owned(), "https".to_owned(), "socks5".to_owned()],
            socket_options: SocketOptions::default(),
            request_timeout: None,
            minimum_progress: MinimumProgress::default(),
            max_document_bytes: 64 << 20,
        }
    }
}

/// Which of the source's documents are copied.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// `doc_ids`: the documents with these ids, sorted and without duplicates.
    DocIds(Vec<String>),
    /// `selector`: the documents that match a Mango selector.
    Selector(Map<String, Value>),
    /// `filter`: a function of a design document (`ddoc/name`), or a built-in one (`_design`, `_view`).
    Function {
        /// `ddoc/name`, or a name that starts with `_`.
        name: String,
        /// Sent to the source as query parameters.
        query_params: Map<String, Value>,
    },
}

/// The user on whose behalf a replication runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserCtx {
    /// The user's name. `None` is the anonymous user, or an administrator without a name.
    pub name: Option<String>,
    /// The user's roles.
    pub roles: Vec<String>,
}

/// A replication that can run: every field is read, checked, and completed from the [`Defaults`].
#[derive(Clone, Debug)]
pub struct Replication {
    /// The database that documents are read from.
    pub source: Endpoint,
    /// The database that documents are written to.
    pub target: Endpoint,
    /// Follow the source's changes without end.
    pub continuous: bool,
    /// Create the target database first. An existing database is no error.
    pub create_target: bool,
    /// Query parameters of this creation: `q`, `n`, `partitioned`.
    pub create_target_params: Vec<(String, String)>,
    /// Which documents are copied; `None` for all.
    pub filter: Option<Filter>,
    /// Copy only the winning revision of each document.
    pub winning_revs_only: bool,
    /// Start at this sequence, unless a checkpoint is further.
    pub since_seq: Option<Seq>,
    /// Record progress in `_local` documents on both sides.
    pub use_checkpoints: bool,
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Try `_bulk_get` before reading documents one by one.
    pub use_bulk_get: bool,
    /// [`Defaults::max_document_id_length`].
    pub max_document_id_length: Option<usize>,
    /// [`Defaults::missing_doc_retry`].
    pub missing_doc_retry: Duration,
    /// Batches in flight concurrently.
    pub worker_processes: usize,
    /// Changes per batch; `None` is adaptive ([`Defaults::worker_batch_size`]).
    pub worker_batch_size: Option<usize>,
    /// Requests open concurrently.
    pub http_connections: usize,
    /// A request fails after a connection has been silent for this long.
    pub connection_timeout: Duration,
    /// Attempts after the first one, per request.
    pub retries_per_request: u32,
    /// Options of new sockets.
    pub socket_options: SocketOptions,
    /// Time limit of a request until the end of its response; requests for changes have none.
    pub request_timeout: Option<Duration>,
    /// [`Defaults::minimum_progress`].
    pub minimum_progress: MinimumProgress,
    /// [`Defaults::max_document_bytes`].
    pub max_document_bytes: usize,
    /// The authentication methods, in the order in which they are tried.
    pub auth_plugins: Vec<AuthPlugin>,
    /// When to renew a session whose cookie states no lifetime.
    pub session_refresh_interval: Duration,
    /// The user on whose behalf the replication runs.
    pub user_ctx: UserCtx,
    /// The tenant whose job it is, which decides which addresses it may reach. `None` without a server.
    pub tenant: Option<String>,
}

impl Replication {
    /// One of the two peers.
    pub(crate) fn peer(&self, side: Side, client: &Client) -> Peer {
        Peer::new(side, self.endpoint(side), &self.peer_settings(), self.secrets(), client)
    }

    /// The other peer of the same run.
    pub(crate) fn peer_beside(&self, other: &Peer, side: Side, client: &Client) -> Peer {
        other.beside(side, self.endpoint(side), &self.peer_settings(), client)
    }

    /// The source's server. Request paths are relative to its root.
    pub(crate) fn source_server(&self, client: &Client) -> Peer {
        Peer::new(Side::Source, &self.source.server(), &self.peer_settings(), self.secrets(), client)
    }

    fn endpoint(&self, side: Side) -> &Endpoint {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }

    /// How requests to both peers are made.
    pub(crate) fn peer_settings(&self) -> PeerSettings {
        PeerSettings {
            auth_plugins: self.auth_plugins.clone(),
            session_refresh_interval: self.session_refresh_interval,
            http_connections: self.http_connections,
            socket_options: self.socket_options,
            connection_timeout: self.connection_timeout,
            request_timeout: self.request_timeout,
            minimum_progress: self.minimum_progress,
            max_document_bytes: self.max_document_bytes,
            retries_per_request: self.retries_per_request,
            tenant: self.tenant.clone(),
        }
    }

    /// The secrets of both sides.
    pub(crate) fn secrets(&self) -> Arc<Scrubber> {
        let mut scrubber = Scrubber::default();
        self.source.add_secrets(&mut scrubber);
        self.target.add_secrets(&mut scrubber);
        if let Some(Filter::Function { query_params, .. }) = &self.filter {
            for (name, value) in query_params {
                if let Some(value) = value.as_str().filter(|_| is_secret_name(name)) {
                    scrubber.add(None, &Secret::new(value));
                }
            }
        }
        Arc::new(scrubber)
    }
}

impl Replication {
    /// The same replication, as one of this tenant.
    #[must_use]
    pub fn of_tenant(self, tenant: &str) -> Self {
        Replication { tenant: Some(tenant.to_owned()), ..self }
    }

    /// Reads a replication document or a `_replicate` body.
    ///
    /// ```
    /// use turnwise_replicator::{Defaults, Replication};
    ///
    /// let body = serde_json::json!({"source": "http://a:5984/db", "target": "http://u:pw@b:5984/db"});
    /// let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
    /// assert_eq!(replication.target.redacted_url(), "http://u:*****@b:5984/db/");
    ///
    /// let wrong = serde_json::json!({"source": "http://a:5984/db"});
    /// let error = Replication::parse(wrong.as_object().unwrap(), &Defaults::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "`target` is missing; give a database's URL");
    /// ```
    ///
    /// # Errors
    /// Returns an error for the first field that is missing, mistyped, out of range, in conflict with another field, or
    /// not yet supported.
    pub fn parse(object: &Map<String, Value>, defaults: &Defaults) -> Result<Self, FieldError> {
        let fields = Fields(object);
        let [source_proxy, target_proxy] = fields.proxies(&defaults.proxy_schemes)?;
        let endpoint = |name: &str| match object.get(name) {
            None | Some(Value::Null) => Err(FieldError::new(name, "is missing; give a database's URL")),
            Some(value) => Endpoint::parse(name, value, &defaults.endpoint_schemes),
        };
        Ok(Self {
            source: endpoint("source")?.by(source_proxy),
            target: endpoint("target")?.by(target_proxy),
            continuous: fields.boolean("continuous", false)?,
            create_target: fields.boolean("create_target", false)?,
            create_target_params: fields.create_target_params()?,
            filter: fields.filter()?,
            winning_revs_only: fields.boolean("winning_revs_only", false)?,
            since_seq: fields.since_seq()?,
            use_checkpoints: fields.boolean("use_checkpoints", defaults.use_checkpoints)?,
            checkpoint_interval: fields.milliseconds("checkpoint_interval", defaults.checkpoint_interval)?,
            use_bulk_get: fields.boolean("use_bulk_get", defaults.use_bulk_get)?,
            max_document_id_length: defaults.max_document_id_length,
            missing_doc_retry: defaults.missing_doc_retry,
            worker_processes: fields.count("worker_processes", 1, 100)?.unwrap_or(defaults.worker_processes),
            worker_batch_size: fields.count("worker_batch_size", 1, 100_000)?.or(defaults.worker_batch_size),
            http_connections: fields
                .count("http_connections", 1, 1_000)?
                .unwrap_or(defaults.http_connections),
            connection_timeout: fields.milliseconds("connection_timeout", defaults.connection_timeout)?,
            retries_per_request: fields
                .count("retries_per_request", 0, 100)?
                .map_or(defaults.retries_per_request, |count| u32::try_from(count).expect("at most 100")),
            socket_options: fields.socket_options(defaults.socket_options)?,
            request_timeout: defaults.request_timeout,
            minimum_progress: defaults.minimum_progress,
            max_document_bytes: defaults.max_document_bytes,
            auth_plugins: defaults.auth_plugins.clone(),
            session_refresh_interval: defaults.session_refresh_interval,
            user_ctx: fields.user_ctx()?,
            tenant: None,
        })
    }
}

/// Reads the request's object field by field.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The field's value; `null` counts as absent.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn boolean(&self, name: &str, default: bool) -> Result<bool, FieldError> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(FieldError::new(name, format!("must be true or false, not {}", Kind(other)))),
        }
    }

    /// A whole number. CouchDB also accepts it as a string.
    fn count(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>, FieldError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .and_then(|number| usize::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .map(Some)
            .ok_or_else(|| FieldError::new(name, format!("must be a whole number from {min} to {max}")))
    }

    fn milliseconds(&self, name: &str, default: Duration) -> Result<Duration, FieldError> {
        const DAY_MS: usize = 24 * 60 * 60 * 1000;
        let problem =
            |_| FieldError::new(name, "must be a whole number of milliseconds, at least 1 and at most a day");
        let count = self.count(name, 1, DAY_MS).map_err(problem)?;
        Ok(count.map_or(default, |ms| Duration::from_millis(ms as u64)))
    }

    /// The proxies of source and target. The empty string means no proxy, as in CouchDB.
    fn proxies(&self, schemes: &[String]) -> Result<[Option<Proxy>; 2], FieldError> {
        let proxy = |name: &str| match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => Proxy::parse(name, text, schemes).map(Some),
            Some(other) => Err(FieldError::new(name, format!("must be a proxy's URL, not {}", Kind(other)))),
        };
        let proxies = [proxy("source_proxy")?, proxy("target_proxy")?];
        let Some(both) = proxy("proxy")? else { return Ok(proxies) };
        match proxies {
            [None, None] => Ok([Some(both.clone()), Some(both)]),
            [Some(_), _] => Err(FieldError::new("proxy", "cannot go together with `source_proxy`")),
            [None, Some(_)] => Err(FieldError::new("proxy", "cannot go together with `target_proxy`")),
        }
    }

    fn socket_options(&self, defaults: SocketOptions) -> Result<SocketOptions, FieldError> {
        const NAME: &str = "socket_options";
        match self.get(NAME) {
            None => Ok(defaults),
            Some(Value::String(text)) => {
                defaults.with(text).map_err(|right| FieldError::new(NAME, format!("must be {right}")))
            }
            Some(other) => {
                let problem = format!("must be a string like \"[{{nodelay, true}}]\", not {}", Kind(other));
                Err(FieldError::new(NAME, problem))
            }
        }
    }

    fn create_target_params(&self) -> Result<Vec<(String, String)>, FieldError> {
        let params = match self.get("create_target_params") {
            None => return Ok(Vec::new()),
            Some(Value::Object(params)) => params,
            Some(_) => {
                return Err(FieldError::new(
                    "create_target_params",
                    "must be an object of `q`, `n` and `partitioned`",
                ));
            }
        };
        params
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name.clone(), text.clone())),
                Value::Number(_) | Value::Bool(_) => Ok((name.clone(), value.to_string())),
                _ => Err(FieldError::new(
                    format!("create_target_params.{name}"),
                    "must be a string, a number or a boolean",
                )),
            })
            .collect()
    }

    fn filter(&self) -> Result<Option<Filter>, FieldError> {
        // Wrong parameters are an error even where no filter function takes them.
        let query_params = self.query_params()?;
        let given: Vec<&str> =
            ["doc_ids", "filter", "selector"].into_iter().filter(|name| self.get(name).is_some()).collect();
        if let [first, second, ..] = given[..] {
            return Err(FieldError::new(
                second,
                format!("cannot go together with `{first}`; give one of the two"),
            ));
        }
        match given.first() {
            Some(&"doc_ids") => self.doc_ids().map(Some),
            Some(&"selector") => match self.get("selector") {
                Some(Value::Object(selector)) => Ok(Some(Filter::Selector(selector.clone()))),
                _ => Err(FieldError::new("selector", "must be an object, a Mango selector")),
            },
            Some(_) => self.function(query_params).map(Some),
            None => Ok(None),
        }
    }

    fn doc_ids(&self) -> Result<Filter, FieldError> {
        let problem = || FieldError::new("doc_ids", "must be an array of document ids (strings)");
        let Some(Value::Array(ids)) = self.get("doc_ids") else {
            return Err(problem());
        };
        // CouchDB accepts percent-encoded ids here, as old versions sent them, and removes duplicates.
        let decode = |id: &Value| {
            let text = id.as_str().ok_or_else(problem)?.replace('+', " ");
            percent_encoding::percent_decode_str(&text)
                .decode_utf8()
                .map(|id| id.into_owned())
                .map_err(|_| problem())
        };
        let mut ids = ids.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(Filter::DocIds(ids))
    }

    fn query_params(&self) -> Result<Map<String, Value>, FieldError> {
        match self.get("query_params") {
            None => Ok(Map::new()),
            Some(Value::Object(params)) => Ok(params.clone()),
            Some(_) => Err(FieldError::new("query_params", "must be an object")),
        }
    }

    fn function(&self, query_params: Map<String, Value>) -> Result<Filter, FieldError> {
        let problem = || {
            FieldError::new(
                "filter",
                "must name a design document's filter function, `designdocument/function`, or a built-in filter",
            )
        };
        let Some(Value::String(name)) = self.get("filter") else {
            return Err(problem());
        };
        let named =
            name.split_once('/').is_some_and(|(design, function)| !design.is_empty() && !function.is_empty());
        if !named && !name.starts_with('_') {
            return Err(problem());
        }
        Ok(Filter::Function { name: name.clone(), query_params })
    }

    fn since_seq(&self) -> Result<Option<Seq>, FieldError> {
        match self.get("since_seq") {
            None => Ok(None),
            Some(value @ (Value::String(_) | Value::Number(_) | Value::Array(_))) => {
                Ok(Some(Seq::from(value)))
            }
            Some(_) => Err(FieldError::new(
                "since_seq",
                "must be an update sequence of the source, a string or a number",
            )),
        }
    }

    fn user_ctx(&self) -> Result<UserCtx, FieldError> {
        let user = match self.get("user_ctx") {
            None => return Ok(UserCtx::default()),
            Some(Value::Object(user)) => user,
            Some(_) => return Err(FieldError::new("user_ctx", "must be an object with `name` and `roles`")),
        };
        let name = match user.get("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.clone()),
            Some(_) => return Err(FieldError::new("user_ctx.name", "must be a string or null")),
        };
        let roles = match user.get("roles") {
            None | Some(Value::Null) => Vec::new(),
            Some(roles) => serde_json::from_value(roles.clone())
                .map_err(|_| FieldError::new("user_ctx.roles", "must be an array of strings"))?,
        };
        Ok(UserCtx { name, roles })
    }
}

/// Names a JSON value's type and never the value, which may be a password in the wrong field.
struct Kind<'a>(&'a Value);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        })
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
