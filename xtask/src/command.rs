//! Runs other programs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// The pauses before a failed download is repeated. Problems of networks and registries often pass.
const PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(60)];

/// A command that did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// The message for the user.
    pub message: String,
    /// This program's exit code: that of the failed program, if there is one.
    pub code: u8,
}

/// Success, or the failure.
pub type Result = std::result::Result<(), Failure>;

impl Failure {
    /// A failure of this program itself.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    /// A failure with a file: what cannot be done to it.
    pub fn cannot<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |error| Self::new(format!("cannot {what} {}: {error}", path.display()))
    }
}

/// A program that runs beside this one. It is killed when this is dropped.
pub struct Beside(pub Child);

impl Drop for Beside {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end. Its output goes to this program's output.
pub fn run(command: &mut Command) -> Result {
    let status = ended(command)?;
    judge(command, status)
}

/// The same for a program that downloads something. It is repeated several times before its failure counts.
pub fn fetch(command: &mut Command) -> Result {
    for pause in PAUSES {
        let status = ended(command)?;
        let Err(failure) = judge(command, status) else { return Ok(()) };
        println!("{}; again in {} s", failure.message, pause.as_secs());
        std::thread::sleep(pause);
    }
    run(command)
}

/// Runs a program, and returns how it ended.
fn ended(command: &mut Command) -> std::result::Result<ExitStatus, Failure> {
    command.status().map_err(|error| {
        let program = command.get_program().to_string_lossy();
        match error.kind() {
            ErrorKind::NotFound => Failure::new(format!("`{program}` was not found in the PATH")),
            _ => Failure::new(format!("`{program}` cannot be run: {error}")),
        }
    })
}

/// Fails if a program has not succeeded.
pub fn judge(command: &Command, status: ExitStatus) -> Result {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Err(Failure { message: format!("`{}` failed: {status}", command.get_program().to_string_lossy()), code })
}

/// Whether this is a run that may leave nothing out.
pub fn is_ci() -> bool {
    std::env::var("CI").as_deref() == Ok("true")
}

/// Removes a folder, if it is there.
pub fn remove_folder(folder: &Path) -> Result {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::cannot("remove", folder)(error)),
        _ => Ok(()),
    }
}

/// A command for the cargo that runs this program, in the root of the repository.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the repository").to_owned()
}
