//! The jobs of a scenario: when each one comes, how long it works, and what it locks. All of it follows from the
//! seed, so every scheme gets the same jobs.

use std::collections::HashMap;

use turnwise_policy::predictive_queue::locks::{Levels, Lock, Mode, Requests, Scope};

use super::scenario::{Cluster, Scenario};
use super::template;
use crate::rng::SeededRng;
use crate::scenario::Error;

/// A job's number, in the order of arrival.
pub(crate) type JobId = u32;
/// A scope's number: the big lock is 0, then come the levels as a whole, then the resources.
pub(crate) type ScopeId = u32;

/// The scope of the big lock.
pub(crate) const BIG: ScopeId = 0;

/// The scope of all of a level.
pub(crate) fn whole(level: u8) -> ScopeId {
    ScopeId::from(level) + 1
}

/// A scope that jobs can lock.
#[derive(Debug, Clone)]
pub(crate) struct LockScope {
    /// The level; the big lock has none.
    pub level: Option<u8>,
    /// Whether it stands for all of its level.
    pub whole: bool,
    /// Its units, if they are counted.
    pub capacity: Option<u32>,
    /// Its name.
    pub name: String,
}

/// A lock that a job wants. The locks of one job are in the order in which they may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub scope: ScopeId,
    pub exclusive: bool,
    pub units: u32,
}

/// A job, before anything has happened to it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The index of its task in the scenario.
    pub task: usize,
    pub comes_us: i64,
    /// How long it works.
    pub run_us: i64,
    /// It requests undeclared locks after it has worked for this long.
    pub asks_at_us: i64,
    /// Its declaration, for the policy.
    pub declared: Requests,
    /// The locks that it knows before it starts.
    pub known: Vec<Want>,
    /// The other locks, which it requests while it runs.
    pub asks: Vec<Want>,
    /// The locks that it really needs: fewer than `known` and `asks` together, if it declares too much.
    pub real: Vec<Want>,
}

pub(crate) struct Population {
    pub levels: Levels,
    pub scopes: Vec<LockScope>,
    pub jobs: Vec<Job>,
}

impl Population {
    pub(crate) fn new(scenario: &Scenario) -> Result<Population, Error> {
        let cluster = Map::new(scenario);
        let mut names = Names::new(&scenario.levels);
        let weights: f64 = scenario.tasks.iter().map(|task| task.weight.get()).sum();
        let mut jobs = Vec::new();
        for (number, comes_us) in arrivals(scenario).into_iter().enumerate() {
            let mut rng = SeededRng::new(scenario.seed.get(), 1 + number, 0);
            let task = draw(scenario, weights * rng.unit());
            let plan = &scenario.tasks[task];
            let about = cluster.about(&mut rng, scenario.cluster.hot_percent.get());
            let meaning = |word: &str| cluster.mean(&about, word);
            let (declared, real) =
                (template::fill(plan.declared(), &meaning), template::fill(&plan.locks, &meaning));
            for requests in [&declared, &real] {
                scenario
                    .levels
                    .check(requests)
                    .map_err(|refused| Error::Wrong(format!("task `{}`: {refused}", plan.name)))?;
            }
            let mut wants = |locks: Vec<Lock>| locks.iter().map(|lock| names.want(lock)).collect();
            let run_us = rng.run_us(plan.run_ms);
            jobs.push(Job {
                task,
                comes_us,
                run_us,
                asks_at_us: run_us * plan.asks_at_percent.i64() / 100,
                known: wants(declared.known(&scenario.levels)),
                asks: wants(template::asked_for(&declared, &real, &scenario.levels)),
                real: wants(real.known(&scenario.levels)),
                declared,
            });
        }
        Ok(Population { levels: scenario.levels.clone(), scopes: names.scopes, jobs })
    }
}

/// The arrival times of all jobs, in µs, in order.
fn arrivals(scenario: &Scenario) -> Vec<i64> {
    let mut moments = Vec::new();
    for (part, arrivals) in scenario.arrivals.iter().enumerate() {
        let mut rng = SeededRng::new(scenario.seed.get(), 0, 1 + part);
        for time in 0..arrivals.times.i64() {
            let mut at_us = (arrivals.at_ms.i64() + time * arrivals.every_ms.i64()) * 1_000;
            for _ in 0..arrivals.count.get() {
                if let Some(rate) = arrivals.per_second {
                    at_us += rng.exponential(1e6 / rate.get()) as i64;
                }
                moments.push(at_us);
            }
        }
    }
    moments.sort_unstable();
    moments
}

/// The task at this position, if the weights of all tasks are laid out in a row.
fn draw(scenario: &Scenario, mut at: f64) -> usize {
    for (n, task) in scenario.tasks.iter().enumerate() {
        at -= task.weight.get();
        if at < 0.0 {
            return n;
        }
    }
    scenario.tasks.len() - 1
}

/// The objects of a job.
struct About {
    instance: usize,
    primary: usize,
    secondary: usize,
    target: Option<usize>,
    network: u64,
}

/// The cluster: which instance is on which nodes.
struct Map {
    groups: usize,
    networks: u64,
    nodes: usize,
    /// The primary and the secondary node of each instance.
    placed: Vec<(usize, usize)>,
    /// Instances of each node.
    on: Vec<Vec<usize>>,
    /// The instances whose primary is the first node.
    hot: Vec<usize>,
}

impl Map {
    fn new(scenario: &Scenario) -> Map {
        let Cluster { groups, nodes, instances, networks, .. } = scenario.cluster;
        let mut map = Map {
            groups: groups.usize(),
            networks: networks.get(),
            nodes: nodes.usize(),
            placed: Vec::new(),
            on: vec![Vec::new(); nodes.usize()],
            hot: Vec::new(),
        };
        let mut rng = SeededRng::new(scenario.seed.get(), 0, 0);
        for instance in 0..instances.usize() {
            let primary = instance % map.nodes;
            let secondary = map.another(&mut rng, &[primary]).expect("a group has two nodes at least");
            map.placed.push((primary, secondary));
            map.on[primary].push(instance);
            map.on[secondary].push(instance);
            if primary == 0 {
                map.hot.push(instance);
            }
        }
        map
    }

    fn group_nodes(&self, group: usize) -> impl Iterator<Item = usize> {
        (group..self.nodes).step_by(self.groups)
    }

    /// A random node of the same group that is not among `not`.
    fn another(&self, rng: &mut SeededRng, not: &[usize]) -> Option<usize> {
        let others: Vec<usize> =
            self.group_nodes(not[0] % self.groups).filter(|node| !not.contains(node)).collect();
        let last = others.len().checked_sub(1)?;
        Some(others[rng.between(0, last as u64) as usize])
    }

    fn about(&self, rng: &mut SeededRng, hot_percent: u64) -> About {
        let hot = rng.unit() * 100.0 < hot_percent as f64;
        let instance = match self.hot.len() {
            some @ 1.. if hot => self.hot[rng.between(0, some as u64 - 1) as usize],
            _ => rng.between(0, self.placed.len() as u64 - 1) as usize,
        };
        let (primary, secondary) = self.placed[instance];
        let target = self.another(rng, &[primary, secondary]);
        About { instance, primary, secondary, target, network: rng.between(0, self.networks - 1) }
    }

    fn mean(&self, about: &About, word: &str) -> Vec<String> {
        let node = |node: usize| format!("node{node}");
        let instance = |instance: usize| format!("instance{instance}");
        let group = about.primary % self.groups;
        match word {
            "instance" => vec![instance(about.instance)],
            "primary" => vec![node(about.primary)],
            "secondary" => vec![node(about.secondary)],
            "target" => about.target.into_iter().map(node).collect(),
            "group" => vec![format!("group{group}")],
            "network" => vec![format!("network{}", about.network)],
            "node_instances" => self.on[about.primary].iter().copied().map(instance).collect(),
            "node_peers" => {
                let on = self.on[about.primary].iter().map(|instance| self.placed[*instance]);
                on.flat_map(|(primary, secondary)| [node(primary), node(secondary)])
                    .chain([node(about.primary)])
                    .collect()
            }
            "group_nodes" => self.group_nodes(group).map(node).collect(),
            "group_instances" => {
                let of_group = |instance: &usize| self.placed[*instance].0 % self.groups == group;
                (0..self.placed.len()).filter(of_group).map(instance).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Numbers of scopes by their names.
struct Names<'a> {
    levels: &'a Levels,
    scopes: Vec<LockScope>,
    known: HashMap<(u8, String), ScopeId>,
}

impl<'a> Names<'a> {
    fn new(levels: &'a Levels) -> Self {
        let scope = |level: Option<u8>, name: String| LockScope {
            level,
            whole: level.is_some(),
            capacity: None,
            name,
        };
        let mut scopes = vec![scope(None, "the big lock".to_owned())];
        scopes.extend((0..).zip(levels.names()).map(|(n, name)| scope(Some(n), format!("all of {name}"))));
        Names { levels, scopes, known: HashMap::new() }
    }

    fn want(&mut self, lock: &Lock) -> Want {
        let scope = match &lock.scope {
            Scope::BigLock => BIG,
            Scope::WholeLevel(level) => whole(small(*level)),
            Scope::Resource { level, name } => {
                let scopes = &mut self.scopes;
                *self.known.entry((small(*level), name.clone())).or_insert_with(|| {
                    let capacity = self.levels.capacity(*level, name);
                    scopes.push(LockScope {
                        level: Some(small(*level)),
                        whole: false,
                        capacity,
                        name: name.clone(),
                    });
                    ScopeId::try_from(scopes.len() - 1).expect("jobs name fewer resources than 2^32")
                })
            }
        };
        Want { scope, exclusive: lock.mode == Mode::Exclusive, units: lock.units }
    }
}

fn small(level: usize) -> u8 {
    u8::try_from(level).expect("there are 16 levels at most")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 'x'\nslots = 4\nseed = 1\narrivals = [{ count = 200 }, { count = 100, at_ms = 5, per_second = 2 }]\n\
                        [cluster]\ngroups = 2\nnodes = 7\ninstances = 21\nhot_percent = 50\n\
                        [[tasks]]\nname = 'a'\nweight = 1\nrun_ms = 1000\n\
                        locks = { instance = { exclusive = ['{instance}'] }, node = { shared = ['{primary}', '{secondary}', '{target}'] } }\n\
                        says = { instance = { exclusive = ['{instance}'] }, node = { shared = 'unknown' } }\n\
                        [[tasks]]\nname = 'b'\nweight = 2\nrun_ms = 1000\nlocks = { node = { exclusive = ['{group_nodes}'] } }\n";

    fn population(text: &str) -> Population {
        Population::new(&Scenario::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn jobs_lock_objects_that_belong_together() {
        let population = population(TEXT);
        let name = |want: &Want| population.scopes[want.scope as usize].name.as_str();
        let number = |name: &str| -> usize { name.trim_start_matches(char::is_alphabetic).parse().unwrap() };
        let mut hot = 0;
        for job in &population.jobs {
            if job.task == 1 {
                assert!([4, 5].contains(&job.known.len()), "{:?}", job.known);
                continue;
            }
            assert_eq!(job.known.iter().map(name).collect::<Vec<_>>()[0], "the big lock");
            let instance = number(name(&job.known[1]));
            let nodes: Vec<usize> = job.asks.iter().map(|want| number(name(want))).collect();
            assert!(nodes.len() == 3 && nodes.contains(&(instance % 7)), "{nodes:?}");
            assert!(nodes.iter().all(|node| node % 2 == nodes[0] % 2), "{nodes:?}: of one group");
            hot += usize::from(instance % 7 == 0);
        }
        let of = population.jobs.iter().filter(|job| job.task == 0).count();
        assert!((75..125).contains(&of), "{of} of 300, one third");
        assert!((hot as f64 / of as f64 - 0.57).abs() < 0.12, "{hot} of {of}");
        assert!(population.jobs.is_sorted_by_key(|job| job.comes_us));
        assert_eq!(population.jobs.iter().filter(|job| job.comes_us == 0).count(), 200);
    }

    #[test]
    fn a_seed_gives_the_same_jobs_again() {
        let jobs = |text: &str| format!("{:?}", population(text).jobs);
        assert_eq!(jobs(TEXT), jobs(TEXT));
        assert_ne!(jobs(TEXT), jobs(&TEXT.replace("seed = 1", "seed = 2")));
    }

    #[test]
    fn units_beyond_a_resources_own_capacity_are_refused() {
        let text = TEXT.replace(
            "[cluster]",
            "levels = [{ name = 'instance' }, { name = 'node', capacity = 2, capacities = { node3 = 1 } }]\n[cluster]",
        );
        let text = text.replace("['{primary}', '{secondary}', '{target}']", "{ '{primary}' = 2 }");
        let error = Population::new(&Scenario::parse(&text).unwrap()).err().unwrap().to_string();
        assert!(error.contains("task `a`: locks.node: wants 2 units of \"node3\", which has 1"), "{error}");
    }
}
