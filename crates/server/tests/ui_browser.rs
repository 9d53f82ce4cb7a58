//! The pages in a browser: `browser/drive.py` opens each, does each action, and runs axe-core.

use std::path::Path;
use std::process::Command;

use crate::common::TestServer;

/// The Python that has Playwright. `cargo xtask test` installs both, and sets it.
const PYTHON: &str = "TURNWISE_TEST_BROWSER_PYTHON";

#[tokio::test]
async fn the_pages_work_in_a_browser() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let axe = root.join("../../peers/node_modules/axe-core/axe.min.js");
    let Some(python) = std::env::var_os(PYTHON).filter(|_| axe.exists()) else {
        println!("skipped: no browser: run cargo xtask test, which sets {PYTHON}");
        return;
    };
    let server = TestServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let shots = std::env::var_os("TURNWISE_TEST_SCREENSHOTS").map_or(folder.path().to_owned(), Into::into);
    let mut drive = Command::new(python);
    drive.arg(root.join("tests/browser/drive.py")).arg(&server.url).arg(axe).arg(shots);
    let drive = tokio::task::spawn_blocking(move || drive.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(drive.status.success(), "{}\n{}", text(&drive.stdout), text(&drive.stderr));
    assert!(text(&drive.stdout).contains("the pages work"));
    server.server.shutdown().await;
}
