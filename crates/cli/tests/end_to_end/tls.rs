//! TLS of the listener: certificates that are replaced, clients that prove who they are, and handshakes that are refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use reqwest::{Certificate, Client, ClientBuilder, Identity};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Home, PATIENCE, Server, write_private};

/// An authority, and the files of a server.
struct Files {
    folder: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Files {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Files { folder: tempfile::tempdir().unwrap(), authority };
        files.put("ca.pem", &files.authority.pem());
        files.renew();
        files
    }

    fn put(&self, name: &str, text: &str) {
        // As programs that renew certificates do it: a file is never seen half written.
        let new = self.folder.path().join("new");
        write_private(&new, text);
        std::fs::rename(new, self.file(name)).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate and its key, in PEM.
    fn certify(&self, name: &str, usage: ExtendedKeyUsagePurpose, until: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes a new certificate for the server, and returns it.
    fn renew(&self) -> String {
        let (certificate, key) = self.certify("localhost", ExtendedKeyUsagePurpose::ServerAuth, 2100);
        self.put("key.pem", &key);
        self.put("cert.pem", &certificate);
        certificate
    }

    fn config(&self) -> String {
        let file = |name| self.file(name).display().to_string();
        let [certificate, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(file);
        format!("[listener]\ncertificate = {certificate}\nkey = {key}\nclient_ca = {ca}\n")
    }

    /// A client that trusts the authority alone, and reaches the server as `localhost`.
    fn client(&self, server: &Server) -> ClientBuilder {
        let trusted = Certificate::from_pem(self.authority.pem().as_bytes()).unwrap();
        let address = server.address().parse().unwrap();
        Client::builder()
            .tls_certs_only([trusted])
            .resolve("localhost", address)
            .resolve("elsewhere.example", address)
            .no_proxy()
            .timeout(PATIENCE)
    }
}

fn url(server: &Server, path: &str) -> String {
    format!("https://localhost:{}{path}", server.address().rsplit(':').next().unwrap())
}

#[tokio::test]
async fn a_certificate_that_is_replaced_under_load_loses_no_request() {
    let files = Files::new();
    let home = Home::new(&files.config());
    let server = home.serve().await;
    assert!(server.url().starts_with("https://"), "{}", server.url());
    let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..16)
        .map(|n| {
            // Half of them connect anew for each request.
            let idle = if n % 2 == 0 { 0 } else { 10 };
            let client = files.client(&server).pool_max_idle_per_host(idle).build().unwrap();
            let (url, done, sent) = (url(&server, "/v1/jobs"), done.clone(), sent.clone());
            tokio::spawn(async move {
                while !done.load(SeqCst) {
                    let answer = client.get(&url).send().await.unwrap();
                    assert_eq!(answer.status(), 200);
                    answer.bytes().await.unwrap();
                    sent.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    for n in 1..=3 {
        files.renew();
        if n == 2 {
            // Otherwise it looks by itself.
            server.signal("-HUP").await;
        }
        home.until_logged("the certificate was replaced", n).await;
    }
    // Files that cannot be used change nothing.
    files.put("cert.pem", "nonsense");
    home.until_logged("cert.pem: there is no certificate in it", 1).await;
    let before = sent.load(SeqCst);
    tokio::time::timeout(PATIENCE, async {
        while sent.load(SeqCst) < before + 100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    done.store(true, SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn handshakes_that_are_refused_leave_a_line_in_the_log() {
    let files = Files::new();
    let home = Home::new(&files.config());
    let server = home.serve().await;
    let good = files.client(&server).build().unwrap();
    assert_eq!(good.get(url(&server, "/_up")).send().await.unwrap().status(), 200);
    // The client does not accept the certificate for this name.
    let elsewhere = url(&server, "/_up").replace("localhost", "elsewhere.example");
    assert!(good.get(elsewhere).send().await.unwrap_err().is_connect());
    home.until_logged("a TLS handshake has failed", 1).await;
    // A ClientHello of TLS 1.1, with two cipher suites of its time.
    let mut body = vec![3, 2];
    body.extend([7; 32]);
    body.extend([0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    body.extend([0, 8, 0, 13, 0, 4, 0, 2, 4, 1]);
    let length = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(body);
    // At most one line in a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut old = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    old.write_all(&hello).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, old.read_to_end(&mut answer)).await.unwrap();
    assert_eq!((answer.first(), answer.get(5)), (Some(&21), Some(&2)), "a fatal alert: {answer:?}");
    home.until_logged("a TLS handshake has failed", 2).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // A certificate that was valid once.
    let identity = |until| {
        let (certificate, key) = files.certify("jan.example", ExtendedKeyUsagePurpose::ClientAuth, until);
        Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap()
    };
    let expired = files.client(&server).identity(identity(2020)).build().unwrap();
    assert!(expired.get(url(&server, "/_up")).send().await.is_err());
    home.until_logged("certificate expired", 1).await;
    let valid = files.client(&server).identity(identity(2100)).build().unwrap();
    assert_eq!(valid.get(url(&server, "/_up")).send().await.unwrap().status(), 200);
    // Plain HTTP is not served beside it.
    let plain = url(&server, "/_up").replace("https", "http");
    assert!(good.get(plain).send().await.is_err());
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_client_certificate_is_the_user_that_it_names() {
    let files = Files::new();
    let home = Home::new(&files.config());
    let server = home.serve_closed().await;
    let client = files.client(&server).build().unwrap();
    let add = async |name: &str, scope: &str| {
        let body = serde_json::json!({"name": name, "password": "correct horse", "scopes": [scope]});
        let request = client.post(url(&server, "/v1/users")).basic_auth("admin", Some("correct horse"));
        request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap()
    };
    assert_eq!(add("admin", "admin").await.status(), 201);
    assert_eq!(add("jan.example", "client:acme").await.status(), 201);
    let (certificate, key) = files.certify("jan.example", ExtendedKeyUsagePurpose::ClientAuth, 2100);
    let identity = Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap();
    let jan = files.client(&server).identity(identity).build().unwrap();
    let me = async |client: &Client| -> Value {
        let text = client.get(url(&server, "/v1/me")).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(
        me(&jan).await,
        serde_json::json!({"open": false, "identity": "user:jan.example", "scopes": ["client:acme"]})
    );
    assert_eq!(me(&client).await["error"], "unauthorized");
    // The cookie of a session is for TLS alone.
    let login = client.post(url(&server, "/_session")).header("content-type", "application/json");
    let login = login.body(r#"{"name": "admin", "password": "correct horse"}"#).send().await.unwrap();
    assert!(login.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"));
    let created = client.put(url(&server, "/acme/_replicator")).basic_auth("admin", Some("correct horse"));
    let location = created.send().await.unwrap().headers()["location"].to_str().unwrap().to_owned();
    assert!(location.starts_with("https://"), "{location}");
    assert!(server.terminate().await.success());
}
