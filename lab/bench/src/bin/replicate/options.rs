//! The command line of the benchmark.

use std::path::PathBuf;

pub const USAGE: &str = "\
cargo xtask bench replicate [OPTION]...
  Copies the same databases with turnwise, with PouchDB's own replicator, and, if the target server is a CouchDB, with that server's
  own; in turns, each time into new databases. Prints rates, CPU seconds and memory of each, their medians, and ratios.

  --work NAME      documents: one database of small documents with random ids, one-shot
                   attachments: documents of three attachments of 32 kB each
                   databases: many small databases, as many documents of a _replicator database
                   again: as `documents`, into a target that has them all already, without a checkpoint; beside
                          the time that the source's changes feed takes alone
                   all: these four                                                             (documents)
  --documents N    documents (20000, between given servers 100000; attachments: 2000; databases: 50 in each)
  --databases N    databases of the work `databases` (200)
  --rounds N       how often each replicator copies (3)
  --only NAME      without the others: turnwise, pouchdb, couchdb; may be given several times
  --source URL     a server to copy from, http://user:password@host:port (a pouchdb-server is started)
  --target URL     a server to copy to (another pouchdb-server is started)
  --turnwise FILE  the binary to measure (target/release/turnwise, built by the command)";

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Documents,
    Attachments,
    Databases,
    /// The target has everything already, and there is no checkpoint.
    Again,
}

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub kinds: Vec<Kind>,
    /// `None` for the default of the work.
    pub documents: Option<usize>,
    pub databases: usize,
    pub rounds: usize,
    /// In lower case; empty for all.
    pub only: Vec<String>,
    pub source: Option<String>,
    pub target: Option<String>,
    pub turnwise: PathBuf,
}

impl Options {
    /// Parses the program's arguments. `Err` states what is wrong with them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            kinds: vec![Kind::Documents],
            documents: None,
            databases: 200,
            rounds: 3,
            only: Vec::new(),
            source: None,
            target: None,
            turnwise: PathBuf::from("target/release/turnwise"),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: expected a number"));
            match name.as_str() {
                "--work" => options.kinds = kinds(&value)?,
                "--documents" => options.documents = Some(count()?.max(1)),
                "--databases" => options.databases = count()?.max(1),
                "--rounds" => options.rounds = count()?.max(1),
                "--only" => options.only.push(value.to_lowercase()),
                "--source" => options.source = Some(value),
                "--target" => options.target = Some(value),
                "--turnwise" => options.turnwise = PathBuf::from(value),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }
}

fn kinds(name: &str) -> Result<Vec<Kind>, String> {
    match name {
        "documents" => Ok(vec![Kind::Documents]),
        "attachments" => Ok(vec![Kind::Attachments]),
        "databases" => Ok(vec![Kind::Databases]),
        "again" => Ok(vec![Kind::Again]),
        "all" => Ok(vec![Kind::Documents, Kind::Attachments, Kind::Databases, Kind::Again]),
        _ => Err(format!("--work {name}: there are documents, attachments, databases, again and all")),
    }
}
