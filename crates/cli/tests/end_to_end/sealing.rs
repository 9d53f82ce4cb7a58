//! Secrets at rest: nothing of them is in the files of a store that has keys.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use turnwise_testkit::{Peer, canary};

use crate::server::{Home, clean, turnwise};

const ONE: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const TWO: &str = "b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";
/// Something that no row with secrets holds.
const PLAIN: &str = "plain-in-the-index";

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Whether a file of the folder has the beginning of a text. The log is compressed, which cuts a text short where it repeats what is
/// before it: the end of `pa55word"` is also that of `"password"`.
fn holds(folder: &Path, text: &str) -> bool {
    let part = &text.as_bytes()[..text.len().min(PART)];
    files(folder).iter().any(|file| {
        let bytes = std::fs::read(file).unwrap();
        bytes.windows(part.len()).any(|window| window == part)
    })
}

/// The bytes of a text that are searched for.
const PART: usize = 10;

async fn store(args: &[&str], keys: Option<&Path>) -> (i32, String) {
    let mut command = turnwise();
    command.arg("store").args(args).stdin(Stdio::null());
    if let Some(keys) = keys {
        command.arg("--seal-keys").arg(keys);
    }
    let output = clean(command.output().await.unwrap());
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn secrets_are_in_no_file_of_a_store_with_keys() {
    let peer = Peer::options().admin("admin", canary::PASSWORD).start().await;
    let source = peer.create("source").await;
    let mut home = Home::new("");
    let keys = home.seal(ONE);
    let server = home.serve().await;
    let document = json!({"source": source.url(), "target": "http://127.0.0.1:1/none", "continuous": true});
    server.put("/_replicator/d", &document).await;
    let job =
        json!({"id": PLAIN, "options": {"password": canary::PASSWORD}, "summary": {"for": canary::TOKEN}});
    server.post("/v1/jobs/mail", &job).await;
    let user = json!({"name": "jan", "password": canary::PASSWORD, "scopes": ["admin"]});
    server.post("/v1/users", &user).await;
    assert!(server.terminate().await.success());

    let data = home.data_dir();
    for secret in [canary::PASSWORD, canary::TOKEN, "argon2id"] {
        assert!(!holds(&data, secret), "{secret} is in a file");
    }
    assert!(holds(&data, PLAIN), "the search finds what is not encrypted");
    let url = format!("embedded:{}", data.display());
    let (code, text) = store(&["check", &url], Some(&keys)).await;
    assert_eq!(code, 0, "{text}");
    let (code, text) = store(&["check", &url], None).await;
    assert!(code == 1 && text.contains("--seal-keys"), "{text}");
    // A server without the keys, or with another one, does not start, and damages nothing.
    home.seal(TWO);
    let mut command = turnwise();
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", &url]).env("TURNWISE_SEAL_KEYS", &keys);
    let refused = clean(command.output().await.unwrap());
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && text.contains("not in the file of --seal-keys"), "{text}");

    // Another key takes over, and the first one is not needed any more.
    home.seal(&format!("# the new key\n{TWO}\n{ONE}\n"));
    let (code, text) = store(&["rekey", &url], Some(&keys)).await;
    assert!(code == 0 && text.contains("rows are encrypted with the first key"), "{text}");
    home.seal(TWO);
    let (code, text) = store(&["check", &url], Some(&keys)).await;
    assert_eq!(code, 0, "{text}");
    let server = home.serve().await;
    let asked = server.client().get(format!("{}/v1/jobs/mail/{PLAIN}", server.url()));
    let answer = asked.basic_auth("jan", Some(canary::PASSWORD)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_store_without_keys_gets_them() {
    let mut home = Home::new("");
    let server = home.serve().await;
    let job = json!({"id": PLAIN, "options": {"password": canary::PASSWORD}});
    server.post("/v1/jobs/mail", &job).await;
    assert!(server.terminate().await.success());
    let data = home.data_dir();
    assert!(holds(&data, canary::PASSWORD));
    let url = format!("embedded:{}", data.display());
    let (code, text) = store(&["rekey", &url], None).await;
    assert!(code == 2 && text.contains("--seal-keys"), "{text}");
    let wrong = home.seal("hunter2");
    let (code, text) = store(&["rekey", &url], Some(&wrong)).await;
    assert!(code == 2 && text.contains("line 1 is no key"), "{text}");
    let keys = home.seal(ONE);
    let (code, text) = store(&["rekey", &url], Some(&keys)).await;
    assert_eq!(code, 0, "{text}");
    // What is deleted may stay in free parts of the files. A copy leaves it behind.
    let copied = tempfile::tempdir().unwrap();
    let to = format!("embedded:{}", copied.path().display());
    let (code, text) = store(&["copy", &url, &to], Some(&keys)).await;
    assert_eq!(code, 0, "{text}");
    assert!(!holds(copied.path(), canary::PASSWORD) && holds(copied.path(), PLAIN));
    let mut moved = Home::in_folder(copied.path());
    moved.seal(ONE);
    let server = moved.serve().await;
    let registered = server.post("/v1/workers/mail", &json!({"slots": 1})).await;
    let path = format!("/v1/workers/mail/{}/accept", registered["worker"].as_str().unwrap());
    let asked =
        server.client().post(format!("{}{path}", server.url())).header("content-type", "application/json");
    let asked = asked.body(r#"{"received": 0, "limit": 1, "wait_ms": 10000}"#).send().await.unwrap();
    assert!(asked.text().await.unwrap().contains(canary::PASSWORD), "the worker gets the options");
    assert!(server.terminate().await.success());
}
