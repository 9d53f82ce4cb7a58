//! `source_proxy`, `target_proxy`, `proxy`: proxies for peers that cannot be reached directly.

use std::fmt;

use http::{HeaderValue, Uri};
use url::Url;

use crate::endpoint::Credentials;
use crate::error::FieldError;

/// The longest user name and the longest password in SOCKS 5, in bytes.
const MAX_SOCKS_BYTES: usize = 255;

/// A proxy: `http://user:password@host:port`, `https://…` or `socks5://…`. It is displayed without its password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proxy {
    kind: Kind,
    /// Host and port.
    address: String,
    credentials: Option<Credentials>,
    /// The URL as the user wrote it, with stars for the password.
    shown: String,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Http,
    Https,
    Socks5,
}

impl Proxy {
    /// Reads the proxy of the field `field`.
    ///
    /// # Errors
    /// The error states what would be right. It never repeats the URL, which may hold a password.
    pub fn parse(field: &str, text: &str, schemes: &[String]) -> Result<Self, FieldError> {
        let url = Url::parse(text)
            .map_err(|cause| FieldError::new(field, format!("is not a valid URL: {cause}")))?;
        let allowed = schemes.iter().any(|known| known.eq_ignore_ascii_case(url.scheme()));
        let (kind, default_port) = match url.scheme() {
            "http" if allowed => (Kind::Http, 80),
            "https" if allowed => (Kind::Https, 443),
            "socks5" if allowed => (Kind::Socks5, 1080),
            _ => {
                let right = schemes.join("://, ") + "://";
                return Err(FieldError::new(field, format!("must start with one of {right}")));
            }
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| FieldError::new(field, "names no host; write http://host:port"))?;
        let address = format!("{host}:{}", url.port().unwrap_or(default_port));
        if address.parse::<http::uri::Authority>().is_err() {
            return Err(FieldError::new(field, "has a host that cannot be connected to"));
        }
        let credentials = Credentials::of(&url);
        if let (Kind::Socks5, Some(Credentials { user, password })) = (kind, &credentials)
            && (user.len() > MAX_SOCKS_BYTES || password.reveal().len() > MAX_SOCKS_BYTES)
        {
            let problem = format!("has a user or a password of more than {MAX_SOCKS_BYTES} bytes");
            return Err(FieldError::new(field, problem));
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let login = credentials.as_ref().map(Credentials::shown).unwrap_or_default();
        let shown = format!("{}://{login}{host}{port}", url.scheme());
        Ok(Self { kind, address, credentials, shown })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The proxy's address.
    pub(crate) fn address(&self) -> Uri {
        let scheme = if self.kind == Kind::Https { "https" } else { "http" };
        format!("{scheme}://{}/", self.address).parse().expect("checked when it was parsed")
    }

    /// The login of an HTTP proxy.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let credentials = self.credentials.as_ref().filter(|_| self.kind != Kind::Socks5)?;
        Some(credentials.authorization())
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Proxy, FieldError> {
        Proxy::parse("proxy", text, &["http".to_owned(), "https".to_owned(), "socks5".to_owned()])
    }

    #[test]
    fn a_proxy_is_shown_without_its_password() {
        for (given, shown, address) in [
            ("http://u:hunter2@sproxy:12", "http://u:*****@sproxy:12", "http://sproxy:12/"),
            ("socks5://u:p%40hunter2@tproxy:34/", "socks5://u:*****@tproxy:34", "http://tproxy:34/"),
            ("https://foo.com", "https://foo.com", "https://foo.com:443/"),
            ("socks5://foo.com", "socks5://foo.com", "http://foo.com:1080/"),
            ("http://[::1]", "http://[::1]", "http://[::1]:80/"),
        ] {
            let proxy = parse(given).unwrap();
            assert_eq!((proxy.to_string().as_str(), proxy.address().to_string().as_str()), (shown, address));
            assert!(!format!("{proxy:?}").contains("hunter2"));
        }
    }

    #[test]
    fn invalid_proxies_are_refused_without_their_password() {
        for wrong in
            ["", "proxy:80", "ftp://u:hunter2@p", "http://", "socks5://u:hunter2@/", "http://u:hunter2/bad"]
        {
            let error = parse(wrong).unwrap_err();
            assert_eq!(error.field, "proxy");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let only = Proxy::parse("source_proxy", "http://p", &["socks5".to_owned()]).unwrap_err();
        assert_eq!(only.to_string(), "`source_proxy` must start with one of socks5://");
    }
}
