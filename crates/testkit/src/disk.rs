//! A file system that can be full.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// Its size, unless it is full. It takes memory only for what it contains.
const SIZE: &str = "8g";
/// The free space of a full disk, in bytes.
const SPARE_BYTES: u64 = 64 << 10;
/// Attempts to make a disk that full.
const FILLS: usize = 100;

/// A file system in memory, which can be filled in one step and have room again. It is unmounted when it is dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts it on a folder, which is created. Returns `None` if it cannot be mounted: only root can.
    pub async fn mount(folder: &Path) -> Option<Disk> {
        std::fs::create_dir_all(folder).ok()?;
        let options = format!("size={SIZE}");
        let path = folder.display().to_string();
        let mounted = run("mount", &["-t", "tmpfs", "-o", &options, "turnwise-test", &path]).await;
        mounted.then(|| Disk(folder.to_owned()))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// Leaves only 64 kB free.
    ///
    /// # Panics
    /// If it cannot be made smaller.
    pub async fn fill(&self) {
        // A size below what is used is refused: more may be written while the size is on its way.
        for _ in 0..FILLS {
            let df = Command::new("df").args(["--output=used", "-B1", &self.path()]).output().await;
            let df =
                df.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            let used: u64 = df.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or_default();
            if self.resize(&(used + SPARE_BYTES).to_string()).await {
                return;
            }
        }
        panic!("{} cannot be made smaller", self.path());
    }

    /// Makes room again.
    ///
    /// # Panics
    /// If it cannot be made larger.
    pub async fn free(&self) {
        assert!(self.resize(SIZE).await, "{} cannot be made larger", self.path());
    }

    async fn resize(&self, size: &str) -> bool {
        run("mount", &["-o", &format!("remount,size={size}"), &self.path()]).await
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because a killed process may hold it for another moment.
        let _ = std::process::Command::new("umount").args(["--lazy", &self.path()]).status();
    }
}

/// Runs a program of the system. Returns whether it succeeded.
async fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output().await;
    output.is_ok_and(|output| output.status.success())
}
