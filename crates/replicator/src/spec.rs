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
    Client, Endpoint, FieldError, Peer, PeerSettings, Proxy, Scrubber, Secret, Side, SocketOptions,
    is_secret_name,
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
    /// Whether checkpoints are written and read on both sides.
    pub use_checkpoints: bool,
    /// Time between two checkpoints. CouchDB: 30 s.
    pub checkpoint_interval: Duration,
    /// Whether `_bulk_get` is tried.
    pub use_bulk_get: bool,
    /// Documents with longer ids, in bytes, are skipped and counted as failures. `None`: no limit, as in CouchDB.
    pub max_document_id_length: Option<usize>,
    /// `missing_doc_retry_msec`: the wait before a revision that the source announced but does not have is requested
    /// again. CouchDB: 2 s.
    pub missing_doc_retry: Duration,
    /// `valid_endpoint_protocols`.
    pub endpoint_schemes: Vec<String>,
    /// `valid_proxy_protocols`.
    pub proxy_schemes: Vec<String>,
    /// How requests to both peers are made.
    pub peers: PeerSettings,
}

/// Changes per batch if the request sets no number. A CouchDB target is cheapest at this size (7,200 documents/s in
/// batches of 500, 8,200 in batches of 2,000, 4,400 in batches of 25,000).
pub const ADAPTIVE_BATCH_SIZE: usize = 2_000;

impl Default for Defaults {
    fn default() -> Self {
        Self {
            worker_processes: 4,
            worker_batch_size: None,
            use_checkpoints: true,
            checkpoint_interval: Duration::from_secs(30),
            use_bulk_get: true,
            max_document_id_length: None,
            missing_doc_retry: Duration::from_secs(2),
            endpoint_schemes: vec!["http".to_owned(), "https".to_owned()],
            proxy_schemes: vec!["http".to_owned(), "https".to_owned(), "socks5".to_owned()],
            peers: PeerSettings::default(),
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
    /// The settings, with those that the request sets itself.
    pub settings: Defaults,
    /// The name of the user on whose behalf the replication runs. `None` is the anonymous user, or an administrator
    /// without a name.
    pub user: Option<String>,
}

impl Replication {
    /// One of the two peers.
    pub(crate) fn peer(&self, side: Side, client: &Client) -> Peer {
        Peer::new(side, self.endpoint(side), &self.settings.peers, self.secrets(), client)
    }

    /// The other peer of the same run.
    pub(crate) fn peer_beside(&self, other: &Peer, side: Side, client: &Client) -> Peer {
        other.beside(side, self.endpoint(side), &self.settings.peers, client)
    }

    /// The source's server. Request paths are relative to its root.
    pub(crate) fn source_server(&self, client: &Client) -> Peer {
        Peer::new(Side::Source, &self.source.server(), &self.settings.peers, self.secrets(), client)
    }

    fn endpoint(&self, side: Side) -> &Endpoint {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
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

    /// The same replication, as one of this tenant.
    #[must_use]
    pub fn of_tenant(mut self, tenant: &str) -> Self {
        self.settings.peers.tenant = Some(tenant.to_owned());
        self
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
            settings: fields.settings(defaults)?,
            user: fields.user()?,
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

    /// The field as `read` returns it: `None` for a value that is not what `right` says.
    fn typed<T>(
        &self,
        name: &str,
        right: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || FieldError::new(name, format!("must be {right}, not {}", Kind(value)));
        read(value).map(Some).ok_or_else(wrong)
    }

    fn boolean(&self, name: &str, default: bool) -> Result<bool, FieldError> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// The settings that a request may set itself, and the others from the defaults.
    fn settings(&self, defaults: &Defaults) -> Result<Defaults, FieldError> {
        let peers = &defaults.peers;
        Ok(Defaults {
            use_checkpoints: self.boolean("use_checkpoints", defaults.use_checkpoints)?,
            checkpoint_interval: self.milliseconds("checkpoint_interval", defaults.checkpoint_interval)?,
            use_bulk_get: self.boolean("use_bulk_get", defaults.use_bulk_get)?,
            worker_processes: self.count("worker_processes", 1, 100)?.unwrap_or(defaults.worker_processes),
            worker_batch_size: self.count("worker_batch_size", 1, 100_000)?.or(defaults.worker_batch_size),
            peers: PeerSettings {
                http_connections: self.count("http_connections", 1, 1_000)?.unwrap_or(peers.http_connections),
                connection_timeout: self.milliseconds("connection_timeout", peers.connection_timeout)?,
                retries_per_request: self
                    .count("retries_per_request", 0, 100)?
                    .map_or(peers.retries_per_request, |count| u32::try_from(count).expect("at most 100")),
                socket_options: self.socket_options(peers.socket_options)?,
                ..peers.clone()
            },
            ..defaults.clone()
        })
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
        let proxy = |name: &str| match self.typed(name, "a proxy's URL", Value::as_str)? {
            None | Some("") => Ok(None),
            Some(text) => Proxy::parse(name, text, schemes).map(Some),
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
        match self.typed(NAME, "a string like \"[{nodelay, true}]\"", Value::as_str)? {
            None => Ok(defaults),
            Some(text) => {
                defaults.with(text).map_err(|right| FieldError::new(NAME, format!("must be {right}")))
            }
        }
    }

    fn create_target_params(&self) -> Result<Vec<(String, String)>, FieldError> {
        let right = "an object of `q`, `n` and `partitioned`";
        let params = self.typed("create_target_params", right, Value::as_object)?;
        let param = |(name, value): (&String, &Value)| match value {
            Value::String(text) => Ok((name.clone(), text.clone())),
            Value::Number(_) | Value::Bool(_) => Ok((name.clone(), value.to_string())),
            _ => {
                let problem = "must be a string, a number or a boolean";
                Err(FieldError::new(format!("create_target_params.{name}"), problem))
            }
        };
        params.into_iter().flatten().map(param).collect()
    }

    fn filter(&self) -> Result<Option<Filter>, FieldError> {
        // Wrong parameters are an error even where no filter function takes them.
        let query_params = self.typed("query_params", "an object", Value::as_object)?;
        let given: Vec<&str> =
            ["doc_ids", "filter", "selector"].into_iter().filter(|name| self.get(name).is_some()).collect();
        if let [first, second, ..] = given[..] {
            let problem = format!("cannot go together with `{first}`; give one of the two");
            return Err(FieldError::new(second, problem));
        }
        match given.first() {
            Some(&"doc_ids") => self.doc_ids().map(Some),
            Some(&"selector") => {
                let selector = self.typed("selector", "an object, a Mango selector", Value::as_object)?;
                Ok(selector.cloned().map(Filter::Selector))
            }
            Some(_) => self.function(query_params.cloned().unwrap_or_default()).map(Some),
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
        let right = "an update sequence of the source, a string or a number";
        self.typed("since_seq", right, |value| match value {
            Value::String(_) | Value::Number(_) | Value::Array(_) => Some(Seq::from(value)),
            _ => None,
        })
    }

    /// The user's name in `user_ctx`. The roles are checked, and have no effect.
    fn user(&self) -> Result<Option<String>, FieldError> {
        let right = "an object with `name` and `roles`";
        let Some(user) = self.typed("user_ctx", right, Value::as_object)? else { return Ok(None) };
        let name = match user.get("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.clone()),
            Some(_) => return Err(FieldError::new("user_ctx.name", "must be a string or null")),
        };
        let is_text =
            |roles: &Value| roles.as_array().is_some_and(|roles| roles.iter().all(Value::is_string));
        if user.get("roles").is_some_and(|roles| !roles.is_null() && !is_text(roles)) {
            return Err(FieldError::new("user_ctx.roles", "must be an array of strings"));
        }
        Ok(name)
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
