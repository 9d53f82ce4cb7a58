//! A connection to a server of any protocol, which can be cut.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A TCP proxy in front of one address. It forwards bytes until it is cut or refuses connections, and ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<LinkState>,
    listening: JoinHandle<()>,
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Open,
    /// Like a cable that is pulled: connections stay open but carry nothing, and new ones get no response.
    Cut,
    /// Like a server that is gone: connections are closed, and new ones are closed immediately.
    Refused,
}

impl Link {
    /// A link to `host:port`, on its own port.
    pub async fn before(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let own = listener.local_addr().expect("a listener has an address");
        let (state, watched) = watch::channel(LinkState::Open);
        let listening = tokio::spawn(listen(listener, address.to_owned(), watched));
        Link { address: own, state, listening }
    }

    /// `127.0.0.1:port` of the link.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Cuts the link: connections stay open but carry nothing, and new ones get no response.
    pub fn cut(&self) {
        self.state.send_replace(LinkState::Cut);
    }

    /// Closes all connections, and closes new ones immediately.
    pub fn refuse(&self) {
        self.state.send_replace(LinkState::Refused);
    }

    /// Opens the link again. Closes connections that were open while it was cut, like a firewall that has forgotten them.
    pub fn restore(&self) {
        self.state.send_replace(LinkState::Open);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, address: String, state: watch::Receiver<LinkState>) {
    // The set is dropped with this task, and so are its connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A client that is gone already needs no connection.
                let Ok((client, _)) = accepted else { continue };
                connections.spawn(carry(client, address.clone(), state.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection until either side closes it or the link is no longer open.
async fn carry(mut client: TcpStream, address: String, mut state: watch::Receiver<LinkState>) {
    let now = *state.borrow_and_update();
    if now == LinkState::Open {
        // Small frames are forwarded as they come.
        let _ = client.set_nodelay(true);
        let carried = async {
            let mut server = TcpStream::connect(&address).await?;
            server.set_nodelay(true)?;
            copy_bidirectional(&mut client, &mut server).await
        };
        tokio::select! {
            // Whichever side closed the connection, this closes the other side.
            _ = carried => return,
            changed = state.changed() => if changed.is_err() { return },
        }
    }
    // Stays open and silent while the link is cut.
    let _ = state.wait_for(|state| *state != LinkState::Cut).await;
}

#[cfg(test)]
mod tests {
    //! A link forwards bytes only while it is open.

    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = connection.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        address
    }

    async fn says(connection: &mut TcpStream) -> std::io::Result<u8> {
        connection.write_all(b"x").await?;
        connection.read_u8().await
    }

    #[tokio::test]
    async fn a_cut_link_carries_nothing_and_a_restored_one_carries_again() {
        let link = Link::before(&echo().await).await;
        let mut first = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(says(&mut first).await.unwrap(), b'x');

        link.cut();
        let mut second = TcpStream::connect(link.address()).await.unwrap();
        // Only a wait can show that nothing comes.
        let silence = Duration::from_millis(100);
        assert!(tokio::time::timeout(silence, says(&mut first)).await.is_err());
        assert!(tokio::time::timeout(silence, says(&mut second)).await.is_err());

        link.restore();
        assert!(says(&mut first).await.is_err());
        let mut third = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(says(&mut third).await.unwrap(), b'x');

        link.refuse();
        assert!(says(&mut third).await.is_err());
        let refused = match TcpStream::connect(link.address()).await {
            Ok(mut fourth) => says(&mut fourth).await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
    }
}
