//! Opens a connection: to the peer or to its proxy, with the socket's options, through the tunnel, with TLS.
//!
//! ```text
//!   http://   connect ─────────────────────────────────────────────▶ requests
//!   https://  connect ───────────────────────────────────▶ TLS ────▶ requests
//!   proxy     connect [─▶ TLS, to https proxies] ─▶ CONNECT ─▶ TLS ─▶ requests   (to https peers)
//!             connect [─▶ TLS, to https proxies] ──────────────────▶ requests that name the whole URL
//!   socks5    connect ─▶ handshake [─▶ TLS] ───────────────────────▶ requests
//! ```

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::connect_to::{ConnectTo, port};
use crate::egress::{HostRule, Policy, REFUSAL};
use crate::metrics::Metrics;
use crate::proxy::{Kind, Proxy};
use crate::resolver::Resolver;
use crate::socket_options::SocketOptions;

/// The time limit of opening a connection, with all its steps. A job fails earlier, after its `connection_timeout`;
/// this limit ends the attempt that continues without it.
const LONGEST: Duration = Duration::from_secs(120);

/// The time limit of the wait for another connection to be closed, when the limit of connections is reached. It is
/// longer than the default time for which idle connections are kept.
const LONGEST_IN_LINE: Duration = Duration::from_secs(100);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What distinguishes two connections to the same server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub proxy: Option<Proxy>,
    pub socket_options: SocketOptions,
    /// Whether its connections may not go to internal addresses.
    pub external: bool,
}

/// Opens connections of one kind. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Connector {
    resolver: Resolver,
    egress: Arc<Policy>,
    connect_to: Arc<ConnectTo>,
    tls: Arc<rustls::ClientConfig>,
    route: Arc<Route>,
    /// A permit for each connection that may still be opened.
    room: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Connector {
    pub fn new(
        connect_to: ConnectTo,
        tls: Arc<rustls::ClientConfig>,
        egress: Arc<Policy>,
        most: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            resolver: Resolver::default(),
            egress,
            connect_to: Arc::new(connect_to),
            tls,
            route: Arc::default(),
            room: Arc::new(Semaphore::new(most)),
            metrics,
        }
    }

    /// The same for another route.
    pub fn by(&self, route: &Route) -> Self {
        Self { route: Arc::new(route.clone()), ..self.clone() }
    }

    /// Whether the limit of connections is reached.
    pub fn is_full(&self) -> bool {
        self.room.available_permits() == 0
    }

    async fn connect(self, peer: Uri) -> Result<Stream, BoxError> {
        let secure = peer.scheme() == Some(&Scheme::HTTPS);
        let stream = match &self.route.proxy {
            None => self.dial(&peer).await?,
            Some(proxy) => {
                let proxy = proxy.clone();
                self.check_behind_proxy(&peer).await?;
                let stream = self.dial(&proxy.address()).await?;
                match proxy.kind() {
                    Kind::Socks5 => handshake(&proxy, &peer, stream).await?,
                    Kind::Http | Kind::Https => {
                        let stream = match proxy.kind() {
                            Kind::Https => self.secure(&proxy.address(), stream).await?,
                            _ => stream,
                        };
                        match secure {
                            true => tunnel(&proxy, &peer, stream).await?,
                            false => return Ok(Stream { proxied: true, ..stream }),
                        }
                    }
                }
            }
        };
        if secure { self.secure(&peer, stream).await } else { Ok(stream) }
    }

    /// A connection to the server in `at`, or to its replacement in `connect_to`.
    async fn dial(&self, at: &Uri) -> Result<Stream, BoxError> {
        let permit = match tokio::time::timeout(LONGEST_IN_LINE, self.room.clone().acquire_owned()).await {
            Ok(permit) => permit?,
            Err(_) => {
                return Err("as many connections are open as this process has file descriptors for".into());
            }
        };
        let at = self.connect_to.redirected(at);
        let rule = self.rule_for(&at);
        check_literal(&rule)?;
        let mut tcp = HttpConnector::new_with_resolver(self.resolver.with_rule(rule.clone()));
        tcp.enforce_http(false);
        // Before the connection is opened, because the offered window depends on these buffers.
        tcp.set_recv_buffer_size(self.route.socket_options.recbuf);
        tcp.set_send_buffer_size(self.route.socket_options.sndbuf);
        let stream = tcp.call(at).await?;
        let (local, remote) = (stream.inner().local_addr()?, stream.inner().peer_addr()?);
        // An address of this machine need not be one of a private network.
        let is_own = local.ip().to_canonical() == remote.ip().to_canonical();
        if is_own && !self.egress.permits_own(rule.external, &rule.host, remote) {
            return Err(REFUSAL.into());
        }
        self.route.socket_options.apply(stream.inner())?;
        self.metrics.connections_opened.add(1);
        let open = Open { _permit: permit, metrics: self.metrics.clone() };
        Ok(Stream { io: Box::new(stream), proxied: false, _open: Some(open) })
    }

    /// The rule for the server in `at`.
    fn rule_for(&self, at: &Uri) -> HostRule {
        let port = port(at);
        let host = at.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        HostRule { policy: self.egress.clone(), external: self.route.external, host: host.into(), port }
    }

    /// Checks a peer that a proxy connects to. A name that only the proxy can resolve is the proxy's to judge.
    async fn check_behind_proxy(&self, peer: &Uri) -> Result<(), BoxError> {
        let rule = self.rule_for(peer);
        check_literal(&rule)?;
        let is_name = rule.host.parse::<IpAddr>().is_err();
        let Some(name) = rule.host.parse().ok().filter(|_| is_name) else { return Ok(()) };
        match self.resolver.with_rule(rule).call(name).await {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn secure(&self, peer: &Uri, stream: Stream) -> Result<Stream, BoxError> {
        let host = peer.host().unwrap_or_default();
        let name = ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']').to_owned())?;
        let secured = TlsConnector::from(Arc::clone(&self.tls)).connect(name, TokioIo::new(stream)).await;
        let stream = secured.map_err(|cause| explained(host, cause))?;
        Ok(Stream { io: Box::new(TokioIo::new(stream)), proxied: false, _open: None })
    }
}

/// Checks a host that is an address, for which no name is resolved.
fn check_literal(rule: &HostRule) -> Result<(), BoxError> {
    match rule.host.parse::<IpAddr>() {
        Ok(address) if !rule.permits(address) => Err(REFUSAL.into()),
        _ => Ok(()),
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, peer: Uri) -> Self::Future {
        let connecting = self.clone().connect(peer);
        Box::pin(async move {
            match tokio::time::timeout(LONGEST, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(format!("not connected after {} s", LONGEST.as_secs()).into()),
            }
        })
    }
}

/// The message of a failed handshake, with advice for a server that is not trusted.
fn explained(host: &str, cause: io::Error) -> BoxError {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(problem)) = inner {
        let advice = "[replicator] ssl_trusted_certificates_file names the authorities that are trusted";
        return format!("the certificate of {host} is not accepted, {problem}: {advice}").into();
    }
    format!("no TLS with {host}: {cause}").into()
}

async fn tunnel(proxy: &Proxy, peer: &Uri, stream: Stream) -> Result<Stream, BoxError> {
    let mut tunnel = Tunnel::new(proxy.address(), Ready(Some(stream)));
    if let Some(authorization) = proxy.authorization() {
        tunnel = tunnel.with_auth(authorization);
    }
    Ok(tunnel.call(with_port(peer)).await.map_err(|cause| format!("the proxy {proxy}: {cause}"))?)
}

async fn handshake(proxy: &Proxy, peer: &Uri, stream: Stream) -> Result<Stream, BoxError> {
    let mut socks = SocksV5::new(proxy.address(), Ready(Some(stream)));
    if let Some(credentials) = proxy.credentials() {
        socks = socks.with_auth(credentials.user.clone(), credentials.password.reveal().to_owned());
    }
    Ok(socks.call(with_port(peer)).await.map_err(|cause| format!("the proxy {proxy}: {cause}"))?)
}

/// The same address with an explicit port, which a proxy needs.
fn with_port(peer: &Uri) -> Uri {
    let authority = format!("{}:{}", peer.host().unwrap_or_default(), port(peer));
    let scheme = peer.scheme().cloned().unwrap_or(Scheme::HTTP);
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query("/")
        .build()
        .expect("host and port of a URI are an authority")
}

/// Returns the one connection that already exists.
struct Ready(Option<Stream>);

impl Service<Uri> for Ready {
    type Response = Stream;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Stream>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(self.0.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    }
}

/// A connection that is open, until this is dropped.
struct Open {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections_closed.add(1);
    }
}

trait Io: Read + Write + Send + Unpin {}
impl<T: Read + Write + Send + Unpin> Io for T {}

/// A connection of any kind.
pub(crate) struct Stream {
    io: Box<dyn Io>,
    /// A proxy reads the requests, and needs the whole URL.
    proxied: bool,
    /// The permit of the outermost connection; a stream inside of it has none.
    _open: Option<Open>,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.proxied)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, pieces)
    }
}
