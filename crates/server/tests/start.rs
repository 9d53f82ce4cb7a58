//! The checks before a server starts.

use std::sync::Arc;

use futures::future::join_all;
use turnwise_queue::keyspace::FORMAT_VERSION;
use turnwise_queue::{Copying, Keyspace};
use turnwise_server::{Config, Refused, RunningServer, Server, ServerConfig, StartError, StoreUrl};
use turnwise_store::{Error, Store, embedded, runtime};

/// A store of a test's own.
fn store(folder: &tempfile::TempDir) -> Store {
    let options = embedded::Options { durable: false, ..embedded::Options::default() };
    Store::new(embedded::Embedded::open_with(folder.path(), options).unwrap(), Arc::new(runtime::System))
}

fn config() -> ServerConfig {
    let url = StoreUrl::embedded("shared");
    let listen = "127.0.0.1:0".parse().unwrap();
    ServerConfig {
        store: url,
        listen,
        name: None,
        advertise: None,
        config: Config::default(),
        guard: None,
        insecure_no_auth: true,
        seal: turnwise_server::seal(None).unwrap(),
    }
}

async fn start(store: &Store) -> Result<RunningServer, StartError> {
    Server::start_on(store.clone(), config()).await
}

async fn set(store: &Store, key: bytes::Bytes, value: bytes::Bytes) {
    let (key, value) = (&key, &value);
    store.transact(|tx| async move { tx.set(key.clone(), value.clone()) }).await.unwrap();
}

#[tokio::test]
async fn a_store_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    set(&store, "registry/pods/a\n".into(), "x".into()).await;
    let Err(error) = start(&store).await else { panic!("it starts on rows of another program") };
    let text = error.to_string();
    assert!(matches!(error, StartError::Store { cause: Refused::Foreign(_), .. }), "{text}");
    assert!(text.contains(r"`registry/pods/a\n`") && text.contains("embedded:shared"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let tx = store.begin().await.unwrap();
    let rows = tx.range(&("".into(), "\u{7f}".into()), 10).await.unwrap();
    assert_eq!(rows, [("registry/pods/a\n".into(), "x".into())]);
}

#[tokio::test]
async fn rows_without_their_format_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    set(&store, Keyspace::default().server_uuid(), "\"u\"".into()).await;
    let text = start(&store).await.err().unwrap().to_string();
    assert!(text.contains("embedded:shared is corrupt") && text.contains("restore it"), "{text}");
}

#[tokio::test]
async fn formats_that_this_release_does_not_know_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let keys = Keyspace::default();
    for other in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
        set(&store, keys.format(), other.to_string().into()).await;
        let text = start(&store).await.err().unwrap().to_string();
        let told = format!("is in format {other}, and this release knows format {FORMAT_VERSION}");
        assert!(text.contains(&told), "{text}");
    }
    set(&store, keys.format(), "\"x\"".into()).await;
    let error = start(&store).await.err().unwrap();
    assert!(matches!(error, StartError::Store { cause: Refused::Format(_), .. }), "{error}");
    let copying = Copying { of: "u".into(), from: "embedded:there".into(), run: "1".into() };
    set(&store, keys.format(), copying.to_value()).await;
    let text = start(&store).await.err().unwrap().to_string();
    assert!(text.contains("unfinished copy of embedded:there"), "{text}");
    set(&store, keys.format(), FORMAT_VERSION.to_string().into()).await;
    start(&store).await.unwrap().shutdown().await;
}

#[tokio::test]
async fn nodes_that_start_at_once_on_an_empty_store_agree() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let servers = join_all((0..4).map(|_| start(&store))).await;
    let servers: Vec<RunningServer> = servers.into_iter().map(Result::unwrap).collect();
    let client = turnwise_testkit::client();
    let mut uuids = Vec::new();
    for server in &servers {
        let welcome = client.get(format!("http://{}/", server.listen())).send().await.unwrap();
        let welcome: serde_json::Value = serde_json::from_str(&welcome.text().await.unwrap()).unwrap();
        uuids.push(welcome["uuid"].as_str().unwrap().to_owned());
    }
    uuids.dedup();
    assert_eq!(uuids.len(), 1);
    join_all(servers.into_iter().map(RunningServer::shutdown)).await;
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let started = Server::start_on(store(&folder), ServerConfig { listen, ..config() }).await;
    let text = started.err().unwrap().to_string();
    assert!(text.contains(&listen.to_string()) && text.contains("--listen"), "{text}");
}

#[tokio::test]
async fn a_store_in_use_by_another_process_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::embedded(folder.path());
    let first = Server::start(ServerConfig { store: url.clone(), ..config() }).await.unwrap();
    let second = Server::start(ServerConfig { store: url, ..config() }).await;
    match second.err().unwrap() {
        StartError::Store { cause: Refused::Store(Error::Unavailable(_)), .. } => {}
        error => panic!("{error}"),
    }
    first.shutdown().await;
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[replicator]\ncert_file = /no/such/cert.pem\nkey_file = /no/such/key.pem\n";
    let config = ServerConfig { config: Config::parse("my.ini", text).unwrap().0, ..config() };
    let Err(error) = Server::start_on(store(&folder), config).await else {
        panic!("it starts without its key")
    };
    let said = error.to_string();
    assert!(said.contains("[replicator] cert_file /no/such/cert.pem: No such file"), "{said}");
}
