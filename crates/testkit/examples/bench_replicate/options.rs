//! The command line of the benchmark.

use std::path::PathBuf;

pub const USAGE: &str = "\
cargo xtask bench replicate [OPTION]...
  Copies the same database with turnwise, with PouchDB's own replicator, and, if the target server is a CouchDB, with that server's
  own `_replicate`; in turns, each time into a new database. Prints documents/s, CPU seconds and memory of each.

  --documents N    documents of about 500 bytes, with random ids (20000)
  --attachments N  attachments of up to 8 MiB among them (0)
  --rounds N       how often each replicator copies (3)
  --source URL     a server to copy from, http://user:password@host:port (a pouchdb-server is started)
  --target URL     a server to copy to (another pouchdb-server is started)
  --turnwise FILE  the binary to measure (target/release/turnwise, built by the command)";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub documents: usize,
    pub attachments: usize,
    pub rounds: usize,
    pub source: Option<String>,
    pub target: Option<String>,
    pub turnwise: PathBuf,
}

impl Options {
    /// From the program's arguments; `Err` says what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            documents: 20_000,
            attachments: 0,
            rounds: 3,
            source: None,
            target: None,
            turnwise: PathBuf::from("target/release/turnwise"),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: expected a number"));
            match name.as_str() {
                "--documents" => options.documents = count()?.max(1),
                "--attachments" => options.attachments = count()?,
                "--rounds" => options.rounds = count()?.max(1),
                "--source" => options.source = Some(value),
                "--target" => options.target = Some(value),
                "--turnwise" => options.turnwise = PathBuf::from(value),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }
}
