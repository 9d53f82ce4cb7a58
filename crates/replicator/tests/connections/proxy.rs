//! A proxy: HTTP (`CONNECT`, and requests that name the whole URL), also with TLS, or SOCKS 5; with or without a login.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustls::ServerConfig;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The proxy; it ends when it is dropped.
pub struct TestProxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

/// The proxy's protocol.
#[derive(Clone)]
pub enum Speaks {
    Http,
    Https(Arc<ServerConfig>),
    Socks5,
}

impl TestProxy {
    /// If `login` is given (`user:password`), clients must send it.
    pub async fn start(speaks: Speaks, login: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, login) = (Arc::clone(&asked), login.map(str::to_owned));
        let accepting = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (speaks, seen, login) = (speaks.clone(), Arc::clone(&seen), login.clone());
                tokio::spawn(async move {
                    // A connection that ends early is no error of the proxy.
                    let _ = match speaks {
                        Speaks::Http => http(connection, login.as_deref(), &seen).await,
                        Speaks::Https(tls) => match TlsAcceptor::from(tls).accept(connection).await {
                            Ok(secured) => http(secured, login.as_deref(), &seen).await,
                            Err(error) => Err(error),
                        },
                        Speaks::Socks5 => socks5(connection, login.as_deref(), &seen).await,
                    };
                });
            }
        });
        Self { address, asked, accepting }
    }

    /// The requests: `CONNECT host:port`, `GET http://host:port/…`, `SOCKS host:port`; `refused` for a wrong login.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads one request head per connection to the peer: everything that a client sends later on it goes to the same peer.
async fn http(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    login: Option<&str>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let expected =
            login.map(|login| format!("proxy-authorization: Basic {}", BASE64_STANDARD.encode(login)));
        let given = lines.iter().find(|line| line.to_lowercase().starts_with("proxy-authorization:"));
        let given = given.map(|line| line.replacen("Proxy-Authorization", "proxy-authorization", 1));
        if expected.is_some() && given != expected {
            asked.lock().unwrap().push("refused".to_owned());
            let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
            connection.write_all(refusal.as_bytes()).await?;
            connection.flush().await?;
            continue;
        }
        let words: Vec<&str> = lines[0].split(' ').collect();
        let (method, target) = (words[0], words[1]);
        asked.lock().unwrap().push(format!("{method} {target}"));
        if method == "CONNECT" {
            let mut peer = TcpStream::connect(target).await?;
            connection.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            connection.flush().await?;
            return copy_bidirectional(&mut connection, &mut peer).await.map(drop);
        }
        let rest = target.strip_prefix("http://").expect("the whole URL is named");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut peer = TcpStream::connect(host).await?;
        let mut head = format!("{method} /{path} HTTP/1.1\r\n");
        let mut length = 0;
        for line in &lines[1..] {
            let name = line.to_lowercase();
            if let Some(value) = name.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if !name.starts_with("proxy-") && !name.starts_with("connection:") {
                head += &format!("{line}\r\n");
            }
        }
        head += "Connection: close\r\n\r\n";
        peer.write_all(head.as_bytes()).await?;
        let mut body = (&mut connection).take(length);
        tokio::io::copy(&mut body, &mut peer).await?;
        // Closes the connection afterwards, because it does not look for the end of the response.
        tokio::io::copy(&mut peer, &mut connection).await?;
        return connection.shutdown().await;
    }
}

/// RFC 1928, with names and IPv4 addresses, and RFC 1929.
async fn socks5(
    mut connection: TcpStream,
    login: Option<&str>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    async fn text(connection: &mut TcpStream) -> std::io::Result<String> {
        let length = connection.read_u8().await?;
        let mut text = vec![0; length.into()];
        connection.read_exact(&mut text).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
    assert_eq!(connection.read_u8().await?, 5);
    let methods = text(&mut connection).await?.into_bytes();
    let method = if login.is_some() { 2 } else { 0 };
    if !methods.contains(&method) {
        asked.lock().unwrap().push("refused".to_owned());
        return connection.write_all(&[5, 0xff]).await;
    }
    connection.write_all(&[5, method]).await?;
    if let Some(login) = login {
        assert_eq!(connection.read_u8().await?, 1);
        let given = format!("{}:{}", text(&mut connection).await?, text(&mut connection).await?);
        if given != login {
            asked.lock().unwrap().push("refused".to_owned());
            return connection.write_all(&[1, 1]).await;
        }
        connection.write_all(&[1, 0]).await?;
    }
    let mut head = [0; 4];
    connection.read_exact(&mut head).await?;
    assert_eq!(head[..3], [5, 1, 0]);
    let host = match head[3] {
        1 => {
            let mut address = [0; 4];
            connection.read_exact(&mut address).await?;
            std::net::Ipv4Addr::from(address).to_string()
        }
        3 => text(&mut connection).await?,
        other => panic!("address type {other}"),
    };
    let port = connection.read_u16().await?;
    asked.lock().unwrap().push(format!("SOCKS {host}:{port}"));
    let mut peer = TcpStream::connect((host.as_str(), port)).await?;
    connection.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut connection, &mut peer).await.map(drop)
}
