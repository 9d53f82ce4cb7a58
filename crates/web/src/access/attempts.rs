//! Wrong passwords: each one makes the next attempt wait longer.
//!
//! Attempts are counted for each user and address, and for each address. So a stranger cannot lock out a user who logs in
//! from elsewhere, and cannot try many users quickly. A user whose password is known to be right never waits.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong passwords of one user from one address that have no consequence.
const FREE_FOR_USER: u32 = 5;
/// Wrong passwords of all users from one address that have no consequence: many people may share an address.
const FREE_FOR_ADDRESS: u32 = 100;
/// The first wait. Each further wrong password doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Wrong passwords are forgotten after this time without another one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The most users and addresses that are remembered.
const MAX_KNOWN: usize = 10_000;

/// The smallest network of one customer: an IPv4 address, or the first 64 bits of an IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The wrong passwords of the last minutes.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<Key, Failures>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    network: IpAddr,
    /// `None` counts all users.
    user: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Key {
    fn both(address: IpAddr, user: &str) -> [(Key, u32); 2] {
        let network = network(address);
        let user = Some(user.to_owned());
        [(Key { network, user }, FREE_FOR_USER), (Key { network, user: None }, FREE_FOR_ADDRESS)]
    }
}

impl Failures {
    fn wait(&self, free: u32) -> Duration {
        match self.count.checked_sub(free) {
            None | Some(0) => Duration::ZERO,
            Some(over) => FIRST_WAIT.saturating_mul(1 << (over - 1).min(16)).min(MAX_WAIT),
        }
    }
}

impl Attempts {
    /// How long the next attempt must wait; `None` if it need not wait.
    pub fn wait(&self, address: IpAddr, user: &str, now: Instant) -> Option<Duration> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = Key::both(address, user).into_iter().filter_map(|(key, free)| {
            let failures = known.get(&key)?;
            (failures.last + failures.wait(free)).checked_duration_since(now)
        });
        left.max().filter(|left| !left.is_zero())
    }

    /// Counts a wrong password.
    pub fn failed(&self, address: IpAddr, user: &str, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + 2 > MAX_KNOWN {
            known.retain(|_, failures| now.duration_since(failures.last) < FORGOTTEN_AFTER);
        }
        if known.len() + 2 > MAX_KNOWN {
            // Too many strangers at once: what is known of each of them is little, and is forgotten. Addresses stay.
            known.retain(|key, _| key.user.is_none());
        }
        if known.len() + 2 > MAX_KNOWN {
            known.clear();
        }
        for (key, _) in Key::both(address, user) {
            let failures = known.entry(key).or_insert(Failures { count: 0, last: now });
            if now.duration_since(failures.last) >= FORGOTTEN_AFTER {
                failures.count = 0;
            }
            *failures = Failures { count: failures.count.saturating_add(1), last: now };
        }
    }

    /// Forgets the wrong passwords of a user at this address, after the right one.
    pub fn succeeded(&self, address: IpAddr, user: &str) {
        let [(key, _), _] = Key::both(address, user);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn waits_grow_for_a_user_at_an_address() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let (here, elsewhere) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut waits = Vec::new();
        for _ in 0..FREE_FOR_USER + 8 {
            attempts.failed(here, "jan", now);
            waits.push(attempts.wait(here, "jan", now).map_or(0, |wait| wait.as_secs()));
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(attempts.wait(here, "jan", now + MAX_WAIT), None, "the wait ends");
        assert_eq!(attempts.wait(elsewhere, "jan", now), None);
        assert_eq!(attempts.wait(here, "anna", now), None);
        attempts.succeeded(here, "jan");
        assert_eq!(attempts.wait(here, "jan", now), None);
        attempts.failed(here, "jan", now + FORGOTTEN_AFTER);
        assert_eq!(attempts.wait(here, "jan", now + FORGOTTEN_AFTER), None);
    }

    #[test]
    fn one_address_cannot_try_many_users() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        // Two addresses of one network.
        let (one, other) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        for n in 0..=FREE_FOR_ADDRESS {
            attempts.failed(one, &n.to_string(), now);
        }
        assert!(attempts.wait(other, "another", now).is_some());
        assert_eq!(attempts.wait("2001:db8:0:1::1".parse().unwrap(), "another", now), None);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for n in 0..3 * u32::try_from(MAX_KNOWN).unwrap() {
            attempts.failed(IpAddr::from(n.to_be_bytes()), "jan", now);
        }
        assert!(attempts.0.lock().unwrap().len() <= MAX_KNOWN);
    }
}
