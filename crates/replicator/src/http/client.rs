//! The connections that all replications of a process share.

use std::time::Duration;

use super::causes;
use crate::error::Error;

/// An idle connection is closed after this long; CouchDB's `connection_close_interval`.
const IDLE_CONNECTION: Duration = Duration::from_secs(90);

/// The connections of a process, kept alive and shared by all its replications. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: reqwest::Client,
}

impl Client {
    /// A client with an empty pool.
    ///
    /// Where the system has no TLS roots, no `https` peer can be trusted, and `http` works all the same.
    ///
    /// # Errors
    /// [`Error::Local`] if TLS cannot be set up at all.
    pub fn new() -> Result<Self, Error> {
        // An error means that another part of the process has installed a provider; that one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let inner = builder().build().or_else(|error| {
            tracing::warn!(cause = causes(&error), "https peers cannot be trusted");
            builder().tls_certs_only([]).build()
        });
        let inner = inner
            .map_err(|error| Error::Local(format!("the HTTP client cannot start: {}", causes(&error))))?;
        Ok(Self { inner })
    }

    /// The plain HTTP client inside, for requests that belong to no replication.
    pub fn http(&self) -> &reqwest::Client {
        &self.inner
    }
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("turnwise/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(IDLE_CONNECTION)
        .tcp_nodelay(true)
        .no_proxy()
}
