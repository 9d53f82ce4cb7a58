//! The connections that leave this process, for all job types.
//!
//! A [`Client`] owns the connections: one pool for each way of connecting, the egress rules, the proxies, the sessions and the limits of each
//! server. A [`Peer`] is one server or database on top of it: base URL, login, headers, time limits, and the context of errors. Replications have
//! two peers, which share their load. [`Client::post`] makes one request that belongs to no peer.

mod answer;
mod auth;
mod body_limit;
mod compression;
mod connect_to;
mod connector;
mod deadline;
mod egress;
mod endpoint;
mod error;
mod flow;
mod gate;
mod metrics;
mod optional;
mod peer;
mod pool;
mod post;
mod pressure;
mod proxy;
mod rate_limiter;
mod request;
mod resolver;
mod retries;
mod room;
mod secret;
mod socket_options;
mod spans;
mod text;
mod tls;
mod trickle;
mod upload;
mod written;

pub use answer::Answer;
pub use auth::{AuthPlugin, Ticket};
pub use body_limit::BodyLimit;
pub use connect_to::ConnectTo;
pub use egress::{Egress, Rules as EgressRules};
pub use endpoint::{Credentials, Endpoint, is_secret_name};
pub use error::{Error, Fault, FieldError, PeerError, Side};
pub use flow::Excuse;
pub use metrics::Metrics;
pub use optional::Optional;
pub use peer::{Peer, PeerSettings};
pub use pool::{Client, Connections};
pub use post::{Post, Posted};
pub use proxy::Proxy;
pub use request::Request;
pub use retries::Retries;
pub use room::{FREE_FEED_BYTES, MAX_DOCUMENT_BYTES, WaitingBytes};
pub use secret::{CUT, HIDDEN, Scrubber, Secret};
pub use socket_options::SocketOptions;
pub use spans::{Ended, Exchange, Observer, observed};
pub use text::{MAX_REASON_BYTES, PeerText, beginning, shorten};
pub use tls::{MAX_CERTIFICATE_DEPTH, Tls};
pub use trickle::MinimumProgress;
pub use upload::{BodyError, Pieces, Progress, Upload};
pub use written::Written;
