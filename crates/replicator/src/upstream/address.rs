//! The upstream's address and login.

use std::sync::Arc;

use serde_json::json;
use turnwise_outbound::{Client, Endpoint, FieldError, Peer, PeerSettings, Scrubber, Side};

use crate::Defaults;

/// The URL of a CouchDB server, with a login: `http://admin:pw@couch:5984/`. It is never displayed with its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    server: Endpoint,
    /// Without the password, for display.
    shown: String,
}

/// Displays the URL without its password.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Address {
    /// Reads a server's URL, which may have a login and a path.
    ///
    /// # Errors
    /// The error states what would be right. It does not repeat the URL.
    pub fn parse(url: &str) -> Result<Self, FieldError> {
        // The code for endpoints reads URLs of databases.
        let database = json!(format!("{}/_replicator", url.trim_end_matches('/')));
        // `valid_endpoint_protocols` restricts documents only.
        let server = Endpoint::parse("url", &database, &Defaults::default().endpoint_schemes)?.server();
        Ok(Address { shown: server.redacted_url(), server })
    }

    /// The host, port and path, as in `couch:5984`: a name for the server without its login.
    pub fn name(&self) -> &str {
        let rest = self.shown.split_once("://").map_or(self.shown.as_str(), |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, host)| host).trim_end_matches('/')
    }

    /// The server as a peer for requests.
    pub(crate) fn peer(&self, settings: &PeerSettings, client: &Client) -> Peer {
        let mut secrets = Scrubber::default();
        self.server.add_secrets(&mut secrets);
        Peer::new(Side::Source, &self.server, settings, Arc::new(secrets), client)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_server_is_shown_without_its_password() {
        for (url, shown) in [
            ("http://admin:s3cret@couch:5984/", "http://admin:*****@couch:5984/"),
            ("http://admin:s3cret@couch:5984", "http://admin:*****@couch:5984/"),
            ("https://couch.example/below", "https://couch.example/below/"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.to_string(), shown);
            assert!(shown.ends_with(&format!("{}/", address.name())) && !address.name().contains('@'));
            assert!(!format!("{address:?}").contains("s3cret"));
        }
        for url in
            ["", "couch:5984", "ftp://u:s3cret@couch/", "http://u:s3cret@couch/?q=1", "http://u:s3cret@:x/"]
        {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.starts_with("`url` ") && !error.contains("s3cret"), "{url}: {error}");
        }
    }
}
