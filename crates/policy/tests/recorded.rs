//! Reproduces recorded runs of CouchDB's implementation (`data/fair_share.json`).
//!
//! The recording truncates to integers at every decay and every charge. With the same truncation, all values are
//! equal. In exact arithmetic, the same jobs run in every cycle, and priorities differ only by the rounding.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use turnwise_policy::fair_share::Shares;
use turnwise_policy::fair_share::rfc::{Boost, Key, Rules, Usage, increment};

use crate::integers::Integers;

#[derive(Deserialize)]
struct Scenario {
    name: String,
    usage_coeff: f64,
    priority_coeff: f64,
    interval_us: i64,
    slots: usize,
    churn: usize,
    shares: BTreeMap<String, u32>,
    jobs: InOrder,
    cycles: Vec<Cycle>,
}

/// The number of jobs of each tenant, in the order of the file, in which they were added.
struct InOrder(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = InOrder;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of jobs per tenant")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let entries = std::iter::from_fn(|| map.next_entry().transpose());
                entries.collect::<Result<_, _>>().map(InOrder)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[derive(Deserialize)]
struct Cycle {
    running: Vec<String>,
    usage: BTreeMap<String, u64>,
    priority: BTreeMap<String, u64>,
}

fn scenarios() -> Vec<Scenario> {
    serde_json::from_str(include_str!("data/fair_share.json")).unwrap()
}

fn tenant(id: &str) -> &str {
    id.split_once('#').unwrap().0
}

impl Scenario {
    fn rules(&self) -> Rules {
        Rules {
            usage_coeff: self.usage_coeff,
            priority_coeff: self.priority_coeff,
            usage_interval_us: self.interval_us,
            priority_interval_us: self.interval_us,
            charge_interval_us: self.interval_us,
        }
    }

    fn shares(&self) -> Shares {
        self.shares.clone().into_iter().collect()
    }

    /// All jobs, in the order in which they were added; the first `slots` of them run first.
    fn added(&self) -> Vec<String> {
        let of = |(tenant, jobs): &(String, u64)| -> Vec<String> {
            (1..=*jobs).map(|n| format!("{tenant}#{n}")).collect()
        };
        self.jobs.0.iter().flat_map(of).collect()
    }

    /// The rotation of the recording: by priority, then by id. It swaps the last of `running` for the first of
    /// `waiting`.
    fn rotate<P: PartialOrd>(
        &self,
        running: &mut Vec<String>,
        waiting: &mut Vec<String>,
        priority: impl Fn(&str) -> P,
    ) {
        let order = |a: &String, b: &String| {
            let (left, right) = ((priority(a), a), (priority(b), b));
            left.partial_cmp(&right).unwrap()
        };
        running.sort_by(order);
        waiting.sort_by(order);
        let churn = self.churn.min(waiting.len());
        let stopped = running.split_off(running.len().saturating_sub(churn));
        running.extend(waiting.drain(..stopped.len()));
        waiting.extend(stopped);
    }
}

fn sorted(ids: &[String]) -> Vec<&String> {
    let mut ids: Vec<&String> = ids.iter().collect();
    ids.sort();
    ids
}

#[test]
fn truncated_to_whole_numbers_the_recorded_runs_are_identical() {
    let scenarios = scenarios();
    assert_eq!(scenarios.len(), 5);
    for scenario in &scenarios {
        let (rules, shares) = (scenario.rules(), scenario.shares());
        let mut whole = Integers::default();
        let mut running = scenario.added();
        for id in &running {
            whole.added(tenant(id), id, &shares);
        }
        let mut waiting = running.split_off(scenario.slots.min(running.len()));
        for (number, cycle) in scenario.cycles.iter().enumerate() {
            let at = format!("{}, cycle {number}", scenario.name);
            assert_eq!(sorted(&running), sorted(&cycle.running), "{at}");
            for id in &running {
                whole.charge(tenant(id), scenario.interval_us.unsigned_abs());
            }
            whole.cycle(running.iter().map(|id| (tenant(id), id.as_str())), &rules, &shares);
            for (tenant, usage) in &cycle.usage {
                assert_eq!(whole.usage_us(tenant), *usage, "{at}: {tenant}");
            }
            for (id, priority) in &cycle.priority {
                assert_eq!(whole.priority(id), *priority, "{at}: {id}");
            }
            scenario.rotate(&mut running, &mut waiting, |id| whole.priority(id));
        }
    }
}

/// The exact model, over the stored keys.
struct Exact {
    rules: Rules,
    shares: Shares,
    jobs: BTreeMap<String, u64>,
    usage: BTreeMap<String, Usage>,
    keys: BTreeMap<String, Key>,
    boost: Boost,
    now_us: i64,
}

impl Exact {
    fn new(scenario: &Scenario) -> Exact {
        let rules = scenario.rules();
        let mut exact = Exact {
            rules,
            shares: scenario.shares(),
            jobs: BTreeMap::new(),
            usage: BTreeMap::new(),
            keys: BTreeMap::new(),
            boost: Boost::new(0, &rules),
            now_us: 0,
        };
        for id in scenario.added() {
            *exact.jobs.entry(tenant(&id).to_owned()).or_default() += 1;
            exact.usage.entry(tenant(&id).to_owned()).or_default();
            exact.keys.insert(id.clone(), Key::ZERO);
            exact.grow(&id);
        }
        exact
    }

    fn usage_us(&self, tenant: &str) -> f64 {
        self.usage[tenant].at(self.now_us, &self.rules)
    }

    fn priority(&self, id: &str) -> f64 {
        self.keys[id].priority(self.boost.at(self.now_us))
    }

    fn grow(&mut self, id: &str) {
        let tenant = tenant(id);
        let more = increment(self.usage_us(tenant), self.jobs[tenant], self.shares.of(tenant));
        let v = self.boost.at(self.now_us);
        let key = self.keys.get_mut(id).unwrap();
        *key = key.add(more, v);
        assert!(key.get().is_finite());
    }

    fn cycle(&mut self, running: &[String]) {
        let ran_us = self.rules.charge_interval_us;
        self.now_us += ran_us;
        for id in running {
            self.usage.get_mut(tenant(id)).unwrap().charge(ran_us as f64, self.now_us, &self.rules);
        }
        running.iter().for_each(|id| self.grow(id));
    }
}

#[test]
fn in_exact_arithmetic_the_same_jobs_run_but_for_the_rounding() {
    for scenario in &scenarios() {
        // A truncation loses less than 1, at each decay and each charge. What was lost decays as well.
        let rounding = 2.0 / (1.0 - scenario.priority_coeff) + 1.0;
        let mut exact = Exact::new(scenario);
        for (number, cycle) in scenario.cycles.iter().enumerate() {
            let at = format!("{}, cycle {number}", scenario.name);
            exact.cycle(&cycle.running);
            for (tenant, usage) in &cycle.usage {
                let (exact, usage) = (exact.usage_us(tenant), *usage as f64);
                assert!((exact - usage).abs() <= (usage * 0.001).max(2.0), "{at}: {tenant} {exact} {usage}");
            }
            for (id, priority) in &cycle.priority {
                let difference = exact.priority(id) - *priority as f64;
                assert!((-1e-6..=rounding).contains(&difference), "{at}: {id} {difference}");
            }
            let Some(next) = scenario.cycles.get(number + 1) else { break };
            let mut running = cycle.running.clone();
            let mut waiting: Vec<String> =
                exact.keys.keys().filter(|id| !running.contains(id)).cloned().collect();
            scenario.rotate(&mut running, &mut waiting, |id| exact.priority(id));
            assert_eq!(sorted(&running), sorted(&next.running), "{at}");
        }
    }
}
