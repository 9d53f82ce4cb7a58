//! A condition on jobs, as people write it: of a job filter, or of a selection of jobs to list or to change.
//!
//! ```text
//! type = mail and (tenant ~ "^test-" or options.to.domain = "example.org") and not id = mail-17
//! type in (mail, sms) and state = failed and reason ~ timeout and age > 2d
//! ```
//!
//! *Fields*: `id`, `type`, `task`, `tenant`, `user`, `tag` (any of the job's tags), `group`, `reason` (any of the job's reasons), and `options.` with the
//! path of a member, names between dots. *Operators*: `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (the text contains a match of a
//! regular expression), `!~`. `in (a, b)` equals one of several values. *Values*: numbers, `true`, `false`, `null`, text between
//! quotes, or a word.
//!
//! *Sets.* Of several tags or reasons, one must be as the comparison says, and with `!=` and `!~` all: `tag != eu` holds for a job without the
//! tag, and for one without tags.
//!
//! *Groups.* The group of a job is a tag of it ([`GROUP_TAG`]): `group = x` is `tag = group:x`.
//!
//! *Kinds.* The field decides what a value is. `id`, `type`, `task`, `tenant`, `user`, `tag`, `reason` and `reason_class` are text, whatever the value looks
//! like: `tenant = 007` is not the tenant 7. An option has the kind that its JSON has. A value without quotes equals a number as a number, and
//! text as text. Whole numbers are compared exactly. A missing value, or one of another kind, equals nothing and is neither below nor above.
//!
//! *Patterns.* What a pattern costs is bounded when the condition is parsed ([`MAX_PATTERNS_BYTES`]), and by the length of a searched text. A
//! longer text is not searched: whether the comparison holds is unknown ([`Truth`]). Then a selection has not found the job, and a filter
//! applies to it unless it accepts jobs: a text that is too long passes no filter.
//!
//! A selection may name more: `state`; `priority`, `attempts`, `crashes`; the times `added`, `changed`, `ended`,
//! compared with a time such as `2026-01-31T12:00:00Z`; and the ages since these times, `age` (since it was added),
//! `changed_age` and `ended_age`, compared with a duration such as `90s` or `2d`. Its `reason` includes why the job
//! failed, crashed or was cancelled, and `reason_class` is the class of that. A filter has none of these: it judges jobs that are about to start.

mod number;
mod parse;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use regex_lite::Regex;

pub use self::number::Number;
use self::parse::Parser;

/// The longest condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4_000;
/// The most memory that all compiled patterns of a condition take, in bytes, each rounded up to a power of two. A search takes time in
/// proportion to this times the length of the text: at most some ten milliseconds for a job.
pub const MAX_PATTERNS_BYTES: usize = 16 << 10;
/// The longest text in which a pattern is searched, in bytes. A longer one can still be compared.
const MAX_SEARCHED_BYTES: usize = 16 << 10;

/// The tag of the jobs of a group is this and the group's name. No other tag begins so.
pub const GROUP_TAG: &str = "group:";

/// What is wrong with a condition, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for Mistake {}

/// A member of a job's options, as conditions see it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(Number),
    /// True or false.
    Bool(bool),
    /// `null`.
    Null,
    /// There may be a value, which the sender of the condition may not know: whether a comparison holds is unknown.
    Hidden,
}

/// A job, as conditions see it.
pub struct Subject<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its type.
    pub job_type: &'a str,
    /// The tenant that it is charged to.
    pub tenant: &'a str,
    /// The user on whose behalf it runs.
    pub user: Option<&'a str>,
    /// Its task, if it has one.
    pub task: Option<&'a str>,
    /// Its tags.
    pub tags: &'a BTreeSet<String>,
    /// The name of its group, which is one more tag of it.
    pub group: Option<&'a str>,
    /// Why it was added, as its client states.
    pub reasons: &'a [String],
    /// When it was added, in µs.
    pub added_us: i64,
    /// Looks up a member of its options: `None` if it is missing, or is an object or an array.
    pub option: &'a dyn Fn(&[String]) -> Option<Value>,
    /// What only selections ask for.
    pub standing: Option<Standing<'a>>,
}

/// The state of a job and its times, as selections see them.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Its states: a parked job is delayed, too.
    pub states: &'a [&'a str],
    /// Its priority.
    pub priority: i8,
    /// The attempts since it was added.
    pub attempts: u32,
    /// Its consecutive crashes.
    pub crashes: u32,
    /// When it last changed its state, in µs.
    pub changed_us: i64,
    /// When it ended, in µs; `None` if it has not.
    pub ended_us: Option<i64>,
    /// The class of the reason why it failed, crashed or was cancelled.
    pub reason_class: Option<&'a str>,
    /// The time from which ages are measured, in µs.
    pub now_us: i64,
}

/// The fields that a condition may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fields {
    OfFilters,
    OfSelections,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    Holds,
    /// It does not.
    Fails,
    /// Options are hidden, and nothing else decides. Only the operator hides options, so a job cannot evade a filter with it.
    Hidden,
    /// A text is too long for its patterns, and nothing else decides. This is the job's doing: it must not evade a filter with it.
    Unknown,
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Truth {
        if holds { Truth::Holds } else { Truth::Fails }
    }
}

impl Truth {
    fn not(self) -> Truth {
        match self {
            Truth::Holds => Truth::Fails,
            Truth::Fails => Truth::Holds,
            unknown @ (Truth::Hidden | Truth::Unknown) => unknown,
        }
    }

    /// Whether one of them holds. Stops at the first that does.
    fn any(all: impl IntoIterator<Item = Truth>) -> Truth {
        let mut any = Truth::Fails;
        for one in all {
            match one {
                Truth::Holds => return Truth::Holds,
                Truth::Hidden if any == Truth::Unknown => {}
                Truth::Fails => {}
                unknown @ (Truth::Hidden | Truth::Unknown) => any = unknown,
            }
        }
        any
    }

    /// Whether all of them hold. Stops at the first that does not.
    fn all(all: impl IntoIterator<Item = Truth>) -> Truth {
        Truth::any(all.into_iter().map(Truth::not)).not()
    }
}

/// A parsed condition.
#[derive(Debug, Clone)]
pub struct Condition {
    /// `None` holds for every job.
    node: Option<Node>,
    /// See [`Condition::pattern_bytes`].
    pattern_bytes: usize,
}

#[derive(Debug, Clone)]
enum Node {
    Compare { field: Field, operator: Operator, value: Literal, pattern: Option<Regex> },
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

/// A value in a condition: what it is as text, and what else it may be.
#[derive(Debug, Clone)]
struct Literal {
    /// As text, unless the field is a number, a time or an age.
    text: Option<String>,
    /// As a number, `true`, `false` or `null`: without quotes, and not for fields that are text.
    other: Option<Value>,
}

#[derive(Debug, Clone)]
enum Field {
    Indexed(Indexed),
    User,
    Task,
    Reason,
    Option(Vec<String>),
    Count(Count),
    Time(Moment),
    Age(Moment),
}

/// A number of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Priority,
    Attempts,
    Crashes,
}

/// A time of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Added,
    Changed,
    Ended,
}

/// A field by whose values jobs can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indexed {
    /// The type.
    Type,
    /// The id.
    Id,
    /// The tenant.
    Tenant,
    /// A tag.
    Tag,
    /// The state.
    State,
    /// The class of the reason.
    ReasonClass,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Below,
    AtMost,
    Above,
    AtLeast,
    Matches,
    MatchesNot,
}

impl Condition {
    /// Parses the condition of a filter. An empty one holds for every job.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Condition, Mistake> {
        Parser::parse(text, Fields::OfFilters)
    }

    /// Parses the condition of a selection. An empty one holds for every job.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse_selection(text: &str) -> Result<Condition, Mistake> {
        Parser::parse(text, Fields::OfSelections)
    }

    /// The condition that holds for every job.
    pub fn always() -> Condition {
        Condition { node: None, pattern_bytes: 0 }
    }

    /// The values of which a job must have one for the condition to hold; `None` if it may have any.
    pub fn values(&self, field: Indexed) -> Option<BTreeSet<&str>> {
        values(self.node.as_ref()?, field)
    }

    /// Whether it needs a member of the options.
    pub fn asks_for_options(&self) -> bool {
        fn asks(node: &Node) -> bool {
            match node {
                Node::Compare { field, .. } => matches!(field, Field::Option(_)),
                Node::Not(node) => asks(node),
                Node::All(nodes) | Node::Any(nodes) => nodes.iter().any(asks),
            }
        }
        self.node.as_ref().is_some_and(asks)
    }

    /// What its patterns cost to search for, in bytes of compiled patterns: at most [`MAX_PATTERNS_BYTES`], and 0 without any.
    pub fn pattern_bytes(&self) -> usize {
        self.pattern_bytes
    }

    /// Whether it is certain that it holds for a job.
    pub fn holds(&self, job: &Subject<'_>) -> bool {
        self.truth(job) == Truth::Holds
    }

    /// Whether a filter that does not accept applies to a job: it holds, or only the size of a text keeps that from being known.
    pub fn applies(&self, job: &Subject<'_>) -> bool {
        matches!(self.truth(job), Truth::Holds | Truth::Unknown)
    }

    /// Whether it holds for a job, as far as that is known.
    pub fn truth(&self, job: &Subject<'_>) -> Truth {
        self.node.as_ref().map_or(Truth::Holds, |node| truth(node, job))
    }
}

fn truth(node: &Node, job: &Subject<'_>) -> Truth {
    match node {
        Node::Not(node) => truth(node, job).not(),
        Node::All(nodes) => Truth::all(nodes.iter().map(|node| truth(node, job))),
        Node::Any(nodes) => Truth::any(nodes.iter().map(|node| truth(node, job))),
        Node::Compare { field, operator, value, pattern } => {
            let text = |text: &str| compare_text(text, *operator, value, pattern.as_ref());
            let is_not = matches!(operator, Operator::NotEqual | Operator::MatchesNot);
            let missing = Truth::from(is_not);
            match field {
                Field::Indexed(Indexed::Id) => text(job.id),
                Field::Indexed(Indexed::Type) => text(job.job_type),
                Field::Indexed(Indexed::Tenant) => text(job.tenant),
                Field::User => job.user.map_or(missing, text),
                Field::Task => job.task.map_or(missing, text),
                Field::Indexed(Indexed::Tag) => {
                    let group = job.group.map(|name| text(&[GROUP_TAG, name].concat()));
                    let truths = job.tags.iter().map(|tag| text(tag)).chain(group);
                    if is_not { Truth::all(truths) } else { Truth::any(truths) }
                }
                Field::Reason if is_not => Truth::all(job.reasons.iter().map(|reason| text(reason))),
                Field::Reason => Truth::any(job.reasons.iter().map(|reason| text(reason))),
                Field::Indexed(Indexed::ReasonClass) => {
                    job.standing.and_then(|standing| standing.reason_class).map_or(missing, text)
                }
                Field::Option(path) => match (job.option)(path) {
                    Some(Value::Text(found)) => text(&found),
                    Some(Value::Hidden) => Truth::Hidden,
                    Some(found) => compare(&found, *operator, value).into(),
                    None => missing,
                },
                Field::Indexed(Indexed::State) | Field::Count(_) | Field::Time(_) | Field::Age(_) => {
                    let stands = |standing| stands(field, &standing, job.added_us, *operator, value);
                    job.standing.map_or(missing, |standing| stands(standing).into())
                }
            }
        }
    }
}

/// Whether a comparison with what only selections ask for holds.
fn stands(field: &Field, job: &Standing<'_>, added_us: i64, operator: Operator, value: &Literal) -> bool {
    let time = |moment: &Moment| match moment {
        Moment::Added => Some(added_us),
        Moment::Changed => Some(job.changed_us),
        Moment::Ended => job.ended_us,
    };
    let number = match field {
        Field::Indexed(Indexed::State) => {
            let is = job.states.iter().any(|state| value.text.as_deref() == Some(*state));
            return is == (operator == Operator::Equal);
        }
        Field::Count(Count::Priority) => Some(job.priority.into()),
        Field::Count(Count::Attempts) => Some(job.attempts.into()),
        Field::Count(Count::Crashes) => Some(job.crashes.into()),
        Field::Time(moment) => time(moment),
        Field::Age(moment) => time(moment).map(|at_us| job.now_us.saturating_sub(at_us)),
        _ => None,
    };
    number.map_or(operator == Operator::NotEqual, |number: i64| {
        compare(&Value::Number(number.into()), operator, value)
    })
}

fn values(node: &Node, field: Indexed) -> Option<BTreeSet<&str>> {
    match node {
        Node::Compare {
            field: Field::Indexed(of),
            operator: Operator::Equal,
            value: Literal { text: Some(value), .. },
            ..
        } => (*of == field).then(|| BTreeSet::from([value.as_str()])),
        Node::Compare { .. } | Node::Not(_) => None,
        Node::All(nodes) => {
            let mut sets = nodes.iter().filter_map(|node| values(node, field));
            let mut all = sets.next()?;
            // A job may have several states and tags, so that each of two sets may have one of them.
            if !matches!(field, Indexed::State | Indexed::Tag) {
                sets.for_each(|set| all.retain(|value| set.contains(value)));
            }
            Some(all)
        }
        Node::Any(nodes) => {
            let mut all = BTreeSet::new();
            for node in nodes {
                all.extend(values(node, field)?);
            }
            Some(all)
        }
    }
}

/// Compares a text, which is never a number.
fn compare_text(found: &str, operator: Operator, value: &Literal, pattern: Option<&Regex>) -> Truth {
    let matches = || match pattern {
        Some(_) if found.len() > MAX_SEARCHED_BYTES => Truth::Unknown,
        pattern => pattern.is_some_and(|pattern| pattern.is_match(found)).into(),
    };
    match operator {
        Operator::Matches => matches(),
        Operator::MatchesNot => matches().not(),
        Operator::Equal | Operator::NotEqual => {
            ordered(operator, value.text.as_deref().map(|value| found.cmp(value))).into()
        }
        // A text is neither below nor above a number.
        _ if value.other.is_some() => Truth::Fails,
        _ => ordered(operator, value.text.as_deref().map(|value| found.cmp(value))).into(),
    }
}

/// Compares what is no text.
fn compare(found: &Value, operator: Operator, value: &Literal) -> bool {
    let order = match (found, &value.other) {
        (Value::Number(found), Some(Value::Number(value))) => Some(found.order(value)),
        (Value::Bool(_) | Value::Null, Some(value))
            if matches!(operator, Operator::Equal | Operator::NotEqual) =>
        {
            (found == value).then_some(Ordering::Equal)
        }
        _ => None,
    };
    ordered(operator, order)
}

/// Whether an operator holds for this order; `None` if the two cannot be compared.
fn ordered(operator: Operator, order: Option<Ordering>) -> bool {
    match operator {
        Operator::Equal => order.is_some_and(Ordering::is_eq),
        Operator::NotEqual | Operator::MatchesNot => !order.is_some_and(Ordering::is_eq),
        Operator::Below => order.is_some_and(Ordering::is_lt),
        Operator::AtMost => order.is_some_and(Ordering::is_le),
        Operator::Above => order.is_some_and(Ordering::is_gt),
        Operator::AtLeast => order.is_some_and(Ordering::is_ge),
        Operator::Matches => false,
    }
}

#[cfg(test)]
mod tests;
