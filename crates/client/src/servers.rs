//! The servers of a client: one is in use, the others are for failover.
//!
//! All of them are nodes on one store, so any of them can answer: the client may repeat a repeatable request at another
//! server. When one request finds that the current server does not answer, all requests of the client move on to the
//! next. They stay there until that server fails, too.

use tokio::sync::watch;
use url::Url;

use crate::{Error, Result};

/// The maximum number of servers of one client.
const MAX_SERVERS: usize = 100;

/// The servers, in the order in which the client tries them.
pub(crate) struct Servers {
    /// Without trailing `/`. May hold passwords for proxies in front of the servers.
    urls: Vec<Url>,
    /// The index of the current server.
    current: watch::Sender<usize>,
}

/// One of the servers.
#[derive(Clone, Copy)]
pub(crate) struct Server<'a> {
    /// Its index among the servers.
    pub place: usize,
    pub url: &'a Url,
}

impl Server<'_> {
    /// Its URL, without the user name and password that it may hold.
    pub fn shown(&self) -> String {
        let mut shown = self.url.clone();
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.as_str().trim_end_matches('/').to_owned()
    }
}

impl Servers {
    /// Parses URLs that are separated by commas.
    pub fn parse(text: &str) -> Result<Servers> {
        let urls = text.split(',').map(|url| parse(url.trim())).collect::<Result<Vec<Url>>>()?;
        if urls.len() > MAX_SERVERS {
            return Err(Error::Invalid(format!("at most {MAX_SERVERS} servers")));
        }
        Ok(Servers { urls, current: watch::Sender::new(0) })
    }

    pub fn len(&self) -> usize {
        self.urls.len()
    }

    /// All servers.
    pub fn all(&self) -> impl Iterator<Item = Server<'_>> {
        self.urls.iter().enumerate().map(|(place, url)| Server { place, url })
    }

    /// The current server.
    pub fn current(&self) -> Server<'_> {
        self.at(*self.current.borrow())
    }

    /// The server at this index.
    pub fn at(&self, place: usize) -> Server<'_> {
        Server { place, url: &self.urls[place] }
    }

    /// Moves on from a server that does not answer to the next, unless another request has already done so.
    pub fn leave(&self, server: Server<'_>) {
        let next = (server.place + 1) % self.urls.len();
        let moved = self.current.send_if_modified(|current| {
            let moves = *current == server.place && next != server.place;
            if moves {
                *current = next;
            }
            moves
        });
        if moved {
            tracing::info!("{} does not answer: continuing with {}", server.shown(), self.at(next).shown());
        }
    }

    /// Waits until this server is not the current one.
    pub async fn left(&self, server: Server<'_>) {
        let place = server.place;
        // This cannot fail: the sender is in `self`.
        let _ = self.current.subscribe().wait_for(|current| *current != place).await;
    }
}

fn parse(url: &str) -> Result<Url> {
    let wrong = || {
        let example = "http://127.0.0.1:7984, or several of them with commas between";
        Error::Invalid(format!("the server's URL: expected something like {example}"))
    };
    let mut url = Url::parse(url).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || url.query().is_some() {
        return Err(wrong());
    }
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_server_that_fails_twice_is_left_once() {
        let servers = Servers::parse("http://a:1, http://b:2/base/,https://c").unwrap();
        let (a, again) = (servers.current(), servers.current());
        assert_eq!(a.shown(), "http://a:1");
        let left = servers.left(a);
        servers.leave(a);
        left.await;
        // Another request to the same server fails later.
        servers.leave(again);
        assert_eq!(servers.current().shown(), "http://b:2/base");
        servers.leave(servers.current());
        servers.leave(servers.current());
        assert_eq!(servers.current().shown(), "http://a:1", "it begins again");

        let one = Servers::parse("http://a").unwrap();
        one.leave(one.current());
        assert!(futures_pending(one.left(one.current())).await, "there is no other one");
    }

    async fn futures_pending(future: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = future => false,
            () = std::future::ready(()) => true,
        }
    }

    #[test]
    fn invalid_server_urls_are_refused() {
        for text in ["", "http://a,", "http://a,,http://b", "http://a http://b", "a,b"] {
            assert!(Servers::parse(text).is_err(), "{text}");
        }
    }
}
