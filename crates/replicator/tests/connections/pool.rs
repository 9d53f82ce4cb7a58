//! The rules of the pool: connections are kept for the close interval, reused across jobs, and returned when a job is
//! dropped. Connecting never blocks other jobs.

use std::time::Duration;

use serde_json::json;
use turnwise_outbound::{Client, Connections};

use super::server::{Count, Manner, PATIENCE, Server};
use super::{client, run};

#[tokio::test]
async fn a_second_job_uses_the_connection_of_the_first() {
    let server = Server::start().await;
    let client = Client::new().unwrap();
    for n in 1..=5 {
        run(&client, &server.url("http"), json!({})).await.unwrap();
        assert_eq!(server.count(), Count { accepted: 1, open: 1, requests: n });
    }
    // Even a request with another login reuses it, because each request carries its login.
    run(&client, &server.url("http").replace("://", "://u:p@"), json!({})).await.unwrap();
    assert_eq!(server.count().accepted, 1);
    assert!(server.heads().last().unwrap().contains("authorization: Basic"));
    assert!(!server.heads()[0].contains("authorization"));
}

#[tokio::test]
async fn connections_that_are_made_in_another_way_are_not_shared() {
    let server = Server::start().await;
    let client = Client::new().unwrap();
    for (fields, accepted) in [
        (json!({}), 1),
        (json!({"socket_options": "[{sndbuf, 65536}]"}), 2),
        (json!({"socket_options": "[{sndbuf, 65536}]"}), 2),
        (json!({"socket_options": "[{keepalive, true}]"}), 2),
    ] {
        run(&client, &server.url("http"), fields).await.unwrap();
        assert_eq!(server.count().accepted, accepted);
    }
}

#[tokio::test]
async fn an_unused_connection_is_closed_after_the_interval() {
    let server = Server::start().await;
    let client = client(Connections { close_interval: Duration::from_millis(300), ..Connections::default() });
    run(&client, &server.url("http"), json!({})).await.unwrap();
    assert_eq!(server.count().open, 1);
    server.wait(|count| count.open == 0).await;
    run(&client, &server.url("http"), json!({})).await.unwrap();
    assert_eq!(server.count().accepted, 2);
}

#[tokio::test]
async fn an_unused_connection_makes_room_for_one_to_another_server() {
    let client = client(Connections { most: 1, ..Connections::default() });
    for _ in 0..3 {
        // Each server gets the one allowed connection, which is kept for the close interval of 90 s.
        let server = Server::start().await;
        let url = server.url("http");
        let job = run(&client, &url, json!({}));
        tokio::time::timeout(PATIENCE, job).await.expect("it waits for the idle connection").unwrap();
        assert_eq!(server.count().accepted, 1);
    }
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_not_used_again() {
    let server = Server::with(Manner { closes: true, ..Manner::default() }).await;
    let client = Client::new().unwrap();
    for n in 1..=3 {
        run(&client, &server.url("http"), json!({})).await.unwrap();
        server.wait(|count| count.accepted == n && count.open == 0).await;
    }
}

#[tokio::test]
async fn a_new_interval_holds_at_once() {
    let server = Server::start().await;
    let client = Client::new().unwrap();
    run(&client, &server.url("http"), json!({})).await.unwrap();
    client.set_close_interval(Duration::from_millis(200));
    server.wait(|count| count.open == 0).await;
    run(&client, &server.url("http"), json!({})).await.unwrap();
    server.wait(|count| count.accepted == 2 && count.open == 0).await;
    client.set_close_interval(Duration::from_secs(90));
    for _ in 0..2 {
        run(&client, &server.url("http"), json!({})).await.unwrap();
    }
    assert_eq!(server.count().accepted, 3);
}

#[tokio::test]
async fn jobs_that_cannot_connect_do_not_hold_up_others() {
    // A TLS handshake is a part of connecting, and this server never responds.
    let mute = Server::with(Manner { mute: true, ..Manner::default() }).await;
    let server = Server::start().await;
    let client = Client::new().unwrap();
    let hanging: Vec<_> = (0..50)
        .map(|_| {
            let (client, url) = (client.clone(), mute.url("https"));
            tokio::spawn(async move { run(&client, &url, json!({})).await })
        })
        .collect();
    mute.wait(|count| count.accepted == 50).await;
    let run = tokio::time::timeout(PATIENCE, run(&client, &server.url("http"), json!({}))).await;
    run.unwrap().unwrap();
    assert!(hanging.iter().all(|job| !job.is_finished()));
    // Aborting them leaves nothing behind.
    for job in hanging {
        job.abort();
    }
    mute.wait(|count| count.open == 0).await;
}

#[tokio::test]
async fn a_job_that_dies_in_the_middle_of_an_answer_takes_the_connection_along() {
    let server = Server::with(Manner { half: true, ..Manner::default() }).await;
    let client = Client::new().unwrap();
    let (dying, url) = (client.clone(), server.url("http"));
    let job = tokio::spawn(async move { run(&dying, &url, json!({})).await });
    server.wait(|count| count.requests == 1).await;
    assert_eq!(server.count().open, 1);
    job.abort();
    server.wait(|count| count.open == 0).await;
}

#[tokio::test]
async fn a_job_that_dies_between_requests_leaves_its_connection_to_the_next() {
    let server = Server::start().await;
    let client = Client::new().unwrap();
    let (dying, url) = (client.clone(), server.url("http"));
    let job = tokio::spawn(async move {
        run(&dying, &url, json!({})).await.unwrap();
        std::future::pending::<()>().await;
    });
    server.wait(|count| count.requests == 1).await;
    // The response has been read by then, or the next reader must wait for it.
    tokio::task::yield_now().await;
    job.abort();
    assert!(job.await.unwrap_err().is_cancelled());
    run(&client, &server.url("http"), json!({})).await.unwrap();
    let count = server.wait(|count| count.open == 1).await;
    assert!(count.accepted <= 2, "{count:?}");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_given_up() {
    let server = Server::with(Manner { pause: Some(Duration::from_millis(20)), ..Manner::default() }).await;
    let client = Client::new().unwrap();
    let mut job = super::job(&server.url("http"), json!({}));
    job.settings.peers.request_timeout = Some(Duration::from_millis(300));
    let error = turnwise_replicator::filter_code(&job, &client).await.unwrap_err().to_string();
    assert!(error.contains("no end of the answer after 300 ms"), "{error}");
    server.wait(|count| count.open == 0).await;
}

#[tokio::test]
async fn connect_to_leads_elsewhere_and_nothing_else_changes() {
    let server = Server::start().await;
    let port = server.address.port();
    let connections = Connections {
        connect_to: format!("*.example.com:5984:127.0.0.1:{port}").parse().unwrap(),
        ..Connections::default()
    };
    let client = client(connections);
    run(&client, "http://db.example.com:5984/db", json!({})).await.unwrap();
    assert!(
        server.heads()[0].to_lowercase().contains("host: db.example.com:5984\r\n"),
        "{:?}",
        server.heads()
    );
    let error = run(&client, "http://127.0.0.1:1/db", json!({})).await.unwrap_err().to_string();
    assert!(error.contains("no connection"), "{error}");
}
