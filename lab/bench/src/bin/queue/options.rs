//! The command line of the benchmark.

use std::path::PathBuf;

pub const USAGE: &str = "\
cargo xtask bench queue [OPTION]...
  Jobs that do nothing, from being added to their recorded end, through turnwise and through other job servers: each alone, in turns, each on an
  empty store, each with every commit on the disk before it is acknowledged. Those that are not installed are left out:
  `cargo xtask bench --setup` installs them.

  --jobs N         jobs per phase, after a tenth as many that warm up (20000)
  --submitters N   how many add at the same time (64)
  --rounds N       how often each is measured (3)
  --backlog N      jobs that wait while turnwise is killed and opened again (1000000); 0 leaves it out
  --only A,B,…     turnwise, http, https, python, typescript, bullmq, celery, graphile, apalis, backlog (all)
  --modes A,B,…    one (64 submitters, a job per transaction), lone (one submitter), batch (100 per transaction), latency (all)
  --traces RATIO   turnwise's servers trace this part of the jobs (1 is their default with an [otel] endpoint), and export the spans to a
                   collector that discards them; without it they trace nothing
  --dir DIR        where stores go, on the disk to measure (target/bench-queue)
  --turnwise FILE  the server to measure over HTTP (target/release/turnwise, built by the command)
  --apalis FILE    apalis's program (target/apalis/release/bench-apalis)
  --python FILE    Python with the packages of turnwise's client and of Celery (target/bench-python/venv/bin/python)";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub jobs: usize,
    pub submitters: usize,
    pub rounds: usize,
    pub backlog: usize,
    pub only: Option<Vec<String>>,
    pub modes: Option<Vec<String>>,
    /// Which part of the jobs is traced; `None` without a collector.
    pub traces: Option<f64>,
    pub dir: PathBuf,
    pub turnwise: PathBuf,
    pub apalis: PathBuf,
    pub python: PathBuf,
}

/// The values of `--only`.
pub const SUBJECTS: [&str; 10] = [
    "turnwise",
    "http",
    "https",
    "python",
    "typescript",
    "bullmq",
    "celery",
    "graphile",
    "apalis",
    "backlog",
];
/// The values of `--modes`.
pub const MODES: [&str; 4] = ["one", "lone", "batch", "latency"];

impl Options {
    /// Parses the program's arguments. `Err` states what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            jobs: 20_000,
            submitters: 64,
            rounds: 3,
            backlog: 1_000_000,
            only: None,
            modes: None,
            traces: None,
            dir: PathBuf::from("target/bench-queue"),
            turnwise: PathBuf::from("target/release/turnwise"),
            apalis: PathBuf::from("target/apalis/release/bench-apalis"),
            python: PathBuf::from("target/bench-python/venv/bin/python"),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: expected a number"));
            let some_of = |known: &[&str]| {
                let words: Vec<String> = value.split(',').map(str::to_owned).collect();
                match words.iter().find(|word| !known.contains(&word.as_str())) {
                    Some(word) => Err(format!("{name} {word}: expected some of {}", known.join(", "))),
                    None => Ok(Some(words)),
                }
            };
            match name.as_str() {
                "--jobs" => options.jobs = count()?.max(100),
                "--submitters" => options.submitters = count()?.max(1),
                "--rounds" => options.rounds = count()?.max(1),
                "--backlog" => options.backlog = count()?,
                "--only" => options.only = some_of(&SUBJECTS)?,
                "--modes" => options.modes = some_of(&MODES)?,
                "--traces" => {
                    let ratio = value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                    options.traces = Some(ratio.ok_or_else(|| format!("{name} {value}: expected 0 to 1"))?);
                }
                "--dir" => options.dir = PathBuf::from(value),
                "--turnwise" => options.turnwise = PathBuf::from(value),
                "--python" => options.python = PathBuf::from(value),
                "--apalis" => options.apalis = PathBuf::from(value),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }

    /// Whether `--only` allows this subject.
    pub fn wants(&self, subject: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|word| word == subject))
    }

    /// Whether `--modes` includes this mode.
    pub fn wants_mode(&self, mode: &str) -> bool {
        self.modes.as_ref().is_none_or(|modes| modes.iter().any(|word| word == mode))
    }
}
