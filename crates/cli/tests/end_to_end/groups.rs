//! `turnwise groups`, and arrays.

use std::process::Output;

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

async fn run(server: &Server, args: &[&str]) -> (i32, String, String) {
    let mut command = turnwise();
    command.args(args).env("TURNWISE_SERVER", server.url());
    let Output { status, stdout, stderr } = clean(command.output().await.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_group_is_added_filled_closed_cancelled_and_removed() {
    let server = Home::new("").serve().await;
    let said = async |args: &[&str]| {
        let (code, said, told) = run(&server, args).await;
        assert_eq!(code, 0, "{args:?}: {told}");
        said
    };
    let add = ["groups", "add", "g", "--on-complete", "after", "--options", r#"{"of":"g"}"#];
    assert_eq!(said(&add).await, "g is open");
    said(&["jobs", "add", "t", "--id", "a", "--group", "g"]).await;
    assert_eq!(
        said(&["jobs", "add", "t", "--id", "film", "--count", "3", "--at-once", "2", "--group", "g"]).await,
        "film"
    );
    assert_eq!(said(&["groups", "close", "g"]).await, "g is closed; 2 of its jobs have not ended");
    let show =
        async |name: &str| serde_json::from_str::<Value>(&said(&["groups", "show", name]).await).unwrap();
    assert_eq!(show("film").await["counts"]["open"], 3);
    let why = said(&["groups", "why", "film"]).await;
    assert!(why.starts_with("3 of 3 jobs have not ended.") && why.contains("no_worker"), "{why}");
    assert_eq!(said(&["groups", "hold", "film", "--yes"]).await, "3 jobs held");
    assert_eq!(said(&["groups", "release", "film", "--yes"]).await, "3 jobs released");
    let (_, _, told) = run(&server, &["groups", "retry", "film"]).await;
    assert_eq!(told, "0 jobs match, 0 would be retried");
    let (code, _, told) = run(&server, &["groups", "cancel", "a/b"]).await;
    assert!(code == 2 && told.contains("group"), "{told}");
    let (code, _, told) = run(&server, &["groups", "remove", "g"]).await;
    assert!(code == 1 && told.contains("not ended"), "{told}");
    assert_eq!(said(&["groups", "cancel", "g", "--yes"]).await, "1 jobs cancelled");
    assert_eq!(said(&["groups", "cancel", "film", "--yes"]).await, "3 jobs cancelled");
    let ended = loop {
        let group = show("g").await;
        if group["ended_us"].is_i64() {
            break group;
        }
    };
    assert_eq!((&ended["state"], &ended["counts"]["total"]), (&json!("cancelled"), &json!(2)));
    let list = said(&["groups", "list"]).await;
    assert_eq!(list.lines().count(), 3, "{list}");
    assert_eq!(said(&["groups", "remove", "g"]).await, "removed the group g");
    let called = said(&["jobs", "list", "--type", "after"]).await;
    assert!(called.contains("g@"), "{called}");
}
