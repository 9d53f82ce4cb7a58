//! A database server that can be killed, and restarts with its data.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Mutex;

use reqwest::{Method, StatusCode};
use serde_json::json;
use turnwise_testkit::{CouchDb, Disk, Peer, canary, client};

/// The longest time until a restarted server responds.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// The time between two checks of a server that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a session of a real CouchDB lasts, in s.
const SESSION_SECONDS: u64 = 6;

/// A server that already runs.
#[derive(Clone, Debug)]
pub struct ExternalServer {
    /// `http://user:password@host:port`
    pub url: String,
    /// A shell command that kills the server like `kill -9`, and one that starts it again. Without them, the server is
    /// never killed.
    pub kill_and_restart: Option<(String, String)>,
}

pub(super) struct Server {
    url: String,
    kind: Kind,
    /// Whether it was killed on purpose, and must not be restarted yet.
    killed: AtomicBool,
}

enum Kind {
    Pouch(Mutex<Peer>),
    /// The disk is unmounted first, so that the server's folder can be removed.
    Couch(Option<Disk>, Mutex<CouchDb>),
    External(Option<(String, String)>),
}

impl Server {
    /// A server that runs already, or a new one: a real CouchDB if wanted and there is one. `small` is whether its disk can be full.
    pub async fn start(external: Option<&ExternalServer>, couchdb: bool, small: bool) -> Server {
        if external.is_none()
            && couchdb
            && let Some(mut server) = CouchDb::start().await
        {
            let url = server.url().to_owned();
            set_session(&url).await;
            let disk = if small { move_to_disk(&mut server).await } else { None };
            let kind = Kind::Couch(disk, Mutex::new(server));
            return Server { url, kind, killed: AtomicBool::new(false) };
        }
        let (url, kind) = match external {
            Some(external) => (external.url.clone(), Kind::External(external.kill_and_restart.clone())),
            None => {
                let peer = Peer::options().admin("admin", canary::PASSWORD).durable().start().await;
                (peer.url().to_owned(), Kind::Pouch(Mutex::new(peer)))
            }
        };
        Server { url: url.trim_end_matches('/').to_owned(), kind, killed: AtomicBool::new(false) }
    }

    /// The server's URL, with credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn can_be_killed(&self) -> bool {
        !matches!(self.kind, Kind::External(None))
    }

    pub async fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        match &self.kind {
            Kind::Pouch(peer) => peer.lock().await.kill().await,
            Kind::Couch(_, server) => server.lock().await.kill(),
            Kind::External(Some((kill, _))) => shell(kill).await,
            Kind::External(None) => {}
        }
    }

    /// Restarts the server, and returns when it responds.
    pub async fn restart(&self) {
        match &self.kind {
            Kind::Pouch(peer) => {
                let mut peer = peer.lock().await;
                if peer.has_ended() {
                    peer.restart().await;
                }
            }
            Kind::Couch(_, server) => server.lock().await.crash().await,
            Kind::External(Some((_, restart))) => shell(restart).await,
            Kind::External(None) => {}
        }
        let up = async {
            while !self.answers().await {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(RESTART_TIMEOUT, up).await.expect("a server that was restarted answers");
        self.killed.store(false, Ordering::Relaxed);
    }

    /// The server's disk, if it can be full.
    pub fn disk(&self) -> Option<&Disk> {
        match &self.kind {
            Kind::Couch(disk, _) => disk.as_ref(),
            _ => None,
        }
    }

    async fn answers(&self) -> bool {
        client().get(&self.url).send().await.is_ok_and(|answer| answer.status().is_success())
    }

    /// Restarts a pouchdb-server that ended by itself, as it does after some requests. Returns whether it had.
    pub async fn revive(&self) -> bool {
        let Kind::Pouch(peer) = &self.kind else { return false };
        let mut peer = peer.lock().await;
        let ended = peer.has_ended() && !self.killed.load(Ordering::Relaxed);
        if ended {
            peer.restart().await;
        }
        ended
    }
}

/// Moves the databases of a server to a disk that can be full. Only these: a server that cannot write its log ends.
async fn move_to_disk(server: &mut CouchDb) -> Option<Disk> {
    let data = server.data_folder();
    let before = data.with_extension("before");
    server.kill();
    std::fs::rename(&data, &before).expect("the folder can be written");
    let disk = Disk::mount(&data).await;
    if disk.is_none() {
        println!("left out: a full disk, which only root can make");
    }
    shell(&format!("cp -a {}/. {}", before.display(), data.display())).await;
    server.crash().await;
    disk
}

/// Lets sessions end soon.
async fn set_session(url: &str) {
    let config = format!("{url}/_node/_local/_config/chttpd_auth/timeout");
    let set = client().request(Method::PUT, config).json(&json!(SESSION_SECONDS.to_string())).send().await;
    assert!(set.is_ok_and(|answer| answer.status() == StatusCode::OK), "CouchDB takes settings");
}

/// Runs a command whose output matters only if it fails.
async fn shell(command: &str) {
    let done = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output().await;
    let done = done.unwrap_or_else(|error| panic!("`{command}` cannot be run: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "`{command}` failed: {} {said}", done.status);
}
