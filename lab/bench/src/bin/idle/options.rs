//! The command line of the benchmark.

use std::path::PathBuf;

pub const USAGE: &str = "\
cargo xtask bench idle --source URL --target URL [OPTION]...
  Adds continuous replications between two CouchDBs, waits until all of them have nothing to do, and prints what they cost then: memory and
  processor time of turnwise and of both servers, and how long a write takes to arrive. The source needs a _global_changes database.

  --source URL     a CouchDB to copy from, http://admin:password@host:port
  --target URL     a CouchDB to copy to
  --jobs N         replications (10000)
  --databases N    source databases that they share (as many as jobs); each job of one has a target of its own
  --multiplex M    auto or off (auto)
  --max-jobs N     [replicator] max_jobs (500; off: as many as jobs)
  --seconds N      how long idling is measured (60)
  --samples N      writes (50)
  --beside N       then the same of so many of the source's own replicator (0)
  --prefix NAME    what the databases' names begin with (idle)
  --keep           leaves the databases there for the next time
  --turnwise FILE  the binary to measure (target/release/turnwise, built by the command)";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub source: String,
    pub target: String,
    pub jobs: usize,
    pub databases: usize,
    pub multiplex: String,
    pub max_jobs: usize,
    pub seconds: u64,
    pub samples: usize,
    pub beside: usize,
    pub prefix: String,
    pub keep: bool,
    pub turnwise: PathBuf,
}

impl Options {
    /// Parses the program's arguments. `Err` states what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut databases, mut max_jobs) = (None, None);
        let mut options = Self {
            source: String::new(),
            target: String::new(),
            jobs: 10_000,
            databases: 0,
            multiplex: "auto".to_owned(),
            max_jobs: 500,
            seconds: 60,
            samples: 50,
            beside: 0,
            prefix: "idle".to_owned(),
            keep: false,
            turnwise: PathBuf::from("target/release/turnwise"),
        };
        while let Some(name) = arguments.next() {
            if name == "--keep" {
                options.keep = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: expected a number"));
            match name.as_str() {
                "--source" => options.source = value.trim_end_matches('/').to_owned(),
                "--target" => options.target = value.trim_end_matches('/').to_owned(),
                "--jobs" => options.jobs = count()?,
                "--databases" => databases = Some(count()?),
                "--multiplex" if ["auto", "off"].contains(&value.as_str()) => options.multiplex = value,
                "--max-jobs" => max_jobs = Some(count()?),
                "--seconds" => options.seconds = count()? as u64,
                "--samples" => options.samples = count()?,
                "--beside" => options.beside = count()?,
                "--prefix" => options.prefix = value,
                "--turnwise" => options.turnwise = value.into(),
                _ => return Err(format!("{name} {value}: unknown")),
            }
        }
        if options.source.is_empty() || options.target.is_empty() {
            return Err("--source and --target are needed: two CouchDBs".to_owned());
        }
        options.beside = options.beside.min(options.jobs);
        options.databases = databases.unwrap_or(options.jobs).clamp(1, options.jobs.max(1));
        let all = if options.multiplex == "off" { options.jobs } else { options.max_jobs };
        options.max_jobs = max_jobs.unwrap_or(all);
        Ok(options)
    }
}
