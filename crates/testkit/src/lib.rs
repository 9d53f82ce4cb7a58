//! Peers, data sets and fault proxies for the tests and the laboratory.
//!
//! A test of replication needs four things, and each has modules here:
//!
//! - servers to copy between: [`Peer`] starts a real CouchDB-protocol server (`peers/README.md` lists its features);
//! - data to copy: [`dataset`] generates conflicts, deletions, histories, attachments and unusual ids from a seed;
//! - a verdict: [`compare()`] compares two databases leaf by leaf, including the bytes of attachments;
//! - faults: [`FaultProxy`] runs in front of a peer. On request, it resets connections, or delays, breaks or falsifies
//!   responses. It keeps a log of the requests. A [`Gateway`] cuts requests that wait for too long. Where no real server can be made to
//!   misbehave, [`Fake`] can.
//!
//! The passwords, tokens and cookies of tests come from [`canary`], which searches for them where they must not occur.
//!
//! Traces go to a [`Collector`].
//!
//! The features that turnwise takes from CouchDB are compared with a real [`CouchDb`], if one is available.
//!
//! A test of several nodes needs a store that they share: [`EtcdCluster`] starts real etcd members and causes faults in
//! them. The connection through a [`Link`] in front of a member can be cut.
//!
//! ```no_run
//! # async fn example() {
//! use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};
//!
//! let (source, target) = Peer::pair().await;
//! let from = source.create("from").await;
//! let to = target.create("to").await;
//! Dataset::standard().load(&from).await;
//!
//! let proxy = FaultProxy::start(&source).await;
//! proxy.set(Fault::Status(500).when(|request| request.path.contains("_bulk_get")).times(3)).await;
//! // … replicate from proxy.through(&from) to `to` …
//! compare(&from, &to).await.expect("source and target must agree");
//! # }
//! ```
//!
//! Everything here panics, with the reason, when a peer misbehaves, because a test without its peer proves nothing.

mod binary;
pub mod canary;
mod collector;
mod compare;
mod couchdb;
mod database;
pub mod dataset;
mod disk;
mod etcd;
mod fake;
mod gateway;
mod link;
mod peer;
mod ports;
pub mod process;
mod proxy;
mod random;
mod until;

pub use binary::turnwise_binary;
pub use collector::{Collected, Collector, CountingCollector};
pub use compare::{Difference, Leaves, Revision, Summary, compare, compare_some, leaves, revisions};
pub use couchdb::CouchDb;
pub use database::{Database, client, encode_segment};
pub use dataset::Dataset;
pub use disk::Disk;
pub use etcd::{EtcdCluster, EtcdOptions};
pub use fake::{Asked, Fake, Reply, Step};
pub use gateway::{Cut, Gateway};
pub use link::Link;
pub use peer::{Peer, PeerOptions, peers_folder};
pub use ports::free_ports;
pub use proxy::{Fault, FaultProxy, Request, Rule};
pub use random::Random;
pub use until::{PATIENCE, until};
