//! How `turnwise serve` reports that it cannot start: an exit code, and one line.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::server::{Home, turnwise, write_private};

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

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Every folder and file that the server makes is for its user alone. One that others can use is refused, and the command in
/// the message corrects it.
#[tokio::test]
async fn files_that_others_can_use_are_refused() {
    let outer = tempfile::tempdir().unwrap();
    let file = |name: &str| outer.path().join(name);
    let (data, keys, audit, config) =
        (file("new/my data"), file("my keys"), file("audit.jsonl"), file("ini"));
    write_private(&keys, &"a1".repeat(32));
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    write_private(&key, &certified.signing_key.serialize_pem());
    let text = format!(
        "[audit]\nfile = {}\n[listener]\ncertificate = {}\nkey = {}\n",
        audit.display(),
        certificate.display(),
        key.display()
    );
    std::fs::write(&config, text).unwrap();
    let url = format!("embedded:{}", data.display());
    let arguments =
        ["--insecure-no-auth", "--store", &url, "--config", config.to_str().unwrap(), "--seal-keys"];
    let serve = || {
        let mut command = turnwise();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).arg(&keys);
        command
    };
    let start = async || {
        let mut server = serve().stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(crate::server::PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert!(line.is_some_and(|line| line.contains("listens on https://")));
        server.kill().await.unwrap();
    };
    start().await;
    let store = data.join("store");
    for folder in [&file("new"), &data, &store, &store.join("log")] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    for made in [&audit, &store.join("FORMAT"), &store.join("rows.redb"), &store.join("LOCK")] {
        assert_eq!(mode(made), 0o600, "{}", made.display());
    }

    for (path, looser) in [
        (&store, 0o755),
        (&store, 0o710),
        (&store, 0o770),
        (&keys, 0o644),
        (&keys, 0o660),
        (&key, 0o604),
        (&audit, 0o644),
        (&audit, 0o660),
    ] {
        set_mode(path, looser);
        let ended = crate::server::clean(serve().output().await.unwrap());
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{} {looser:o}: {text}", path.display());
        assert!(text.contains(&format!("mode {looser:o}")), "{text}");
        assert_eq!(mode(path), looser, "it is left as it was");
        let command = text.lines().find_map(|line| line.find("chmod ").map(|at| &line[at..])).unwrap();
        let shell = Command::new("sh").args(["-c", command]).status().await.unwrap();
        assert!(shell.success(), "{command}");
        start().await;
    }

    // So do the commands that write to the store; those that only look at it take it as it is.
    set_mode(&store, 0o750);
    for (arguments, code) in [(["store", "check", &url], 0), (["store", "rekey", &url], 2)] {
        let mut command = turnwise();
        command.args(arguments).arg("--seal-keys").arg(&keys);
        let ended = crate::server::clean(command.output().await.unwrap());
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {text}");
        assert_eq!(code == 2, text.contains("chmod -R go-rwx"), "{text}");
    }
}
