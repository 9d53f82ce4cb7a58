//! The servers that an `https` URL may reach, client certificates, and files that cannot be used.

use serde_json::json;
use turnwise_outbound::{Client, Connections, Tls};

use super::certificates::Authority;
use super::server::{Manner, Server};
use super::{client, run};

async fn server(authority: &Authority, name: &str, demands_certificate: bool) -> Server {
    let tls = Some(authority.server(name, demands_certificate));
    Server::with(Manner { tls, ..Manner::default() }).await
}

fn with(tls: Tls) -> Client {
    client(Connections { tls, ..Connections::default() })
}

fn trusting(authority: &Authority) -> Tls {
    Tls { trusted_certificates_file: Some(authority.file("ca.pem")), ..Tls::default() }
}

/// The error of the request.
async fn refused(client: &Client, server: &Server) -> String {
    run(client, &server.url("https"), json!({})).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_peer_is_trusted_whose_authority_the_file_names() {
    let authority = Authority::new(1);
    let server = server(&authority, "127.0.0.1", false).await;
    let client = with(trusting(&authority));
    for _ in 0..2 {
        run(&client, &server.url("https"), json!({})).await.unwrap();
    }
    assert_eq!(server.count().accepted, 1);
}

#[tokio::test]
async fn a_peer_of_another_authority_or_another_name_is_refused() {
    let (authority, other) = (Authority::new(0), Authority::new(0));
    let server_of = server(&authority, "127.0.0.1", false).await;
    for client in [with(trusting(&other)), Client::new().unwrap()] {
        let error = refused(&client, &server_of).await;
        assert!(error.contains("the certificate of 127.0.0.1 is not accepted"), "{error}");
        assert!(error.contains("ssl_trusted_certificates_file"), "{error}");
    }
    let misnamed = server(&authority, "elsewhere.example.com", false).await;
    let error = refused(&with(trusting(&authority)), &misnamed).await;
    assert!(error.contains("not valid for name"), "{error}");
    assert_eq!((server_of.count().requests, misnamed.count().requests), (0, 0));
}

#[tokio::test]
async fn without_verification_every_certificate_is_accepted() {
    let server = server(&Authority::new(0), "elsewhere.example.com", false).await;
    run(&with(Tls { verify: false, ..Tls::default() }), &server.url("https"), json!({})).await.unwrap();
}

#[tokio::test]
async fn a_certificate_is_not_further_from_a_trusted_one_than_allowed() {
    let authority = Authority::new(2);
    let server = server(&authority, "127.0.0.1", false).await;
    let error = refused(&with(Tls { max_depth: 1, ..trusting(&authority) }), &server).await;
    assert!(error.contains("further than ssl_certificate_max_depth = 1"), "{error}");
    run(&with(Tls { max_depth: 2, ..trusting(&authority) }), &server.url("https"), json!({})).await.unwrap();
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_it_is_demanded() {
    let authority = Authority::new(0);
    let server = server(&authority, "127.0.0.1", true).await;
    let error = refused(&with(trusting(&authority)), &server).await;
    assert!(error.to_lowercase().contains("certificate"), "{error}");
    let key = authority.client();
    let key_file = authority.put("plain.key", &key.serialize_pem());
    let cert_file = Some(authority.file("client.pem"));
    let tls = Tls { cert_file, key_file: Some(key_file), ..trusting(&authority) };
    run(&with(tls), &server.url("https"), json!({})).await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_refused_by_name() {
    let authority = Authority::new(0);
    let key = authority.client();
    let file = |name: &str| Some(authority.file(name));
    authority.put("plain.key", &key.serialize_pem());
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    authority.put("encrypted.key", encrypted);
    authority.put(
        "old.key",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
    );
    authority.put("others.key", &rcgen::KeyPair::generate().unwrap().serialize_pem());
    authority.put("nonsense.pem", "nothing at all");
    let identity = |key: &str| Tls { cert_file: file("client.pem"), key_file: file(key), ..Tls::default() };
    let trusted = |name: &str| Tls { trusted_certificates_file: file(name), ..Tls::default() };
    for (tls, expected) in [
        (trusted("missing.pem"), "ssl_trusted_certificates_file"),
        (trusted("nonsense.pem"), "there is no certificate in it"),
        (Tls { cert_file: file("client.pem"), ..Tls::default() }, "cert_file needs key_file"),
        (Tls { key_file: file("plain.key"), ..Tls::default() }, "key_file needs cert_file"),
        (identity("missing.key"), "missing.key"),
        (identity("nonsense.pem"), "there is no private key in it"),
        (identity("others.key"), "cannot be used together"),
        (identity("encrypted.key"), "the key is encrypted; `openssl pkey"),
        (identity("old.key"), "the key is encrypted; `openssl pkey"),
    ] {
        let error = Client::with(&Connections { tls, ..Connections::default() }).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.starts_with("[replicator] "), "{error}");
    }
}
