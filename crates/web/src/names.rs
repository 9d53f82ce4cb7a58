//! The names under which clients reach a server, and the origins that are its own. [`super::cross_site`] has the model.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use turnwise_config::Authority;
use turnwise_protocol::codes;
use url::Url;

use super::cors::Sites;
use super::v1_error::V1Error;

/// Where a browser says from what kind of page a request comes.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The names under which clients reach this server.
#[derive(Debug)]
pub struct Names {
    /// The names of the configuration, and the host of the advertised URL.
    listed: Vec<String>,
    /// Every name is allowed, because a proxy checks them.
    any: bool,
    /// Only this machine can connect.
    loopback: bool,
    /// The URL for other machines, as `http://host:port`, without a default port.
    advertised: Option<String>,
}

impl Names {
    /// The names of a server that listens at `listen`, is advertised under the URL `advertised`, and has the names `further`.
    pub fn new(listen: SocketAddr, advertised: &str, further: &[String]) -> Names {
        let url = Url::parse(advertised).ok();
        let host = url.as_ref().and_then(Url::host_str).and_then(Authority::parse);
        Names {
            listed: further.iter().cloned().chain(host.map(|host| host.name)).collect(),
            any: further.iter().any(|name| name == "*"),
            loopback: listen.ip().to_canonical().is_loopback(),
            advertised: url.map(|url| url.origin().ascii_serialization()),
        }
    }

    /// Whether this server is advertised under a URL with https: a proxy before it may speak TLS.
    pub fn is_https(&self) -> bool {
        self.advertised.as_ref().is_some_and(|url| url.starts_with("https:"))
    }

    /// Whether a request may name this host.
    ///
    /// An address instead of a name cannot be rebound, because no DNS record is involved. So a server that other
    /// machines reach accepts every address: behind address translation it does not know its own.
    fn admit(&self, host: &Authority) -> bool {
        match host.address() {
            _ if self.any => true,
            Some(address) if address.is_loopback() || !self.loopback => true,
            None if host.name == "localhost" => true,
            _ => self.listed.contains(&host.name),
        }
    }

    /// Whether the origin is this server's own, for a request to `host`.
    fn is_own(&self, origin: &str, host: Option<&Authority>) -> bool {
        let Ok(url) = Url::parse(origin) else { return false };
        if !matches!(url.scheme(), "http" | "https") {
            return false;
        }
        if self.advertised.as_deref() == Some(url.origin().ascii_serialization().as_str()) {
            return true;
        }
        let (Some(host), Some(from)) = (host, url.host_str().and_then(Authority::parse)) else {
            return false;
        };
        // `Host` without a port means the default port of an unknown scheme: a proxy may terminate TLS before this server.
        from.name == host.name && (url.port() == host.port || url.port_or_known_default() == host.port)
    }
}

/// Whether a request is a login by CouchDB's API.
pub(crate) fn is_login(request: &Request) -> bool {
    request.uri().path().trim_end_matches('/') == "/_session"
}

/// Whether a request is for a page or one of its actions, and not for a program.
pub(crate) fn is_page(request: &Request) -> bool {
    matches!(request.uri().path().split('/').nth(1), Some("ui" | "_utils"))
}

/// Whether a request is one of `/v1`.
pub(crate) fn is_v1(request: &Request) -> bool {
    request.uri().path().split('/').nth(1) == Some("v1")
}

impl Names {
    /// Refuses a request that changes something, and comes from a page of another site.
    pub(crate) fn check_origin(
        &self,
        request: &Request,
        host: Option<&Authority>,
        cors: &Sites<'_>,
    ) -> Result<(), V1Error> {
        let headers = request.headers();
        let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        // A login makes a cookie, so it is for origins whose browsers send one. Forms need no preflight for it.
        let may = |origin| !is_login(request) || cors.has_credentials(origin);
        if is_page(request) && !is_safe {
            return match headers.contains_key(header::ORIGIN) && self.has_own_origin(headers, host) {
                true => Ok(()),
                false => Err(V1Error::forbidden(
                    "the form does not come from a page of this server",
                    "use the form of a page under /ui/; programs use the API",
                )),
            };
        }
        if is_safe || cors.origin(headers).is_some_and(may) || self.has_own_origin(headers, host) {
            return Ok(());
        }
        Err(V1Error::forbidden(
            "the request comes from a page of another site",
            "[cors] origins names the sites whose pages may change something here; programs must omit the headers Origin and Sec-Fetch-Site",
        ))
    }

    /// The host that the request names, if it is allowed; `None` if the request need not name a host.
    pub fn check_host(&self, request: &Request) -> Result<Option<Authority>, V1Error> {
        let bad = |reason: &str| {
            V1Error::bad(reason, "send the header Host once, with this server's name and port")
        };
        let mut given = request.headers().get_all(header::HOST).iter();
        let (host, second) = (given.next(), given.next());
        if second.is_some() {
            return Err(bad("the header Host is given twice"));
        }
        let Some(host) = host else {
            // Monitors send HTTP/1.0 requests without `Host`. No browser does.
            let old = request.version() < Version::HTTP_11;
            return match old && matches!(*request.method(), Method::GET | Method::HEAD) {
                true => Ok(None),
                false => Err(bad("the header Host is missing")),
            };
        };
        let host = host
            .to_str()
            .ok()
            .and_then(Authority::parse)
            .ok_or_else(|| bad("the header Host names no host"))?;
        // `GET http://host/path`, as to a proxy: both names must be allowed.
        let target = match request.uri().authority() {
            None => None,
            Some(target) => Some(
                Authority::parse(target.as_str()).ok_or_else(|| bad("the request's URL names no host"))?,
            ),
        };
        match self.admit(&host) && target.is_none_or(|target| self.admit(&target)) {
            true => Ok(Some(host)),
            false => Err(V1Error::new(
                StatusCode::MISDIRECTED_REQUEST,
                codes::MISDIRECTED,
                "the header Host is not a name of this server",
                "reach it by its address, by localhost or by the name of --advertise, or add the name to [listener] names",
            )),
        }
    }

    fn has_own_origin(&self, headers: &HeaderMap, host: Option<&Authority>) -> bool {
        let own = |origin: &HeaderValue| origin.to_str().is_ok_and(|origin| self.is_own(origin, host));
        let fetched = headers.get_all(SEC_FETCH_SITE).iter();
        headers.get_all(header::ORIGIN).iter().all(own)
            && fetched.into_iter().all(|site| site != "cross-site")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(listen: &str, further: &[&str]) -> Names {
        let further: Vec<String> = further.iter().map(|name| (*name).to_owned()).collect();
        Names::new(listen.parse().unwrap(), "https://jobs.example/turnwise", &further)
    }

    fn admits(names: &Names, host: &str) -> bool {
        Authority::parse(host).is_some_and(|host| names.admit(&host))
    }

    #[test]
    fn hosts_are_parsed_as_in_urls() {
        let read = |text: &str| Authority::parse(text).map(|read| (read.name, read.port));
        for (text, name, port) in [
            ("localhost", "localhost", None),
            ("LocalHost.:80", "localhost", Some(80)),
            ("127.0.0.1:7984", "127.0.0.1", Some(7984)),
            ("[::1]:7984", "::1", Some(7984)),
            ("[0:0:0:0:0:0:0:1]", "::1", None),
            ("[::ffff:127.0.0.1]", "127.0.0.1", None),
            ("a_b.example:", "a_b.example", None),
        ] {
            assert_eq!(read(text), Some((name.to_owned(), port)), "{text}");
        }
        for wrong in [
            "",
            ".",
            ":80",
            "a b",
            "a,b",
            "a@b",
            "a/b",
            "::1",
            "[::1",
            "[::1]x",
            "[a]",
            "a:b",
            "a:65536",
            "a:+1",
            "é",
            "[fe80::1%25eth0]",
            "localhost:80:80",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_listener_for_this_machine_has_its_names_and_those_that_are_listed() {
        let names = names("127.0.0.1:7984", &["turnwise.internal"]);
        for host in [
            "localhost",
            "LOCALHOST:7984",
            "localhost.:1",
            "127.0.0.1",
            "127.8.9.1:7984",
            "[::1]:7984",
            "[::ffff:127.0.0.1]",
            "jobs.example",
            "JOBS.example.",
            "turnwise.internal:80",
        ] {
            assert!(admits(&names, host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "xlocalhost",
            "127.0.0.1.evil.example",
            "10.0.0.7",
            "[::2]",
            "127.1",
        ] {
            assert!(!admits(&names, host), "{host}");
        }
    }

    #[test]
    fn a_listener_for_other_machines_has_every_address_and_no_other_name() {
        for listen in ["0.0.0.0:7984", "[::]:7984", "10.0.0.7:7984"] {
            let names = names(listen, &[]);
            for host in ["10.0.0.7", "[fd00::7]:7984", "203.0.113.9:80", "localhost", "jobs.example:7984"] {
                assert!(admits(&names, host), "{listen} {host}");
            }
            assert!(!admits(&names, "evil.example"));
        }
        assert!(admits(&names("0.0.0.0:7984", &["*"]), "whatever.example"));
    }

    #[test]
    fn an_origin_is_own_where_it_is_the_host_or_what_is_advertised() {
        let names = names("127.0.0.1:7984", &[]);
        let own = |origin: &str, host: &str| names.is_own(origin, Authority::parse(host).as_ref());
        for (origin, host) in [
            ("http://localhost:7984", "localhost:7984"),
            ("http://LOCALHOST", "localhost"),
            ("http://localhost", "localhost:80"),
            ("https://localhost", "localhost"),
            ("http://[::1]:7984", "[::1]:7984"),
            // A proxy has changed the host.
            ("https://jobs.example", "127.0.0.1:7984"),
        ] {
            assert!(own(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("null", "localhost:7984"),
            ("", "localhost:7984"),
            ("http://localhost:3000", "localhost:7984"),
            ("http://localhost", "localhost:7984"),
            ("http://evil.example", "localhost:7984"),
            ("http://jobs.example", "127.0.0.1:7984"),
            ("file://localhost:7984", "localhost:7984"),
            ("http://localhost:7984 http://evil.example", "localhost:7984"),
        ] {
            assert!(!own(origin, host), "{origin} {host}");
        }
    }
}
