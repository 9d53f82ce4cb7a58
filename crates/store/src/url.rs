//! The location of a store, as one line of text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The prefix of turnwise's keys in a shared store, if the URL names none.
pub const DEFAULT_PREFIX: &str = "turnwise";
const DEFAULT_ETCD_PORT: u16 = 2379;
/// Most members of an etcd cluster that a URL may name.
const MAX_ENDPOINTS: usize = 32;
/// Longest prefix, in bytes: it is part of every key.
const MAX_PREFIX_BYTES: usize = 200;

/// The location of a store.
///
/// ```text
/// embedded:DIR                                              one process, files in DIR
/// etcd://[user:password@]host[:port][,host[:port]…][/prefix][?option=value&…]
/// etcds://…                                                 the same over TLS
/// fdb:CLUSTER_FILE[/prefix]                                 FoundationDB
/// ```
///
/// User, password, prefix and the options' values may contain any character as `%XX`. In an `fdb:` URL the cluster file is the
/// longest leading path that is a file. `Display` and `Debug` never show a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// The embedded engine.
    Embedded {
        /// The data directory; the store is a folder in it.
        data_dir: PathBuf,
    },
    /// An etcd cluster.
    Etcd(EtcdUrl),
    /// A FoundationDB cluster.
    Foundationdb {
        /// The cluster file.
        cluster_file: PathBuf,
        /// The prefix of turnwise's keys in the cluster; never empty.
        prefix: String,
    },
}

/// The location of an etcd cluster, and how to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUrl {
    /// `host:port` of its members, at least one.
    pub endpoints: Vec<String>,
    /// The prefix of turnwise's keys in the cluster; never empty.
    pub prefix: String,
    /// User name and password.
    pub user: Option<(String, String)>,
    /// Whether connections are encrypted (`etcds:`).
    pub tls: bool,
    /// `ca=FILE`: certificates to trust instead of the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// `cert=FILE`: the client's certificate, in PEM.
    pub cert: Option<PathBuf>,
    /// `key=FILE`: the client's private key, in PEM.
    pub key: Option<PathBuf>,
    /// `max_txn_ops=N`: the members' `--max-txn-ops`; 128 is etcd's default.
    pub max_txn_ops: usize,
    /// `max_request_bytes=N`: the members' `--max-request-bytes`; 1.5 MiB is etcd's default.
    pub max_request_bytes: usize,
    /// With `compact=off`, this store does not compact the cluster's history, so another process must. The default is on.
    pub compact: bool,
}

/// An error for text that is no store URL, with the reason. It repeats nothing of the text, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

fn invalid(reason: impl Into<String>) -> InvalidUrl {
    InvalidUrl(reason.into())
}

impl StoreUrl {
    /// The embedded store of a data directory.
    pub fn embedded(data_dir: impl Into<PathBuf>) -> Self {
        StoreUrl::Embedded { data_dir: data_dir.into() }
    }

    /// The name of its engine.
    pub fn engine(&self) -> &'static str {
        match self {
            StoreUrl::Embedded { .. } => "embedded",
            StoreUrl::Etcd(_) => "etcd",
            StoreUrl::Foundationdb { .. } => "foundationdb",
        }
    }

    /// Whether other processes may use the store at the same time.
    pub fn is_shared(&self) -> bool {
        !matches!(self, StoreUrl::Embedded { .. })
    }
}

impl FromStr for StoreUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| invalid("expected embedded:DIR, etcd://host:port,…/prefix or fdb:CLUSTER_FILE"))?;
        match scheme {
            "embedded" if rest.is_empty() => Err(invalid("embedded: is followed by a directory")),
            "embedded" => Ok(StoreUrl::embedded(rest)),
            "etcd" | "etcds" => {
                let rest = rest
                    .strip_prefix("//")
                    .ok_or_else(|| invalid("etcd: is followed by //host:port,…/prefix"))?;
                EtcdUrl::parse(rest, scheme == "etcds").map(StoreUrl::Etcd)
            }
            "fdb" if rest.is_empty() => Err(invalid("fdb: is followed by the path of a cluster file")),
            "fdb" => {
                let (cluster_file, prefix) = cluster_file(Path::new(rest));
                Ok(StoreUrl::Foundationdb { cluster_file, prefix: checked_prefix(&prefix)? })
            }
            _ => Err(invalid("the scheme of a store is one of embedded:, etcd:, etcds:, fdb:")),
        }
    }
}

/// Splits the path of a cluster file from the prefix after it.
fn cluster_file(path: &Path) -> (PathBuf, String) {
    let file = path.ancestors().find(|ancestor| ancestor.is_file()).unwrap_or(path);
    let prefix = path.strip_prefix(file).expect("an ancestor of the path").to_string_lossy();
    (file.to_owned(), prefix.into_owned())
}

fn checked_prefix(prefix: &str) -> Result<String, InvalidUrl> {
    let prefix = decode(prefix.trim_end_matches('/'), "prefix")?;
    match prefix.len() {
        0 => Ok(DEFAULT_PREFIX.to_owned()),
        length if length > MAX_PREFIX_BYTES => {
            Err(invalid(format!("the prefix of a store has at most {MAX_PREFIX_BYTES} bytes")))
        }
        _ => Ok(prefix),
    }
}

fn decode(text: &str, what: &str) -> Result<String, InvalidUrl> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| invalid(format!("the {what} is not UTF-8")))?.into_owned())
}

impl EtcdUrl {
    /// Parses the part after `etcd://`.
    fn parse(text: &str, tls: bool) -> Result<Self, InvalidUrl> {
        let (text, options) = text.split_once('?').unwrap_or((text, ""));
        let (authority, prefix) = text.split_once('/').unwrap_or((text, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(credentials(user)?), hosts),
            None => (None, authority),
        };
        let endpoints = hosts.split(',').map(endpoint).collect::<Result<Vec<_>, _>>()?;
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(invalid(format!("an etcd URL names at most {MAX_ENDPOINTS} members")));
        }
        let mut url = EtcdUrl {
            endpoints,
            prefix: checked_prefix(prefix)?,
            user,
            tls,
            ca: None,
            cert: None,
            key: None,
            max_txn_ops: 128,
            max_request_bytes: 3 << 19,
            compact: true,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) =
                option.split_once('=').ok_or_else(|| invalid("options of a store are name=value"))?;
            url.set(name, decode(value, "option's value")?)?;
        }
        if (url.ca.is_some() || url.cert.is_some() || url.key.is_some()) && !tls {
            return Err(invalid("ca, cert and key need etcds:// instead of etcd://"));
        }
        if url.cert.is_some() != url.key.is_some() {
            return Err(invalid("cert and key come together"));
        }
        Ok(url)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), InvalidUrl> {
        let number = |smallest: usize, largest: usize| match value.parse() {
            Ok(number) if (smallest..=largest).contains(&number) => Ok(number),
            _ => Err(invalid(format!("{name} is a number from {smallest} to {largest}"))),
        };
        match name {
            "ca" => self.ca = Some(value.into()),
            "cert" => self.cert = Some(value.into()),
            "key" => self.key = Some(value.into()),
            "max_txn_ops" => self.max_txn_ops = number(64, 100_000)?,
            "max_request_bytes" => self.max_request_bytes = number(512 << 10, 64 << 20)?,
            "compact" => {
                self.compact = match value.as_str() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(invalid("compact is on or off")),
                };
            }
            _ => {
                return Err(invalid(
                    "the options of an etcd URL are ca, cert, key, max_txn_ops, max_request_bytes, compact",
                ));
            }
        }
        Ok(())
    }
}

fn credentials(text: &str) -> Result<(String, String), InvalidUrl> {
    let (user, password) =
        text.split_once(':').ok_or_else(|| invalid("a user is given as user:password@"))?;
    Ok((decode(user, "user")?, decode(password, "password")?))
}

/// `host:port`, with the default port if `text` has none.
fn endpoint(text: &str) -> Result<String, InvalidUrl> {
    let unclear = || invalid("a member of an etcd cluster is host:port, for example 127.0.0.1:2379");
    // In an IPv6 address, the port's colon comes after the last bracket.
    let port_at = text
        .rfind(']')
        .map_or_else(|| text.find(':'), |bracket| text[bracket..].find(':').map(|at| at + bracket));
    let (host, port) = match port_at {
        Some(at) => (&text[..at], text[at + 1..].parse().map_err(|_| unclear())?),
        None => (text, DEFAULT_ETCD_PORT),
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._[:]".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Err(unclear());
    }
    Ok(format!("{host}:{port}"))
}

/// All characters that are not plain in every part of a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Embedded { data_dir } => write!(f, "embedded:{}", data_dir.display()),
            StoreUrl::Etcd(url) => write!(f, "{url}"),
            StoreUrl::Foundationdb { cluster_file, prefix } => {
                write!(f, "fdb:{}/{}", cluster_file.display(), utf8_percent_encode(prefix, ESCAPED))
            }
        }
    }
}

/// Members and prefix, without user, password and options.
impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        let prefix = utf8_percent_encode(&self.prefix, ESCAPED);
        write!(f, "{scheme}://{}/{prefix}", self.endpoints.join(","))
    }
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    //! Which texts are URLs, and that no output contains a password.

    use super::*;

    fn etcd(text: &str) -> EtcdUrl {
        match text.parse() {
            Ok(StoreUrl::Etcd(url)) => url,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn etcd_urls() {
        let url = etcd("etcd://a:1,b,[::1]:3/one%20two/");
        assert_eq!(url.endpoints, ["a:1", "b:2379", "[::1]:3"]);
        assert_eq!((url.prefix.as_str(), url.max_txn_ops, url.tls), ("one two", 128, false));
        assert_eq!(url.to_string(), "etcd://a:1,b:2379,[::1]:3/one%20two");
        assert_eq!(etcd("etcd://[fe80::1]").endpoints, ["[fe80::1]:2379"]);
        assert_eq!(etcd("etcd://a").prefix, DEFAULT_PREFIX);

        let url = etcd("etcds://us%40er:s%3Acret@a:1/p?ca=%2Fetc%2Fca.pem&max_txn_ops=1024&compact=off");
        assert!(!url.compact);
        assert_eq!(url.user, Some(("us@er".to_owned(), "s:cret".to_owned())));
        assert_eq!((url.ca, url.max_txn_ops, url.tls), (Some("/etc/ca.pem".into()), 1024, true));
    }

    #[test]
    fn no_output_contains_a_password() {
        let url: StoreUrl = "etcd://user:hunter2@a:1/p".parse().expect("a URL");
        for text in [format!("{url}"), format!("{url:?}")] {
            assert!(!text.contains("hunter2") && !text.contains("user"), "{text}");
        }
        let error = "etcd://user:hunter2@a:notaport/p".parse::<StoreUrl>().expect_err("not a port");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_prefix_follows_the_cluster_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("fdb.cluster");
        std::fs::write(&file, "a:b@127.0.0.1:4500").expect("a file");
        let parsed = |text: String| match text.parse() {
            Ok(StoreUrl::Foundationdb { cluster_file, prefix }) => (cluster_file, prefix),
            other => panic!("{text}: {other:?}"),
        };
        let name = file.display();
        assert_eq!(parsed(format!("fdb:{name}")), (file.clone(), DEFAULT_PREFIX.to_owned()));
        assert_eq!(parsed(format!("fdb:{name}/a/b")), (file.clone(), "a/b".to_owned()));
        assert_eq!(parsed("fdb:/no/such/file".to_owned()).0, Path::new("/no/such/file"));
    }

    #[test]
    fn other_lines_are_refused() {
        for text in [
            "",
            "store",
            "embedded:",
            "etcd:host",
            "etcd://",
            "etcd://a:1,,b:2",
            "etcd://a:99999",
            "etcd://us er@a",
            "etcd://user@a",
            "etcd://a/p?colour=red",
            "etcd://a/p?max_txn_ops=1",
            "etcd://a/p?compact=maybe",
            "etcd://a?ca=x",
            "etcds://a?cert=x",
            "fdb:",
            "redis://a",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text}");
        }
    }
}
