//! A node's name and URL.

use std::net::SocketAddr;

/// Longest URL of a node, in bytes.
const MAX_URL_BYTES: usize = 500;
/// Longest name of a node, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// Checks a node's name: 1 to 100 letters, digits and `@ . - _ : [ ]`. It may not begin with `_`, because CouchDB's API
/// uses such names itself (`/_node/_local`).
///
/// # Errors
/// The problem, as the rest of a sentence that begins with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.starts_with('_');
    match fits && name.chars().all(may_stand_in_a_name) {
        true => Ok(()),
        false => Err(format!(
            "must have 1 to {MAX_NAME_BYTES} letters, digits and any of @ . - _ : [ ], and must not begin with _"
        )),
    }
}

fn may_stand_in_a_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || "@.-_:[]".contains(char)
}

/// The default name for a listener: its address. A node that listens on all addresses uses the machine's name instead,
/// so that such nodes have different names.
pub(crate) fn default_name(listen: SocketAddr) -> String {
    format!("turnwise@{}", authority(listen))
}

/// The default URL of a node.
pub(crate) fn default_url(scheme: &str, listen: SocketAddr) -> String {
    format!("{scheme}://{}", authority(listen))
}

fn authority(listen: SocketAddr) -> String {
    match listen.ip().is_unspecified() {
        false => listen.to_string(),
        true => format!("{}:{}", host_name(), listen.port()),
    }
}

/// Checks a URL that a node advertises.
///
/// # Errors
/// A description of valid URLs.
pub fn check_advertised(url: &str) -> Result<(), String> {
    let parsed = url::Url::parse(url).ok().filter(|parsed| {
        matches!(parsed.scheme(), "http" | "https")
            && parsed.has_host()
            && parsed.username().is_empty()
            && parsed.password().is_none()
            && parsed.query().is_none()
            && parsed.fragment().is_none()
    });
    match parsed {
        Some(_) if url.len() <= MAX_URL_BYTES => Ok(()),
        _ => Err(format!(
            "expected an http or https URL of at most {MAX_URL_BYTES} bytes without a user, for example http://10.0.1.1:7984"
        )),
    }
}

/// Identifies a listener that only one process can have at a time: this boot of the machine, the network namespace of
/// the process, and the address. `None` if the system does not provide these.
pub(crate) fn place(listen: SocketAddr) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {} {listen}", boot.trim(), network.display()))
}

/// The machine's name, without characters that a node's name may not contain.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name: String = name.chars().filter(|char| may_stand_in_a_name(*char)).take(64).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_one_word() {
        for name in
            ["a", "turnwise@127.0.0.1:7984", "turnwise@[::1]:7984", "node_1.example-1", &"n".repeat(100)]
        {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "a/b", "a b", "_local", "é", "a\n", "a%2f", &"n".repeat(101)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn default_names_are_valid_and_contain_the_port() {
        for listen in ["127.0.0.1:7984", "[::1]:1", "0.0.0.0:7984", "[::]:7984"] {
            let name = default_name(listen.parse().unwrap());
            assert_eq!(check_name(&name), Ok(()), "{name}");
            assert!(!name.contains("0.0.0.0") && !name.contains("[::]"), "{name}");
        }
        assert_eq!(default_name("127.0.0.1:7984".parse().unwrap()), "turnwise@127.0.0.1:7984");
    }

    #[test]
    fn nodes_are_reached_under_urls_of_a_host_and_a_port() {
        for listen in ["127.0.0.1:7984", "[::1]:1", "0.0.0.0:7984", "[::]:7984"] {
            for scheme in ["http", "https"] {
                let url = default_url(scheme, listen.parse().unwrap());
                assert_eq!(check_advertised(&url), Ok(()), "{url}");
            }
        }
        assert_eq!(check_advertised("https://jobs.example/turnwise"), Ok(()));
        for url in ["", "a:1", "ftp://a", "http://u:p@a", "http://a/?q", "http://a/#f", "http://"] {
            assert!(check_advertised(url).is_err(), "{url}");
        }
    }
}
