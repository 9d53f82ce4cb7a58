//! A condition on jobs, as people write it: of a job filter, or of a selection of jobs to list or to change.
//!
//! ```text
//! type = mail and (tenant ~ "^test-" or options.to.domain = "example.org") and not id = mail-17
//! type in (mail, sms) and state = failed and reason ~ timeout and age > 2d
//! ```
//!
//! *Fields*: `id`, `type`, `tenant`, `user`, `reason` (any of the job's reasons), and `options.` with the path of a
//! member, names between dots. *Operators*: `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (the text contains a match of a
//! regular expression), `!~`. Numbers are compared with numbers, and text with text. Text that looks like a number
//! can also be compared with a number. A missing value, or one of another kind, equals nothing and is neither below
//! nor above. `in (a, b)` equals one of several values. *Values*: numbers, `true`, `false`, `null`, text between
//! quotes, or a word.
//!
//! A selection may name more: `state`; `priority`, `attempts`, `crashes`; the times `added`, `changed`, `ended`,
//! compared with a time such as `2026-01-31T12:00:00Z`; and the ages since these times, `age` (since it was added),
//! `changed_age` and `ended_age`, compared with a duration such as `90s` or `2d`. Its `reason` includes why the job
//! failed, crashed or was cancelled, and `reason_class` is the class of that. A filter has none of these: it judges jobs that are about to start.

mod parse;

use std::collections::BTreeSet;
use std::fmt;

use regex_lite::Regex;

use self::parse::Parser;

/// The longest condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4_000;
/// The longest text in which a pattern is searched, in bytes. No pattern matches a longer one; it can still be
/// compared.
const MAX_SEARCHED_BYTES: usize = 16 << 10;

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
    Number(f64),
    /// True or false.
    Bool(bool),
    /// `null`.
    Null,
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
    /// Its priority class.
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

/// A parsed condition.
#[derive(Debug, Clone)]
pub struct Condition(Option<Node>);

#[derive(Debug, Clone)]
enum Node {
    Compare { field: Field, operator: Operator, value: Value, pattern: Option<Regex> },
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

#[derive(Debug, Clone)]
enum Field {
    Id,
    Type,
    Tenant,
    User,
    Reason,
    ReasonClass,
    Option(Vec<String>),
    State,
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
        Condition(None)
    }

    /// The values of which a job must have one for the condition to hold; `None` if it may have any.
    pub fn values(&self, field: Indexed) -> Option<BTreeSet<&str>> {
        values(self.0.as_ref()?, field)
    }

    /// Whether it holds for every job.
    pub fn is_always(&self) -> bool {
        self.0.is_none()
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
        self.0.as_ref().is_some_and(asks)
    }

    /// Whether it holds for a job.
    pub fn holds(&self, job: &Subject<'_>) -> bool {
        self.0.as_ref().is_none_or(|node| holds(node, job))
    }
}

fn holds(node: &Node, job: &Subject<'_>) -> bool {
    match node {
        Node::Not(node) => !holds(node, job),
        Node::All(nodes) => nodes.iter().all(|node| holds(node, job)),
        Node::Any(nodes) => nodes.iter().any(|node| holds(node, job)),
        Node::Compare { field, operator, value, pattern } => {
            let text =
                |text: &str| compare(&Value::Text(text.to_owned()), *operator, value, pattern.as_ref());
            let is_not = matches!(operator, Operator::NotEqual | Operator::MatchesNot);
            match field {
                Field::Id => text(job.id),
                Field::Type => text(job.job_type),
                Field::Tenant => text(job.tenant),
                Field::User => job.user.map_or(is_not, text),
                Field::Reason if is_not => job.reasons.iter().all(|reason| text(reason)),
                Field::Reason => job.reasons.iter().any(|reason| text(reason)),
                Field::ReasonClass => {
                    job.standing.and_then(|standing| standing.reason_class).map_or(is_not, text)
                }
                Field::Option(path) => (job.option)(path)
                    .map_or(is_not, |found| compare(&found, *operator, value, pattern.as_ref())),
                Field::State | Field::Count(_) | Field::Time(_) | Field::Age(_) => job
                    .standing
                    .map_or(is_not, |standing| stands(field, &standing, job.added_us, *operator, value)),
            }
        }
    }
}

/// Whether a comparison with what only selections ask for holds.
#[allow(clippy::cast_precision_loss, reason = "times of some centuries in µs are exact")]
fn stands(field: &Field, job: &Standing<'_>, added_us: i64, operator: Operator, value: &Value) -> bool {
    let time = |moment: &Moment| match moment {
        Moment::Added => Some(added_us),
        Moment::Changed => Some(job.changed_us),
        Moment::Ended => job.ended_us,
    };
    let number = match field {
        Field::State => {
            let is = job.states.iter().any(|state| matches!(value, Value::Text(value) if value == state));
            return is == (operator == Operator::Equal);
        }
        Field::Count(Count::Priority) => Some(f64::from(job.priority)),
        Field::Count(Count::Attempts) => Some(f64::from(job.attempts)),
        Field::Count(Count::Crashes) => Some(f64::from(job.crashes)),
        Field::Time(moment) => time(moment).map(|at_us| at_us as f64),
        Field::Age(moment) => time(moment).map(|at_us| job.now_us.saturating_sub(at_us) as f64),
        _ => None,
    };
    number.map_or(operator == Operator::NotEqual, |number| {
        compare(&Value::Number(number), operator, value, None)
    })
}

fn values(node: &Node, field: Indexed) -> Option<BTreeSet<&str>> {
    match node {
        Node::Compare { field: of, operator: Operator::Equal, value: Value::Text(value), .. } => {
            let is_it = matches!(
                (of, field),
                (Field::Type, Indexed::Type)
                    | (Field::Id, Indexed::Id)
                    | (Field::Tenant, Indexed::Tenant)
                    | (Field::State, Indexed::State)
                    | (Field::ReasonClass, Indexed::ReasonClass)
            );
            is_it.then(|| BTreeSet::from([value.as_str()]))
        }
        Node::Compare { .. } | Node::Not(_) => None,
        Node::All(nodes) => {
            let mut sets = nodes.iter().filter_map(|node| values(node, field));
            let mut all = sets.next()?;
            // A job may have several states, so that each of two sets may have one of them.
            if field != Indexed::State {
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

fn compare(found: &Value, operator: Operator, value: &Value, pattern: Option<&Regex>) -> bool {
    let order = || match (found, value) {
        (Value::Text(found), Value::Text(value)) => Some(found.cmp(value)),
        (Value::Number(found), Value::Number(value)) => found.partial_cmp(value),
        // Ids and names are text, even if they look like numbers.
        (Value::Text(found), Value::Number(value)) => found.parse::<f64>().ok()?.partial_cmp(value),
        _ => None,
    };
    let equal = || found == value || order().is_some_and(std::cmp::Ordering::is_eq);
    let matches = || match (found, pattern) {
        (Value::Text(found), Some(pattern)) => found.len() <= MAX_SEARCHED_BYTES && pattern.is_match(found),
        _ => false,
    };
    match operator {
        Operator::Equal => equal(),
        Operator::NotEqual => !equal(),
        Operator::Below => order().is_some_and(std::cmp::Ordering::is_lt),
        Operator::AtMost => order().is_some_and(std::cmp::Ordering::is_le),
        Operator::Above => order().is_some_and(std::cmp::Ordering::is_gt),
        Operator::AtLeast => order().is_some_and(std::cmp::Ordering::is_ge),
        Operator::Matches => matches(),
        Operator::MatchesNot => !matches(),
    }
}

#[cfg(test)]
mod tests;
