//! The file of a scenario with a `[cluster]`: a cluster, and the jobs that lock its parts.
//!
//! ```toml
//! name = "reboots and disks"
//! slots = 4
//! arrivals = [{ count = 100 }]       # all at once
//!
//! [cluster]
//! groups = 1
//! nodes = 4                          # dealt to the groups in turn
//! instances = 20                     # each has a primary and a secondary node of one group
//!
//! [[tasks]]
//! name = "reboot"
//! weight = 3                         # three of four jobs
//! run_ms = 20000
//! locks = { instance = { exclusive = ["{instance}"] }, node = { shared = ["{primary}"] } }
//!
//! [[tasks]]
//! name = "replace disks"
//! weight = 1
//! run_ms = { uniform = [60000, 300000] }
//! # The locks that a job really takes. Where it `says` less, it requests the rest while it runs.
//! locks = { instance = { exclusive = ["{instance}"] }, node = { exclusive = ["{secondary}", "{target}"] } }
//! says = { instance = { exclusive = ["{instance}"] }, node = { exclusive = "unknown" } }
//! ```
//!
//! An unknown key is rejected with its line, a number outside its range with the range, and impossible locks with the
//! task and the level.

use std::collections::BTreeSet;

use serde::Deserialize;
use turnwise_policy::predictive_queue::locks::{Levels, Requests};
use turnwise_policy::predictive_queue::window;

use super::template;
use crate::number::{Int, Real};
use crate::scenario::{Error, RunTime, read};

/// The most jobs of one scenario, all together. A simulation keeps about a kilobyte of each.
pub const MAX_JOBS: u64 = 100_000;
/// The most tasks, and the most entries of `arrivals`, of one scenario.
pub const MAX_ENTRIES: usize = 200;
/// The last moment at which jobs may arrive: 30 days.
pub const MAX_AT_MS: u64 = 2_592_000_000;

/// A scenario of jobs with locks, as in its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub about: String,
    /// The most jobs that run at once.
    pub slots: Int<1, 10_000>,
    /// The seed of all random numbers.
    #[serde(default)]
    pub seed: Int<0, { i64::MAX as u64 }>,
    /// The cluster whose parts jobs lock.
    pub cluster: Cluster,
    /// The levels, in their order.
    #[serde(default)]
    pub levels: Levels,
    /// The settings of turnwise's queue.
    #[serde(default)]
    pub queue: Queue,
    /// The arrivals of jobs.
    pub arrivals: Vec<Arrivals>,
    /// The tasks of jobs.
    pub tasks: Vec<Task>,
}

/// A cluster of virtual machines: instances on pairs of nodes, nodes in groups.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Groups of nodes.
    pub groups: Int<1, 1_000>,
    /// Nodes, dealt to the groups in turn. A group has at least two.
    pub nodes: Int<2, 10_000>,
    /// Instances, dealt to the nodes in turn. Each has another node of the group as its secondary.
    pub instances: Int<1, 100_000>,
    /// Networks.
    #[serde(default)]
    pub networks: Int<1, 1_000>,
    /// The percentage of jobs about instances whose primary is the first node. The other jobs are about any instance.
    #[serde(default)]
    pub hot_percent: Int<0, 100>,
}

/// The settings of `[queue]` that matter here.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// The jobs at the head of the queue that a pass compares, at least.
    pub window: Int<1, { window::MAX as u64 }>,
    /// The unit of age.
    pub tick_ms: Int<1, 86_400_000>,
    /// K: after this many ticks, a job weighs zero and may reserve its locks.
    pub aging_ticks: Int<1, 1_000_000>,
    /// The weight of a job without contention.
    pub base_weight: Real<0, 1_000>,
    /// Whether a job that waits for locks while it runs keeps its slot.
    pub waiting_uses_slot: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            window: Int::constant(window::DEFAULT as u64),
            tick_ms: Int::constant(30_000),
            aging_ticks: Int::constant(30),
            base_weight: Real::constant(1.0),
            waiting_uses_slot: false,
        }
    }
}

/// Jobs that come together, or one after the other.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// The number of jobs, each time.
    pub count: Int<1, MAX_JOBS>,
    /// The time of the first job, after the start.
    #[serde(default)]
    pub at_ms: Int<0, MAX_AT_MS>,
    /// The jobs come at random, so many per second on average (a Poisson process). Without it, they come together.
    pub per_second: Option<Real<0, 100_000>>,
    /// The time from one repetition to the next.
    #[serde(default = "day")]
    pub every_ms: Int<1, MAX_AT_MS>,
    /// The number of repetitions.
    #[serde(default)]
    pub times: Int<1, MAX_JOBS>,
}

/// One kind of jobs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Its part of all jobs, relative to the weights of the other tasks.
    pub weight: Real<0, 1_000_000>,
    /// How long a job works once it has its locks.
    pub run_ms: RunTime,
    /// The locks that a job really takes. Words in braces stand for the job's objects: see [`template::WORDS`].
    #[serde(default)]
    pub locks: Requests,
    /// What a job declares, if that is less or more.
    pub says: Option<Requests>,
    /// A job requests undeclared locks when this percentage of its work is done.
    #[serde(default)]
    pub asks_at_percent: Int<0, 99>,
}

impl Task {
    /// What a job declares.
    pub fn declared(&self) -> &Requests {
        self.says.as_ref().unwrap_or(&self.locks)
    }
}

fn day() -> Int<1, MAX_AT_MS> {
    Int::constant(86_400_000)
}

impl Scenario {
    /// Reads a scenario's file.
    ///
    /// # Errors
    /// The text is no scenario. The error names the line, or the task, and what is possible there.
    pub fn parse(text: &str) -> Result<Scenario, Error> {
        let scenario: Scenario = read(text)?;
        scenario.check().map_err(Error::Wrong)?;
        Ok(scenario)
    }

    /// The number of jobs that come.
    pub fn jobs(&self) -> u64 {
        self.arrivals.iter().map(|arrivals| arrivals.count.get() * arrivals.times.get()).sum()
    }

    /// The number of nodes in the smallest group.
    fn smallest_group(&self) -> u64 {
        self.cluster.nodes.get() / self.cluster.groups.get()
    }

    fn check(&self) -> Result<(), String> {
        if self.smallest_group() < 2 {
            return Err(format!(
                "cluster: {} nodes are too few for {} groups, each has two at least",
                self.cluster.nodes.get(),
                self.cluster.groups.get()
            ));
        }
        if self.queue.base_weight.get() <= 0.0 {
            return Err(
                "queue: with a base_weight of 0, the age of jobs would not count: give more".to_owned()
            );
        }
        for (what, entries) in [("arrivals", self.arrivals.len()), ("tasks", self.tasks.len())] {
            if !(1..=MAX_ENTRIES).contains(&entries) {
                return Err(format!("there are {entries} {what}; 1 to {MAX_ENTRIES} are possible"));
            }
        }
        for arrivals in &self.arrivals {
            if arrivals.per_second.is_some_and(|rate| rate.get() <= 0.0) {
                return Err("arrivals: no job comes at 0 per second: give more, or leave it out".to_owned());
            }
            let last = arrivals.every_ms.get().saturating_mul(arrivals.times.get() - 1);
            if last.saturating_add(arrivals.at_ms.get()) > MAX_AT_MS {
                return Err(format!("arrivals: the last come after {MAX_AT_MS} ms: fewer times, or sooner"));
            }
        }
        let jobs = self.jobs();
        if jobs > MAX_JOBS {
            return Err(format!("there are {jobs} jobs in all; {MAX_JOBS} are possible"));
        }
        let mut names = BTreeSet::new();
        for task in &self.tasks {
            let name = &task.name;
            self.check_task(task).map_err(|problem| format!("task `{name}`: {problem}"))?;
            if !names.insert(name) {
                return Err(format!("there is more than one task `{name}`: name them differently"));
            }
        }
        if self.tasks.iter().all(|task| task.weight.get() <= 0.0) {
            return Err("tasks: all weigh 0: give one a weight".to_owned());
        }
        Ok(())
    }

    fn check_task(&self, task: &Task) -> Result<(), String> {
        task.run_ms.check()?;
        if task.locks.has_unknown() {
            return Err("locks: what it really locks cannot be unknown; `says` can".to_owned());
        }
        for (key, requests) in [("locks", &task.locks), ("says", task.declared())] {
            let problem = |problem: String| format!("{key}.{problem}");
            self.levels.check(requests).map_err(|rejected| {
                let levels = rejected.to_string();
                problem(levels.trim_start_matches("locks.").to_owned())
            })?;
            template::check(requests, self.smallest_group()).map_err(problem)?;
        }
        template::covers(task.declared(), &task.locks, &self.levels)
            .map_err(|problem| format!("says.{problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = 'x'\nslots = 4\narrivals = [{ count = 9 }]\n[cluster]\ngroups = 2\nnodes = 4\ninstances = 8\n\
                        [[tasks]]\nname = 'a'\nweight = 1\nrun_ms = 1000\nlocks = { instance = { exclusive = ['{instance}'] } }\n";

    fn rejected(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Scenario::parse(&GOOD.replace(from, to)).expect_err("it must be rejected").to_string()
    }

    #[test]
    fn a_missing_key_has_a_default() {
        let scenario = Scenario::parse(GOOD).unwrap();
        assert_eq!((scenario.jobs(), scenario.queue.tick_ms.get()), (9, 30_000));
        assert_eq!(scenario.levels, Levels::default());
        assert_eq!(scenario.tasks[0].declared(), &scenario.tasks[0].locks);
    }

    #[test]
    fn errors_in_the_file_name_their_line() {
        for (from, to, words) in [
            ("slots = 4", "slots = 0", ["line 2", "1 to 10000"]),
            ("count = 9", "count = 0", ["line 3", "1 to 100000"]),
            ("count = 9", "cuont = 9", ["line 3", "unknown field `cuont`"]),
            ("nodes = 4", "nodes = 4\nhot_percent = 101", ["line 7", "0 to 100"]),
            ("instances = 8", "instance = 8", ["line 7", "unknown field `instance`"]),
            ("run_ms = 1000", "run_ms = 0", ["line 11", "1 to 864000000"]),
            ("weight = 1", "weight = -1", ["line 10", "0 to 1000000"]),
            ("exclusive = ['{instance}']", "exclusive = 'some'", ["line 12", "must be \"all\""]),
            ("exclusive = ['{instance}']", "exclusive = []", ["line 12", "names nothing to lock exclusive"]),
            ("exclusive = ['{instance}']", "shared = { a = -1 }", ["line 12", "wants -1 units"]),
            ("[cluster]", "[queue]\ntick_ms = 0\n[cluster]", ["line 5", "1 to 86400000"]),
            ("[cluster]", "levels = [{ name = 'a', capacity = 0 }]\n[cluster]", ["line 4", "capacity of 0"]),
        ] {
            let error = rejected(from, to);
            assert!(words.iter().all(|word| error.contains(word)), "{to}: {error}");
        }
    }

    #[test]
    fn contradictions_are_rejected_with_their_place() {
        let locks = "locks = { instance = { exclusive = ['{instance}'] } }";
        let other = format!("{locks}\n[[tasks]]\nname = 'a'\nweight = 1\nrun_ms = 1");
        for (from, to, words) in [
            ("nodes = 4", "nodes = 3", "cluster: 3 nodes are too few for 2 groups"),
            ("count = 9", "count = 9, per_second = 0", "arrivals: no job comes"),
            ("count = 9", "count = 90000, times = 2", "180000 jobs in all; 100000 are possible"),
            ("count = 9", "count = 9, times = 900", "arrivals: the last come after"),
            ("arrivals = [{ count = 9 }]", "arrivals = []", "0 arrivals; 1 to 200"),
            ("weight = 1", "weight = 0", "all weigh 0"),
            ("run_ms = 1000", "run_ms = { uniform = [9, 1] }", "task `a`: run_ms: uniform from 9 to 1"),
            (locks, &other, "more than one task `a`"),
            ("instance = {", "instances = {", "task `a`: locks.instances: there is no such level"),
            (
                "exclusive = ['{instance}']",
                "exclusive = 'unknown'",
                "task `a`: locks: what it really locks cannot be unknown",
            ),
            (
                "['{instance}']",
                "['{instanec}']",
                "task `a`: locks.instance: there is no `{instanec}`; there are {instance}",
            ),
            ("['{instance}']", "['{target}']", "locks.instance: {target} needs groups of three nodes"),
            (
                locks,
                &format!("{locks}\nsays = {{ node = {{ shared = 'all' }} }}"),
                "task `a`: says.instance: exclusive {instance} is locked but not declared",
            ),
        ] {
            let error = rejected(from, to);
            assert!(error.contains(words), "{to}: {error}");
        }
    }
}
