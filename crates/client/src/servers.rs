//! The servers of a client: one is asked for everything, the others are for when it does not answer.
//!
//! All of them are nodes on one store, so it does not matter who is asked: a request that may be repeated may be repeated
//! elsewhere. Whoever finds that a server does not answer moves everyone on to the next one, and nobody goes back before
//! that one fails in its turn.

use tokio::sync::watch;
use url::Url;

use crate::{Error, Result};

/// Servers of one client at most.
const MAX_SERVERS: usize = 100;

/// The servers, in the order in which they are asked.
pub(crate) struct Servers {
    /// Without the `/` at their ends. May hold passwords for proxies before the servers.
    urls: Vec<Url>,
    /// The place of the one that is asked.
    current: watch::Sender<usize>,
}

/// One of the servers.
#[derive(Clone, Copy)]
pub(crate) struct Server<'a> {
    place: usize,
    pub url: &'a Url,
}

impl Server<'_> {
    /// Its place among the others.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Its URL, without the password that it may hold.
    pub fn shown(&self) -> String {
        let mut shown = self.url.clone();
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.as_str().trim_end_matches('/').to_owned()
    }
}

impl Servers {
    /// Reads URLs that are separated by commas.
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

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Server<'_>> {
        self.urls.iter().enumerate().map(|(place, url)| Server { place, url })
    }

    /// The one to ask.
    pub fn current(&self) -> Server<'_> {
        self.at(*self.current.borrow())
    }

    /// The one at this place.
    pub fn at(&self, place: usize) -> Server<'_> {
        Server { place, url: &self.urls[place] }
    }

    /// This one does not answer: the next one is asked, unless somebody has moved on already.
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
            tracing::info!("{} does not answer: goes on with {}", server.shown(), self.at(next).shown());
        }
    }

    /// Waits until another server than this one is asked.
    pub async fn left(&self, server: Server<'_>) {
        let place = server.place;
        // It never fails: the sender is here.
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
    async fn whoever_fails_moves_everyone_on_once() {
        let servers = Servers::parse("http://a:1, http://b:2/base/,https://c").unwrap();
        let (a, again) = (servers.current(), servers.current());
        assert_eq!(a.shown(), "http://a:1");
        let left = servers.left(a);
        servers.leave(a);
        left.await;
        // Another request to the same server has failed later.
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
    fn what_is_no_server_is_refused() {
        for text in ["", "http://a,", "http://a,,http://b", "http://a http://b", "a,b"] {
            assert!(Servers::parse(text).is_err(), "{text}");
        }
    }
}
