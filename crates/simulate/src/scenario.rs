//! The file of a scenario: the population that it describes, and the bounds of its values.
//!
//! ```toml
//! name = "shares 200 and 50"
//! slots = 4
//! churn = 1
//! cycles = 200
//!
//! [[tenants]]
//! name = "high/_replicator"
//! shares = 200
//! jobs = 6                       # continuous, from the start
//!
//! [[tenants]]
//! name = "low/_replicator"
//! shares = 50
//! jobs = [{ per_second = 0.5, run_ms = { exponential = 800 } }]
//! ```
//!
//! Schedules and rates are those of the server, in [`planned`](crate::planned):
//!
//! ```toml
//! begins = "2026-03-28T00:00:00+01:00"
//!
//! [[rates]]
//! name = "warehouse"
//! at_most = 100
//! per_ms = 3_600_000
//!
//! [[tenants]]
//! name = "reports"
//! jobs = []
//! schedules = [{ name = "nightly", cron = "30 2 * * *", zone = "Europe/Berlin", run_ms = 60_000, rate = "warehouse" }]
//! ```
//!
//! An unknown key is rejected with its line, and a number outside its range with the range.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::number::{Int, OneOf, Real};
use crate::planned::{Begin, Rate, Schedule};
use crate::policy::Policy;

/// The most jobs of one scenario, all together. A simulation keeps about 180 bytes of each.
pub const MAX_JOBS: u64 = 2_000_000;
/// The most tenants of one scenario.
pub const MAX_TENANTS: u64 = 10_000;
/// The most cycles of one scenario.
pub const MAX_CYCLES: u64 = 1_000_000;
/// The most kinds of jobs of one tenant: each has random numbers of its own.
pub const MAX_WORK: usize = 100;
/// The largest file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A scenario, as in its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub about: String,
    /// The most jobs that run at once (`max_jobs`).
    pub slots: Int<1, 100_000>,
    /// The most jobs that one cycle preempts (`max_churn`).
    pub churn: Int<0, 100_000>,
    /// The length of a cycle.
    #[serde(default = "minute")]
    pub interval_ms: Int<1, 86_400_000>,
    /// How many cycles are simulated.
    pub cycles: Int<1, MAX_CYCLES>,
    /// The seed of all random numbers.
    #[serde(default)]
    pub seed: Int<0, { i64::MAX as u64 }>,
    /// The policy that decides, unless the command names another one.
    #[serde(default)]
    pub policy: Policy,
    /// The coefficients of the RFC's policies.
    #[serde(default)]
    pub rfc: Rfc,
    /// The time at which it begins. Schedules need one.
    pub begins: Option<Begin>,
    /// The rates that jobs obey, each by its name.
    #[serde(default)]
    pub rates: Vec<Rate>,
    /// The tenants, whose jobs these are.
    pub tenants: Vec<Tenants>,
}

/// The RFC's coefficients. All three of its intervals are a cycle, as in CouchDB.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rfc {
    /// K1: what is left of a tenant's usage after a cycle.
    pub usage_coeff: Real<0, 1>,
    /// K2: what is left of a job's priority value after a cycle.
    pub priority_coeff: Real<0, 1>,
}

impl Default for Rfc {
    fn default() -> Self {
        Rfc { usage_coeff: Real::constant(0.5), priority_coeff: Real::constant(0.98) }
    }
}

/// One tenant, or many equal ones.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// Its name. Of many, the beginning of their names.
    pub name: String,
    /// How many there are.
    #[serde(default)]
    pub count: Int<1, MAX_TENANTS>,
    /// Its shares. Of many, each draws its own.
    #[serde(default = "hundred")]
    pub shares: Shares,
    /// Its jobs: a number of continuous jobs, or a list of [`Work`].
    pub jobs: OneOf<Int<0, MAX_JOBS>, Vec<Work>>,
    /// Its schedules, which fire while it is there. Of many tenants, each has all of them.
    #[serde(default)]
    pub schedules: Vec<Schedule>,
    /// The cycle at which it comes.
    #[serde(default)]
    pub comes_at: Int<0, MAX_CYCLES>,
    /// The cycle at which it leaves, with all its jobs.
    pub leaves_at: Option<Int<1, MAX_CYCLES>>,
    /// It comes back this many cycles after it left, and leaves after as long as the first time, and so on.
    pub comes_back_after: Option<Int<1, MAX_CYCLES>>,
    /// Every so many cycles, it deletes all its jobs and adds them again.
    pub readds_every: Option<Int<1, MAX_CYCLES>>,
    /// When its shares change, in order.
    #[serde(default)]
    pub new_shares: Vec<NewShares>,
}

/// Shares from a cycle on.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewShares {
    /// The cycle.
    pub at: Int<1, MAX_CYCLES>,
    /// The shares.
    pub shares: Int<1, 1000>,
}

/// A tenant's shares: a number, or a random one of a range.
pub type Shares = OneOf<Int<1, 1000>, SharesRange>;

/// A range to draw a number from.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharesRange {
    /// The lowest.
    pub from: Int<1, 1000>,
    /// The highest.
    pub to: Int<1, 1000>,
}

/// Jobs of one kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// The number of jobs when the tenant comes.
    #[serde(default)]
    pub count: Int<0, MAX_JOBS>,
    /// As many again, every so many cycles.
    pub every: Option<Int<1, MAX_CYCLES>>,
    /// Jobs that arrive at random, so many per second on average (a Poisson process).
    pub per_second: Option<Real<0, 100_000>>,
    /// How long each job runs. Continuous jobs, which run until they are stopped, have no run time.
    pub run_ms: Option<RunTime>,
    /// The name of the rate that each job obeys.
    pub rate: Option<String>,
}

/// The run time of jobs that run to their end, at least a millisecond: the same for all of them, or a random one.
pub type RunTime = OneOf<Int<1, MAX_RUN_MS>, RandomTime>;

/// A distribution of run times.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RandomTime {
    /// Exponential, with this mean.
    Exponential(Int<1, MAX_RUN_MS>),
    /// Uniform, from the first to the second.
    Uniform(Int<1, MAX_RUN_MS>, Int<1, MAX_RUN_MS>),
    /// The first or the second, with the same probability.
    Either(Int<1, MAX_RUN_MS>, Int<1, MAX_RUN_MS>),
}

/// The longest run time: 10 days.
pub const MAX_RUN_MS: u64 = 864_000_000;

impl RunTime {
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            OneOf::Other(RandomTime::Uniform(from, to)) if from.get() > to.get() => {
                Err(format!("run_ms: uniform from {} to {} is no range", from.get(), to.get()))
            }
            _ => Ok(()),
        }
    }
}

fn minute() -> Int<1, 86_400_000> {
    Int::constant(60_000)
}

fn hundred() -> Shares {
    OneOf::One(Int::constant(100))
}

/// Why a scenario is rejected: what to change, and where.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file has an unknown key, or a number outside its range.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// Values of the file contradict each other.
    #[error("{0}")]
    Wrong(String),
}

/// Reads a file that is not too large.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    if text.len() > MAX_FILE_BYTES {
        return Err(Error::Wrong(format!("the file is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(toml::from_str(text)?)
}

impl Scenario {
    /// Reads a scenario's file.
    ///
    /// # Errors
    /// The text is no scenario. The error names the line and what is possible there.
    pub fn parse(text: &str) -> Result<Scenario, Error> {
        let scenario: Scenario = read(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The length of a cycle, in µs.
    pub fn interval_us(&self) -> i64 {
        self.interval_ms.i64() * 1_000
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Wrong(text));
        let tenants: u64 = self.tenants.iter().map(|tenants| tenants.count.get()).sum();
        if tenants == 0 || tenants > MAX_TENANTS {
            return wrong(format!("there are {tenants} tenants; 1 to {MAX_TENANTS} are possible"));
        }
        for (n, tenants) in self.tenants.iter().enumerate() {
            tenants.check().or_else(|text| wrong(format!("tenant `{}`: {text}", tenants.name)))?;
            if self.tenants[..n].iter().any(|other| other.name == tenants.name) {
                return wrong(format!(
                    "there is more than one tenant `{}`: name them differently",
                    tenants.name
                ));
            }
        }
        crate::planned::check(self).map_err(Error::Wrong)?;
        let jobs: f64 = self.tenants.iter().map(|tenants| tenants.jobs_about(self)).sum();
        if jobs > MAX_JOBS as f64 {
            return wrong(format!("there are about {jobs:.0} jobs in all; {MAX_JOBS} are possible"));
        }
        Ok(())
    }
}

impl Tenants {
    /// Its jobs, as a list.
    pub fn work(&self) -> Vec<Work> {
        match &self.jobs {
            OneOf::One(count) if count.get() == 0 => Vec::new(),
            OneOf::One(count) => vec![Work { count: *count, ..Work::default() }],
            OneOf::Other(work) => work.clone(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let order = |from: u64, to: u64, what: &str| match from < to {
            true => Ok(()),
            false => Err(format!("{what}: {from} is not before {to}")),
        };
        if let Some(leaves) = self.leaves_at {
            order(self.comes_at.get(), leaves.get(), "comes_at, leaves_at")?;
        } else if self.comes_back_after.is_some() {
            return Err("it comes back but never leaves: give `leaves_at`, too".into());
        }
        if let OneOf::Other(SharesRange { from, to }) = self.shares
            && from.get() > to.get()
        {
            return Err(format!("shares: from {} to {} is no range", from.get(), to.get()));
        }
        for pair in self.new_shares.windows(2) {
            order(pair[0].at.get(), pair[1].at.get(), "new_shares")?;
        }
        if let OneOf::Other(work) = &self.jobs
            && work.len() > MAX_WORK
        {
            return Err(format!("there are {} kinds of jobs; {MAX_WORK} are possible", work.len()));
        }
        for work in self.work() {
            work.run_ms.map_or(Ok(()), RunTime::check)?;
            if work.every.is_some() && work.count.get() == 0 {
                return Err("`every` without a `count`: say how many".into());
            }
        }
        Ok(())
    }

    /// The number of jobs that it will have had, on average.
    fn jobs_about(&self, scenario: &Scenario) -> f64 {
        let end = scenario.cycles.get();
        let cycles = match (self.leaves_at, self.comes_back_after) {
            (Some(leaves), None) => leaves.get().min(end).saturating_sub(self.comes_at.get()),
            _ => end.saturating_sub(self.comes_at.get()),
        } as f64;
        // At each visit, it has its first jobs again.
        let visits = match (self.leaves_at, self.comes_back_after) {
            (Some(leaves), Some(after)) => {
                1.0 + (cycles / (leaves.get() - self.comes_at.get() + after.get()) as f64).floor()
            }
            _ => 1.0,
        };
        let seconds = cycles * scenario.interval_ms.get() as f64 / 1e3;
        let of = |work: &Work| {
            let bursts = work.every.map_or(0.0, |every| (cycles / every.get() as f64).floor());
            let at_random = work.per_second.map_or(0.0, |rate| rate.get() * seconds);
            work.count.get() as f64 * (visits + bursts) + at_random
        };
        let scheduled = |schedule: &Schedule| schedule.jobs_at_most(scenario) as f64;
        let jobs =
            self.work().iter().map(of).sum::<f64>() + self.schedules.iter().map(scheduled).sum::<f64>();
        jobs * self.count.get() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = 'x'\nslots = 4\nchurn = 1\ncycles = 10\n[[tenants]]\nname = 'a'\njobs = 3\n";

    const SCHEDULED: &str =
        "name = 'x'\nslots = 4\nchurn = 1\ncycles = 10\nbegins = '2026-03-28T00:00:00+01:00'
        rates = [{ name = 'r', at_most = 5, per_ms = 1000, key = { values = 3 } }]
        [[tenants]]\nname = 'a'\njobs = [{ count = 1, run_ms = 5, rate = 'r' }]
        schedules = [{ name = 's', count = 2, every_ms = 60_000, run_ms = 5, rate = 'r' }]";

    fn rejected(text: &str) -> String {
        Scenario::parse(text).expect_err("it must be rejected").to_string()
    }

    #[test]
    fn a_missing_key_has_a_default() {
        let scenario = Scenario::parse(GOOD).unwrap();
        assert_eq!(scenario.interval_us(), 60_000_000);
        assert!(matches!(scenario.tenants[0].shares, OneOf::One(shares) if shares.get() == 100));
        assert_eq!(scenario.policy, Policy::VirtualTime);
        assert_eq!(scenario.rfc.priority_coeff.get(), 0.98);
    }

    #[test]
    fn every_kind_of_work_is_read() {
        let text = GOOD.replace(
            "jobs = 3",
            "jobs = [{ count = 2 }, { count = 9, every = 3, run_ms = 50 }, { per_second = 2, run_ms = { exponential = 5 } },
            { count = 1, run_ms = { uniform = [1, 9] } }, { count = 1, run_ms = { either = [9, 1] } }]
            shares = { from = 2, to = 3 }
            new_shares = [{ at = 3, shares = 7 }]",
        );
        let work = Scenario::parse(&text).unwrap().tenants[0].work();
        assert_eq!(work[0].run_ms, None);
        assert_eq!(work[1].run_ms, Some(OneOf::One(Int::constant(50))));
        let run_times: Vec<_> = work[2..].iter().map(|work| work.run_ms).collect();
        let (one, nine) = (Int::constant(1), Int::constant(9));
        assert_eq!(
            run_times,
            [
                RandomTime::Exponential(Int::constant(5)),
                RandomTime::Uniform(one, nine),
                RandomTime::Either(nine, one)
            ]
            .map(|time| Some(OneOf::Other(time)))
        );
    }

    #[test]
    fn unknown_keys_are_rejected_with_their_place() {
        let error = rejected(&GOOD.replace("jobs = 3", "jbos = 3"));
        assert!(error.contains("line 7") && error.contains("jbos"), "{error}");
        let error = rejected(&GOOD.replace("jobs = 3", "jobs = [{ count = 1, runs_ms = 3 }]"));
        assert!(error.contains("line 7") && error.contains("runs_ms"), "{error}");
        let error = rejected(&GOOD.replace("churn = 1", "churn = 1\npolicy = 'fair'"));
        assert!(error.contains("line 4") && error.contains("virtual_time"), "{error}");
    }

    #[test]
    fn numbers_are_rejected_with_their_range() {
        for (from, to, line, range) in [
            ("slots = 4", "slots = 0", "line 2", "1 to 100000"),
            ("churn = 1", "churn = -1", "line 3", "0 to 100000"),
            ("jobs = 3", "jobs = 3\nshares = 1001", "line 8", "1 to 1000"),
            ("jobs = 3", "jobs = 3\nshares = { from = 0, to = 3 }", "line 8", "1 to 1000"),
            ("jobs = 3", "jobs = 2000001", "line 7", "0 to 2000000"),
            ("jobs = 3", "jobs = 1.5", "line 7", "0 to 2000000"),
            ("jobs = 3", "jobs = [{ count = 1, run_ms = 0 }]", "line 7", "1 to 864000000"),
            ("cycles = 10", "cycles = 10\nrfc = { usage_coeff = 1.5 }", "line 5", "0 to 1"),
            ("cycles = 10", "cycles = 10\nrfc = { usage_coeff = nan }", "line 5", "0 to 1"),
        ] {
            let error = rejected(&GOOD.replace(from, to));
            assert!(error.contains(line) && error.contains(range), "{to}: {error}");
        }
    }

    #[test]
    fn contradictions_are_rejected() {
        let many = format!("jobs = [{}]", "{},".repeat(101));
        for (to, word) in [
            ("jobs = 3\ncomes_at = 5\nleaves_at = 5", "leaves_at"),
            ("jobs = 3\ncomes_back_after = 5", "never leaves"),
            ("jobs = 3\nshares = { from = 5, to = 4 }", "no range"),
            ("jobs = 3\ncount = 400000", "1 to 10000"),
            ("jobs = 1000\ncount = 10000", "10000000 jobs"),
            ("jobs = [{ per_second = 99999, run_ms = 1 }]", "jobs in all"),
            ("jobs = [{ every = 3 }]", "say how many"),
            ("jobs = [{ run_ms = { uniform = [50, 5] } }]", "uniform from 50 to 5 is no range"),
            (many.as_str(), "101 kinds of jobs; 100 are possible"),
            ("jobs = 3\n[[tenants]]\nname = 'a'\njobs = 3", "more than one"),
        ] {
            let error = rejected(&GOOD.replace("jobs = 3", to));
            assert!(error.contains(word), "{to}: {error}");
        }
    }

    #[test]
    fn schedules_and_rates_are_read_and_their_contradictions_rejected() {
        let scenario = Scenario::parse(SCHEDULED).unwrap();
        assert_eq!(scenario.begins.unwrap().at_us(), 1_774_652_400_000_000);
        // Two schedules fire in each of ten minutes.
        assert_eq!(scenario.tenants[0].schedules[0].jobs_at_most(&scenario), 20);
        let every = "every_ms = 60_000";
        for (from, to, word) in [
            ("begins = '2026-03-28T00:00:00+01:00'", "", "schedule `s`: it needs a begin"),
            ("+01:00", "", "RFC 3339"),
            (every, "jitter_ms = 5", "needs either `cron` or `every_ms`"),
            (every, "every_ms = 60_000, cron = '@daily'", "needs either `cron` or `every_ms`"),
            (every, "every_ms = 60_000, zone = 'UTC'", "`zone` is for `cron`"),
            (every, "cron = '@daily', offset_ms = 5", "`offset_ms` is for `every_ms`"),
            (
                every,
                "every_ms = 60_000, offset_ms = 60_000",
                "offset_ms: must be at least 0 and below every_ms",
            ),
            (every, "cron = '@daily', zone = 'Mars/Olympus'", "schedule `s`: zone: must be the name"),
            (every, "cron = '61 * * * *'", "schedule `s`: cron: "),
            (every, "cron = '0 0 30 2 *'", "has no fire within ten years"),
            (every, "every_ms = 999", "1000 to"),
            ("count = 2", "count = 20_001", "1 to 20000"),
            ("name = 's'", "name = ''", "needs a name"),
            ("run_ms = 5, rate = 'r' }]", "run_ms = 5, rate = 'q' }]", "there is no rate `q`"),
            ("at_most = 5", "at_most = 5, weight = 6", "rate `r`: weight must be from 1 to at_most"),
            ("values = 3", "values = 10_001", "1 to 10000"),
            ("per_ms = 1000", "per_ms = 99", "100 to"),
            (
                "}]\n        [[tenants]]",
                "}, { name = 'r', at_most = 1, per_ms = 1000 }]\n[[tenants]]",
                "more than one rate `r`",
            ),
            (
                "at_most = 5, per_ms = 1000, key = { values = 3 }",
                "at_most = 10_000, per_ms = 1000, key = { values = 501 }",
                "starts to remember",
            ),
        ] {
            assert!(SCHEDULED.contains(from), "{from}");
            let error = rejected(&SCHEDULED.replace(from, to));
            assert!(error.contains(word), "{to}: {error}");
        }
        let twice =
            SCHEDULED.replace("schedules = [", "schedules = [{ name = 's', cron = '@daily', run_ms = 5 }, ");
        assert!(rejected(&twice).contains("more than one schedule `s`"));
        let many =
            SCHEDULED.replace("count = 2", "count = 20_000").replace("every_ms = 60_000", "every_ms = 1_000");
        assert!(rejected(&many).contains("jobs in all"));
    }
}
