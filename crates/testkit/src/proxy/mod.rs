//! A proxy in front of a peer, which causes faults on request.
//!
//! It is a real proxy: a TCP listener that reads HTTP/1.1 and opens a connection to the peer for each request. A client
//! therefore observes a reset, a hang or a closed port as if the peer had caused it.

mod connection;
mod fault;
mod gateway;
mod log;
mod multipart;
mod updates;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::{Client, Url};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Mutex, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::database::client;
use crate::{Database, Peer};
pub use fault::{Fault, Rule};
use log::Log;
pub use log::Request;
use updates::Updates;

/// How long [`FaultProxy::wait_for`] waits before it fails the test.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A proxy in front of one peer. It forwards everything until it gets a fault, and ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    /// `http://[user:password@]127.0.0.1:port`.
    url: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    port: Mutex<Port>,
}

/// The state that all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    /// `host:port` of the peer.
    upstream: String,
    rules: std::sync::Mutex<Vec<Rule>>,
    log: Log,
    connections: AtomicUsize,
    client: Client,
    /// Set once the proxy responds to `_db_updates` instead of the peer.
    updates: OnceLock<Updates>,
}

#[derive(Debug)]
enum Port {
    Open {
        /// A drop of this ends the listening.
        stop: oneshot::Sender<()>,
        listening: JoinHandle<()>,
    },
    /// The port is bound, so that no other process gets it, but has no listener, so that connections are refused.
    Closed(TcpSocket),
    /// Only during the change from one of the others to the other.
    Changing,
}

impl Shared {
    fn fault_for(&self, request: &Request) -> Fault {
        let mut rules = self.rules.lock().expect("a rule's condition does not panic");
        rules.iter_mut().find_map(|rule| rule.take(request)).unwrap_or(Fault::None)
    }
}

impl FaultProxy {
    /// A proxy in front of `peer`, on its own port.
    pub async fn start(peer: &Peer) -> Self {
        Self::before(peer.url()).await
    }

    /// A proxy in front of the server at `url` (`http://[user:password@]host[:port]`).
    pub async fn before(url: &str) -> Self {
        let url = Url::parse(url).expect("a peer's URL can be parsed");
        let host = url.host_str().expect("a peer's URL has a host");
        let port = url.port_or_known_default().expect("a peer's URL has a port");
        let shared = Arc::new(Shared {
            upstream: format!("{host}:{port}"),
            rules: std::sync::Mutex::default(),
            log: Log::default(),
            connections: AtomicUsize::new(0),
            client: client(),
            updates: OnceLock::new(),
        });
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = socket.local_addr().expect("a bound socket has an address");
        let credentials = match (url.username(), url.password()) {
            ("", None) => String::new(),
            (name, password) => format!("{name}:{}@", password.unwrap_or_default()),
        };
        let port = Mutex::new(open(socket, &shared));
        Self { url: format!("http://{credentials}{address}"), address, shared, port }
    }

    /// The peer's URL through the proxy, with the same credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of one of the peer's databases through the proxy.
    pub fn through(&self, database: &Database) -> String {
        format!("{}/{}", self.url, database.name())
    }

    /// Replaces all rules by `rule`. Returns when it applies: after [`Fault::Down`], the port is closed.
    pub async fn set(&self, rule: impl Into<Rule>) {
        let rule = rule.into();
        let mut port = self.port.lock().await;
        *port = match (std::mem::replace(&mut *port, Port::Changing), rule.is_down()) {
            (Port::Open { stop, listening }, true) => {
                // Binds the port before the listener closes it, so that no other socket of this machine can take it.
                let socket = bind(self.address);
                drop(stop);
                listening.await.expect("listening does not panic");
                Port::Closed(socket)
            }
            (Port::Closed(socket), false) => open(socket, &self.shared),
            (unchanged, _) => unchanged,
        };
        *self.shared.rules.lock().expect("a rule's condition does not panic") = vec![rule];
    }

    /// Adds a rule for requests that no earlier rule applies to.
    pub fn add(&self, rule: impl Into<Rule>) {
        let rule = rule.into();
        assert!(!rule.is_down(), "Fault::Down is for `set`: it closes the port, whatever else is asked");
        self.shared.rules.lock().expect("a rule's condition does not panic").push(rule);
    }

    /// Makes the proxy respond to `_db_updates` and `_dbs_info` itself, because the peer supports neither.
    pub fn tell_updates(&self) {
        self.shared.updates.get_or_init(Updates::default);
    }

    /// Adds an event to the feed of [`tell_updates`](Self::tell_updates): this database has changed.
    pub fn updated(&self, database: &str) {
        self.shared.updates.get().expect("`tell_updates` comes first").add(database);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    /// The number of requests so far for which `condition` holds.
    pub fn count(&self, condition: impl Fn(&Request) -> bool) -> usize {
        self.shared.log.count(condition)
    }

    /// Clears the log of requests.
    pub fn clear(&self) {
        self.shared.log.clear();
    }

    /// The first request for which `condition` holds, as soon as there is one. The condition is checked when a request
    /// arrives, and again as it proceeds: use `request.answered` to wait for its end.
    ///
    /// # Panics
    /// After a minute without such a request. The message lists the requests that arrived.
    pub async fn wait_for(&self, condition: impl Fn(&Request) -> bool) -> Request {
        match tokio::time::timeout(WAIT_TIMEOUT, self.shared.log.wait_for(condition)).await {
            Ok(request) => request,
            Err(_) => {
                let seen: Vec<String> = self
                    .requests()
                    .iter()
                    .map(|request| format!("{} {}", request.method, request.path))
                    .collect();
                panic!("the request that was waited for did not come; these did: {seen:#?}")
            }
        }
    }

    /// The number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket can be made");
    // Connections of the last listener on this port remain in TIME_WAIT, and must not prevent the bind.
    socket.set_reuseaddr(true).expect("an own socket can be configured");
    // A socket that does not listen may share the port with one that does.
    socket.set_reuseport(true).expect("an own socket can be configured");
    socket.bind(address).unwrap_or_else(|error| panic!("{address} cannot be bound: {error}"));
    socket
}

fn open(socket: TcpSocket, shared: &Arc<Shared>) -> Port {
    let listener = socket.listen(BACKLOG).expect("a bound socket can listen");
    let (stop, stopped) = oneshot::channel();
    let listening = tokio::spawn(listen(listener, Arc::clone(shared), stopped));
    Port::Open { stop, listening }
}

/// Accepts connections until `stopped` ends. Then closes the port and all connections.
async fn listen(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => {
                // A connection that ended before it was accepted needs no action.
                let Ok((client, _)) = accepted else { continue };
                shared.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection::serve(Arc::clone(&shared), client));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}
