//! A real FoundationDB for the tests and the chaos test. An optional folder beside this repository (`../shared/peers`, or
//! the folder that `TURNWISE_TEST_PEERS` names) has a program that unpacks and starts it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Beside, Failure, Result, root, run};
use crate::{bench, peers};

/// The folder of the program, unless a variable names another one.
const PEERS: &str = "../shared/peers";
/// The longest time from the start of the server until it responds.
const READY: Duration = Duration::from_secs(120);
/// The free space below which the server may accept no writes, in kB: transactions then only time out.
const NEEDED_KB: u64 = 6_000_000;
/// The time between two checks of whether it responds.
const CHECK: Duration = Duration::from_millis(100);

/// The program that starts FoundationDB. It need not exist.
pub fn program() -> PathBuf {
    std::env::var_os("TURNWISE_TEST_PEERS")
        .map_or_else(|| root().join(PEERS), PathBuf::from)
        .join("start-foundationdb")
}

/// The folder of FoundationDB's C client, which the program unpacks; `None` if there is no such program.
pub fn client(program: &Path) -> std::result::Result<Option<PathBuf>, Failure> {
    if !program.exists() {
        return Ok(None);
    }
    run(Command::new(program).arg(folder()))?;
    std::path::absolute(folder().join("foundationdb/lib"))
        .map(Some)
        .map_err(|error| Failure::new(error.to_string()))
}

/// The same client, if the engine can be built. Otherwise prints one line.
pub fn client_to_build_with() -> std::result::Result<Option<PathBuf>, Failure> {
    let program = program();
    let Some(client) = client(&program)? else {
        println!(
            "left out: the tests on FoundationDB; there is no {} (TURNWISE_TEST_PEERS names its folder)",
            program.display()
        );
        return Ok(None);
    };
    if !peers::install_libclang()? {
        println!(
            "left out: the tests on FoundationDB; its engine is built with libclang (Debian: libclang-dev)"
        );
        return Ok(None);
    }
    Ok(Some(client))
}

fn check_space(folder: &Path) -> Result {
    let output = Command::new("df").args(["-k", "--output=avail"]).arg(folder).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    match text.lines().nth(1).and_then(|free| free.trim().parse::<u64>().ok()) {
        Some(free) if free < NEEDED_KB => Err(Failure::new(format!(
            "FoundationDB accepts no writes on a disk that is nearly full: {} has {} MB of free space, and needs {}",
            folder.display(),
            free / 1_000,
            NEEDED_KB / 1_000
        ))),
        _ => Ok(()),
    }
}

fn folder() -> PathBuf {
    bench::target().join("foundationdb")
}

/// Sets where a build and a run find the client. The variable of the crate that links the client is not enough. That
/// crate's build script does not run again after a run without the variable, for example for a check.
pub fn set_client_env<'a>(command: &'a mut Command, client: &Path) -> &'a mut Command {
    command.env("LIBRARY_PATH", client).env("LD_LIBRARY_PATH", client)
}

/// A server with an empty database. It ends when this is dropped.
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    client: PathBuf,
    port: u16,
    child: Beside,
}

impl Server {
    /// Starts a server. Returns `None`, and prints one line, if that is not possible.
    pub fn start() -> std::result::Result<Option<Server>, Failure> {
        let Some(client) = client_to_build_with()? else { return Ok(None) };
        let program = program();
        let failed =
            |what: &str, error: std::io::Error| Failure::new(format!("FoundationDB: {what}: {error}"));
        let folder = std::path::absolute(folder()).map_err(|error| failed("its folder", error))?;
        check_space(&folder)?;
        for old in ["data", "logs"] {
            let _ = fs::remove_dir_all(folder.join(old));
        }
        for old in ["fdb.cluster", "ready"] {
            let _ = fs::remove_file(folder.join(old));
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| failed("a free port", error))?.port();
        let mut command = Command::new(&program);
        let child = command.arg(&folder).arg(port.to_string()).stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| failed("it does not start", error))?;
        let mut server = Server { program, folder, client, port, child: Beside(child) };
        server.wait_until_ready()?;
        Ok(Some(server))
    }

    fn wait_until_ready(&mut self) -> Result {
        let started = Instant::now();
        while !self.folder.join("ready").exists() {
            let ended = self.child.0.try_wait().ok().flatten();
            if ended.is_some() || started.elapsed() > READY {
                let log = self.folder.join("log");
                return Err(Failure::new(format!(
                    "FoundationDB did not become ready: see {}",
                    log.display()
                )));
            }
            std::thread::sleep(CHECK);
        }
        Ok(())
    }

    /// Sets what a build links, and what a test connects to.
    pub fn set_env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        set_client_env(command, &self.client).env("FDB_CLUSTER_FILE", self.folder.join("fdb.cluster"))
    }

    /// Sets the commands with which the test of nodes kills and restarts the server.
    pub fn set_fault_env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let (program, folder) = (self.program.display(), self.folder.display());
        let server = self.pattern();
        let kill =
            format!("pkill -9 -f '{server}'; while pgrep -f '{server}' >/dev/null; do sleep 0.1; done");
        let start = format!(
            "rm -f '{folder}/ready'; '{program}' '{folder}' {} >/dev/null 2>&1 & while [ ! -f '{folder}/ready' ]; do sleep 0.1; done",
            self.port
        );
        command.env("TURNWISE_TEST_FDB_KILL", kill).env("TURNWISE_TEST_FDB_START", start)
    }

    /// A pattern that matches the command line of the server, but no command line that contains the pattern.
    fn pattern(&self) -> String {
        format!("[f]dbserver -p 127.0.0.1:{} ", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that a test has restarted is no longer the child.
        let _ = Command::new("pkill").args(["-9", "-f", &self.pattern()]).status();
    }
}
