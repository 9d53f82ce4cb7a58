//! The gateway in front of each server: it refuses requests that a replicator can do without, limits bodies to 1 MB, and compresses
//! answers. It does so all the time, and each side in its own manner. The faults ([`storm`](super::storm)) come on top of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use turnwise_testkit::{Fault, FaultProxy, Request};

/// The limit of nginx, unless another one is configured.
const BODY_MAX_BYTES: u64 = 1 << 20;
/// The largest attachment in a test with gateways, in bytes: a document with two of these and three small ones is below the limit, also in
/// base64. turnwise would have to skip a larger one, and the two sides would then rightly differ.
pub(super) const ATTACHMENT_MAX_BYTES: usize = 350_000;
/// What is refused depends on the database.
const KINDS: usize = 4;

/// A gateway in front of one server.
pub(super) struct Gateway {
    proxy: FaultProxy,
    refused: Arc<AtomicU64>,
    too_large: Arc<AtomicU64>,
}

impl Gateway {
    /// `side` is 0 or 1.
    pub async fn before(url: &str, side: usize) -> Gateway {
        let proxy = FaultProxy::before(url).await;
        let (refused, too_large) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counted = |count: &Arc<AtomicU64>, fits: fn(&Request) -> bool| {
            let count = Arc::clone(count);
            move |request: &Request| {
                let fits = fits(request);
                count.fetch_add(u64::from(fits), Ordering::Relaxed);
                fits
            }
        };
        // One gateway reads the body that it has refused, the other one closes the connection.
        let limit = Fault::BodyRefused { lingers: side == 0 };
        proxy.set(limit.when(counted(&too_large, is_too_large))).await;
        // Gateways do not agree on a status.
        let [bulk_get, changes, compressed, server] =
            if side == 0 { [403, 400, 500, 404] } else { [501, 451, 403, 403] };
        proxy.add(Fault::Page(bulk_get).when(counted(&refused, is_bulk_get)));
        proxy.add(Fault::Page(changes).when(counted(&refused, has_extras)));
        proxy.add(Fault::Page(compressed).when(counted(&refused, is_compressed)));
        proxy.add(Fault::Page(server).when(counted(&refused, is_for_the_server)));
        proxy.add(Fault::Gzip);
        Gateway { proxy, refused, too_large }
    }

    pub fn url(&self) -> &str {
        self.proxy.url()
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.proxy.clear();
    }

    /// What it has refused, as text.
    pub fn text(&self) -> String {
        let (refused, large) = (self.refused.load(Ordering::Relaxed), self.too_large.load(Ordering::Relaxed));
        format!("{refused} optional requests and {large} large bodies refused")
    }
}

fn is_too_large(request: &Request) -> bool {
    let length = request.header("content-length").and_then(|length| length.parse::<u64>().ok());
    length.is_some_and(|length| length > BODY_MAX_BYTES)
}

/// The kind of the database that is asked for, from the number at the end of its name.
fn kind(request: &Request) -> Option<usize> {
    let path = request.path.split(['?', '#']).next()?;
    let database = path.strip_prefix('/')?.split('/').next()?;
    Some(database.rsplit_once('-')?.1.parse::<usize>().ok()? % KINDS)
}

fn is_bulk_get(request: &Request) -> bool {
    matches!(kind(request), Some(1 | 3)) && request.path.contains("/_bulk_get")
}

fn has_extras(request: &Request) -> bool {
    let extras = ["include_docs", "seq_interval"];
    matches!(kind(request), Some(2 | 3))
        && request.path.contains("/_changes")
        && extras.iter().any(|extra| request.path.contains(extra))
}

fn is_compressed(request: &Request) -> bool {
    matches!(kind(request), Some(3)) && request.header("content-encoding").is_some()
}

fn is_for_the_server(request: &Request) -> bool {
    ["/_db_updates", "/_dbs_info"].iter().any(|path| request.path.starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_depends_on_the_database() {
        let to = |path: &str| Request { path: path.to_owned(), ..Request::default() };
        assert!(is_bulk_get(&to("/soak-17-5/_bulk_get?revs=true")));
        assert!(!is_bulk_get(&to("/soak-17-4/_bulk_get?revs=true")));
        assert!(has_extras(&to("/soak-17-2/_changes?include_docs=true")));
        assert!(!has_extras(&to("/soak-17-2/_changes?feed=normal")));
        assert!(is_for_the_server(&to("/_db_updates?feed=continuous")));
        assert_eq!(kind(&to("/_session")), None);
    }
}
