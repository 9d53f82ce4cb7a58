//! Schedules and rates in the file of a scenario, with the meaning that they have in a server.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use turnwise_calendar::{Calendar, Problem, When};
use turnwise_policy::eligibility::rate::{self, Algorithm};
use turnwise_policy::fire::Overlap;
use turnwise_policy::timestamp::{parse_timestamp, timestamp};

use crate::number::Int;
use crate::scenario::{MAX_JOBS, MAX_TENANTS, RunTime, Scenario, Tenants};

/// The most schedules of one scenario, as of one store.
pub const MAX_SCHEDULES: u64 = 20_000;
/// The most rates of one scenario.
pub const MAX_RATES: usize = 100;
/// The most starts that all buckets together remember, about 40 bytes each.
pub const MAX_REMEMBERED: u64 = 5_000_000;

/// The time at which a scenario begins, as RFC 3339 writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin(i64);

/// A schedule, or many equal ones: at each of its instants, each of them adds a job.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Its name. Of many, the beginning of their names.
    pub name: String,
    /// How many there are.
    #[serde(default)]
    pub count: Int<1, MAX_SCHEDULES>,
    /// It fires at the times of this cron expression,
    pub cron: Option<String>,
    /// in this zone: UTC by default.
    pub zone: Option<String>,
    /// Or it fires each time that this has passed since 1970,
    pub every_ms: Option<Int<1_000, 315_619_200_000>>,
    /// plus this.
    pub offset_ms: Option<Int<0, 315_619_200_000>>,
    /// Each job may start up to this time later.
    #[serde(default)]
    pub jitter_ms: Int<0, 86_400_000>,
    /// What a fire does while the job of an earlier one has not ended.
    #[serde(default)]
    pub overlap: Overlap,
    /// How long each job runs.
    pub run_ms: RunTime,
    /// The name of the rate that each job obeys.
    pub rate: Option<String>,
}

/// How many jobs may start per period.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Its name.
    pub name: String,
    /// The most starts per period.
    pub at_most: Int<1, 10_000>,
    /// The length of the period.
    pub per_ms: Int<100, 2_678_400_000>,
    /// As how many starts a job counts.
    #[serde(default)]
    pub weight: Int<1, 10_000>,
    /// How starts are counted.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// What has a bucket of its own. Without it, all jobs are in one bucket.
    pub key: Option<Key>,
}

/// What has a bucket of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// Each tenant.
    Tenant,
    /// Each of so many values of an option. Each job has one of them, by chance.
    Values(Int<1, MAX_TENANTS>),
}

/// A fire of a schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fire {
    /// The time since the begin.
    pub at_us: i64,
    /// Whether a change of clocks has moved it.
    pub moved: bool,
}

impl Begin {
    /// The time, in µs since 1970.
    pub fn at_us(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Begin {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&timestamp(self.0))
    }
}

impl<'de> Deserialize<'de> for Begin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Begin;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a time from 1970 on as RFC 3339 writes it: \"2026-03-28T00:00:00+01:00\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Begin, E> {
                let at_us = parse_timestamp(text).filter(|at_us| *at_us >= 0);
                at_us.map(Begin).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        from.deserialize_str(Text)
    }
}

impl Schedule {
    /// When it fires.
    ///
    /// # Errors
    /// What is wrong with its times, and what would be right.
    pub fn calendar(&self) -> Result<Calendar, String> {
        let us = |ms: u64| i64::try_from(ms * 1_000).expect("ten years are below 2^63 µs");
        let when = match (&self.cron, self.every_ms) {
            (Some(_), None) if self.offset_ms.is_some() => return Err("`offset_ms` is for `every_ms`".into()),
            (None, Some(_)) if self.zone.is_some() => return Err("`zone` is for `cron`".into()),
            (Some(expression), None) => When::Cron {
                expression: expression.clone(),
                zone: self.zone.clone().unwrap_or_else(|| "UTC".to_owned()),
            },
            (None, Some(every)) => {
                When::Every { every_us: us(every.get()), offset_us: us(self.offset_ms.map_or(0, Int::get)) }
            }
            _ => return Err("it needs either `cron` or `every_ms`".into()),
        };
        Ok(Calendar { when, from_us: None, until_us: None })
    }

    /// Its fires from the begin of a scenario until its end, as far as the jobs of a scenario suffice.
    pub(crate) fn fires(&self, scenario: &Scenario) -> Vec<Fire> {
        let (Some(Begin(begins_us)), Ok(calendar)) = (scenario.begins, self.calendar()) else {
            return Vec::new();
        };
        let end_us = begins_us + scenario.cycles.i64() * scenario.interval_us();
        let Ok(fires) = calendar.fires(begins_us - 1) else { return Vec::new() };
        let most = usize::try_from(MAX_JOBS).map_or(usize::MAX, |most| most + 1);
        let fires = fires.take_while(|fire| fire.at_us < end_us).take(most);
        fires.map(|fire| Fire { at_us: fire.at_us - begins_us, moved: fire.moved.is_some() }).collect()
    }

    /// The jobs that it adds if it skips none, of one tenant.
    pub(crate) fn jobs_at_most(&self, scenario: &Scenario) -> u64 {
        self.fires(scenario).len() as u64 * self.count.get()
    }

    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let Some(begins) = scenario.begins else {
            return Err("it needs a begin: say `begins = \"2026-03-28T00:00:00+01:00\"`".into());
        };
        self.run_ms.check()?;
        self.calendar()?.check(begins.at_us()).map_err(|Problem { field, problem }| match field {
            "expression" => format!("cron: {problem}"),
            "offset_us" => format!("offset_ms: {}", problem.replace("every_us", "every_ms")),
            field => format!("{field}: {problem}"),
        })
    }
}

impl Rate {
    /// The same, as the server has it.
    pub fn rate(&self) -> rate::Rate {
        rate::Rate {
            weight: self.weight.u32(),
            algorithm: self.algorithm,
            ..rate::Rate::new(self.at_most.u32(), self.per_ms.get())
        }
    }

    /// How many buckets it has.
    pub(crate) fn buckets(&self, tenants: u64) -> u64 {
        match self.key {
            None => 1,
            Some(Key::Tenant) => tenants,
            Some(Key::Values(values)) => values.get(),
        }
    }
}

/// Checks the schedules and rates of a scenario.
pub(crate) fn check(scenario: &Scenario) -> Result<(), String> {
    if scenario.rates.len() > MAX_RATES {
        return Err(format!("there are {} rates; {MAX_RATES} are possible", scenario.rates.len()));
    }
    let mut rates = BTreeSet::new();
    for rate in &scenario.rates {
        rate.rate().check().map_err(|problem| format!("rate `{}`: {problem}", rate.name))?;
        if !rates.insert(&rate.name) {
            return Err(format!("there is more than one rate `{}`: name them differently", rate.name));
        }
    }
    let tenants = scenario.tenants.iter().map(|tenants| tenants.count.get()).sum();
    let remembered: u64 = scenario.rates.iter().map(|rate| rate.buckets(tenants) * rate.at_most.get()).sum();
    if remembered > MAX_REMEMBERED {
        return Err(format!(
            "the rates have {remembered} starts to remember, at_most in each bucket; {MAX_REMEMBERED} are possible"
        ));
    }
    let known = |rate: &Option<String>| match rate.as_ref().filter(|rate| !rates.contains(rate)) {
        Some(rate) => Err(format!("there is no rate `{rate}`")),
        None => Ok(()),
    };
    let (mut names, mut schedules, mut jobs) = (BTreeSet::new(), 0, 0);
    for tenants in &scenario.tenants {
        let Tenants { name, count, .. } = tenants;
        for work in tenants.work() {
            known(&work.rate).map_err(|problem| format!("tenant `{name}`: {problem}"))?;
        }
        for schedule in &tenants.schedules {
            let of = &schedule.name;
            if of.is_empty() {
                return Err(format!("tenant `{name}`: a schedule needs a name"));
            }
            // All tenants share the names of schedules.
            if !names.insert(of) {
                return Err(format!("there is more than one schedule `{of}`: name them differently"));
            }
            let checked = schedule.check(scenario).and_then(|()| known(&schedule.rate));
            checked.map_err(|problem| format!("schedule `{of}`: {problem}"))?;
            schedules += schedule.count.get() * count.get();
            // Here, so that not all fires of many schedules are computed.
            jobs += schedule.jobs_at_most(scenario) * count.get();
            if jobs > MAX_JOBS {
                return Err(format!("schedules add {jobs} jobs in all, or more; {MAX_JOBS} are possible"));
            }
        }
    }
    match schedules > MAX_SCHEDULES {
        true => Err(format!("there are {schedules} schedules; {MAX_SCHEDULES} are possible")),
        false => Ok(()),
    }
}
