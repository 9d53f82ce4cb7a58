//! The built binary on a full disk, without file descriptors, and on damaged stores.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use turnwise_testkit::Random;

use crate::server::{Home, PATIENCE, Server, turnwise};

/// A file system of its own, if the test may mount one.
struct Disk(TempDir);

impl Disk {
    fn mounted(size: &str) -> Option<Disk> {
        let folder = TempDir::new().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        let mounted = mount.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("not tested: only root can mount a disk that is small");
        }
        mounted.then(|| Disk(folder))
    }

    fn data_dir(&self) -> PathBuf {
        self.0.path().join("data")
    }

    /// Fills the disk completely.
    fn fill(&self) {
        let mut ballast = std::fs::File::create(self.0.path().join("ballast")).unwrap();
        let filled = std::io::copy(&mut std::io::repeat(1), &mut ballast);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        std::fs::remove_file(self.0.path().join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

fn many(n: usize) -> Value {
    // The log is compressed. Texts that compress well would let it take more rows than the whole disk has room for.
    let mut random = Random::new(n as u64);
    let mut filler = || -> String { (0..28).map(|_| random.hex32()).collect() };
    let jobs: Vec<Value> = (0..100)
        .map(|m| json!({ "type": "mail", "id": format!("{n}-{m}"), "options": { "filler": filler() } }))
        .collect();
    json!({ "jobs": jobs })
}

async fn add(server: &Server, n: usize) -> (StatusCode, Value) {
    server.request(Method::POST, "/v1/jobs", Some(&many(n))).await
}

async fn check(data_dir: &Path) -> (bool, String) {
    let url = format!("embedded:{}", data_dir.display());
    let output = turnwise().args(["store", "check", &url]).output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), text)
}

/// The ids of all jobs in the store.
async fn ids(data_dir: &Path) -> BTreeSet<String> {
    let url = format!("embedded:{}", data_dir.display());
    let output = turnwise().args(["store", "dump", &url, "--prefix", "jobs"]).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let key = |line: &str| serde_json::from_str::<Vec<Value>>(line.split_once('\t').unwrap().0).unwrap();
    lines.lines().map(|line| key(line)[2].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_server_recovers_once_there_is_room() {
    let Some(disk) = Disk::mounted("24m") else { return };
    let home = Home::in_folder(&disk.data_dir());
    let server = home.serve().await;
    let mut acknowledged = BTreeSet::new();
    let mut take = |n: usize, status: StatusCode| {
        if status.is_success() {
            acknowledged.extend((0..100).map(|m| format!("{n}-{m}")));
        }
        status.is_success()
    };
    let mut n = 0;
    for round in 0..2 {
        for _ in 0..3 {
            n += 1;
            assert!(take(n, add(&server, n).await.0));
        }
        disk.fill();
        let refused = loop {
            n += 1;
            let (status, answer) = add(&server, n).await;
            if !take(n, status) && answer["error"] != "unknown_outcome" {
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
                break answer.to_string();
            }
        };
        assert!(refused.contains("the disk is full"), "{refused}");
        let (status, up) = server.request(Method::GET, "/_up", None).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(up["reason"].as_str().unwrap().contains("the disk is full"), "{up}");
        server.get("/v1/jobs/mail/1-1").await;
        if round == 1 {
            // A store that was killed while its disk was full is sound, and can be read while the disk is still full.
            server.kill_now().await;
            assert!(check(&disk.data_dir()).await.0);
            disk.free();
            break;
        }
        disk.free();
        server.until("/_up", |up| up["status"] == "ok").await;
        n += 1;
        assert!(take(n, add(&server, n).await.0), "it goes on by itself");
    }
    drop(server);
    let server = home.serve().await;
    n += 1;
    assert!(take(n, add(&server, n).await.0));
    server.kill().await;
    let (clean, text) = check(&disk.data_dir()).await;
    assert!(clean, "{text}");
    let found = ids(&disk.data_dir()).await;
    assert_eq!(acknowledged.difference(&found).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn a_server_without_descriptors_keeps_its_store() {
    let home = Home::new("");
    let server = home.serve().await;
    assert!(add(&server, 1).await.0.is_success());
    // Fewer than the process has open, so it can open no more. One connection is open already, and stays open.
    server.limit("--nofile=8").await;
    for n in 2..300 {
        let (status, answer) = add(&server, n).await;
        assert!(status.is_success(), "{n}: {answer}");
    }
    let up = server.get("/_up").await;
    assert_eq!(up["status"], "ok");
    server.kill().await;
    let (clean, text) = check(&home.data_dir()).await;
    assert!(clean && text.contains("29,900"), "{text}");
}

#[tokio::test]
async fn connections_leave_descriptors_for_the_store() {
    let home = Home::new("");
    let server = home.serve_with_limit(160).await;
    // More clients than file descriptors: most of those that are too many are closed.
    let mut clients = Vec::new();
    for _ in 0..130 {
        clients.push(tokio::net::TcpStream::connect(server.address()).await.unwrap());
    }
    // Wait until the server accepts no more connections.
    let (mut open, mut looks) = (server.open_files().await, 0);
    while looks < 20 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let now = server.open_files().await;
        looks = if now == open { looks + 1 } else { 0 };
        open = now;
    }
    assert!(open < 160 - 16, "{open} files are open");
    drop(clients);
    // An address that has too many gets no more, until the server has seen that they are closed.
    while server.open_files().await + 10 > open {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(server.get("/_up").await["status"], "ok");
    assert!(add(&server, 1).await.0.is_success());
}

#[tokio::test]
async fn idle_connections_of_one_address_keep_no_other_out() {
    let home = Home::new("");
    let server = home.serve_with_limit(1024).await;
    let mut idle = Vec::new();
    for _ in 0..2_000 {
        idle.push(tokio::net::TcpStream::connect(server.address()).await.unwrap());
    }
    let elsewhere =
        reqwest::Client::builder().local_address("127.0.0.2".parse::<std::net::IpAddr>().unwrap());
    let elsewhere = elsewhere.no_proxy().build().unwrap();
    let up = elsewhere.get(format!("{}/_up", server.url())).timeout(std::time::Duration::from_secs(10));
    assert_eq!(up.send().await.unwrap().status(), 200);
    // They are closed, although their clients hold them.
    let closed = async {
        while server.open_files().await > 100 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("idle connections stay open");
    assert_eq!(server.get("/_up").await["status"], "ok");
    drop(idle);
}

#[tokio::test]
async fn damage_is_reported_by_the_check_and_by_the_server() {
    let home = Home::new("");
    let server = home.serve().await;
    for n in 0..3 {
        assert!(add(&server, n).await.0.is_success());
    }
    let (clean, text) = check(&home.data_dir()).await;
    assert!(!clean && text.contains("already in use by another process"), "{text}");
    server.kill().await;
    // A start applies the log to the file of rows.
    let server = home.serve().await;
    let rows = home.data_dir().join("store/rows.redb");
    let options = |bytes: &[u8]| bytes.windows(6).position(|part| part == b"filler");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let at = loop {
        if let Some(at) = options(&std::fs::read(&rows).unwrap()) {
            break at;
        }
        assert!(tokio::time::Instant::now() < deadline, "the rows do not leave the log");
        tokio::task::yield_now().await;
    };
    assert!(server.terminate().await.success());
    assert!(check(&home.data_dir()).await.0);
    let mut bytes = std::fs::read(&rows).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&rows, bytes).unwrap();
    let (clean, text) = check(&home.data_dir()).await;
    assert!(!clean && text.contains("rows.redb: the page at byte") && text.contains("is damaged"), "{text}");
    // A log without its newest segment must not be accepted as a shorter log.
    let segments = home.data_dir().join("store/log");
    std::fs::remove_dir_all(&segments).unwrap();
    assert!(home.try_serve_on("127.0.0.1:0").await.is_none());
    assert!(home.log().contains("the log is missing") || home.log().contains("is damaged"), "{}", home.log());
}
