//! Installs the servers that tests use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::command::{Failure, Result, fetch, is_ci, root, run};

/// Runs `npm ci` in `peers/`, unless the installation is at least as new as the lock file.
pub fn install() -> Result {
    install_packages(&root().join("peers"))
}

/// The same for the packages that only the benchmark of the queue needs.
pub fn install_bench() -> Result {
    install_packages(&root().join("lab/peers"))
}

/// Installs Redis and PostgreSQL from Debian, unless they exist. Neither needs to run, because the benchmark starts its own.
pub fn install_servers() -> Result {
    let missing: Vec<&str> =
        [("redis-server", "/usr/bin/redis-server"), ("postgresql", "/usr/lib/postgresql")]
            .into_iter()
            .filter(|(_, file)| !Path::new(file).exists())
            .map(|(package, _)| package)
            .collect();
    if missing.is_empty() { Ok(()) } else { install_from_debian(&missing) }
}

/// Installs Python for the worker written in Python, unless it exists.
pub fn install_python() -> Result {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if found { Ok(()) } else { install_from_debian(&["python3", "python3-venv"]) }
}

/// Creates a Python environment in a folder, with what these arguments of pip install, unless it exists with the same versions. Returns
/// the folder of its programs.
pub fn install_venv(
    folder: &Path,
    versions: &str,
    arguments: &[&OsStr],
) -> std::result::Result<PathBuf, Failure> {
    let (venv, installed) = (folder.join("venv"), folder.join("installed.txt"));
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == versions) {
        return Ok(venv.join("bin"));
    }
    println!("installing for Python, in {}", folder.display());
    std::fs::create_dir_all(folder).map_err(Failure::cannot("create", folder))?;
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    fetch(Command::new(venv.join("bin/pip")).args(["install", "--quiet"]).args(arguments))?;
    std::fs::write(&installed, versions).map_err(Failure::cannot("write", &installed))?;
    Ok(venv.join("bin"))
}

/// Installs etcd for the tests that start a cluster, unless it exists. If the installation is not allowed, prints a line.
/// These tests are then skipped, except with `CI=true`, where this is an error.
pub fn install_etcd() -> Result {
    install_optional("etcd", "etcd-server", "The tests that need an etcd cluster are skipped.")
}

/// The same for Prometheus, whose `promtool` checks metrics and rules.
pub fn install_prometheus() -> Result {
    install_optional("promtool", "prometheus", "The checks of metrics and alert rules are skipped.")
}

fn install_optional(program: &str, package: &str, skipped: &str) -> Result {
    if Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    match install_as_root(&[package]) {
        Err(failure) if !is_ci() => {
            println!("{program} is not installed: {}. {skipped}", failure.message);
            Ok(())
        }
        installed => installed,
    }
}

/// Installs libclang, which generates the bindings of FoundationDB's client, unless it exists. Returns whether it exists
/// afterwards. A failed installation is an error only with `CI=true`.
pub fn install_libclang() -> std::result::Result<bool, Failure> {
    // `libclang.so.1` and `libclang-14.so.1`, but not `libclang-cpp.so.14`, which is another library.
    let is_library = |name: &str| {
        let rest = name.strip_prefix("libclang");
        rest.is_some_and(|rest| {
            rest.starts_with(".so")
                || rest
                    .strip_prefix('-')
                    .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        })
    };
    let holds_library = |folder: &Path| {
        let files = folder.join("lib").read_dir().into_iter().flatten().flatten();
        files.into_iter().any(|file| file.file_name().to_str().is_some_and(is_library))
    };
    let versions = Path::new("/usr/lib").read_dir().into_iter().flatten().flatten();
    let llvm =
        versions.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("llvm-")));
    if std::env::var_os("LIBCLANG_PATH").is_some()
        || llvm.into_iter().any(|entry| holds_library(&entry.path()))
    {
        return Ok(true);
    }
    if !is_ci() && !root_may_install() {
        return Ok(false);
    }
    match install_from_debian(&["libclang-dev"]) {
        Err(failure) if is_ci() => Err(failure),
        installed => Ok(installed.is_ok()),
    }
}

/// Installs Debian's packages, if this user may without being asked for a password.
pub fn install_as_root(packages: &[&str]) -> Result {
    let sudo_may =
        || Command::new("sudo").args(["-n", "true"]).output().is_ok_and(|output| output.status.success());
    match root_may_install() || sudo_may() {
        true => install_from_debian(packages),
        false => {
            Err(Failure::new("only root, or who may use sudo without a password, installs Debian's packages"))
        }
    }
}

fn install_from_debian(missing: &[&str]) -> Result {
    println!("installing {}", missing.join(", "));
    let may = root_may_install();
    let apt = |words: &[&str]| {
        let mut command = if may { Command::new("apt-get") } else { Command::new("sudo") };
        if !may {
            command.arg("apt-get");
        }
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
        command
    };
    fetch(&mut apt(&["update", "--quiet"]))?;
    fetch(apt(&["install", "--yes", "--no-install-recommends"]).args(missing))
}

/// Whether this process runs as root. Other users need `sudo`.
fn root_may_install() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|data| data.uid() == 0)
}

fn install_packages(peers: &Path) -> Result {
    // npm writes this file last.
    let installed = modified(&peers.join("node_modules/.package-lock.json"));
    let wanted = modified(&peers.join("package-lock.json"));
    if installed.is_some() && installed >= wanted {
        return Ok(());
    }
    println!("installing from npm: npm ci in {}", peers.display());
    fetch(Command::new("npm").args(["ci", "--no-progress"]).current_dir(peers)).map_err(|failure| Failure {
        message: format!(
            "{}\nThey come from npm: Node.js 20 or newer, with npm, must be in the PATH.",
            failure.message
        ),
        ..failure
    })
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}
