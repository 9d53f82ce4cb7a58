//! What jobs lock, said once for all jobs of a type.
//!
//! A job may state its locks itself. Where it does not, a [`Catalogue`] derives them from its type and its options: an entry
//! for each operation says which options name what is locked, and how.
//!
//! ```
//! use serde_json::json;
//! use turnwise_catalogue::Catalogue;
//!
//! let catalogue = Catalogue::parse(
//!     r#"
//!     [jobs.cluster]
//!     operation = "do"                # the option that tells which operation a job is
//!
//!     [jobs.cluster.operations.instance-migrate]
//!     instance.exclusive = ["{instance}"]
//!     node.exclusive = ["{primary}", "{secondary}"]
//!     "#,
//!     "catalogue.toml",
//! )?;
//! let options = json!({"do": "instance-migrate", "instance": "web1", "primary": "n1"});
//! let derived = catalogue.requests("cluster", &options).expect("the catalogue knows the type");
//! assert_eq!(
//!     serde_json::to_value(&derived.requests)?,
//!     json!({"instance": {"exclusive": ["web1"]}, "node": {"exclusive": "unknown"}})
//! );
//! let why: Vec<String> = derived.unknown_because.iter().map(ToString::to_string).collect();
//! assert_eq!(why, [r#"node, exclusive: its option "secondary" is missing"#]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Catalogue::parse`] reads the file (`read`), and refuses what is wrong in it with the line and the fix.
//! - [`Catalogue::requests`] derives (`derive`), from [`Template`](template)s over the options (`options`).
//! - [`Catalogue::traits`] tells what a job has in common with others, from whose runs is learnt what is unknown of it.

mod conditions;
mod derive;
mod options;
mod read;
pub mod template;
mod wrong;

use std::collections::BTreeMap;

use turnwise_policy::predictive_queue::locks::Levels;

pub use derive::{Because, Derived, Reason};
pub use wrong::Wrong;

use conditions::Conditions;
use options::Path;
use template::{Count, Template};

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Operations and requests of one file, all types together.
pub const MAX_ENTRIES: usize = 10_000;
/// Conditions of one request.
pub const MAX_CONDITIONS: usize = 32;
/// Options of one type that are learnt from, beside the operation.
pub const MAX_LEARNT: usize = 16;
/// Steps of one job.
pub const MAX_STEPS: usize = 1_000;

/// What is known of the jobs of some types. It is plain data: read once, and asked at each job that is added.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    levels: Levels,
    types: BTreeMap<String, Kind>,
}

impl Catalogue {
    /// The levels, in their order: those of the file, or the built-in ones.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The types that it knows, in alphabetical order.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// The line of its file where a type begins, from 1.
    pub fn line(&self, job_type: &str) -> Option<usize> {
        self.types.get(job_type).map(|kind| kind.line)
    }

    /// The operations of a type, in alphabetical order; none if it has none, or is not known.
    pub fn operations(&self, job_type: &str) -> impl Iterator<Item = &str> {
        self.types.get(job_type).into_iter().flat_map(|kind| kind.operations.keys().map(String::as_str))
    }

    /// Other names of a type's operations, in alphabetical order, each with the operation.
    pub fn aliases(&self, job_type: &str) -> impl Iterator<Item = (&str, &str)> {
        let aliases = self.types.get(job_type).into_iter().flat_map(|kind| &kind.aliases);
        aliases.map(|(alias, operation)| (alias.as_str(), operation.as_str()))
    }
}

impl Kind {
    /// The operation that a job names, by its own name.
    fn operation_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, String::as_str)
    }
}

/// The jobs of one type.
#[derive(Debug, Clone, Default)]
struct Kind {
    /// Where it stands in the file.
    line: usize,
    /// What each of its jobs locks.
    locks: Option<Entry>,
    /// The option whose value is the operation: in each step, if there are steps.
    operation: Option<Path>,
    /// The option that lists the steps.
    steps: Option<Path>,
    /// What each operation locks.
    operations: BTreeMap<String, Entry>,
    /// Other names of operations, each with the one that `operations` has.
    aliases: BTreeMap<String, String>,
    /// What a job locks whose operation is none of these. Without: nobody knows.
    otherwise: Option<Entry>,
    /// The options that are learnt from.
    learn: Vec<Path>,
}

/// What one operation locks: everything that its rules say together.
#[derive(Debug, Clone, Default)]
struct Entry {
    /// The big lock is taken where these hold.
    big_lock: Option<Conditions>,
    rules: Vec<Rule>,
}

/// One request at a level, and where it is made.
#[derive(Debug, Clone)]
struct Rule {
    level: String,
    /// Where it stands in the file.
    line: usize,
    shared: Option<Which>,
    exclusive: Option<Which>,
    /// Units of each shared name.
    units: Option<Count>,
    conditions: Conditions,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    All,
    Unknown,
    Names(Vec<Template>),
}
