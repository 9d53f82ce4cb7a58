//! Installing the servers that tests run against.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::command::{Failure, Result, root, run};

/// Runs `npm ci` in `peers/`, unless what is installed there is as new as the lock file.
pub fn install() -> Result {
    let peers = root().join("peers");
    // npm writes this file last.
    let installed = modified(&peers.join("node_modules/.package-lock.json"));
    let wanted = modified(&peers.join("package-lock.json"));
    if installed.is_some() && installed >= wanted {
        return Ok(());
    }
    println!("installing the test servers: npm ci in {}", peers.display());
    run(Command::new("npm").args(["ci", "--no-progress"]).current_dir(&peers)).map_err(|failure| Failure {
        message: format!(
            "{}\nThe tests run against servers from npm: Node.js 20 or newer, with npm, must be in the PATH.",
            failure.message
        ),
        ..failure
    })
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}
