//! `turnwise store`: the built binary copies, checks and prints a store.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use turnwise_admin::scan::{Scan, everything};
use turnwise_queue::{Format, Keyspace};
use turnwise_store::{KeyValue, Store, StoreUrl, runtime};
use turnwise_testkit::Random;

use crate::server::{Home, PATIENCE, turnwise};

/// The number and size of rows in the store whose copy is killed: some seconds of work.
const ROWS: usize = 40_000;
const ROW_BYTES: usize = 1_000;
/// How much the copy has written when it is killed.
const KILLED_AT_BYTES: u64 = 10_000_000;

async fn run(args: &[&str]) -> Output {
    let output = turnwise().args(args).output().await.unwrap();
    // With `--secrets`, the output contains secrets on purpose.
    if args.contains(&"--secrets") { output } else { crate::server::clean(output) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn url(folder: &Path) -> String {
    format!("embedded:{}", folder.display())
}

async fn open(folder: &Path) -> Store {
    turnwise_store::open(&StoreUrl::embedded(folder), Arc::new(runtime::System)).await.unwrap()
}

async fn all_rows(folder: &Path) -> Vec<KeyValue> {
    let store = open(folder).await;
    let mut scan = Scan::new(&store, everything());
    let mut rows = Vec::new();
    while let Some(row) = scan.next().await.unwrap() {
        rows.push(row);
    }
    rows
}

fn size(folder: &Path) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    entries
        .flatten()
        .map(|entry| entry.path())
        .map(|path| if path.is_dir() { self::size(&path) } else { size(&path) })
        .sum()
}

#[tokio::test]
async fn a_killed_copy_resumes_and_no_server_starts_on_it_before_its_end() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = &Keyspace::default();
    let store = open(a.path()).await;
    store.transact(|tx| async move { tx.set(keys.format(), Format::current()) }).await.unwrap();
    // Of equal rows, compression would leave so little that the copy has all of them before it has written enough.
    let random = &Bytes::from(Random::new(1).bytes(2_000 * ROW_BYTES));
    for begin in (0..ROWS).step_by(2_000) {
        let write = |tx: turnwise_store::Transaction| async move {
            for n in begin..begin + 2_000 {
                let at = (n - begin) * ROW_BYTES;
                tx.set(keys.job("t", &n.to_string()), random.slice(at..at + ROW_BYTES))?;
            }
            Ok::<_, turnwise_store::Error>(())
        };
        store.transact(write).await.unwrap();
    }
    drop(store);
    let (from, to) = (url(a.path()), url(b.path()));
    let mut child = turnwise()
        .args(["store", "copy", &from, &to])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let halfway = async {
        while size(b.path()) < KILLED_AT_BYTES {
            // There is no event for a growing file, so this polls.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, halfway).await.expect("nothing is written");
    child.kill().await.unwrap();
    let there = all_rows(b.path()).await.len();
    assert!(there > 1 && there < ROWS, "{there} rows are there already");

    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--store", &to]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains(&format!("unfinished copy of {from}")), "{refused:?}");

    let done = run(&["store", "copy", &from, &to]).await;
    assert!(done.status.success(), "{done:?}");
    let said = text(&done.stdout);
    assert!(said.contains("written by this run") && said.contains("sha256 "), "{said}");
    assert_eq!(all_rows(a.path()).await, all_rows(b.path()).await);
}

#[tokio::test]
async fn the_jobs_of_a_server_move_to_another_one() {
    let (home, other) = (Home::new(""), Home::new(""));
    let server = home.serve().await;
    server.put("/v1/types/t", &json!({ "secrets": ["/password"] })).await;
    let job = json!({ "type": "t", "id": "a", "options": { "password": "hunter2" } });
    server.post("/v1/jobs", &json!({ "jobs": [job] })).await;
    let in_use = run(&["store", "copy", &url(&home.data_dir()), &url(&other.data_dir())]).await;
    assert_eq!((in_use.status.code(), text(&in_use.stderr).lines().count()), (Some(1), 1), "{in_use:?}");
    assert!(text(&in_use.stderr).contains("in use"), "{in_use:?}");
    server.terminate().await;
    let copied = run(&["store", "copy", &url(&home.data_dir()), &url(&other.data_dir())]).await;
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(all_rows(&home.data_dir()).await, all_rows(&other.data_dir()).await);
    let server = other.serve().await;
    let job = server.get("/v1/jobs/t/a").await;
    assert_eq!(job["state"], "pending", "{job}");
}

#[tokio::test]
async fn a_store_is_checked_and_printed() {
    let home = Home::new("");
    let server = home.serve().await;
    let job = json!({ "type": "t", "id": "a", "options": { "password": "hunter2" } });
    server.post("/v1/jobs", &json!({ "jobs": [job] })).await;
    let doc = json!({ "source": "http://u:hunter2@127.0.0.1:1/a", "target": "http://127.0.0.1:1/b" });
    server.put("/_replicator/doc", &doc).await;
    server.kill().await;
    let store = url(&home.data_dir());
    let clean = run(&["store", "check", &store]).await;
    assert!(clean.status.success() && text(&clean.stdout).contains("All invariants hold."), "{clean:?}");

    let shown = run(&["store", "dump", &store]).await;
    let lines = text(&shown.stdout);
    assert!(shown.status.success() && !lines.contains("hunter2"), "{lines}");
    assert_eq!(lines.lines().count(), all_rows(&home.data_dir()).await.len());
    for line in lines.lines() {
        let (key, value) = line.split_once('\t').expect("a key and a value");
        assert!(serde_json::from_str::<serde_json::Value>(key).unwrap().is_array(), "{line}");
        serde_json::from_str::<serde_json::Value>(value).unwrap();
    }
    let secrets = run(&["store", "dump", &store, "--secrets"]).await;
    assert_eq!(text(&secrets.stdout).matches("hunter2").count(), 3, "in two jobs and a document");
    let one = run(&["store", "dump", &store, "--prefix", r#"["jobs"]"#, "--from", r#"["jobs","t"]"#]).await;
    assert!(text(&one.stdout).starts_with(r#"["jobs","t","a"]"#), "{one:?}");
    assert_eq!(text(&one.stdout).lines().count(), 1);
    let one = run(&["store", "dump", &store, "--limit", "1"]).await;
    assert_eq!(text(&one.stdout).lines().count(), 1);
    let wrong = run(&["store", "dump", &store, "--prefix", "["]).await;
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");

    let damaged = open(&home.data_dir()).await;
    let keys = &Keyspace::default();
    damaged.transact(|tx| async move { tx.clear_range(keys.pending("t")) }).await.unwrap();
    drop(damaged);
    let found = run(&["store", "check", &store]).await;
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let said = text(&found.stdout);
    assert!(said.starts_with("[\"jobs\",\"t\",\"a\"]\n  must hold: a job is in one place"), "{said}");
    let json = run(&["store", "check", &store, "--json"]).await;
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&report["found"], &report["findings"][0]["key"]), (&json!(1), &json!(["jobs", "t", "a"])));
    // The exit code does not depend on whether somebody reads the findings.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = turnwise().args(["store", "check", &store]).stdout(writer).status().await.unwrap();
    assert_eq!(unread.code(), Some(1));
}

#[tokio::test]
async fn a_dump_ends_well_when_its_reader_closes_the_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let keys = &Keyspace::default();
    let fill = |tx: turnwise_store::Transaction| async move {
        for n in 0..5_000 {
            tx.set(keys.job("t", &n.to_string()), Bytes::from(vec![b'1'; 100]))?;
        }
        Ok::<_, turnwise_store::Error>(())
    };
    store.transact(fill).await.unwrap();
    drop(store);
    let mut child = turnwise()
        .args(["store", "dump", &url(folder.path())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[tokio::test]
async fn wrong_usage_and_a_missing_store_have_different_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (url(folder.path()), url(&folder.path().join("there")));
    for args in
        [&["store", "copy", "redis://u:hunter2@h", &there][..], &["store", "copy", &here, &here], &["store"]]
    {
        let output = run(args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(!text(&output.stderr).contains("hunter2"), "{output:?}");
    }
    let missing: [&[&str]; 3] =
        [&["store", "copy", &here, &there], &["store", "check", &here], &["store", "dump", &here]];
    for args in missing {
        let output = run(args).await;
        assert_eq!((output.status.code(), text(&output.stderr).lines().count()), (Some(1), 1), "{output:?}");
        assert!(text(&output.stderr).contains("there is no store"), "{output:?}");
    }
    assert!(!folder.path().join("store").exists(), "looking for it must not create it");
}
