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
                   megabytes: documents with an attachment of 1 MB each
                   huge: documents with an attachment of 100 MB each
                   selector: as `documents`; a selector matches one of 20
                   filter: the same with a filter function in JavaScript
                   all: all of these                                                           (documents)
  --documents N    documents (20000, between given servers 100000; attachments: 2000; databases: 50 in each;
                   megabytes: 200; huge: 4)
  --databases N    databases of the work `databases` (200)
  --rounds N       how often each replicator copies (3)
  --only NAME      without the others: turnwise, serve (a replication document of a turnwise server), pouchdb, couchdb;
                   may be given several times
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
    Megabytes,
    Huge,
    Selector,
    Filter,
}

/// All kinds, each with its name.
const KINDS: [(&str, Kind); 8] = [
    ("documents", Kind::Documents),
    ("attachments", Kind::Attachments),
    ("databases", Kind::Databases),
    ("again", Kind::Again),
    ("megabytes", Kind::Megabytes),
    ("huge", Kind::Huge),
    ("selector", Kind::Selector),
    ("filter", Kind::Filter),
];

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
    if name == "all" {
        return Ok(KINDS.map(|(_, kind)| kind).to_vec());
    }
    let found = KINDS.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| vec![*kind]).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        format!("--work {name}: there are {} and all", names.join(", "))
    })
}
