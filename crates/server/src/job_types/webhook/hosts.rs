//! How many deliveries are under way to each host.
//!
//! A webhook delivers one batch after the other, so a tenant has no more deliveries under way than webhooks. Many tenants may have webhooks at
//! one host. It gets a bounded number of requests at the same time, and one tenant a part of them. The first request of each tenant is beyond
//! that number: what is slow for some tenants there is not slow for the others, however many these are.

use tokio::sync::OwnedSemaphorePermit;
use turnwise_web::pool::{Semaphores, take};

/// The most deliveries to one host at the same time, beyond the first one of each tenant.
const OF_HOST: u32 = 128;
/// The most deliveries of one tenant to one host.
const OF_TENANT: u32 = 16;

/// The hosts with deliveries under way, and the tenants at each.
#[derive(Default)]
pub(super) struct Hosts(Semaphores<(String, Part)>);

/// Places at a host.
#[derive(PartialEq, Eq, Hash)]
enum Part {
    /// Those that its tenants share.
    Shared,
    /// All of a tenant.
    Tenant(String),
    /// The one that a tenant shares with no other.
    Own(String),
}

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
        let of_tenant = take(self.0.of((host.clone(), Part::Tenant(tenant.to_owned())), OF_TENANT), 1).await;
        let own = self.0.of((host.clone(), Part::Own(tenant.to_owned())), 1);
        let shared = self.0.of((host.clone(), Part::Shared), OF_HOST);
        let of_host = tokio::select! {
            biased;
            place = take(own, 1) => place,
            place = take(shared, 1) => place,
        };
        Place { host, tenant: tenant.to_owned(), _permits: [of_tenant, of_host] }
    }
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
        let place = |url: &'static str, tenant: u32| {
            let (hosts, tenant) = (&hosts, tenant.to_string());
            // Tokio makes a task wait after many things that were free at once.
            tokio::task::unconstrained(async move { hosts.place(url, &tenant).await }).now_or_never()
        };
        let mut held = Vec::new();
        let tenants = OF_HOST / (OF_TENANT - 1);
        for tenant in 0..tenants {
            held.extend(
                (0..OF_TENANT).map(|_| place("https://a.example/x", tenant).expect("there is a place")),
            );
            assert!(place("https://A.example:443/y", tenant).is_none());
        }
        let rest = OF_HOST % (OF_TENANT - 1);
        held.extend((0..=rest).map(|_| place("https://a.example/x", tenants).expect("there is a place")));
        // The host has all that tenants share, and each further tenant gets one more. Another port is another host.
        assert!(place("https://a.example/", tenants).is_none());
        for tenant in 100..200 {
            held.push(place("https://a.example/", tenant).expect("there is a place"));
            assert!(place("https://a.example/", tenant).is_none());
        }
        assert!(place("https://a.example:8443/", 0).is_some());
        held.remove(1);
        assert!(place("https://a.example/", tenants).is_some());
        drop(held);
        assert!(place("https://b.example/", 0).is_some());
        assert!(hosts.0.known() <= 3, "what nobody uses is forgotten");
    }
}
