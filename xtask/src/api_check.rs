//! Checks that `/v1` matches its description. A validator checks the description. A running server gets valid and invalid
//! requests that are generated from it. The server must respond as described: no 5xx, no undocumented status, no response
//! of another shape.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{Beside, Failure, Result, cargo, remove_folder, root, run};
use crate::{bench, foundationdb, peers};

const HELP: &str = "\
usage: cargo xtask api-check [OPTION]...
       Installs openapi-spec-validator and schemathesis (PyPI, pinned) below the build folder, starts a server, and runs both.
       Options go to `schemathesis run`: --max-time SECONDS (40), --seed N (1), --include-path PATH, ...";

/// How long schemathesis makes requests by default, in seconds.
const MAX_TIME_S: &str = "40";
/// The default seed, so that each run makes the same requests.
const SEED: &str = "1";
/// Longer than any response takes, in seconds. A server that hangs is a failure.
const REQUEST_TIMEOUT_S: &str = "20";

/// Runs the check.
pub fn api_check(options: &[&str]) -> Result {
    if options.contains(&"--help") {
        println!("{HELP}");
        return Ok(());
    }
    let (settings, folder) = (root().join("xtask/api_check"), bench::target().join("api_check"));
    let requirements = settings.join("requirements.txt");
    let versions = std::fs::read_to_string(&requirements).map_err(Failure::cannot("read", &requirements))?;
    let venv = peers::install_venv(&folder, &versions, &["-r".as_ref(), requirements.as_ref()])?;
    run(Command::new(venv.join("openapi-spec-validator")).arg(root().join("docs/openapi.json")))?;
    let foundationdb = foundationdb::client_to_build_with()?;
    build(foundationdb.as_deref())?;
    let server = Server::start(&settings, &folder, foundationdb.as_deref())?;
    let mut schemathesis = Command::new(venv.join("schemathesis"));
    schemathesis.arg("--config-file").arg(settings.join("schemathesis.toml"));
    schemathesis.args([
        "run",
        &format!("{}v1/openapi.json", server.url),
        "--continue-on-failure",
        "--no-color",
    ]);
    schemathesis.args(["--request-timeout", REQUEST_TIMEOUT_S, "--max-time", MAX_TIME_S, "--seed", SEED]);
    schemathesis.args(["--header", &format!("Authorization: Bearer {}", server.token)]);
    schemathesis.env("SCHEMATHESIS_HOOKS", settings.join("hooks.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    // The last value of an option applies, so the caller's options come after the defaults. The program writes its database
    // of failures into its folder.
    let ran = run(schemathesis.args(options).current_dir(&folder));
    let log = std::fs::read_to_string(&server.log).unwrap_or_default();
    drop(server);
    ran?;
    match log.lines().find(|line| line.contains("ERROR") || line.contains("panicked")) {
        Some(line) => Err(Failure::new(format!("the server's log tells of an error: {line}"))),
        None => Ok(()),
    }
}

/// Builds the program just as `cargo xtask test` does: after it, nothing is left to compile.
fn build(foundationdb: Option<&Path>) -> Result {
    let mut build = cargo();
    build.args(["test", "--quiet", "--workspace", "--test", "end_to_end", "--no-run"]);
    if let Some(client) = foundationdb {
        foundationdb::set_client_env(&mut build, client).args(["--features", "turnwise-cli/foundationdb"]);
    }
    run(&mut build)
}

/// A server for this check, on a free port. It is killed when this is dropped.
struct Server {
    _child: Beside,
    url: String,
    log: PathBuf,
    /// The token of an administrator. A request for the first identity would close an open store to all further ones.
    token: String,
}

impl Server {
    fn start(
        settings: &Path,
        folder: &Path,
        foundationdb: Option<&Path>,
    ) -> std::result::Result<Server, Failure> {
        let (data, log) = (folder.join("data"), folder.join("server.log"));
        remove_folder(&data)?;
        let file = std::fs::File::create(&log).map_err(Failure::cannot("create", &log))?;
        let program = bench::target().join("debug/turnwise");
        let turnwise = || {
            let mut command = Command::new(&program);
            if let Some(client) = foundationdb {
                foundationdb::set_client_env(&mut command, client);
            }
            command
        };
        let store = format!("embedded:{}", data.display());
        let added = turnwise().args(["tokens", "add", "--scope", "admin", "--store", &store]).output();
        let added = added.map_err(Failure::cannot("run", &program))?;
        if !added.status.success() {
            let problem = String::from_utf8_lossy(&added.stderr).into_owned();
            return Err(Failure::new(format!("cannot add a token: {problem}")));
        }
        let token = String::from_utf8_lossy(&added.stdout).trim().to_owned();
        let mut child = turnwise()
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "error", "--store", &store])
            .arg("--config")
            .arg(settings.join("server.ini"))
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(Failure::cannot("run", &program))?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut server = Server { _child: Beside(child), url: String::new(), log, token };
        let mut line = String::new();
        // The first line states where it listens. Its pipe stays open while it runs, and nothing more comes.
        let mut reader = BufReader::new(stdout);
        reader.read_line(&mut line).map_err(Failure::cannot("read the output of", &program))?;
        let Some((_, url)) = line.trim().split_once("listens on ") else {
            return Err(Failure::new(format!("the server did not start: {}", server.log.display())));
        };
        server.url = url.to_owned();
        Ok(server)
    }
}
