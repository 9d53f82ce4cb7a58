//! Which addresses jobs may reach.
//!
//! A tenant that writes a replication chooses where this server connects to. On a server with identities, tenants may
//! therefore not reach what is internal: this machine, its network, and what both call private. `[egress] allow` makes
//! exceptions, `[egress] internal_tenants` names the tenants whose replications are the operator's own, and `[egress] deny`
//! applies to all.
//!
//! An address is judged where a connection is opened: after the name was resolved, `connect_to` was applied and a proxy was
//! chosen, and again for every connection. So another answer of a name server changes nothing. With a proxy, the peer is
//! judged as well, as far as this server can resolve its name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;
use turnwise_identity::Patterns;

use crate::connect_to::{fields, is_host, matches_host, rules};

/// The tenants that may reach internal addresses unless the configuration names others: the main database, requests without
/// a user, and the main database of a CouchDB beside turnwise.
const INTERNAL_TENANTS: &str = "_replicator,_replicate,upstream/_replicator";

/// `[egress]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// `allow`: what the replications of all tenants may reach, although it is internal.
    pub allow: Rules,
    /// `deny`: what no replication may reach.
    pub deny: Rules,
    /// `internal_tenants`: the tenants whose replications may reach internal addresses.
    pub internal_tenants: Patterns,
}

impl Default for Egress {
    fn default() -> Self {
        let internal_tenants = Patterns::parse(INTERNAL_TENANTS).expect("the names are valid");
        Egress { allow: Rules::default(), deny: Rules::default(), internal_tenants }
    }
}

/// Addresses, networks and host names, each with a port or for all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    what: What,
    /// `None`: all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Net(IpNet),
    /// A host, or `*.` and the end of one.
    Host(String),
}

impl Rules {
    /// The text in a configuration file.
    pub fn text(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.to_string())
    }

    fn contain(&self, host: &str, address: SocketAddr) -> bool {
        // The final dot of an absolute name changes nothing.
        let host = host.strip_suffix('.').unwrap_or(host);
        let plain = address.ip().to_canonical();
        // Who denies a network of IPv4 means it in every form.
        let carried = match plain {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => carried(address).map(IpAddr::V4),
        };
        self.0.iter().any(|Rule { what, port }| {
            let matches = match what {
                What::Net(net) => {
                    net.contains(&plain) || carried.is_some_and(|carried| net.contains(&carried))
                }
                What::Host(pattern) => matches_host(pattern, host),
            };
            matches && port.is_none_or(|port| port == address.port())
        })
    }
}

impl FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        rules(text).map(Self)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let right = || {
            "networks, addresses and host names, separated by commas, each with a port or without one: \
             10.0.0.0/8, 10.0.0.7:5984, [fd00::]/8, [fd00::7]:5984, *.example.com, db.example.com:443"
                .to_owned()
        };
        let (what, port) = match fields(text)[..] {
            [what] => (what, None),
            [what, port] => (what, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(right)?)),
            _ => return Err(right()),
        };
        let plain = what.replace(['[', ']'], "");
        let what = match (plain.parse::<IpNet>(), plain.parse::<IpAddr>()) {
            (Ok(net), _) => What::Net(net.trunc()),
            (_, Ok(address)) => What::Net(address.to_canonical().into()),
            _ if is_host(what.strip_prefix("*.").unwrap_or(what)) => What::Host(what.to_ascii_lowercase()),
            _ => return Err(right()),
        };
        Ok(Rule { what, port })
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Rule { what, port }) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match what {
                What::Net(net) if net.addr().is_ipv6() => {
                    write!(f, "{comma}[{}]/{}", net.addr(), net.prefix_len())?
                }
                What::Net(net) => write!(f, "{comma}{net}")?,
                What::Host(host) => write!(f, "{comma}{host}")?,
            }
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
        }
        Ok(())
    }
}

/// The rules in force, for all connections of a process.
#[derive(Default)]
pub(crate) struct Policy {
    rules: RwLock<Arc<Egress>>,
    /// Whether tenants are kept from internal addresses.
    guards: AtomicBool,
}

impl Policy {
    pub fn set(&self, rules: Egress) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// Whether tenants are kept from internal addresses from now on. Returns whether that has changed.
    pub fn guard(&self, guards: bool) -> bool {
        self.guards.swap(guards, Relaxed) != guards
    }

    pub fn rules(&self) -> Arc<Egress> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a connection to `host` may go to this address. An `external` connection is one of a tenant that may not reach
    /// what is internal.
    pub fn permits(&self, external: bool, host: &str, address: SocketAddr) -> bool {
        let rules = self.rules();
        if rules.deny.contain(host, address) {
            return false;
        }
        let is_guarded = external && self.guards.load(Relaxed) && is_internal(address.ip());
        !is_guarded || rules.allow.contain(host, address)
    }

    /// The same for a connection that has turned out to end on this machine.
    pub fn permits_own(&self, external: bool, host: &str, address: SocketAddr) -> bool {
        !(external && self.guards.load(Relaxed)) || self.rules().allow.contain(host, address)
    }
}

/// Which addresses of one host a tenant may connect to.
#[derive(Clone)]
pub(crate) struct HostRule {
    pub policy: Arc<Policy>,
    pub external: bool,
    pub host: Arc<str>,
    pub port: u16,
}

impl HostRule {
    pub fn permits(&self, address: IpAddr) -> bool {
        self.policy.permits(self.external, &self.host, (address, self.port).into())
    }
}

/// The error of an address that is not permitted. It states neither the address nor the host that `connect_to` has chosen: a
/// tenant may not know them.
pub(crate) const REFUSAL: &str =
    "this tenant may not connect to this host: [egress] in the server's configuration";

/// Whether an address belongs to this machine or to a network of its own, or to nobody.
fn is_internal(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    }
}

fn is_internal_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || matches!((a, b), (0, _) | (100, 64..=127) | (198, 18..=19) | (240..=255, _))
        || (a, b, c) == (192, 0, 0)
}

fn is_internal_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    if carried(address).is_some_and(is_internal_v4) {
        return true;
    }
    match segments {
        // Loopback and unspecified.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => true,
        // Translators of a network's own: where they embed the address of IPv4 is theirs to choose.
        [0x64, 0xff9b, 1, ..] => true,
        // Teredo also names its server.
        [0x2001, 0, high, low, ..] => is_internal_v4(v4(high, low)),
        // Unique local, link local, site local, multicast.
        [first, ..] => matches!(first, 0xfc00..=0xfdff | 0xfe80..=0xfeff | 0xff00..=0xffff),
    }
}

/// The address of IPv4 that an address of IPv6 leads to: the packets of these forms may leave a machine or a gateway as IPv4.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Compatible, translated by SIIT (RFC 2765), and translated by NAT64.
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        // 6to4.
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo: that of the client, inverted.
        [0x2001, 0, .., high, low] => Some(v4(!high, !low)),
        // ISATAP, in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(v4(high, low)),
        _ => None,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn internal_addresses_are_known_in_all_their_forms() {
        for internal in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:c0a8:1::1",
            "::ffff:0:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "2001:0:101:101::f5ff:fffe",
            "2001:0:a00:1::fefe:fefe",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:127.0.0.1",
            "fd00::1",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(is_internal(internal.parse().unwrap()), "{internal}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "192.0.2.1",
            "203.0.113.9",
            "2001:db8::1",
            "2606:4700::1",
            "64:ff9b::101:101",
            "2002:101:101::1",
            "::ffff:1.1.1.1",
            "::ffff:0:1.1.1.1",
            "2001:0:101:101::fefe:fefe",
            "2606:4700::5efe:1.1.1.1",
        ] {
            assert!(!is_internal(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for (text, shown) in [
            ("10.0.0.0/8, 10.0.0.7:5984", "10.0.0.0/8,10.0.0.7/32:5984"),
            ("[fd00::]/8,[fd00::7]:5984", "[fd00::]/8,[fd00::7]/128:5984"),
            ("*.Example.com:443,db", "*.example.com:443,db"),
            ("10.1.2.3/8", "10.0.0.0/8"),
        ] {
            let rules: Rules = text.parse().unwrap();
            assert_eq!(rules.to_string(), shown);
            assert_eq!(rules.to_string().parse::<Rules>().unwrap(), rules);
        }
        assert_eq!("".parse::<Rules>().unwrap(), Rules::default());
        for wrong in ["10.0.0.0/33", "a b", "10.0.0.1:0", "10.0.0.1:x", "a:1:2", "*", "http://a", "a,,b"] {
            assert!(wrong.parse::<Rules>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn tenants_are_kept_from_what_is_internal_where_there_are_identities() {
        let policy = Policy::default();
        let permits =
            |external, host: &str, address: &str| policy.permits(external, host, address.parse().unwrap());
        assert!(permits(true, "localhost", "127.0.0.1:5984"), "without identities");
        assert!(policy.guard(true) && !policy.guard(true));
        assert!(!permits(true, "localhost", "127.0.0.1:5984"));
        assert!(permits(false, "localhost", "127.0.0.1:5984"));
        assert!(permits(true, "db.example", "203.0.113.9:443"));
        policy.set(Egress {
            allow: "10.0.0.0/8:5984,*.internal".parse().unwrap(),
            deny: "10.9.0.0/16,evil.example,203.0.113.0/24:25".parse().unwrap(),
            ..Egress::default()
        });
        for (external, host, address, permitted) in [
            (true, "db", "10.0.0.7:5984", true),
            (true, "db", "10.0.0.7:22", false),
            (true, "db", "[::ffff:10.0.0.7]:5984", true),
            (true, "a.INTERNAL", "192.168.0.1:1", true),
            (true, "internal", "192.168.0.1:1", false),
            // What is denied is denied to all.
            (false, "db", "10.9.0.7:5984", false),
            (false, "db", "[::ffff:0:10.9.0.7]:5984", false),
            (false, "db", "[64:ff9b::10.9.0.7]:5984", false),
            (false, "db", "[2002:a09:7::1]:5984", false),
            (false, "Evil.Example", "198.51.100.1:80", false),
            (false, "evil.example.", "198.51.100.1:80", false),
            (false, "a.example", "203.0.113.9:25", false),
            (false, "a.example", "203.0.113.9:443", true),
        ] {
            assert_eq!(permits(external, host, address), permitted, "{host} {address}");
        }
        let own = "203.0.113.9:7984".parse().unwrap();
        assert!(!policy.permits_own(true, "me.example", own) && policy.permits_own(false, "me.example", own));
    }
}
