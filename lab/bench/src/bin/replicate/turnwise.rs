//! A turnwise server for one measurement.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use turnwise_testkit::{client, free_ports};

/// Replications start immediately, as CouchDB's do in these measurements. The jitter protects shared servers, which these are not.
const CONFIG: &str = "[replicator]\nstartup_jitter = 0\n";

/// A server with its own embedded store. It ends when it is dropped.
pub struct Turnwise {
    child: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Turnwise {
    pub async fn start(binary: &Path) -> Self {
        let dir = tempfile::TempDir::new().expect("a temporary folder can be made");
        let config = dir.path().join("turnwise.ini");
        std::fs::write(&config, CONFIG).expect("the temporary folder can be written");
        let port = free_ports(1)[0];
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(config).arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.arg("--store").arg(format!("embedded:{}", dir.path().join("data").display()));
        let log = std::fs::File::create(dir.path().join("log")).expect("the temporary folder can be written");
        let copy = log.try_clone().expect("a file handle can be copied");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let mut server = Self { child, url: format!("http://127.0.0.1:{port}"), _dir: dir };
        while client().get(format!("{}/_up", server.url)).send().await.is_err() {
            assert!(server.child.try_wait().is_ok_and(|ended| ended.is_none()), "turnwise ended at once");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let created = client().put(format!("{}/_replicator", server.url)).send().await;
        assert!(created.is_ok(), "turnwise does not answer");
        server
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Turnwise {
    fn drop(&mut self) {
        // Its store is deleted with it, so a clean end is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
