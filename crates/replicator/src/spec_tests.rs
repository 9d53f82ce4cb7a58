//! Tests of the request's validation.
#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn with(extra: Value) -> Result<Replication, FieldError> {
    let mut body = json!({"source": "http://a/db", "target": "http://b/db"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    Replication::parse(body.as_object().unwrap(), &Defaults::default())
}

#[test]
fn every_wrong_field_is_refused_by_name() {
    for (extra, field) in [
        (json!({"source": null}), "source"),
        (json!({"target": 7}), "target"),
        (json!({"target": "db"}), "target"),
        (json!({"target": "gopher://b/db"}), "target"),
        (json!({"continuous": "yes"}), "continuous"),
        (json!({"create_target": 1}), "create_target"),
        (json!({"create_target_params": []}), "create_target_params"),
        (json!({"create_target_params": {"q": []}}), "create_target_params.q"),
        (json!({"doc_ids": "a"}), "doc_ids"),
        (json!({"doc_ids": [1]}), "doc_ids"),
        (json!({"doc_ids": ["a"], "selector": {}}), "selector"),
        (json!({"doc_ids": ["a"], "filter": "d/f"}), "filter"),
        (json!({"filter": "d/f", "selector": {}}), "selector"),
        (json!({"filter": "nofunction"}), "filter"),
        (json!({"filter": "/f"}), "filter"),
        (json!({"filter": "d/f", "query_params": []}), "query_params"),
        (json!({"query_params": [1]}), "query_params"),
        (json!({"selector": []}), "selector"),
        (json!({"winning_revs_only": "x"}), "winning_revs_only"),
        (json!({"since_seq": true}), "since_seq"),
        (json!({"use_checkpoints": 0}), "use_checkpoints"),
        (json!({"checkpoint_interval": 0}), "checkpoint_interval"),
        (json!({"use_bulk_get": "x"}), "use_bulk_get"),
        (json!({"worker_processes": 0}), "worker_processes"),
        (json!({"worker_batch_size": -1}), "worker_batch_size"),
        (json!({"http_connections": 1.5}), "http_connections"),
        (json!({"connection_timeout": "soon"}), "connection_timeout"),
        (json!({"retries_per_request": 1000}), "retries_per_request"),
        (json!({"user_ctx": "me"}), "user_ctx"),
        (json!({"user_ctx": {"name": 1}}), "user_ctx.name"),
        (json!({"user_ctx": {"roles": "x"}}), "user_ctx.roles"),
        (json!({"proxy": 1}), "proxy"),
        (json!({"source_proxy": "gopher://p"}), "source_proxy"),
        (json!({"target_proxy": "p:80"}), "target_proxy"),
        (json!({"proxy": "http://p", "source_proxy": "http://q"}), "proxy"),
        (json!({"proxy": "http://p", "target_proxy": "http://q"}), "proxy"),
        (json!({"socket_options": "<}garbage]]["}), "socket_options"),
        (json!({"socket_options": {"nodelay": true}}), "socket_options"),
    ] {
        assert_eq!(with(extra.clone()).unwrap_err().field, field, "{extra}");
    }
}

#[test]
fn one_proxy_is_for_both_sides_and_two_are_each_for_its_own() {
    let proxies = |extra| {
        let replication = with(extra).unwrap();
        [replication.source, replication.target].map(|endpoint| endpoint.proxy().map(Proxy::to_string))
    };
    let shown = |text: &str| Some(text.to_owned());
    assert_eq!(proxies(json!({"source_proxy": "", "proxy": null})), [None, None]);
    let both = shown("socks5://u:*****@p:9");
    assert_eq!(proxies(json!({"proxy": "socks5://u:hunter2@p:9"})), [both.clone(), both]);
    assert_eq!(proxies(json!({"target_proxy": "https://q"})), [None, shown("https://q")]);
}

#[test]
fn a_jobs_socket_options_override_the_settings() {
    let replication = with(json!({"socket_options": "[{sndbuf, 10000}, {potato, true}]"})).unwrap();
    let expected = SocketOptions { sndbuf: Some(10_000), ..SocketOptions::default() };
    assert_eq!(replication.settings.peers.socket_options, expected);
}

#[test]
fn omitted_fields_come_from_the_defaults() {
    let replication = with(json!({"continuous": null, "unknown": {"x": 1}})).unwrap();
    assert!(
        !replication.continuous && replication.settings.use_checkpoints && replication.settings.use_bulk_get
    );
    assert_eq!(replication.settings.worker_processes, 4);
    assert_eq!(replication.settings.worker_batch_size, None);
    assert_eq!(replication.settings.peers.connection_timeout, Duration::from_secs(30));
    assert_eq!(replication.settings.peers.retries_per_request, 5);
    assert_eq!(replication.filter, None);
}

#[test]
fn a_jobs_fields_override_the_settings() {
    let replication = with(json!({"worker_processes": 2, "worker_batch_size": 10, "http_connections": 3,
        "connection_timeout": 4000, "retries_per_request": 0, "use_checkpoints": false,
        "checkpoint_interval": 5000, "use_bulk_get": false}))
    .unwrap();
    let numbers = (
        replication.settings.worker_processes,
        replication.settings.worker_batch_size,
        replication.settings.peers.http_connections,
    );
    assert_eq!(numbers, (2, Some(10), 3));
    assert_eq!(replication.settings.peers.connection_timeout, Duration::from_secs(4));
    assert_eq!(replication.settings.checkpoint_interval, Duration::from_secs(5));
    assert_eq!(replication.settings.peers.retries_per_request, 0);
    assert!(!replication.settings.use_checkpoints && !replication.settings.use_bulk_get);
}

#[test]
fn numbers_may_be_strings_as_in_couchdb() {
    let replication = with(json!({"worker_batch_size": "50", "connection_timeout": 1500})).unwrap();
    assert_eq!(replication.settings.worker_batch_size, Some(50));
    assert_eq!(replication.settings.peers.connection_timeout, Duration::from_millis(1500));
}

#[test]
fn doc_ids_are_decoded_sorted_and_unique() {
    let replication = with(json!({"doc_ids": ["b", "a%20c", "b"]})).unwrap();
    assert_eq!(replication.filter, Some(Filter::DocIds(vec!["a c".to_owned(), "b".to_owned()])));
}

#[test]
fn a_debug_print_shows_no_password() {
    let replication = with(json!({"source": "http://u:hunter2@a/db"})).unwrap();
    assert!(!format!("{replication:?}").contains("hunter2"));
}
