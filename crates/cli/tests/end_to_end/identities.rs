//! Users and tokens, as an operator and a program meet them: from the first one of a store to workers that need one.

use std::process::{Output, Stdio};

use serde_json::json;
use tokio::process::Command;

use crate::server::{Home, PATIENCE, clean, turnwise};

const COMMANDS: &str = "[command]\nenabled = true\nallow_root = true\n";

/// Runs a command, with a token if one is given.
async fn run(url: &str, token: &str, args: &[&str]) -> (i32, String, String) {
    let mut command = turnwise();
    command.args(args).env("TURNWISE_SERVER", url).stdin(Stdio::null());
    if !token.is_empty() {
        command.env("TURNWISE_TOKEN", token);
    }
    told(command.output().await.unwrap())
}

fn told(output: Output) -> (i32, String, String) {
    let Output { status, stdout, stderr } = clean(output);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn an_operator_makes_the_first_token_and_programs_use_theirs() {
    let home = Home::new(COMMANDS);
    let store = format!("embedded:{}", home.data_dir().display());
    let config = home.config().display().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &store, "--config", &config];
    let (code, out, error) = told(turnwise().args(serve).output().await.unwrap());
    assert_eq!((code, out.as_str()), (2, ""), "{error}");
    let wanted = format!("turnwise tokens add --scope admin --store {store}");
    assert!(error.contains(&wanted), "{error}");

    let words: Vec<&str> = wanted.split(' ').skip(1).collect();
    let (code, out, error) = run("", "", &words).await;
    assert_eq!(code, 0, "{error}");
    let admin = out.trim();
    assert!(admin.starts_with("tw_") && out.lines().count() == 1, "{out}");

    let server = home.serve_closed().await;
    let url = server.url().to_owned();
    let (code, _, error) = run(&url, "", &["jobs", "list"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("TURNWISE_TOKEN") && error.contains("--token-file"), "{error}");
    let (code, out, error) = run(&url, admin, &["tokens", "list"]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains(&admin[3..15]) && !out.contains(admin), "{out}");
    // Nobody would have the token.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut add = turnwise();
    add.args(["tokens", "add", "--scope", "client:lost"]).env("TURNWISE_SERVER", &url);
    add.env("TURNWISE_TOKEN", admin).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let (code, _, error) = told(add.spawn().unwrap().wait_with_output().await.unwrap());
    assert!(code == 1 && error.contains("`turnwise tokens rotate` makes another one"), "{error}");
    // An embedded store has one process at a time.
    let (code, _, error) = run("", "", &["tokens", "list", "--store", &store]).await;
    assert!(code == 1 && error.contains("unavailable"), "{error}");

    let (_, client, _) =
        run(&url, admin, &["tokens", "add", "--scope", "client:acme", "--note", "ci", "--expires", "90d"])
            .await;
    let (_, worker, _) = run(&url, admin, &["tokens", "add", "--scope", "worker:t,sums"]).await;
    let (client, worker) = (client.trim(), worker.trim());
    let (code, _, error) = run(&url, client, &["jobs", "add", "t", "--id", "a", "--options", "{}"]).await;
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = run(&url, client, &["workers"]).await;
    assert!(code == 1 && error.contains("it needs the scope operator"), "{error}");

    // A worker whose command does not get the token.
    let token_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token_file.path(), format!("{worker}\n")).unwrap();
    let mut working = turnwise();
    working.args(["work", "--type", "t", "--token-file"]).arg(token_file.path());
    working.args(["--exec", "sh", "-c", "echo \"\\\"${TURNWISE_TOKEN:-none}\\\"\""]);
    working.env("TURNWISE_SERVER", &url).env("TURNWISE_TOKEN", admin).kill_on_drop(true);
    let working = working.stderr(Stdio::null()).spawn().unwrap();
    let (code, out, error) = run(&url, client, &["jobs", "wait", "t", "a"]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("none"), "{out}");
    drop(working);

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python_worker.py");
    let python = Command::new("python3")
        .arg(script)
        .args(["--server", &url])
        .env("TURNWISE_TOKEN", worker)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let options = json!({"numbers": [1, 2, 3]}).to_string();
    let add = ["jobs", "add", "sums", "--id", "s", "--task", "sum", "--options", &options];
    assert_eq!(run(&url, client, &add).await.0, 0);
    let waits = run(&url, client, &["jobs", "wait", "sums", "s"]);
    let (code, out, error) = tokio::time::timeout(PATIENCE, waits).await.unwrap();
    assert!(code == 0 && out.contains('6'), "{out} {error}");
    drop(python);

    let id = &client[3..15];
    let (code, rotated, error) = run(&url, admin, &["tokens", "rotate", id]).await;
    assert_eq!(code, 0, "{error}");
    assert_eq!(run(&url, client, &["jobs", "list"]).await.0, 1);
    assert_eq!(run(&url, rotated.trim(), &["jobs", "list"]).await.0, 0);
    assert_eq!(run(&url, admin, &["tokens", "revoke", id]).await.0, 0);
    assert_eq!(run(&url, rotated.trim(), &["jobs", "list"]).await.0, 1);
    let (code, _, error) = run(&url, admin, &["tokens", "revoke", &admin[3..15]]).await;
    assert!(code == 1 && error.contains("last identity with the scope `admin`"), "{error}");
    assert!(server.terminate().await.success());
    for token in [admin, client, worker, rotated.trim()] {
        assert!(!home.log().contains(&token[16..]), "a token is in the log");
    }
    let (_, dump, _) = run("", "", &["store", "dump", &store]).await;
    let hidden =
        dump.lines().filter(|line| line.starts_with("[\"tokens\"") || line.starts_with("[\"session_key\"]"));
    let hidden: Vec<&str> = hidden.collect();
    assert!(hidden.len() == 4 && hidden.iter().all(|line| line.contains("$hidden")), "{hidden:?}");
}

#[tokio::test]
async fn users_have_passwords_that_no_command_line_shows() {
    let home = Home::new("");
    let server = home.serve_closed().await;
    let url = server.url().to_owned();
    let add = async |name: &str, password: &str, scope: &str| {
        let mut command = turnwise();
        command
            .args(["users", "add", name, "--scope", scope])
            .env("TURNWISE_SERVER", &url)
            .stdin(Stdio::null());
        told(command.env("TURNWISE_PASSWORD", password).output().await.unwrap())
    };
    let (code, _, error) = add("jan", "short", "admin").await;
    assert!(code == 1 && error.contains("password: must have at least 8 characters"), "{error}");
    let (code, _, error) = add("anna", "correct horse", "client:acme").await;
    assert!(code == 1 && error.contains("the first identity needs the scope `admin`"), "{error}");
    assert_eq!(add("jan", "correct horse", "admin").await.0, 0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "battery staple\nnot this\n").unwrap();
    let file = file.path().to_str().unwrap();
    let with = |password: &str| url.replace("http://", &format!("http://jan:{password}@"));
    let as_jan = with("correct%20horse");
    let (code, _, error) =
        run(&as_jan, "", &["users", "add", "anna", "--scope", "client:acme", "--password-file", file]).await;
    assert_eq!(code, 0, "{error}");
    let (_, out, _) = run(&as_jan, "", &["users", "list"]).await;
    assert!(out.contains("anna") && out.contains("client:acme"), "{out}");
    let (code, _, error) = run(&as_jan, "", &["users", "rotate", "jan", "--password-file", file]).await;
    assert_eq!(code, 0, "{error}");
    assert_eq!(run(&as_jan, "", &["users", "list"]).await.0, 1);
    let as_jan = with("battery%20staple");
    assert_eq!(run(&as_jan, "", &["users", "revoke", "anna"]).await.0, 0);
    let (code, _, error) = run(&as_jan, "", &["users", "add", "otto", "--scope", "client:acme"]).await;
    assert!(code == 2 && error.contains("--password-file") && error.contains("TURNWISE_PASSWORD"), "{error}");
    let (code, _, error) =
        run(&as_jan, "", &["users", "add", "otto", "--scope", "root", "--password-file", file]).await;
    assert!(code == 1 && error.contains("`root` is no scope; scopes are admin, operator"), "{error}");
    assert!(server.terminate().await.success());
    let log = home.log();
    assert!(!log.contains("correct horse") && !log.contains("battery"), "a password is in the log");
}
