//! Job filters: an operator's rules for jobs that wait. They decide whether a job may start, never in which order.
//!
//! *Model.* A filter has a condition and an action. Filters are asked in the order of their priority, then of their
//! watermark, then of their names. The first filter whose condition holds for a job decides. One with
//! [`Action::Continue`] leaves the decision to later filters. A job that no filter decides about is accepted. A filter of which it is unknown
//! whether its condition holds decides too ([`Condition::applies`]), unless it accepts: a job passes no filter because it is hard to judge. An
//! option that the job's type hides holds no condition: a filter would show by what it does what the option is.
//!
//! *Watermark.* A filter with a watermark applies only to jobs that were added at that time or later. Without one
//! (0), it applies to all jobs.

use serde::{Deserialize, Serialize};

use super::concurrency::{Bucket, Limit};
use super::condition::{Condition, Mistake, Subject};
use super::rate::{self, Rate, RateLimit};

/// What a filter does with a job for which its condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The job may run, whatever later filters say.
    Accept,
    /// The job does not start while the filter exists. Running jobs are not affected.
    Pause,
    /// The job is cancelled.
    Reject,
    /// The next filters are asked.
    Continue,
    /// The job starts only while fewer jobs of the filter run than its limit ([`concurrency`](super::concurrency)).
    #[serde(alias = "rate_limit")]
    Concurrency,
    /// The job starts only while fewer jobs of the filter have started in a period than its rate allows (see [`super::rate`]).
    Rate,
}

/// A filter as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name. It is in the key, not in the value.
    #[serde(skip)]
    pub id: String,
    /// Filters with lower numbers are asked first.
    pub priority: i32,
    /// The filter applies only to jobs that were added at this time or later, in µs. With 0, it applies to all jobs.
    #[serde(default)]
    pub watermark_us: i64,
    /// Its condition, as the operator wrote it ([`Condition::parse`]).
    #[serde(default)]
    pub when: String,
    /// What it does.
    pub action: Action,
    /// `concurrency`, and beside a rate: the most jobs of this filter that run at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `rate`: the most jobs of this filter that start per period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Why the filter exists, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Filters in their order, with parsed conditions.
#[derive(Debug, Clone, Default)]
pub struct Filters(Vec<(Rule, Condition)>);

/// What filters decide about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It may run.
    Accept,
    /// It may run once the limits of this filter have room.
    Limited(&'a Rule),
    /// It waits, because of this filter.
    Pause(&'a Rule),
    /// It is cancelled, because of this filter.
    Reject(&'a Rule),
}

/// The limits of a filter, for one job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many jobs may run at the same time.
    pub concurrency: Option<Limit>,
    /// How many jobs may start per period.
    pub rate: Option<RateLimit>,
}

impl Rule {
    /// The concurrency limit that a filter sets; `None` if it sets none. A missing number of [`Action::Concurrency`], which no
    /// release writes, counts as 1.
    pub fn concurrency(&self) -> Option<Limit> {
        let bucket = Bucket::Filter(self.id.clone());
        match self.action {
            Action::Concurrency => Some(Limit { bucket, most: self.limit.unwrap_or(1) }),
            Action::Rate => self.limit.map(|most| Limit { bucket, most }),
            Action::Accept | Action::Pause | Action::Reject | Action::Continue => None,
        }
    }

    /// The limits that a filter sets for a job.
    pub fn limits(&self, job: &Subject<'_>) -> Limits {
        let rate = self.rate.as_ref().filter(|_| self.action == Action::Rate);
        let rate = rate.map(|rate| RateLimit {
            bucket: rate::of_filter(
                &self.id,
                rate.path().map(|path| rate::key_of((job.option)(&path))).as_deref(),
            ),
            rate: rate.clone(),
        });
        Limits { concurrency: self.concurrency(), rate }
    }
}

impl Filters {
    /// Parses the conditions, and puts the filters in their order.
    ///
    /// # Errors
    /// The name of a filter whose condition cannot be parsed, and what is wrong with it.
    pub fn new(rules: Vec<Rule>) -> Result<Filters, (String, Mistake)> {
        let mut filters = Vec::with_capacity(rules.len());
        for rule in rules {
            match Condition::parse(&rule.when) {
                Ok(condition) => filters.push((rule, condition)),
                Err(mistake) => return Err((rule.id, mistake)),
            }
        }
        filters.sort_by(|(one, _), (other, _)| {
            (one.priority, one.watermark_us, &one.id).cmp(&(other.priority, other.watermark_us, &other.id))
        });
        Ok(Filters(filters))
    }

    /// Whether there are no filters. Every job is then accepted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any condition or key needs a member of the options.
    pub fn ask_for_options(&self) -> bool {
        let keyed = |rule: &Rule| rule.rate.as_ref().is_some_and(|rate| rate.key.is_some());
        self.0.iter().any(|(rule, condition)| condition.asks_for_options() || keyed(rule))
    }

    /// What the patterns of all conditions cost to search for ([`Condition::pattern_bytes`]).
    pub fn pattern_bytes(&self) -> usize {
        self.0.iter().map(|(_, condition)| condition.pattern_bytes()).sum()
    }

    /// The filters, in the order in which they are asked.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().map(|(rule, _)| rule)
    }

    /// What the filters decide about a job.
    pub fn judge(&self, job: &Subject<'_>) -> Verdict<'_> {
        let about =
            self.0.iter().filter(|(rule, _)| rule.watermark_us == 0 || job.added_us >= rule.watermark_us);
        for (rule, condition) in about {
            let applies = || condition.applies(job);
            match rule.action {
                Action::Accept if condition.holds(job) => return Verdict::Accept,
                Action::Concurrency | Action::Rate if applies() => return Verdict::Limited(rule),
                Action::Pause if applies() => return Verdict::Pause(rule),
                Action::Reject if applies() => return Verdict::Reject(rule),
                _ => {}
            }
        }
        Verdict::Accept
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(id: &str, priority: i32, watermark_us: i64, when: &str, action: Action) -> Rule {
        Rule {
            id: id.into(),
            priority,
            watermark_us,
            when: when.into(),
            action,
            limit: None,
            rate: None,
            note: None,
        }
    }

    fn judged<'a>(filters: &'a Filters, job_type: &str, added_us: i64) -> Verdict<'a> {
        let option = |_: &[String]| None;
        let job = Subject {
            id: "i",
            job_type,
            tenant: "t",
            user: None,
            task: None,
            tags: &std::collections::BTreeSet::new(),
            group: None,
            reasons: &[],
            added_us,
            option: &option,
            standing: None,
        };
        filters.judge(&job)
    }

    #[test]
    fn the_first_filter_whose_condition_holds_decides() {
        let filters = Filters::new(vec![
            rule("z", 5, 0, "", Action::Pause),
            rule("b", 1, 100, "type = mail", Action::Reject),
            rule("c", 1, 0, "type = mail", Action::Continue),
            rule("a", 2, 0, "type = mail", Action::Accept),
            rule("0", 9, 0, "", Action::Reject),
        ])
        .unwrap();
        let names: Vec<&str> = filters.rules().map(|rule| rule.id.as_str()).collect();
        assert_eq!(names, ["c", "b", "a", "z", "0"], "by priority, watermark and name");
        assert_eq!(judged(&filters, "mail", 99), Verdict::Accept, "added before the watermark");
        assert!(matches!(judged(&filters, "mail", 100), Verdict::Reject(rule) if rule.id == "b"));
        assert!(matches!(judged(&filters, "news", 100), Verdict::Pause(rule) if rule.id == "z"));
        assert_eq!(judged(&Filters::default(), "news", 100), Verdict::Accept);
        let limited = Rule { limit: Some(7), ..rule("few", 0, 0, "", Action::Concurrency) };
        let filters = Filters::new(vec![limited, rule("then", 1, 0, "", Action::Reject)]).unwrap();
        match judged(&filters, "mail", 0) {
            Verdict::Limited(rule) => assert_eq!(rule.concurrency().unwrap().most, 7),
            other => panic!("{other:?}"),
        }
        let (id, mistake) = Filters::new(vec![rule("a", 1, 0, "type", Action::Pause)]).unwrap_err();
        assert_eq!((id.as_str(), mistake.column), ("a", 5));
    }
}
