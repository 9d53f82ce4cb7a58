//! Reads a catalogue's file.
//!
//! ```toml
//! [[levels]]                          # all levels, in the order in which they are locked; without it, the built-in ones
//! name = "disk"
//! capacity = 4                        # units of each resource
//! capacities = { big = 8 }            # units of some resources
//!
//! [jobs.TYPE]
//! task = "do"                         # the option whose value is the task of a job that names none, and of each step
//! steps = "steps"                     # the option that lists the steps of a job with several steps
//! locks = { … }                       # what each job of the type locks
//! tasks.NAME = { … }                  # what a job of this task also locks; `aliases` are its other names
//! otherwise = { … }                   # what a job of any other task locks
//! ```
//!
//! The locks are, for each level, one request or a list of them (`entry`), and `big_lock`. Unknown members are refused, with
//! their line.

mod entry;
mod node;

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};
use turnwise_policy::predictive_queue::locks::{DEFAULT_LEVELS, Level, Levels, MAX_CAPACITY, check_name};

use crate::options::Path;
use crate::{Catalogue, Kind, MAX_ENTRIES, MAX_FILE_BYTES, Wrong};
use node::{File, Node};

type Result<T> = std::result::Result<T, Wrong>;

/// The member of a task that lists its aliases.
const ALIASES: &str = "aliases";
const OF_A_TYPE: [&str; 5] = ["task", "steps", "locks", "tasks", "otherwise"];

impl Catalogue {
    /// Reads a catalogue. Errors call it `file`.
    ///
    /// # Errors
    /// The line, what is wrong there, and how to correct it.
    pub fn parse(text: &str, file: &str) -> Result<Catalogue> {
        let lines: Vec<usize> =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let file = File { name: file, lines: &lines };
        if text.len() > MAX_FILE_BYTES {
            let problem = format!("has {} bytes", text.len());
            return Err(file.wrong(0, "the file", problem, format!("at most {MAX_FILE_BYTES} are read")));
        }
        let table = DeTable::parse(text).map_err(|error| file.not_toml(&error))?;
        let root = Node::new(file, String::new(), table.span().start);
        root.only(table.get_ref(), &["levels", "jobs"])?;
        let levels = root.optional(table.get_ref(), "levels", read_levels)?.unwrap_or_default();
        let mut reading = Reading { levels: &levels, entries: 0 };
        let mut types = BTreeMap::new();
        if let Some((node, value)) = root.member(table.get_ref(), "jobs") {
            let table = node.table(value, "a table for each job type, [jobs.TYPE]")?;
            for (name, node, value) in node.members(table) {
                check_name(name).map_err(|problem| node.wrong(problem, "name a job type"))?;
                types.insert(name.to_owned(), reading.kind(&node, value)?);
            }
        }
        Ok(Catalogue { levels, types })
    }
}

fn read_levels(node: &Node<'_>, value: &DeValue<'_>) -> Result<Levels> {
    let list = node.list(value, "a list of levels, each [[levels]]")?;
    let mut levels = Vec::new();
    for (node, value) in node.elements(list) {
        let table = node.table(value, "a level, [[levels]]")?;
        node.only(table, &["name", "capacity", "capacities"])?;
        let Some((named, name)) = node.member(table, "name") else {
            return Err(node.wrong("has no name", "write name = \"node\""));
        };
        let units = |node: &Node<'_>, value: &DeValue<'_>| {
            let units = node.number(value, "a number of units")?;
            u32::try_from(units).ok().filter(|units| (1..=MAX_CAPACITY).contains(units)).ok_or_else(|| {
                node.wrong(format!("is a capacity of {units}"), format!("1 to {MAX_CAPACITY} are possible"))
            })
        };
        let mut level = Level {
            name: named.text(name, "the level's name")?.to_owned(),
            capacity: node.optional(table, "capacity", units)?,
            capacities: BTreeMap::new(),
        };
        if let Some((node, value)) = node.member(table, "capacities") {
            let table = node.table(value, "resources with their units, as in { big = 8 }")?;
            if table.is_empty() {
                return Err(node.wrong("names no resource", "leave it out, or write { big = 8 }"));
            }
            for (name, node, value) in node.members(table) {
                let units = units(&node, value)?;
                check_name(name).map_err(|problem| node.wrong(problem, "name a resource"))?;
                level.capacities.insert(name.to_owned(), units);
            }
        }
        levels.push(level);
        // Each level is checked separately, so that an error has its line.
        Levels::try_from(levels.clone()).map_err(|problem| {
            named.wrong(problem, "correct it, or leave all [[levels]] out for the built-in ones")
        })?;
    }
    Levels::try_from(levels).map_err(|problem| {
        node.wrong(problem, format!("leave it out for the built-in ones: {}", DEFAULT_LEVELS.join(", ")))
    })
}

/// State while jobs are read.
struct Reading<'a> {
    levels: &'a Levels,
    /// The number of tasks and requests so far.
    entries: usize,
}

impl Reading<'_> {
    fn kind(&mut self, node: &Node<'_>, value: &DeValue<'_>) -> Result<Kind> {
        let table = node.table(value, "a table, [jobs.TYPE]")?;
        if let Some((node, _)) = node.member(table, "learn") {
            return Err(node.wrong("no longer exists", "leave it out, and declare the locks of each job"));
        }
        for (old, new) in [("operation", "task"), ("operations", "tasks")] {
            if let Some((node, _)) = node.member(table, old) {
                return Err(node.wrong("has another name now", format!("write `{new}`")));
            }
        }
        node.only(table, &OF_A_TYPE)?;
        let path = |node: &Node<'_>, value: &DeValue<'_>| {
            let text = node.text(value, "the name of an option")?;
            Path::parse(text).map_err(|(problem, fix)| node.wrong(problem, fix))
        };
        let mut kind = Kind {
            line: node.line(),
            task_option: node.optional(table, "task", path)?,
            steps: node.optional(table, "steps", path)?,
            locks: node.optional(table, "locks", |node, value| self.entry(node, value, false))?,
            otherwise: node.optional(table, "otherwise", |node, value| self.entry(node, value, false))?,
            ..Kind::default()
        };
        if let Some((node, value)) = node.member(table, "tasks") {
            let table = node.table(value, "a table for each task, [jobs.TYPE.tasks.NAME]")?;
            for (name, node, value) in node.members(table) {
                check_name(name).map_err(|problem| node.wrong(problem, "name a task"))?;
                kind.tasks.insert(name.to_owned(), self.entry(&node, value, true)?);
                self.aliases(&node, value, name, &mut kind.aliases)?;
            }
            // A task may follow an alias with the same name.
            for (name, node, _) in node.members(table) {
                if kind.aliases.contains_key(name) {
                    return Err(node.wrong("is an alias of another task, too", "give each a name of its own"));
                }
            }
        }
        match (&kind.task_option, kind.tasks.is_empty()) {
            (None, false) if kind.steps.is_some() => Err(node.wrong(
                "has steps, and does not say which option tells the task of each",
                "write task = \"…\" with the option's name",
            )),
            (Some(_), true) => Err(node.wrong(
                "says which option tells the task, and has none",
                "write [jobs.TYPE.tasks.NAME] for each, or leave `task` out",
            )),
            (None, true) if kind.steps.is_some() || kind.otherwise.is_some() => Err(node.wrong(
                "has `steps` or `otherwise` without tasks",
                "write [jobs.TYPE.tasks.NAME] for each task, or say what all jobs lock under `locks`",
            )),
            (None, true) if kind.locks.is_none() => Err(node.wrong(
                "says nothing of its locks",
                "write `locks`, or [jobs.TYPE.tasks.NAME] for each task; a type that locks nothing may say locks = {}",
            )),
            _ => Ok(kind),
        }
    }

    fn aliases(
        &mut self,
        node: &Node<'_>,
        value: &DeValue<'_>,
        task: &str,
        aliases: &mut BTreeMap<String, String>,
    ) -> Result<()> {
        let DeValue::Table(table) = value else { return Ok(()) };
        let Some((node, value)) = node.member(table, ALIASES) else { return Ok(()) };
        for (node, value) in node.elements(node.list(value, "a list of names, as in [\"OP_NODE_ADD\"]")?) {
            self.count(&node)?;
            let alias = node.text(value, "another name of the task")?;
            check_name(alias).map_err(|problem| node.wrong(problem, "name the task"))?;
            if aliases.insert(alias.to_owned(), task.to_owned()).is_some() {
                return Err(node.wrong(format!("names {alias:?} twice"), "give each task names of its own"));
            }
        }
        Ok(())
    }

    /// Counts one more task or request.
    fn count(&mut self, node: &Node<'_>) -> Result<()> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(node.wrong(
                format!("is task or request number {}", self.entries),
                format!("at most {MAX_ENTRIES} are possible"),
            ));
        }
        Ok(())
    }
}
