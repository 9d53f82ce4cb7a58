//! A proxy that stands before a peer and does it harm on command.
//!
//! It is a real one: a TCP listener that reads HTTP/1.1 and opens a connection to the peer for each request, so that what a client
//! sees of a reset, a hang or a closed port is what it would see of the peer's own.

mod connection;
mod fault;
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

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A proxy before one peer. It passes everything on until it is told otherwise, and ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    /// `http://[user:password@]127.0.0.1:port`.
    url: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    port: Mutex<Port>,
}

/// What the connections of a proxy have in common.
#[derive(Debug)]
struct Shared {
    /// `host:port` of the peer.
    upstream: String,
    rules: std::sync::Mutex<Vec<Rule>>,
    log: Log,
    connections: AtomicUsize,
    client: Client,
    /// Once it answers `_db_updates` in the peer's place.
    updates: OnceLock<Updates>,
}

#[derive(Debug)]
enum Port {
    Open {
        /// Dropping it ends the listening.
        stop: oneshot::Sender<()>,
        listening: JoinHandle<()>,
    },
    /// The port is bound, so that nobody else gets it, and not listened on, so that connections are refused.
    Closed(TcpSocket),
    /// Only while one of the others is made from the other.
    Changing,
}

impl Shared {
    fn fault_for(&self, request: &Request) -> Fault {
        let mut rules = self.rules.lock().expect("a rule's condition does not panic");
        rules.iter_mut().find_map(|rule| rule.take(request)).unwrap_or(Fault::None)
    }
}

impl FaultProxy {
    /// A proxy before `peer`, on a port of its own.
    pub async fn start(peer: &Peer) -> Self {
        Self::before(peer.url()).await
    }

    /// A proxy before the server at `url` (`http://[user:password@]host[:port]`).
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

    /// The peer's URL by way of the proxy, with the same credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of one of the peer's databases by way of the proxy.
    pub fn through(&self, database: &Database) -> String {
        format!("{}/{}", self.url, database.name())
    }

    /// From now on `rule`, and only it. Returns when it holds: after [`Fault::Down`] the port is closed.
    pub async fn set(&self, rule: impl Into<Rule>) {
        let rule = rule.into();
        let mut port = self.port.lock().await;
        *port = match (std::mem::replace(&mut *port, Port::Changing), rule.is_down()) {
            (Port::Open { stop, listening }, true) => {
                // Before the listener closes the port, so that no other socket of this machine can take it.
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

    /// One more rule, for requests that none of the earlier ones is for.
    pub fn add(&self, rule: impl Into<Rule>) {
        let rule = rule.into();
        assert!(!rule.is_down(), "Fault::Down is for `set`: it closes the port, whatever else is asked");
        self.shared.rules.lock().expect("a rule's condition does not panic").push(rule);
    }

    /// From now on the proxy answers `_db_updates` and `_dbs_info` itself: the peer has neither.
    pub fn tell_updates(&self) {
        self.shared.updates.get_or_init(Updates::default);
    }

    /// The feed of [`tell_updates`](Self::tell_updates) says that a database was changed.
    pub fn updated(&self, database: &str) {
        self.shared.updates.get().expect("`tell_updates` comes first").add(database);
    }

    /// All requests seen so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    /// How many of the requests seen so far `condition` holds for.
    pub fn count(&self, condition: impl Fn(&Request) -> bool) -> usize {
        self.shared.log.count(condition)
    }

    /// Forgets the requests seen so far.
    pub fn clear(&self) {
        self.shared.log.clear();
    }

    /// The first request seen that `condition` holds for, as soon as there is one. It is looked at when it comes
    /// and again as it proceeds: wait for `request.answered` to wait for its end.
    ///
    /// # Panics
    /// After a minute without one; the message lists what came instead.
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

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket can be made");
    // The connections of the last listener on this port linger in TIME_WAIT and must not stand in the way.
    socket.set_reuseaddr(true).expect("an own socket can be configured");
    // One that does not listen may share the port with one that does.
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

/// Accepts connections until `stopped` ends, then closes the port and all of them.
async fn listen(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => {
                // A connection that ended before it was accepted is its client's affair.
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
