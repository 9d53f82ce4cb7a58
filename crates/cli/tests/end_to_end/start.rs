//! How `turnwise serve` reports that it cannot start: an exit code, and one line.

use crate::server::{Home, turnwise};

/// Runs `serve` until it exits. Returns its exit code and its message.
async fn refused(arguments: &[&str], store: Option<&str>) -> (i32, String) {
    let mut command = turnwise();
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).kill_on_drop(true);
    if let Some(store) = store {
        command.env("TURNWISE_STORE", store);
    }
    let ended = tokio::time::timeout(crate::server::PATIENCE, command.output()).await;
    let ended = crate::server::clean(ended.expect("it does not give up").unwrap());
    (ended.status.code().unwrap(), String::from_utf8(ended.stderr).unwrap())
}

#[tokio::test]
async fn a_wrong_url_is_wrong_usage_and_its_password_is_not_repeated() {
    for url in ["./data", "etcd://user:hunter2@host:port/x", "redis://user:hunter2@host", ""] {
        for (arguments, store) in [(&["--store", url][..], None), (&[][..], Some(url))] {
            let (code, text) = refused(arguments, store).await;
            assert_eq!(code, 2, "{url}: {text}");
            assert!(text.starts_with("turnwise: --store: ") && !text.contains("hunter2"), "{url}: {text}");
        }
    }
    let (code, text) = refused(&["--name", "a/b"], None).await;
    assert_eq!(code, 2, "{text}");
}

#[tokio::test]
async fn the_reason_that_prevents_a_start_is_one_line() {
    let home = Home::new("");
    let server = home.serve().await;
    let store = format!("embedded:{}", home.data_dir().display());
    let (code, text) = refused(&["--store", &store], None).await;
    assert_eq!((code, text.lines().count()), (1, 1), "{text}");
    assert!(
        text.starts_with(&format!("turnwise: cannot start: the store {store} is unavailable: ")),
        "{text}"
    );
    let other = tempfile::tempdir().unwrap();
    let other = format!("embedded:{}", other.path().display());
    let mut command = turnwise();
    command.args(["serve", "--listen", server.address(), "--store", &other]);
    let ended = crate::server::clean(command.output().await.unwrap());
    let text = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains(server.address()), "{text}");
    server.kill().await;
    // A directory that cannot be created.
    let (code, text) = refused(&["--store", "embedded:/dev/null/x"], None).await;
    assert_eq!((code, text.lines().count()), (1, 1), "{text}");
}

#[tokio::test]
async fn an_invalid_log_level_is_wrong_usage() {
    for wrong in ["dbug", "turnwise=dbug"] {
        let (code, text) = refused(&["--log", wrong, "--store", "embedded:/dev/null/x"], None).await;
        assert_eq!(code, 2, "{text}");
        assert!(
            text.contains("`dbug` is not a level: expected a level (off, error, warn, info, debug, trace)"),
            "{text}"
        );
    }
}
