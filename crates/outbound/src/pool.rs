//! The connections that all jobs of a process share.
//!
//! A connection that one job no longer uses serves the next job with a request to the same server, within
//! `connection_close_interval`. This requires that both jobs would open it in the same way: through the same proxy and
//! with the same socket options. Such a way is a [`Transport`], and each has its own pool.
//!
//! The pools are those of `hyper-util`. It opens each connection in the future of the request that needs it, so no
//! request waits for another request's server. A dropped request closes its connection in the middle of an exchange,
//! and otherwise returns it to the pool.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::auth::Sessions;
use crate::body_limit::BodyLimits;
use crate::connect_to::ConnectTo;
use crate::connector::{Connector, Route};
use crate::egress::{Egress, Policy};
use crate::error::Error;
use crate::gate::Gates;
use crate::metrics::Metrics;
use crate::optional::Refusals;
use crate::proxy::Proxy;
use crate::rate_limiter::RateLimiter;
use crate::room::Room;
use crate::tls::Tls;
use crate::upload::Upload;

/// The most transports that are shared. While all of them are in use, a job with a further route has its own.
const MAX_TRANSPORTS: usize = 256;
/// The most idle connections that are kept per server.
const MAX_IDLE_CONNECTIONS: usize = 1_000;
/// The smallest buffer in which `hyper` reads heads.
const MIN_BUFFER_BYTES: usize = 8 * 1024;

/// How connections are opened and how long they are kept, for all replications of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// `connection_close_interval`: an idle connection is closed after this long. CouchDB: 90 s.
    pub close_interval: Duration,
    /// `connect_to`: servers whose connections go elsewhere than their URL states.
    pub connect_to: ConnectTo,
    /// Which servers an `https` URL may reach, and with which client certificate.
    pub tls: Tls,
    /// `[egress]`: which addresses may be reached.
    pub egress: Egress,
    /// The most connections at the same time. A request that needs one more waits until one is closed.
    pub most: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            close_interval: Duration::from_secs(90),
            connect_to: ConnectTo::default(),
            tls: Tls::default(),
            egress: Egress::default(),
            most: Semaphore::MAX_PERMITS,
        }
    }
}

/// The connections of a process, kept alive and shared by all its replications. Clones are cheap.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

/// What all replications of a process share.
pub(crate) struct Shared {
    /// All logins.
    pub sessions: Sessions,
    /// The number of requests at each server.
    pub gates: Gates,
    /// The throttled methods and URLs.
    pub limiter: RateLimiter,
    /// Memory for large documents.
    pub room: Arc<Room>,
    /// What peers refuse that replications do not need.
    pub refusals: Refusals,
    /// How large a body each database's server accepts.
    pub body_limits: BodyLimits,
    pub metrics: Arc<Metrics>,
    egress: Arc<Policy>,
    connector: Connector,
    table: Mutex<Table>,
}

struct Table {
    close_interval: Duration,
    transports: HashMap<Route, Arc<Transport>>,
}

/// One way of connecting, with its connections.
pub(crate) struct Transport {
    connector: Connector,
    buffer_bytes: Option<usize>,
    /// Replaced to close the idle connections: when the interval changes, and when the limit of connections is reached.
    pool: RwLock<Pool>,
    /// Closes each connection after its request; used while the limit of connections is reached.
    keeps_none: legacy::Client<Connector, Upload>,
    /// Added to requests that the proxy itself reads.
    proxy_authorization: Option<HeaderValue>,
    last_used: Mutex<Instant>,
}

/// The connections of a transport.
struct Pool {
    client: legacy::Client<Connector, Upload>,
    close_interval: Duration,
}

/// A transport in use.
pub(crate) struct Lease(pub Arc<Transport>);

impl Client {
    /// A client with an empty pool, which trusts the system's TLS roots.
    ///
    /// If the system has no TLS roots, no `https` peer is trusted, but `http` still works.
    ///
    /// # Errors
    /// [`Error::Local`] if TLS cannot be set up at all.
    pub fn new() -> Result<Self, Error> {
        Self::with(&Connections::default())
    }

    /// A client with an empty pool.
    ///
    /// # Errors
    /// [`Error::Local`] if a certificate or key cannot be used. The message names the setting and the file, and never
    /// contains the password.
    pub fn with(connections: &Connections) -> Result<Self, Error> {
        let tls = Arc::new(connections.tls.config().map_err(Error::Local)?);
        let (egress, metrics) = (Arc::<Policy>::default(), Arc::<Metrics>::default());
        egress.set(connections.egress.clone());
        let connect_to = connections.connect_to.clone();
        let connector = Connector::new(connect_to, tls, egress.clone(), connections.most, metrics.clone());
        let table = Table { close_interval: connections.close_interval, transports: HashMap::new() };
        Ok(Self(Arc::new(Shared {
            sessions: Sessions::default(),
            gates: Gates::default(),
            limiter: RateLimiter::default(),
            room: Arc::default(),
            refusals: Refusals::default(),
            body_limits: BodyLimits::default(),
            metrics,
            egress,
            connector,
            table: Mutex::new(table),
        })))
    }

    /// Sets how long idle connections are kept. Closes those that are idle now.
    pub fn set_close_interval(&self, close_interval: Duration) {
        let mut table = self.table();
        if table.close_interval == close_interval {
            return;
        }
        table.close_interval = close_interval;
        for transport in table.transports.values() {
            transport.begin_anew(Some(close_interval));
        }
    }

    /// Sets which addresses may be reached. Connections that are in use stay, and idle ones are closed.
    pub fn set_egress(&self, egress: &Egress) {
        if *self.0.egress.rules() != *egress {
            self.0.egress.set(egress.clone());
            self.close_idle();
        }
    }

    /// Whether tenants are kept from internal addresses from now on.
    pub fn guard_internal(&self, guards: bool) {
        if self.0.egress.guard(guards) {
            self.close_idle();
        }
    }

    fn close_idle(&self) {
        self.table().transports.values().for_each(|transport| transport.begin_anew(None));
    }

    /// Whether the replications of a tenant may not reach internal addresses. Without a tenant they may.
    pub(crate) fn is_external(&self, tenant: Option<&str>) -> bool {
        tenant.is_some_and(|tenant| !self.0.egress.rules().internal_tenants.contain(tenant))
    }

    /// How many methods and URLs are throttled: they have returned 429, and have not recovered yet.
    pub fn throttled(&self) -> usize {
        self.0.limiter.throttled()
    }

    /// Makes all logins look older, for tests of their end.
    #[doc(hidden)]
    pub fn age_sessions(&self, by: Duration) {
        self.0.sessions.age(by);
    }

    /// What the requests of this client have done.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// The shared transport for `route`.
    pub(crate) fn transport(&self, route: &Route) -> Lease {
        self.transport_at(route, Instant::now())
    }

    fn transport_at(&self, route: &Route, now: Instant) -> Lease {
        let mut table = self.table();
        if let Some(transport) = table.transports.get(route) {
            return Lease(Arc::clone(transport));
        }
        table.forget_unused(now);
        let transport = Arc::new(Transport::new(&self.0.connector, route, table.close_interval));
        if table.transports.len() < MAX_TRANSPORTS {
            table.transports.insert(route.clone(), Arc::clone(&transport));
        }
        Lease(transport)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No operation leaves the table in an inconsistent state.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Table {
    /// Drops the transports whose connections have all been closed, and makes room for one more if possible.
    fn forget_unused(&mut self, now: Instant) {
        // While the table is locked, no other thread can start to use a transport that only the table holds.
        let idle = |transport: &Arc<Transport>| Arc::strong_count(transport) == 1;
        let close_interval = self.close_interval;
        self.transports.retain(|_, transport| !idle(transport) || transport.idle_for(now) < close_interval);
        if self.transports.len() >= MAX_TRANSPORTS {
            let unused = self.transports.iter().filter(|(_, transport)| idle(transport));
            let oldest = unused.max_by_key(|(_, transport)| transport.idle_for(now));
            if let Some(route) = oldest.map(|(route, _)| route.clone()) {
                self.transports.remove(&route);
            }
        }
    }
}

impl Transport {
    fn new(connector: &Connector, route: &Route, close_interval: Duration) -> Self {
        let connector = connector.by(route);
        let buffer_bytes = route.socket_options.buffer.map(|bytes| bytes.max(MIN_BUFFER_BYTES));
        Self {
            pool: RwLock::new(Pool::new(&connector, buffer_bytes, close_interval)),
            keeps_none: client(&connector, buffer_bytes, close_interval, 0),
            connector,
            buffer_bytes,
            proxy_authorization: route.proxy.as_ref().and_then(Proxy::authorization),
            last_used: Mutex::new(Instant::now()),
        }
    }

    fn idle_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.last_used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a request over an idle or a new connection, and waits for the head of its response.
    pub async fn send(&self, mut request: Request<Upload>) -> Result<Response<Incoming>, legacy::Error> {
        if let Some(authorization) = &self.proxy_authorization
            && request.uri().scheme() == Some(&http::uri::Scheme::HTTP)
        {
            request.headers_mut().insert(http::header::PROXY_AUTHORIZATION, authorization.clone());
        }
        let client = if self.connector.is_full() {
            // Idle connections to other servers would keep this request waiting.
            self.begin_anew(None);
            self.keeps_none.clone()
        } else {
            self.pool.read().unwrap_or_else(PoisonError::into_inner).client.clone()
        };
        client.request(request).await
    }

    /// Closes the idle connections.
    fn begin_anew(&self, close_interval: Option<Duration>) {
        let mut pool = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let close_interval = close_interval.unwrap_or(pool.close_interval);
        *pool = Pool::new(&self.connector, self.buffer_bytes, close_interval);
    }
}

impl Pool {
    fn new(connector: &Connector, buffer_bytes: Option<usize>, close_interval: Duration) -> Self {
        let client = client(connector, buffer_bytes, close_interval, MAX_IDLE_CONNECTIONS);
        Pool { client, close_interval }
    }
}

fn client(
    connector: &Connector,
    buffer_bytes: Option<usize>,
    close_interval: Duration,
    most_idle: usize,
) -> legacy::Client<Connector, Upload> {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(close_interval);
    builder.pool_max_idle_per_host(most_idle);
    if let Some(bytes) = buffer_bytes {
        builder.http1_max_buf_size(bytes);
    }
    builder.build(connector.clone())
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.0.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::socket_options::SocketOptions;

    fn route(sndbuf: usize) -> Route {
        let socket_options = SocketOptions { sndbuf: Some(sndbuf), ..SocketOptions::default() };
        Route { socket_options, ..Route::default() }
    }

    fn known(client: &Client) -> usize {
        client.table().transports.len()
    }

    #[tokio::test]
    async fn an_unused_transport_is_dropped_after_the_interval() {
        let client = Client::new().unwrap();
        let at = |seconds| Instant::now() + Duration::from_secs(seconds);
        let held = client.transport(&route(1));
        drop(client.transport(&route(2)));
        drop(client.transport_at(&route(3), at(80)));
        assert_eq!(known(&client), 3);
        drop(client.transport_at(&route(4), at(100)));
        assert_eq!(known(&client), 2);
        assert!(Arc::ptr_eq(&held.0, &client.transport(&route(1)).0));
    }

    #[tokio::test]
    async fn shared_transports_are_bounded_and_a_further_route_has_its_own() {
        let client = Client::new().unwrap();
        for n in 0..2 * MAX_TRANSPORTS {
            drop(client.transport(&route(n)));
        }
        assert_eq!(known(&client), MAX_TRANSPORTS);
        let held: Vec<_> = (0..MAX_TRANSPORTS + 2).map(|n| client.transport(&route(n))).collect();
        assert_eq!(known(&client), MAX_TRANSPORTS);
        assert!(!Arc::ptr_eq(&held.last().unwrap().0, &client.transport(&route(MAX_TRANSPORTS + 1)).0));
    }
}
