//! Tests the simulation: makes one mistake at a time in a copy of the sources, and requires that the worlds catch it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::mutants::{
    EDIT_MUTANTS, ELIGIBILITY_MUTANTS, INPUT_MUTANTS, LOCK_MUTANTS, MODE_MUTANTS, MUTANTS, Mutant,
    SCHEDULE_MUTANTS, UNIQUE_MUTANTS, all,
};
use crate::plan::{ELIGIBILITY_FROM, LOCKS_FROM, MODES_FROM, SCHEDULES_FROM};

/// The number of seeds within which a mistake must be caught. Most need fewer than 20; the rarest needs several hundred.
const SEEDS: u64 = 1_000;
/// The number of seeds that must hold without a mistake.
const UNCHANGED_SEEDS: u64 = 100;
/// The crates that a world is built from.
const CRATES: [&str; 6] = ["calendar", "policy", "store", "queue", "worker", "sim"];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/sim is in the repository").to_owned()
}

/// The file's text with the mistake in it.
///
/// # Errors
/// If the text to replace does not occur, or occurs more than once. The list must then follow the sources.
pub fn apply(mutant: &Mutant, text: &str) -> Result<String, String> {
    match text.matches(mutant.find).count() {
        1 => Ok(text.replacen(mutant.find, mutant.replace, 1)),
        n => Err(format!("{}: its place occurs {n} times in {}, not once", mutant.name, mutant.file)),
    }
}

/// Reads a source file of the repository.
///
/// # Errors
/// If it cannot be read.
pub fn source(file: &str) -> io::Result<String> {
    std::fs::read_to_string(root().join(file))
}

/// Runs the mutants with these names, or all of them.
pub fn run(names: &[String]) -> ExitCode {
    let unknown = names.iter().find(|name| !all().any(|mutant| mutant.name == **name));
    if let Some(unknown) = unknown {
        let known: Vec<_> = all().map(|mutant| mutant.name).collect();
        eprintln!("there is no mutant `{unknown}`; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    match Workshop::set_up().and_then(|workshop| workshop.run(names)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A separate workspace, with a target folder that is kept for later builds.
struct Workshop {
    folder: PathBuf,
}

/// The result of a mutant.
enum Verdict {
    Caught { seed: u64, invariant: String },
    Survived { seeds: u64 },
    DoesNotBuild,
}

impl Workshop {
    fn set_up() -> io::Result<Self> {
        let folder = root().join("target").join("mutants");
        let manifest = std::fs::read_to_string(root().join("Cargo.toml"))?;
        let members = CRATES.map(|name| format!("\"crates/{name}\"")).join(", ");
        let manifest: String = manifest
            .lines()
            .filter(|line| !line.starts_with("default-members"))
            .map(|line| match line.starts_with("members") {
                true => format!("members = [{members}]\n"),
                false => format!("{line}\n"),
            })
            .collect();
        // Most of a mutant's time goes into compilation, not into its worlds.
        let quickly = |name| format!("\n[profile.sim.package.turnwise-{name}]\nopt-level = 1\n");
        write(&folder.join("Cargo.toml"), &(manifest + &CRATES.map(quickly).concat()))?;
        copy(&root().join("Cargo.lock"), &folder.join("Cargo.lock"))?;
        for name in CRATES {
            copy(&root().join("crates").join(name), &folder.join("crates").join(name))?;
            // The copy lacks what only tests need, and tests are not built.
            let manifest = folder.join("crates").join(name).join("Cargo.toml");
            let lines = std::fs::read_to_string(&manifest)?;
            let needed = lines.lines().filter(|line| !line.starts_with("turnwise-testkit"));
            write(&manifest, &needed.map(|line| format!("{line}\n")).collect::<String>())?;
        }
        copy(&root().join("examples"), &folder.join("examples"))?;
        Ok(Workshop { folder })
    }

    fn run(&self, names: &[String]) -> io::Result<bool> {
        let mut all_caught = true;
        for (lists, from) in [
            (&[MUTANTS, UNIQUE_MUTANTS, EDIT_MUTANTS][..], 0),
            (&[LOCK_MUTANTS], LOCKS_FROM),
            (&[ELIGIBILITY_MUTANTS, INPUT_MUTANTS], ELIGIBILITY_FROM),
            (&[MODE_MUTANTS], MODES_FROM),
            (&[SCHEDULE_MUTANTS], SCHEDULES_FROM),
        ] {
            let is_chosen =
                |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| name == mutant.name);
            let chosen: Vec<&Mutant> = lists.iter().copied().flatten().filter(is_chosen).collect();
            if chosen.is_empty() {
                continue;
            }
            let unchanged = self.judge(from, UNCHANGED_SEEDS)?;
            println!("without a mistake, from seed {from}: {unchanged}");
            // What fails by itself says nothing about mistakes.
            all_caught &= matches!(unchanged, Verdict::Survived { .. });
            for mutant in chosen {
                let begun = Instant::now();
                let file = self.folder.join(mutant.file);
                let text = std::fs::read_to_string(&file)?;
                let mutated = apply(mutant, &text).map_err(io::Error::other)?;
                write(&file, &mutated)?;
                let verdict = self.judge(from, SEEDS);
                write(&file, &text)?;
                let verdict = verdict?;
                all_caught &= matches!(verdict, Verdict::Caught { .. });
                println!("{:<40} {verdict} ({:.0} s)", mutant.name, begun.elapsed().as_secs_f64());
            }
        }
        if !all_caught {
            println!("not every mutant was caught within {SEEDS} seeds");
        }
        Ok(all_caught)
    }

    /// Builds the workspace as it is now, and runs its worlds from this seed on.
    fn judge(&self, from: u64, seeds: u64) -> io::Result<Verdict> {
        let target = self.folder.join("target");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--profile", "sim", "--package", "turnwise-sim", "--offline"])
            .env("CARGO_TARGET_DIR", &target)
            .current_dir(&self.folder)
            .output()?;
        if !built.status.success() {
            eprint!("{}", String::from_utf8_lossy(&built.stderr));
            return Ok(Verdict::DoesNotBuild);
        }
        let program = target.join("sim").join("turnwise-sim");
        let output = Command::new(program)
            .args(["--seeds", &seeds.to_string(), "--from", &from.to_string()])
            .output()?;
        let output = String::from_utf8_lossy(&output.stdout);
        let caught = output.lines().find_map(|line| {
            let (seed, invariant) = line.strip_prefix("seed ")?.split_once(" breaks: ")?;
            Some(Verdict::Caught { seed: seed.parse().ok()?, invariant: invariant.to_owned() })
        });
        Ok(caught.unwrap_or(Verdict::Survived { seeds }))
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Caught { seed, invariant } => write!(f, "caught by seed {seed:>2}: {invariant}"),
            Verdict::Survived { seeds } => write!(f, "nothing found in {seeds} seeds"),
            Verdict::DoesNotBuild => write!(f, "does not build"),
        }
    }
}

/// Copies files and folders. Files that are the same already are left alone, so that they are not built again.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    if from.is_dir() {
        for entry in from.read_dir()? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    match std::fs::read_to_string(from) {
        Ok(text) => write(to, &text),
        // Not text, so the build does not need it.
        Err(_) => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if std::fs::read_to_string(file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, text)
}
