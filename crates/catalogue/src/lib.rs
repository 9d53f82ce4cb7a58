//! Declares what the jobs of each type lock.
//!
//! A job may state its locks itself. Otherwise a [`Catalogue`] derives them from its type, its task and its options. An entry for
//! each task states which options name the resources to lock, and in which mode.
//!
//! ```
//! use serde_json::json;
//! use turnwise_catalogue::Catalogue;
//!
//! let catalogue = Catalogue::parse(
//!     r#"
//!     [jobs.cluster.tasks.instance-migrate]
//!     instance.exclusive = ["{instance}"]
//!     node.exclusive = ["{primary}", "{secondary}"]
//!     "#,
//!     "catalogue.toml",
//! )?;
//! let options = json!({"instance": "web1", "primary": "n1"});
//! let derived = catalogue.requests("cluster", Some("instance-migrate"), &options).expect("the catalogue knows the type");
//! assert_eq!(
//!     serde_json::to_value(&derived.requests)?,
//!     json!({"instance": {"exclusive": ["web1"]}, "node": {"exclusive": "unknown"}})
//! );
//! let why: Vec<String> = derived.unknown_because.iter().map(ToString::to_string).collect();
//! assert_eq!(why, [r#"node, exclusive: its option "secondary" is missing"#]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Catalogue::parse`] reads the file (`read`), and refuses errors with their line and how to correct them.
//! - [`parse_options`] reads options, with the digits of their numbers (`digits`).
//! - [`Catalogue::requests`] derives the requests (`derive`), with [`Template`](template)s over the options (`options`).

mod conditions;
mod derive;
mod digits;
mod options;
mod read;
pub mod template;
mod wrong;

use std::collections::BTreeMap;

use turnwise_policy::predictive_queue::locks::Levels;

pub use derive::{Because, Cause, Derived};
pub use digits::parse_options;
pub use wrong::Wrong;

use conditions::Conditions;
use options::Path;
use template::{Count, Template};

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Most tasks and requests in one file, for all types together.
pub const MAX_ENTRIES: usize = 10_000;
/// Most conditions of one request.
pub const MAX_CONDITIONS: usize = 32;
/// Most steps of one job.
pub const MAX_STEPS: usize = 1_000;

/// What the jobs of some types lock. Plain data, read once and used for each job that is added.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    levels: Levels,
    types: BTreeMap<String, Kind>,
}

impl Catalogue {
    /// The levels, in their order: from the file, or the built-in ones.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The types in the catalogue, in alphabetical order.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// The line of the file where a type begins, from 1.
    pub fn line(&self, job_type: &str) -> Option<usize> {
        self.types.get(job_type).map(|kind| kind.line)
    }

    /// The tasks of a type, in alphabetical order; none if it has none, or is unknown.
    pub fn tasks(&self, job_type: &str) -> impl Iterator<Item = &str> {
        self.types.get(job_type).into_iter().flat_map(|kind| kind.tasks.keys().map(String::as_str))
    }

    /// The aliases of a type's tasks, in alphabetical order, each with its task.
    pub fn aliases(&self, job_type: &str) -> impl Iterator<Item = (&str, &str)> {
        let aliases = self.types.get(job_type).into_iter().flat_map(|kind| &kind.aliases);
        aliases.map(|(alias, task)| (alias.as_str(), task.as_str()))
    }
}

impl Kind {
    /// The locks of a task, by its name or an alias.
    fn task(&self, name: &str) -> Option<&Entry> {
        self.tasks.get(self.aliases.get(name).map_or(name, String::as_str))
    }
}

/// The jobs of one type.
#[derive(Debug, Clone, Default)]
struct Kind {
    /// The type's line in the file.
    line: usize,
    /// The locks of each of its jobs.
    locks: Option<Entry>,
    /// The option whose value is the task of a job that names none, and of each step.
    task_option: Option<Path>,
    /// The option that lists the steps.
    steps: Option<Path>,
    /// The locks of each task.
    tasks: BTreeMap<String, Entry>,
    /// Aliases, each with its task from `tasks`.
    aliases: BTreeMap<String, String>,
    /// The locks of a job with another task. `None` means that they are unknown.
    otherwise: Option<Entry>,
}

/// The locks of one task: all of its rules together.
#[derive(Debug, Clone, Default)]
struct Entry {
    /// The conditions for the big lock; `None` if the task does not take it.
    big_lock: Option<Conditions>,
    rules: Vec<Rule>,
}

/// One request at a level, with its conditions.
#[derive(Debug, Clone)]
struct Rule {
    level: String,
    /// Its line in the file.
    line: usize,
    shared: Option<Which>,
    exclusive: Option<Which>,
    /// The units of each shared name.
    units: Option<Count>,
    conditions: Conditions,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    All,
    Unknown,
    Names(Vec<Template>),
}
