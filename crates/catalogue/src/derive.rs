//! Derives a job's lock requests from its options.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, MAX_RESOURCES, Mode, Request, Requests};

use crate::options::what;
use crate::template::Template;
use crate::{Catalogue, Entry, Kind, MAX_STEPS, Rule, Which};

/// Most reasons to report for one job.
const MAX_REASONS: usize = 100;

/// The locks of a job, as far as its options determine them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Derived {
    /// The lock requests.
    pub requests: Requests,
    /// Why requests are unknown: at least one reason for each unknown request.
    pub unknown_because: Vec<Because>,
    /// Requests that are known but differ from the options: all of a level instead of too many names, or fewer units than
    /// requested.
    pub warnings: Vec<Because>,
    /// The line of the type in the catalogue.
    line: usize,
}

/// The reason for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Because {
    /// The level; `None` for all levels.
    pub level: Option<String>,
    /// The mode of the request.
    pub mode: Mode,
    /// The number of the step, from 1, if the job has steps.
    pub step: Option<usize>,
    /// The line of the catalogue.
    pub line: usize,
    /// The cause, in the options or in the catalogue.
    pub cause: Cause,
}

/// Why a request is unknown. The text names options and never repeats their values, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The catalogue states `"unknown"`.
    #[error("the catalogue says that it is known only when the job runs")]
    Said,
    /// An option is missing.
    #[error("its option {option:?} is missing")]
    Missing {
        /// Its path.
        option: String,
    },
    /// An option has another type than it must have.
    #[error("its option {option:?} is {is}, and must be {wanted}")]
    WrongType {
        /// Its path.
        option: String,
        /// Its type: "an object".
        is: &'static str,
        /// The type that it must have: "a name".
        wanted: &'static str,
    },
    /// The name is not valid for a resource.
    #[error("{template} makes a name that is empty, longer than 128 bytes, or has control characters")]
    NoName {
        /// The template that made the name.
        template: String,
    },
    /// More names than a job may lock, so it locks all of the level.
    #[error("it names more than {MAX_RESOURCES} resources, so that all of the level is locked")]
    TooMany,
    /// More units than the resource has, so it locks all of them.
    #[error("it wants more units than the {0} that there are, and gets these")]
    TooManyUnits(u32),
    /// Neither the job nor an option names a task.
    #[error("it names no task, and the catalogue has no `otherwise` for it")]
    NoTask,
    /// The catalogue lacks the task that the job names.
    #[error("the catalogue has no such task as the job names, and no `otherwise` for it")]
    UnknownTask,
    /// The catalogue lacks the task that an option names.
    #[error("the catalogue has no such task as its option {option:?} says, and no `otherwise` for it")]
    NoSuchTask {
        /// The option with its name.
        option: String,
    },
    /// Too many steps for one job, or none.
    #[error("its option {option:?} must be a list of 1 to {MAX_STEPS} steps, each an object")]
    Steps {
        /// The option that lists them.
        option: String,
    },
}

impl Cause {
    /// Whether the options or the catalogue need correction. Otherwise the cause is expected.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Cause::Said | Cause::Missing { .. } | Cause::NoTask)
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Shared => "shared",
            Mode::Exclusive => "exclusive",
        };
        let level = self.level.as_deref().unwrap_or("every level");
        write!(f, "{level}, {mode}: {}", self.cause)?;
        match self.step {
            Some(step) => write!(f, " (step {step})"),
            None => Ok(()),
        }
    }
}

impl Catalogue {
    /// The locks of a job of this type that names this task, or none, and has these options; `None` if the catalogue lacks the type.
    /// The requests are always valid: they pass [`Levels::check`].
    pub fn requests(&self, job_type: &str, task: Option<&str>, options: &Value) -> Option<Derived> {
        let kind = self.types.get(job_type)?;
        let mut deriving =
            Deriving { levels: &self.levels, derived: Derived { line: kind.line, ..Derived::default() } };
        if let Some(entry) = &kind.locks {
            deriving.entry(entry, options, None);
        }
        match steps(kind, options) {
            Ok(None) => deriving.task(kind, task, options, None),
            Ok(Some(steps)) => {
                if let Some(entry) = task.and_then(|name| kind.task(name)) {
                    deriving.entry(entry, options, None);
                }
                for (n, step) in (1..).zip(steps) {
                    deriving.task(kind, None, step, Some(n));
                }
            }
            Err(cause) => deriving.unknown_at_all_levels(kind, None, &cause),
        }
        deriving.derived.fit(|requests| named(requests) <= MAX_RESOURCES);
        let Derived { requests, mut unknown_because, warnings, line } = deriving.derived;
        // A request is not unknown if another step locks all of the level.
        unknown_because.retain(|because| match &because.level {
            None => requests.has_unknown(),
            Some(level) => {
                requests.levels.get(level).is_some_and(|at| at.requests().contains(&&unknown(because.mode)))
            }
        });
        Some(Derived { requests, unknown_because, warnings, line })
    }
}

impl Kind {
    /// The locks of the task that a job, or one of its steps, names. Without a name, an option tells it.
    fn task_of(&self, named: Option<&str>, options: &Value) -> Result<&Entry, Cause> {
        if let Some(name) = named {
            return self.task(name).ok_or(Cause::UnknownTask);
        }
        let Some(path) = &self.task_option else { return Err(Cause::NoTask) };
        let option = path.to_string();
        match path.value(options) {
            None => Err(Cause::Missing { option }),
            Some(Value::String(name)) => self.task(name).ok_or(Cause::NoSuchTask { option }),
            Some(other) => Err(Cause::WrongType { option, is: what(other), wanted: "the name of a task" }),
        }
    }
}

/// The steps of a job. If it has no list of them, its options are those of the only step.
fn steps<'a>(kind: &Kind, options: &'a Value) -> Result<Option<&'a [Value]>, Cause> {
    let Some(path) = &kind.steps else { return Ok(None) };
    match path.value(options) {
        None => Ok(None),
        Some(Value::Array(steps)) if (1..=MAX_STEPS).contains(&steps.len()) => Ok(Some(steps)),
        Some(_) => Err(Cause::Steps { option: path.to_string() }),
    }
}

struct Deriving<'a> {
    levels: &'a Levels,
    derived: Derived,
}

impl Deriving<'_> {
    /// The locks of one step, or of the job if it has no steps.
    fn task(&mut self, kind: &Kind, named: Option<&str>, options: &Value, step: Option<usize>) {
        if kind.tasks.is_empty() {
            return;
        }
        match kind.task_of(named, options) {
            Ok(entry) => self.entry(entry, options, step),
            Err(cause) => match &kind.otherwise {
                Some(entry) => self.entry(entry, options, step),
                None => self.unknown_at_all_levels(kind, step, &cause),
            },
        }
    }

    /// Requests unknown locks at each level.
    fn unknown_at_all_levels(&mut self, kind: &Kind, step: Option<usize>, cause: &Cause) {
        let levels: Vec<String> = self.levels.names().map(str::to_owned).collect();
        for level in levels {
            self.derived.add(&level, Request::UnknownExclusive);
        }
        let because =
            Because { level: None, mode: Mode::Exclusive, step, line: kind.line, cause: cause.clone() };
        push(&mut self.derived.unknown_because, because);
    }

    fn entry(&mut self, entry: &Entry, options: &Value, step: Option<usize>) {
        if entry.big_lock.as_ref().is_some_and(|conditions| conditions.hold(options)) {
            self.derived.requests.big_lock = true;
        }
        for rule in &entry.rules {
            if !rule.conditions.hold(options) {
                continue;
            }
            for (mode, which) in [(Mode::Shared, &rule.shared), (Mode::Exclusive, &rule.exclusive)] {
                let Some(which) = which else { continue };
                let because = |cause| {
                    let level = Some(rule.level.clone());
                    Because { level, mode, step, line: rule.line, cause }
                };
                let names = match which {
                    Which::All => Ok(None),
                    Which::Unknown => Err(Cause::Said),
                    Which::Names(templates) => names(templates, options).map(Some),
                };
                let request = match names {
                    Ok(None) => all(mode),
                    Ok(Some(names)) if names.is_empty() => continue,
                    Ok(Some(names)) if mode == Mode::Shared => self.counted(rule, names, options, because),
                    Ok(Some(names)) => Request::Exclusive(names),
                    Err(Cause::TooMany) => {
                        push(&mut self.derived.warnings, because(Cause::TooMany));
                        all(mode)
                    }
                    Err(cause) => {
                        push(&mut self.derived.unknown_because, because(cause));
                        unknown(mode)
                    }
                };
                self.derived.add(&rule.level, request);
            }
        }
    }

    /// Shared names with their units, at most as many as each resource has.
    fn counted(
        &mut self,
        rule: &Rule,
        names: BTreeSet<String>,
        options: &Value,
        because: impl Fn(Cause) -> Because,
    ) -> Request {
        let units = match rule.units.as_ref().map_or(Ok(1), |count| count.units(options)) {
            Ok(0) => return Request::None,
            Ok(units) => units,
            Err(cause) => {
                push(&mut self.derived.unknown_because, because(cause));
                return Request::UnknownShared;
            }
        };
        let level = self.levels.position(&rule.level);
        let mut counted = BTreeMap::new();
        for name in names {
            let capacity = level.and_then(|level| self.levels.capacity(level, &name));
            // Without a capacity, the number of units has no meaning.
            let most = capacity.unwrap_or(1);
            if capacity.is_some() && units > most {
                push(&mut self.derived.warnings, because(Cause::TooManyUnits(most)));
            }
            counted.insert(name, units.min(most));
        }
        Request::Shared(counted)
    }
}

impl Derived {
    /// Reduces the requests until they fit, where fewer than [`MAX_RESOURCES`] names are possible. Replaces the names of the
    /// level with most names by all of that level, and repeats.
    pub fn fit(&mut self, fits: impl Fn(&Requests) -> bool) {
        while !fits(&self.requests) {
            let counts = self.requests.levels.iter().flat_map(|(level, at)| {
                let [shared, exclusive] = at.requests();
                [(count(shared), level, Mode::Shared), (count(exclusive), level, Mode::Exclusive)]
            });
            let Some((_, level, mode)) = counts.filter(|(count, ..)| *count > 0).max() else { return };
            let level = level.clone();
            let line = self.line;
            self.add(&level, all(mode));
            let because = Because { level: Some(level), mode, step: None, line, cause: Cause::TooMany };
            push(&mut self.warnings, because);
        }
    }

    fn add(&mut self, level: &str, request: Request) {
        // Names were checked when they were made, sets are not empty, and a single request cannot contradict itself.
        let Ok(at) = AtLevel::new([request]) else { return };
        if at.is_none() {
            return;
        }
        let before = self.requests.levels.remove(level).unwrap_or_default();
        self.requests.levels.insert(level.to_owned(), before.merge(at));
    }
}

/// The number of names in one request.
fn count(request: &Request) -> usize {
    match request {
        Request::Shared(names) => names.len(),
        Request::Exclusive(names) => names.len(),
        _ => 0,
    }
}

/// The number of names at all levels together.
fn named(requests: &Requests) -> usize {
    requests.levels.values().flat_map(AtLevel::requests).map(count).sum()
}

fn names(templates: &[Template], options: &Value) -> Result<BTreeSet<String>, Cause> {
    let mut names = BTreeSet::new();
    for template in templates {
        names.extend(template.names(options)?);
        if names.len() > MAX_RESOURCES {
            return Err(Cause::TooMany);
        }
    }
    Ok(names)
}

fn all(mode: Mode) -> Request {
    match mode {
        Mode::Shared => Request::AllShared,
        Mode::Exclusive => Request::AllExclusive,
    }
}

fn unknown(mode: Mode) -> Request {
    match mode {
        Mode::Shared => Request::UnknownShared,
        Mode::Exclusive => Request::UnknownExclusive,
    }
}

fn push(reasons: &mut Vec<Because>, because: Because) {
    if reasons.len() < MAX_REASONS && !reasons.contains(&because) {
        reasons.push(because);
    }
}
