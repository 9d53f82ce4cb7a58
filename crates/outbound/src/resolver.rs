//! Resolves the names of servers.
//!
//! The system's resolver blocks a thread while the name servers are silent, and a process has few threads. Concurrent
//! requests for a name therefore share one lookup: a thousand jobs that start together mostly use the same few servers.
//! Lookups also leave most threads to other work. Results are not cached, because the system does that.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::egress::{HostRule, REFUSAL};

/// Concurrent lookups: a quarter of tokio's threads for blocking work.
const MAX_LOOKUPS: usize = 128;
/// With this many names in the table, those that no request waits for are removed.
const SWEEP: usize = 1_024;

type LookupResult = Result<Arc<[SocketAddr]>, Arc<io::Error>>;
type Lookup = BoxFuture<'static, LookupResult>;

/// The system's resolver, with shared lookups. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Resolver {
    room: Arc<Semaphore>,
    /// The waiting requests hold the lookup, so that it ends with the last of them.
    lookups: Arc<Mutex<HashMap<String, WeakShared<Lookup>>>>,
    /// Which of the addresses may be reached; `None` permits all.
    rule: Option<HostRule>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_LOOKUPS)), lookups: Arc::default(), rule: None }
    }
}

impl Resolver {
    /// The same, for the addresses that a rule permits.
    pub fn with_rule(&self, rule: HostRule) -> Self {
        Self { rule: Some(rule), ..self.clone() }
    }

    fn lookup(&self, name: Name) -> Shared<Lookup> {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = lookups.get(name.as_str()).and_then(WeakShared::upgrade);
        // The result of a finished lookup is not used again; a new request starts a new lookup.
        if let Some(lookup) = under_way.filter(|lookup| lookup.peek().is_none()) {
            return lookup;
        }
        if lookups.len() >= SWEEP {
            lookups.retain(|_, lookup| lookup.upgrade().is_some());
        }
        let room = Arc::clone(&self.room);
        let asked = name.clone();
        let lookup: Lookup = Box::pin(async move {
            let room = room.acquire_owned().await.expect("never closed");
            // The permit moves to the thread, which stays blocked even if no request waits any more.
            let looked_up = tokio::task::spawn_blocking(move || {
                let _room = room;
                (asked.as_str(), 0).to_socket_addrs().map(Iterator::collect)
            });
            looked_up.await.map_err(io::Error::other).flatten().map_err(Arc::new)
        });
        let lookup = lookup.shared();
        if let Some(weak) = lookup.downgrade() {
            lookups.insert(name.as_str().to_owned(), weak);
        }
        lookup
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (lookup, rule) = (self.lookup(name), self.rule.clone());
        Box::pin(async move {
            match lookup.await {
                Ok(addresses) => {
                    let permitted =
                        |address: &SocketAddr| rule.as_ref().is_none_or(|rule| rule.permits(address.ip()));
                    let found: Vec<SocketAddr> = addresses.iter().copied().filter(permitted).collect();
                    match found.is_empty() && !addresses.is_empty() {
                        true => Err(io::Error::new(io::ErrorKind::PermissionDenied, REFUSAL)),
                        false => Ok(found.into_iter()),
                    }
                }
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn concurrent_requests_for_a_name_share_one_lookup() {
        let mut resolver = Resolver::default();
        let asked: Vec<_> = (0..100).map(|_| resolver.call("localhost".parse().unwrap())).collect();
        assert_eq!(resolver.lookups.lock().unwrap().len(), 1);
        for found in futures::future::join_all(asked).await {
            assert!(found.unwrap().all(|address| address.ip().is_loopback()));
        }
        // No request holds that lookup any more, so this is another one.
        assert!(resolver.lookups.lock().unwrap()["localhost"].upgrade().is_none());
        assert!(resolver.call("localhost".parse().unwrap()).await.unwrap().next().is_some());
    }

    #[tokio::test]
    async fn an_unknown_name_is_an_error() {
        assert!(Resolver::default().call("no such name".parse().unwrap()).await.is_err());
    }
}
