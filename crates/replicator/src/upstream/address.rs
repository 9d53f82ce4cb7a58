//! The upstream's address and login.

use serde_json::{Map, json};
use turnwise_outbound::{Client, FieldError, Peer, Secret};

use crate::{Defaults, Replication};

/// The URL of a CouchDB server, with a login: `http://admin:pw@couch:5984/`. It is never displayed with its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// As the user wrote it, with a slash at its end.
    url: Secret,
    /// Without the password, for display.
    shown: String,
}

/// Displays the URL without its password.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// A database that every CouchDB may have. It makes the code for endpoints usable for the server.
const ANY_DATABASE: &str = "_replicator";

impl Address {
    /// Reads a server's URL, which may have a login and a path.
    ///
    /// # Errors
    /// The error states what would be right. It does not repeat the URL.
    pub fn parse(url: &str) -> Result<Self, FieldError> {
        let url = format!("{}/", url.trim_end_matches('/'));
        let address = Address { url: Secret::new(url), shown: String::new() };
        let endpoint = address.replication(&Defaults::default())?.source.redacted_url();
        let shown = endpoint.trim_end_matches('/').trim_end_matches(ANY_DATABASE).to_owned();
        Ok(Address { shown, ..address })
    }

    /// The host, port and path, as in `couch:5984`: a name for the server without its login.
    pub fn name(&self) -> &str {
        let rest = self.shown.split_once("://").map_or(self.shown.as_str(), |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, host)| host).trim_end_matches('/')
    }

    pub(crate) fn replication(&self, defaults: &Defaults) -> Result<Replication, FieldError> {
        let database = json!(format!("{}{ANY_DATABASE}", self.url.reveal()));
        let body = ["source", "target"].map(|name| (name.to_owned(), database.clone()));
        // `valid_endpoint_protocols` restricts documents only.
        let defaults =
            Defaults { endpoint_schemes: Defaults::default().endpoint_schemes, ..defaults.clone() };
        Replication::parse(&Map::from_iter(body), &defaults)
            .map_err(|error| FieldError::new("url", error.problem))
    }

    /// The server as a peer for requests.
    pub(super) fn server(&self, defaults: &Defaults, client: &Client) -> Result<Peer, FieldError> {
        Ok(self.replication(defaults)?.source_server(client))
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
