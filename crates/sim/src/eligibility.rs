//! Which jobs may start, in worlds where not all may: dependencies, concurrency limits that jobs state, filters, and priorities.
//!
//! A job may depend on any job of any client, so that ends, removals and additions coincide. Some dependencies name jobs
//! that are gone, or would close a cycle: the queue refuses these requests. Filters and buckets have few names, so that
//! filters are replaced, and jobs share buckets.

use std::fmt;

use turnwise_policy::eligibility::dependencies::{DependencyEnd, Otherwise};
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_policy::eligibility::rate::Rate;
use turnwise_queue::{After, Input, Inputs, Job};

use crate::ledger::JobKey;
use crate::rng::SeededRng;

/// The highest number of dependencies of a job. Six jobs in a request, with this many each, fit into a small transaction.
const MOST_AFTER: u64 = 3;

/// The ends that jobs accept.
const ENDS: [DependencyEnd; 3] = [DependencyEnd::Completed, DependencyEnd::Failed, DependencyEnd::Cancelled];

/// The names of filters, and of buckets.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The highest limit.
const MOST_AT_ONCE: u64 = 4;
/// The periods of rates, in ms.
const PERIODS_MS: [u64; 4] = [200, 2_000, 10_000, 30_000];
/// A reason that states no limit.
const REASON: &str = "hot";
/// The prefix of a reason that states a limit.
const LIMIT: &str = "concurrency:";
/// Prefixes of ids: those of a client's own jobs, and of the flood.
const BEGINNINGS: [&str; 3] = ["c0-", "c1-", "f"];

/// Priorities. The default priority is the most frequent.
const PRIORITIES: [i8; 6] = [-20, -1, 0, 0, 1, 19];

/// The actions of filters. Most of them have an effect.
const ACTIONS: [Action; 10] = [
    Action::Pause,
    Action::Pause,
    Action::Pause,
    Action::Concurrency,
    Action::Concurrency,
    Action::Rate,
    Action::Rate,
    Action::Accept,
    Action::Continue,
    Action::Reject,
];

/// Which jobs may run in a world.
#[derive(Debug, Clone)]
pub struct EligibilityPlan {
    /// Jobs with dependencies, in permille.
    waits: u64,
    /// Dependencies on jobs of the same request, in permille of all dependencies: chains and bundles.
    together: u64,
    /// Whether most jobs of the flood depend on its first job.
    pub hub: bool,
    /// Jobs that state one or more limits, in permille.
    limited: u64,
    /// Operations of clients that change filters, in permille.
    pub filters: u64,
}

impl EligibilityPlan {
    /// A random plan.
    pub fn new(rng: &SeededRng) -> Self {
        EligibilityPlan {
            waits: *rng.choose(&[200, 500, 800]),
            together: *rng.choose(&[100, 500]),
            hub: rng.chance(500),
            limited: *rng.choose(&[0, 300, 800]),
            filters: *rng.choose(&[0, 50, 200]),
        }
    }

    /// The dependencies of a job: on `others`, and on jobs that are added before it in the same request.
    pub fn after(&self, rng: &SeededRng, own: &JobKey, before: &[JobKey], others: &[JobKey]) -> Vec<After> {
        let mut after: Vec<After> = Vec::new();
        if !rng.chance(self.waits) {
            return after;
        }
        for _ in 0..rng.between(1, MOST_AFTER) {
            let from = if rng.chance(self.together) { before } else { others };
            if from.is_empty() {
                continue;
            }
            let (job_type, id) = rng.choose(from).clone();
            let is_named = after.iter().any(|one| (&one.job_type, &one.id) == (&job_type, &id));
            if is_named || *own == (job_type.clone(), id.clone()) {
                continue;
            }
            after.push(wait_for(rng, (job_type, id)));
        }
        after
    }

    /// The dependencies of a job of the flood. Most of these jobs depend on the first one, and are more than one small
    /// transaction can inform.
    pub fn after_hub(&self, rng: &SeededRng, own: &JobKey, hub: &JobKey) -> Vec<After> {
        let waits = own != hub && rng.chance(900);
        waits.then(|| wait_for(rng, hub.clone())).into_iter().collect()
    }

    /// The inputs of a job that waits for these jobs: the results of some of its tenant.
    pub fn inputs(&self, rng: &SeededRng, after: &[After], is_own: impl Fn(&JobKey) -> bool) -> Inputs {
        let own = after.iter().map(|one| (one.job_type.clone(), one.id.clone())).filter(is_own);
        let some = own.filter(|_| rng.chance(700)).enumerate();
        some.map(|(n, (job_type, id))| (format!("i{n}"), Input { job_type, id })).collect()
    }

    /// The reasons of a job.
    pub fn reasons(&self, rng: &SeededRng) -> Vec<String> {
        let mut reasons = Vec::new();
        while rng.chance(self.limited) && reasons.len() < 3 {
            reasons.push(format!("{LIMIT}{}:{}", rng.between(1, MOST_AT_ONCE), rng.choose(&NAMES)));
        }
        if rng.chance(200) {
            reasons.push(REASON.to_owned());
        }
        reasons
    }

    /// A priority.
    pub fn priority(&self, rng: &SeededRng) -> i8 {
        *rng.choose(&PRIORITIES)
    }

    /// A random filter. It replaces the filter of the same name, if there is one.
    pub fn filter(&self, rng: &SeededRng, types: &[String], tenant: &str, now_us: i64) -> Rule {
        let what = match rng.below(6) {
            0 => What::Any,
            1 => What::Type(rng.choose(types).clone()),
            2 => What::Tenant(tenant.to_owned()),
            3 => What::Reason(REASON.to_owned()),
            4 => What::Limited,
            _ => What::Id((*rng.choose(&BEGINNINGS)).to_owned()),
        };
        let action = *rng.choose(&ACTIONS);
        let limit = u32::try_from(rng.between(1, MOST_AT_ONCE)).expect("a small number");
        Rule {
            id: (*rng.choose(&NAMES)).to_owned(),
            priority: *rng.choose(&[-1, 0, 0, 1]),
            watermark_us: if rng.chance(200) { now_us } else { 0 },
            when: Question { is: what == What::Any || rng.chance(700), what }.to_string(),
            action,
            limit: (action == Action::Concurrency).then_some(limit),
            rate: (action == Action::Rate).then(|| Rate::new(limit, *rng.choose(&PERIODS_MS))),
            note: rng.chance(300).then(|| "for now".to_owned()),
        }
    }
}

/// A dependency that accepts a random set of ends.
fn wait_for(rng: &SeededRng, (job_type, id): JobKey) -> After {
    let mut accepted: Vec<DependencyEnd> = ENDS.into_iter().filter(|_| rng.chance(500)).collect();
    if accepted.is_empty() {
        accepted.push(DependencyEnd::Completed);
    }
    let otherwise = *rng.choose(&[Otherwise::Cancel, Otherwise::Free]);
    After { job_type, id, accepted, otherwise }
}

/// What a filter's condition tests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Any,
    Type(String),
    Tenant(String),
    Reason(String),
    /// Whether the job states a limit.
    Limited,
    /// The prefix of the job's id.
    Id(String),
}

/// A test or its negation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    is: bool,
    what: What,
}

/// The filter's condition.
impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is {
            f.write_str("not ")?;
        }
        match &self.what {
            What::Any => Ok(()),
            What::Type(name) => write!(f, "type = {name}"),
            What::Tenant(name) => write!(f, "tenant = {name}"),
            What::Reason(reason) => write!(f, "reason = {reason}"),
            What::Limited => write!(f, "reason ~ \"^{LIMIT}\""),
            What::Id(beginning) => write!(f, "id ~ \"^{beginning}\""),
        }
    }
}

impl Question {
    /// Parses a condition that this module wrote.
    pub fn parse(condition: &str) -> Option<Question> {
        let (is, rest) = match condition.strip_prefix("not ") {
            Some(rest) => (false, rest),
            None => (true, condition),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let what = match words[..] {
            [] => What::Any,
            ["type", "=", name] => What::Type(name.to_owned()),
            ["tenant", "=", name] => What::Tenant(name.to_owned()),
            ["reason", "=", reason] => What::Reason(reason.to_owned()),
            ["reason", "~", _] => What::Limited,
            ["id", "~", pattern] => What::Id(pattern.trim_matches('"').strip_prefix('^')?.to_owned()),
            _ => return None,
        };
        Some(Question { is, what })
    }

    /// Whether a job meets the condition.
    pub fn holds(&self, job: &Job) -> bool {
        let so = match &self.what {
            What::Any => true,
            What::Type(name) => job.job_type == *name,
            What::Tenant(name) => job.tenant == *name,
            What::Reason(reason) => job.reasons.contains(reason),
            What::Limited => job.reasons.iter().any(|reason| reason.starts_with(LIMIT)),
            What::Id(beginning) => job.id.starts_with(beginning.as_str()),
        };
        so == self.is
    }
}

/// The bucket and the limit of a reason that this module wrote.
pub fn stated(reason: &str) -> Option<(&str, u32)> {
    let (most, name) = reason.strip_prefix(LIMIT)?.split_once(':')?;
    Some((name, most.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn questions_are_read_back() {
        let rng = SeededRng::new(1);
        let plan = EligibilityPlan::new(&rng);
        for _ in 0..200 {
            let rule = plan.filter(&rng, &["t0".to_owned()], "u1", 7);
            turnwise_queue::filters::check(&rule).unwrap();
            assert_eq!(Question::parse(&rule.when).unwrap().to_string(), rule.when);
        }
        assert_eq!(stated("concurrency:3:a"), Some(("a", 3)));
        assert_eq!(stated(REASON), None);
    }
}
