//! The servers that peers need. Each is started on a free port, in its own folder, and ends when dropped.

use std::fs::Permissions;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time until a server accepts connections.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The account that Debian's package creates. PostgreSQL refuses to run as root.
const POSTGRES_USER: &str = "postgres";

/// A running server.
pub struct Server {
    child: Child,
    /// The port of 127.0.0.1 that it listens on.
    pub port: u16,
}

impl Server {
    /// Starts a program that will listen on this loopback port.
    pub fn start(mut command: Command, port: u16, log: &Path) -> Result<Self, String> {
        let file = std::fs::File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
        let mut server = Server { child, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait().ok().flatten().is_some();
            if ended || start.elapsed() > START_LIMIT {
                return Err(format!("{:?} does not listen; its log: {}", command.get_program(), tail(log)));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// The id of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts turnwise on its embedded store, with these lines of configuration.
    pub fn turnwise(binary: &Path, dir: &Path, settings: &str) -> Result<Self, String> {
        let port = free_port();
        let mut command = Command::new(binary);
        let store = format!("embedded:{}", dir.join("data").display());
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", &store]);
        if !settings.is_empty() {
            let config = dir.join("turnwise.ini");
            std::fs::write(&config, settings).map_err(|error| error.to_string())?;
            command.arg("--config").arg(config);
        }
        Self::start(command, port, &dir.join("log"))
    }

    /// Starts turnwise on a shared store, on a port that it had before or that stays free.
    pub fn turnwise_on(binary: &Path, store: &str, port: u16, log: &Path) -> Result<Self, String> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", store]);
        // Without users, a server refuses a store that another node uses.
        command.arg("--insecure-no-auth");
        Self::start(command, port, log)
    }

    /// The same as [`Server::turnwise`] with TLS, and with a token that every request needs. Returns the token, and the file with the certificate.
    pub fn turnwise_with_tls(
        binary: &Path,
        dir: &Path,
        settings: &str,
    ) -> Result<(Self, String, PathBuf), String> {
        let port = free_port();
        let store = format!("embedded:{}", dir.join("data").display());
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let rcgen::CertifiedKey { cert, signing_key } = certified.map_err(|error| error.to_string())?;
        let (certificate, key, config) =
            (dir.join("cert.pem"), dir.join("key.pem"), dir.join("turnwise.ini"));
        let full = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
        let write = || {
            std::fs::write(&certificate, cert.pem())?;
            std::fs::write(&key, signing_key.serialize_pem())?;
            // Otherwise the server does not start.
            std::fs::set_permissions(&key, Permissions::from_mode(0o600))?;
            let (certificate, key) = (full(&certificate)?, full(&key)?);
            let text = format!("[listener]\ncertificate = {certificate}\nkey = {key}\n{settings}");
            std::fs::write(&config, text)
        };
        write().map_err(|error| error.to_string())?;
        let mut adding = Command::new(binary);
        let added = adding.args(["tokens", "add", "--scope", "admin", "--store", &store]).output();
        let added = added.map_err(|error| error.to_string())?;
        if !added.status.success() {
            return Err(String::from_utf8_lossy(&added.stderr).into_owned());
        }
        let token = String::from_utf8_lossy(&added.stdout).trim().to_owned();
        let mut command = Command::new(binary);
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", &store, "--config"])
            .arg(config);
        Ok((Self::start(command, port, &dir.join("log"))?, token, certificate))
    }

    /// Starts Redis, which syncs its command log to the disk before each response.
    pub fn redis(dir: &Path) -> Result<Self, String> {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(dir);
        command.args(["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        Self::start(command, port, &dir.join("log"))
    }

    /// Starts PostgreSQL with its default settings, so that it syncs its log to the disk before each response.
    pub fn postgres(dir: &Path) -> Result<Self, String> {
        let bin = postgres_bin().ok_or("PostgreSQL is not installed")?;
        let dir = std::path::absolute(dir).map_err(|error| error.to_string())?;
        let data = dir.join("data");
        if is_root() {
            succeed(Command::new("chown").arg(POSTGRES_USER).arg(&dir))?;
        }
        let mut initdb = as_postgres(&bin.join("initdb"));
        initdb.args(["--username", "bench", "--auth", "trust", "--encoding", "UTF8", "--no-sync", "-D"]);
        succeed(initdb.arg(&data).current_dir(&dir))?;
        let port = free_port();
        let mut command = as_postgres(&bin.join("postgres"));
        command.arg("-D").arg(&data).arg("-p").arg(port.to_string()).current_dir(&dir);
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "fsync=on",
            "synchronous_commit=on",
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        Self::start(command, port, &dir.join("log"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // All its data are deleted, so a clean end is not needed. PostgreSQL's other processes end with this one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port without a listener a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback interface has free ports");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// Whether a program is in the PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The folder of PostgreSQL's programs, which Debian does not put into the PATH.
pub fn postgres_bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.into_iter().rfind(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", POSTGRES_USER, "--regid", POSTGRES_USER, "--clear-groups", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
