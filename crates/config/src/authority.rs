//! A host and a port, as clients name a server.

use std::net::IpAddr;

/// A host and a port, as in `Host` and in URLs: `localhost`, `127.0.0.1:7984`, `[::1]:7984`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// In lower case, without a final dot, and without the brackets of an IPv6 address.
    pub name: String,
    /// `None` means the default port of the scheme, which the text does not state.
    pub port: Option<u16>,
}

impl Authority {
    /// Parses the text; `None` if it is no host.
    pub fn parse(text: &str) -> Option<Authority> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                let address: std::net::Ipv6Addr = address.parse().ok()?;
                (IpAddr::from(address).to_canonical().to_string(), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let name = name.strip_suffix('.').unwrap_or(name);
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                if name.is_empty() || !name.bytes().all(fits) {
                    return None;
                }
                (name.to_ascii_lowercase(), port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            // "host:" means the default port, too.
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            _ => return None,
        };
        Some(Authority { name, port })
    }

    /// The name, if it is an address.
    pub fn address(&self) -> Option<IpAddr> {
        self.name.parse().ok()
    }
}
