//! How many deliveries are under way to each host.
//!
//! A webhook delivers one batch after the other, so a tenant has no more deliveries under way than webhooks. Many tenants may have webhooks at
//! one host. It gets a bounded number of requests at the same time, and one tenant a part of them: what is slow for one tenant there is not slow
//! for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most deliveries to one host at the same time.
const OF_HOST: usize = 128;
/// The most of them of one tenant.
const OF_TENANT: usize = 16;

/// The hosts with deliveries under way, and the tenants at each.
#[derive(Default)]
pub(super) struct Hosts(Mutex<HashMap<Of, Weak<Semaphore>>>);

/// A host, or a tenant at it.
type Of = (String, Option<String>);

/// A delivery's place, until it is dropped. It keeps the semaphores in the table.
pub(super) struct Place {
    host: String,
    tenant: String,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Place {
    /// Whether it is for a delivery to this URL, of this tenant.
    pub fn is_for(&self, url: &str, tenant: &str) -> bool {
        (self.host.as_str(), self.tenant.as_str()) == (host(url).as_str(), tenant)
    }
}

impl Hosts {
    /// Waits until a delivery may begin: first for a place of the tenant, so that those that wait here take none from others.
    pub async fn place(&self, url: &str, tenant: &str) -> Place {
        let host = host(url);
        let of_tenant = taken(self.of(&host, Some(tenant), OF_TENANT)).await;
        let of_host = taken(self.of(&host, None, OF_HOST)).await;
        Place { host, tenant: tenant.to_owned(), _permits: [of_tenant, of_host] }
    }

    fn of(&self, host: &str, tenant: Option<&str>, most: usize) -> Arc<Semaphore> {
        let key = (host.to_owned(), tenant.map(str::to_owned));
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = hosts.get(&key).and_then(Weak::upgrade) {
            return places;
        }
        hosts.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(most));
        hosts.insert(key, Arc::downgrade(&places));
        places
    }
}

async fn taken(of: Arc<Semaphore>) -> OwnedSemaphorePermit {
    of.acquire_owned().await.expect("the semaphore is never closed")
}

/// The scheme, the host and the port of a URL, in one spelling.
fn host(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_a_part_of_a_host_and_a_host_a_bound() {
        let hosts = Hosts::default();
        let mut held = Vec::new();
        for tenant in 0..OF_HOST / OF_TENANT {
            for _ in 0..OF_TENANT {
                held.push(hosts.place("https://a.example/x", &tenant.to_string()).await);
            }
            assert!(hosts.place("https://A.example:443/y", &tenant.to_string()).now_or_never().is_none());
        }
        // A task that took 128 things in one poll is told to wait by Tokio, whatever is free.
        tokio::task::yield_now().await;
        // The host has all that it may have; another port is another host.
        assert!(hosts.place("https://a.example/", "other").now_or_never().is_none());
        assert!(hosts.place("https://a.example:8443/", "0").now_or_never().is_some());
        held.pop();
        assert!(hosts.place("https://a.example/", "other").now_or_never().is_some());
        drop(held);
        assert!(hosts.place("https://b.example/", "0").now_or_never().is_some());
        assert!(hosts.0.lock().unwrap().len() <= 2, "what nobody uses is forgotten");
    }
}
