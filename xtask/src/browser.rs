//! The browser in which the test of the pages runs: Debian's Chromium, and Playwright from PyPI in an environment of its own.

use std::path::{Path, PathBuf};

use crate::bench;
use crate::command::{Failure, is_ci};
use crate::peers;

const PLAYWRIGHT: &str = "playwright==1.65.2";
const CHROMIUM: &str = "/usr/bin/chromium";
/// Tells the test which Python has Playwright.
pub const PYTHON: &str = "TURNWISE_TEST_BROWSER_PYTHON";

/// Installs both, unless they exist, and returns the Python that has Playwright. If the installation is not possible, prints a
/// line, and the test is skipped, except with `CI=true`, where this is an error.
pub fn install() -> Result<Option<PathBuf>, Failure> {
    match try_install() {
        Ok(python) => Ok(Some(python)),
        Err(failure) if !is_ci() => {
            println!("no browser: {}. The test of the pages in a browser is skipped.", failure.message);
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

fn try_install() -> Result<PathBuf, Failure> {
    if !Path::new(CHROMIUM).exists() {
        peers::install_as_root(&["chromium", "fonts-dejavu-core", "fonts-liberation"])?;
    }
    let folder = bench::target().join("browser");
    Ok(peers::install_venv(&folder, PLAYWRIGHT, &[PLAYWRIGHT.as_ref()])?.join("python"))
}
