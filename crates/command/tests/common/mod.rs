//! Shared by the tests: scripts, and a way to detect when all processes of a script have ended.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use turnwise_command::{Command, Finished};

/// Far more than any test takes, so only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Forever, for the purposes of a test.
pub const LONG: Duration = Duration::from_secs(3600);

/// A shell command.
pub fn sh(script: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        argv: ["sh", "-c", script].map(Into::into).into(),
        inherit_env: false,
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: None,
        stdin: None,
        timeout: None,
        grace: LONG,
        max_output_bytes: 1_000,
        on_line: None,
        guard: None,
        sandbox: None,
    }
}

/// The process's stdout.
pub fn stdout(finished: &Finished) -> String {
    String::from_utf8(finished.stdout.whole().expect("nothing was left out")).unwrap()
}

/// A named pipe. A script holds it open with `exec 3>$PIPE`, and so do all processes that it starts. The pipe closes when all of
/// them have ended.
pub struct Alive {
    folder: TempDir,
    pipe: pipe::Receiver,
}

impl Alive {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Alive { folder, pipe }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// A script that holds the pipe, and can write to it: `echo … >&3`.
    pub fn script(&self, rest: &str) -> String {
        format!("exec 3>{}; {rest}", self.path().display())
    }

    /// Waits until a script has written this many bytes, and returns them.
    pub async fn read(&mut self, bytes: usize) -> String {
        let mut text = vec![0; bytes];
        let read = self.pipe.read_exact(&mut text);
        tokio::time::timeout(PATIENCE, read).await.expect("the script says nothing").unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Waits until no process holds the pipe.
    pub async fn gone(&mut self) {
        let mut rest = Vec::new();
        let read = self.pipe.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, read).await.expect("somebody is left").unwrap();
    }
}

/// Whether the process exists, including as a zombie.
pub fn exists(pid: &str) -> bool {
    Path::new("/proc").join(pid.trim()).exists()
}
