//! Shared by the benchmarks.

use std::path::{Path, PathBuf};

use tokio::task::JoinSet;

pub mod disk;
pub mod external;
pub mod http_client;
pub mod server;
pub mod times;

/// The allocator of the shipped binary, for what runs within the benchmarks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The folder `lab/peers/` of this repository: the programs that use other job servers.
pub fn peers_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers")
}

/// Why a package of npm cannot be used here, if it cannot.
pub fn missing_package(package: &str) -> Option<String> {
    let folder = peers_folder().join("node_modules").join(package);
    (!folder.is_dir() || !server::is_installed("node")).then(|| format!("npm's {package} is not installed"))
}

/// Creates an empty folder.
pub fn empty(dir: &Path) -> Result<PathBuf, String> {
    remove(dir)?;
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir.to_owned())
}

/// Removes a folder, if it exists.
pub fn remove(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// The word that follows an option of the command line.
pub fn option(name: &str) -> Option<String> {
    let mut words = std::env::args();
    words.find(|word| word == name).and_then(|_| words.next())
}

/// The number that follows an option of the command line.
pub fn number(name: &str, default: usize) -> usize {
    option(name).map_or(default, |word| word.parse().expect("a number"))
}

/// The values of all tasks, in any order, or the first error. The other tasks end then.
///
/// # Errors
/// The error of a task.
pub async fn all<T: 'static>(mut tasks: JoinSet<Result<T, String>>) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    while let Some(task) = tasks.join_next().await {
        values.push(task.map_err(|error| error.to_string())??);
    }
    Ok(values)
}

/// What a benchmark runs with.
pub struct Program {
    /// The binary of `--turnwise`.
    pub turnwise: PathBuf,
    /// The folder of `--dir`, or one of this name.
    pub dir: PathBuf,
    /// Runs its requests.
    pub runtime: tokio::runtime::Runtime,
}

impl Program {
    /// Reads the options that all benchmarks have. With `--help`, prints the usage and returns `None`.
    ///
    /// # Errors
    /// There is no runtime.
    pub fn start(usage: &str, name: &str) -> Result<Option<Self>, String> {
        if std::env::args().any(|word| word == "--help") {
            println!("{usage}");
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        Ok(Some(Self {
            turnwise: option("--turnwise").map_or_else(|| "target/release/turnwise".into(), PathBuf::from),
            dir: option("--dir").map_or_else(|| std::env::temp_dir().join(name), PathBuf::from),
            runtime: runtime.map_err(|error| error.to_string())?,
        }))
    }
}
