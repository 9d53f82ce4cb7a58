//! The browser in which the test of the pages runs: Debian's Chromium, and Playwright from PyPI in an environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench;
use crate::command::{Failure, fetch, run};
use crate::peers;

/// The version of Playwright.
const PLAYWRIGHT: &str = "playwright==1.65.2";
/// Where Debian installs Chromium.
const CHROMIUM: &str = "/usr/bin/chromium";
/// Tells the test which Python has Playwright.
pub const PYTHON: &str = "TURNWISE_TEST_BROWSER_PYTHON";

/// Installs both, unless they exist, and returns the Python that has Playwright. If the installation is not possible, prints a
/// line, and the test is skipped, except with `CI=true`, where this is an error.
pub fn install() -> Result<Option<PathBuf>, Failure> {
    match try_install() {
        Ok(python) => Ok(Some(python)),
        Err(failure) if std::env::var("CI").as_deref() != Ok("true") => {
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
    let (venv, installed) = (folder.join("venv"), folder.join("installed.txt"));
    let python = venv.join("bin/python");
    let is_installed = std::fs::read_to_string(&installed).is_ok_and(|text| text == PLAYWRIGHT);
    if !is_installed {
        println!("installing {PLAYWRIGHT}");
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        fetch(Command::new(venv.join("bin/pip")).args(["install", "--quiet", PLAYWRIGHT]))?;
        std::fs::write(&installed, PLAYWRIGHT)
            .map_err(|error| Failure::new(format!("{} cannot be written: {error}", installed.display())))?;
    }
    Ok(python)
}
