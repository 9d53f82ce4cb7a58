//! Schedules: each instant in which a schedule is not paused has its job, exactly one, or what the schedule states for instants that were missed.
//!
//! What is due follows from the schedule's own row, and not from a clock: a pause answers with the last instant that was dealt with, and a resumption with
//! the next one. The instants between two of these are a *stretch*. A clock that jumps forward makes instants late, as the fire behind them shows.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::log::Log;
use super::{AGAIN, Features, IDENTITY, OTHER_TENANT, TENANT, TYPE};
use crate::api::Answer;
use turnwise_testkit::Random;

/// The first letters of the names of schedules that let no jobs overlap.
pub(super) const ALONE: &str = "s-skip-";
const SECOND_US: i64 = 1_000_000;
/// An instant that is older was missed (docs/schedules.md).
const LATE_US: i64 = 60 * SECOND_US;
/// After a crash the clock of a node may continue some seconds before what it was.
const CLOCKS_US: i64 = 10 * SECOND_US;
/// The time between two changes of schedules, and the shortest and longest pause of one, in ms.
const CHANGE: Duration = Duration::from_secs(12);
const PAUSE_MS: (u64, u64) = (1_000, 20_000);
/// A request without an answer has taken effect within this time: a node is paused for less.
const LATEST: Duration = Duration::from_secs(15);
/// The number of schedules. Every second one is changed meanwhile.
const COUNT: usize = 20;

/// A schedule, as the clients know it.
pub(super) struct Plan {
    name: String,
    period_s: i64,
    is_cron: bool,
    /// With `overlap: allow` and `missed: all`: the most that are made up for. Otherwise `skip` and `one`.
    most: Option<i64>,
    work_ms: u64,
    offset_s: i64,
    stretches: Vec<Stretch>,
    /// The last answer.
    row: Value,
}

/// Instants that must be dealt with: from the first one to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    offset_us: i64,
    from_us: i64,
    until_us: i64,
    /// Whether there is no instant between the end of the stretch before and this one. Otherwise it is not known.
    is_strict: bool,
}

/// The job of an instant.
struct Fired {
    id: String,
    at_us: i64,
}

impl Plan {
    fn new(number: usize) -> Plan {
        let all = number.is_multiple_of(2) || number.is_multiple_of(5);
        let period_s = [5, 10, 30, 15, 20][number % 5];
        Plan {
            name: if all { format!("s-all-{number}") } else { format!("{ALONE}{number}") },
            period_s,
            is_cron: period_s == 10 || period_s == 30,
            // A few make up for as many as is possible.
            most: all.then_some(if number.is_multiple_of(10) { 100 } else { 20 }),
            // Some jobs take longer than the time between two fires.
            work_ms: if !all && number % 6 == 3 { 18_000 } else { 20 * number as u64 },
            offset_s: 0,
            stretches: Vec::new(),
            row: Value::Null,
        }
    }

    fn put(&self, note: u64) -> Value {
        let when = match self.is_cron {
            true => {
                let seconds: Vec<String> =
                    (0..60).filter(|s| s % self.period_s == self.offset_s).map(|s| s.to_string()).collect();
                json!({ "cron": format!("{} * * * * *", seconds.join(",")) })
            }
            false => json!({ "every_ms": self.period_s * 1_000, "offset_ms": self.offset_s * 1_000 }),
        };
        let tenant = if self.work_ms.is_multiple_of(40) { TENANT } else { OTHER_TENANT };
        let options = json!({ "do": "done", "work_ms": self.work_ms, "note": note });
        let job = json!({ "type": TYPE, "tenant": tenant, "options": options });
        match self.most {
            Some(most) => {
                json!({ "when": when, "job": job, "overlap": "allow", "missed": "all", "most_missed": most })
            }
            None => json!({ "when": when, "job": job, "overlap": "skip", "missed": "one" }),
        }
    }

    fn path(&self) -> String {
        format!("/v1/schedules/{}", self.name)
    }

    /// The schedule fires from now on, as its row states.
    fn begin(&mut self, row: &Value) {
        let before = self.stretches.last().map_or(0, |stretch| stretch.until_us);
        let fires = || row["fires"].as_array().into_iter().flatten();
        let made = fires().filter_map(|fire| fire["at_us"].as_i64()).filter(|at_us| *at_us > before);
        // The row may be of a later moment than the change.
        let Some(from_us) = made.chain(row["next"]["at_us"].as_i64()).min() else { return };
        let is_strict = fires().all(|fire| fire["outcome"] != "missed");
        let (offset_us, until_us) = (self.offset_s * SECOND_US, i64::MAX);
        self.stretches.push(Stretch { offset_us, from_us, until_us, is_strict });
    }

    /// The schedule is paused, as its row states.
    fn end(&mut self, row: Value) {
        let last = last_us(&row);
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.until_us = last.unwrap_or(stretch.from_us - 1);
        }
        self.row = row;
    }
}

/// The last instant that was dealt with.
fn last_us(row: &Value) -> Option<i64> {
    row["fires"].as_array()?.iter().filter_map(|fire| fire["at_us"].as_i64()).max()
}

/// Adds the schedules, and pauses, resumes and edits some of them until the clients stop. Then pauses all.
pub(super) async fn run(features: &Features, mut random: Random) -> Vec<Plan> {
    let mut plans: Vec<Plan> = (0..COUNT).map(Plan::new).collect();
    for plan in &mut plans {
        let row = steady(features, &mut random, Method::PUT, &plan.path(), Some(&plan.put(0))).await;
        plan.begin(&row);
    }
    let mut changes = 0;
    loop {
        features.pause(CHANGE).await;
        if features.is_over() {
            break;
        }
        changes += 1;
        let index = 1 + 2 * usize::try_from(random.below(COUNT as u64 / 2)).expect("an index");
        let plan = &mut plans[index];
        match random.below(3) {
            // The calendar stays, so no instant may be lost.
            0 => {
                let body = plan.put(changes);
                steady(features, &mut random, Method::PUT, &plan.path(), Some(&body)).await;
                features.count("schedules edited");
            }
            which => {
                pause(features, &mut random, plan).await;
                let time = PAUSE_MS.0 + random.below(PAUSE_MS.1 - PAUSE_MS.0);
                features.pause(Duration::from_millis(time)).await;
                rests(features, &mut random, plan).await;
                if which == 2 {
                    plan.offset_s = i64::try_from(random.below(plan.period_s as u64)).expect("small");
                    let body = plan.put(changes);
                    steady(features, &mut random, Method::PUT, &plan.path(), Some(&body)).await;
                    features.count("schedules with another calendar");
                }
                let path = format!("{}/resume", plan.path());
                let row = steady(features, &mut random, Method::POST, &path, None).await;
                plan.begin(&row);
                features.count("schedules resumed");
            }
        }
    }
    for plan in &mut plans {
        pause(features, &mut random, plan).await;
    }
    plans
}

/// Sends a request until it is answered. One without an answer may take effect later, so nothing else follows until then.
async fn steady(
    features: &Features,
    random: &mut Random,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Value {
    let api = features.world.identities.client(IDENTITY);
    let mut is_known = true;
    loop {
        match features.world.ask_some(api, random, method.clone(), path, body).await {
            Answer::Got(status, answer) => {
                if !status.is_success() {
                    features
                        .broken("a change of a schedule was refused", &format!("{method} {path}: {answer}"));
                }
                if !is_known {
                    tokio::time::sleep(LATEST).await;
                }
                return answer;
            }
            answer => is_known &= !matches!(answer, Answer::Unknown),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn pause(features: &Features, random: &mut Random, plan: &mut Plan) {
    let path = format!("{}/pause", plan.path());
    let row = steady(features, random, Method::POST, &path, None).await;
    if row["state"] != "paused" {
        features.broken("a schedule is not paused", &row.to_string());
    }
    plan.end(row);
}

/// A paused schedule does not fire.
async fn rests(features: &Features, random: &mut Random, plan: &Plan) {
    let row = features.done(random, Method::GET, &plan.path(), None).await;
    if row["state"] != "paused" || row["fires"] != plan.row["fires"] {
        features.broken("a paused schedule has fired", &format!("{row} after {}", plan.row));
    }
}

/// Checks the jobs of all schedules.
pub(super) async fn judge(features: &Features, plans: &[Plan], jobs: &BTreeMap<String, Value>) {
    let mut random = Random::new(1);
    let (mut fired, mut late) = (0, 0);
    for plan in plans {
        rests(features, &mut random, plan).await;
        let mut own = BTreeMap::new();
        for (id, job) in jobs.iter().filter(|(_, job)| job["schedule"]["name"] == plan.name) {
            let (Some(at_us), Some(fired_us)) =
                (job["schedule"]["scheduled_at_us"].as_i64(), job["schedule"]["fired_at_us"].as_i64())
            else {
                features.broken("a job of a schedule has no time", &job.to_string());
                continue;
            };
            late += u64::from(fired_us - at_us > LATE_US);
            if job["state"] != "completed" || *id != id_at(&plan.name, at_us) {
                features.broken("a job of a schedule is not as it must be", &job.to_string());
            }
            if own.insert(at_us, Fired { id: id.clone(), at_us: fired_us }).is_some() {
                features.broken("an instant has two jobs", id);
            }
        }
        fired += own.len();
        if own.is_empty() && features.is_long() {
            features.broken("a schedule has not fired", &plan.row.to_string());
        }
        for text in wrong(plan, &own, &features.log()) {
            features.broken("an instant of a schedule", &text);
        }
    }
    let stretches: usize = plans.iter().map(|plan| plan.stretches.len()).sum();
    println!("schedules: {fired} instants have a job, {late} of them late, in {stretches} stretches");
}

/// What is wrong with the jobs of a schedule.
fn wrong(plan: &Plan, jobs: &BTreeMap<i64, Fired>, log: &Log) -> Vec<String> {
    let Plan { name, period_s, .. } = plan;
    let period_us = period_s * SECOND_US;
    let mut wrong = Vec::new();
    for (at_us, fired) in jobs {
        let is_due = |stretch: &Stretch| {
            let before =
                plan.stretches.iter().map(|other| other.until_us).filter(|us| *us < stretch.from_us).max();
            let from_us = if stretch.is_strict { stretch.from_us } else { before.unwrap_or(0) + 1 };
            from_us <= *at_us && *at_us <= stretch.until_us && plan.matches(stretch, *at_us)
        };
        if !plan.stretches.iter().any(is_due) {
            wrong.push(format!("{} is there, and was not due: {:?}", fired.id, plan.stretches));
        }
    }
    for stretch in &plan.stretches {
        // A job from before a pause may still be open.
        let before = jobs.range(..stretch.from_us).next_back().map(|(_, fired)| fired);
        let (mut at_us, mut last) = (stretch.from_us, before);
        if !plan.matches(stretch, at_us) {
            wrong.push(format!("a stretch begins beside the calendar: {stretch:?}"));
        }
        let mut missing = Vec::new();
        while at_us <= stretch.until_us {
            match jobs.get(&at_us) {
                None => missing.push(at_us),
                Some(fired) => {
                    let first = missing.first().copied();
                    wrong.extend(first.and_then(|_| plan.lost(log, last, &missing, Some((at_us, fired)))));
                    (last, missing) = (Some(fired), Vec::new());
                }
            }
            at_us += period_us;
        }
        if !missing.is_empty() {
            wrong.extend(plan.lost(log, last, &missing, None));
        }
    }
    wrong.iter().map(|text| format!("{name}: {text}")).collect()
}

impl Plan {
    /// Whether the calendar of a stretch has an instant.
    fn matches(&self, stretch: &Stretch, at_us: i64) -> bool {
        (at_us - stretch.offset_us) % (self.period_s * SECOND_US) == 0
    }

    /// What is wrong with instants without a job, between the job before and that behind them.
    fn lost(
        &self,
        log: &Log,
        before: Option<&Fired>,
        missing: &[i64],
        behind: Option<(i64, &Fired)>,
    ) -> Option<String> {
        let first = *missing.first()?;
        let period_us = self.period_s * SECOND_US;
        let lost = |at_us: i64| {
            let behind = behind.map(|(_, fired)| (&fired.id, fired.at_us));
            Some(format!(
                "{} has no job, one of {}; then {behind:?}",
                id_at(&self.name, at_us),
                missing.len()
            ))
        };
        // They were late, and the one behind them is the first of those that are made up for.
        if let Some((at_us, fired)) = behind
            && let Some(most) = self.most
        {
            let made = (fired.at_us - at_us) / period_us + 1;
            return if fired.at_us - first > LATE_US && made == most { None } else { lost(first) };
        }
        if self.most.is_some() {
            return lost(first);
        }
        // The job before had not ended, by the clock of the node that ended it.
        let ended_us = before.and_then(|before| log.ended_us(&before.id));
        let behind_its_end =
            |by_us: i64| missing.iter().copied().find(|at_us| ended_us.is_none_or(|us| *at_us > us + by_us));
        let first = behind_its_end(CLOCKS_US)?;
        let next = behind_its_end(-CLOCKS_US)?;
        // It was late, so the latest instant alone was made up for, which is the one behind.
        let is_made_up = behind
            .is_some_and(|(at_us, fired)| fired.at_us - next > LATE_US && fired.at_us - at_us < period_us);
        if is_made_up { None } else { lost(first) }
    }
}

/// The id of the job of an instant: its time is in UTC.
fn id_at(name: &str, at_us: i64) -> String {
    let (days, seconds) = (at_us.div_euclid(86_400 * SECOND_US), at_us.div_euclid(SECOND_US) % 86_400);
    // Days since 0000-03-01, by the length of the cycles of the calendar.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{name}@{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: i64 = 1_800_000_000 * SECOND_US;

    /// The problems of a schedule each five seconds, of which these instants have jobs: their number, and how late each fired in seconds.
    fn problems(most: Option<i64>, until: i64, jobs: &[(i64, i64)]) -> Vec<String> {
        let stretch = Stretch { offset_us: 0, from_us: NOW_US, until_us: at(until), is_strict: true };
        let plan = Plan { most, period_s: 5, is_cron: false, stretches: vec![stretch], ..Plan::new(0) };
        let fired = |late: i64, n: i64| Fired { id: format!("{n}"), at_us: at(n) + late * SECOND_US };
        let jobs = jobs.iter().map(|(n, late)| (at(*n), fired(*late, *n))).collect();
        wrong(&plan, &jobs, &Log::default())
    }

    fn at(number: i64) -> i64 {
        NOW_US + number * 5 * SECOND_US
    }

    #[test]
    fn an_instant_without_a_job_is_noticed_unless_the_schedule_has_dropped_it() {
        assert!(problems(Some(3), 2, &[(0, 0), (1, 0), (2, 1)]).is_empty());
        assert_eq!(problems(Some(3), 2, &[(0, 0), (2, 0)]).len(), 1);
        assert_eq!(problems(Some(3), 2, &[(0, 0), (1, 0)]).len(), 1, "the last one");
        assert_eq!(problems(Some(3), 1, &[(0, 0), (1, 0), (2, 0)]).len(), 1, "after the pause");
        assert!(problems(Some(2), 20, &[(0, 0), (19, 6), (20, 1)]).is_empty(), "two were made up for");
        assert_eq!(problems(Some(3), 20, &[(0, 0), (19, 6), (20, 1)]).len(), 1, "two of three");
        assert!(
            problems(None, 5, &[(0, 0), (5, 1)]).len() == 1,
            "the job before has not ended, or it is lost"
        );
    }

    #[test]
    fn ids_have_the_time_in_utc() {
        assert_eq!(id_at("a", 1_709_251_199 * SECOND_US), "a@2024-02-29T23:59:59Z");
        assert_eq!(id_at("a", NOW_US), "a@2027-01-15T08:00:00Z");
    }
}
