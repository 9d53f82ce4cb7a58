//! What a job waits for, and what waits for it, as a graph: for its page.

use std::collections::{BTreeMap, VecDeque};

use async_recursion::async_recursion as boxed;
use turnwise_protocol::State;
use turnwise_queue::{Job, dependencies, followers, jobs};

use crate::{Reader, Result, Viewer, shown};

/// Maximum number of jobs in a graph: those that are nearest to the job.
pub const MAX_NODES: usize = 40;

/// A job in a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its type and id.
    pub job: (String, String),
    /// Its state; `None` if it has just been removed.
    pub state: Option<State>,
    /// The number of steps from the job: negative for what it waits for, positive for what waits for it.
    pub step: i32,
    /// When it was added, started and ended.
    pub times: Option<Times>,
    /// It is on the path that decides when the last job ends.
    pub critical: bool,
}

/// The times of a job since it was added (again), in µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When it was added.
    pub added_us: i64,
    /// When it was last started.
    pub started_us: Option<i64>,
    /// When it ended.
    pub ended_us: Option<i64>,
}

impl Times {
    fn of(job: &Job) -> Times {
        let added_us = job.added_us;
        let started_us = job.started_us.filter(|started_us| *started_us >= added_us);
        Times { added_us, started_us, ended_us: job.state().is_final().then_some(job.changed_us) }
    }

    /// How long it has waited until its last start, in µs.
    pub fn waited_us(&self, now_us: i64) -> u64 {
        let until_us = self.started_us.or(self.ended_us).unwrap_or(now_us);
        until_us.saturating_sub(self.added_us).max(0).unsigned_abs()
    }

    /// How long its last run has lasted, in µs; `None` if it has not started.
    pub fn ran_us(&self, now_us: i64) -> Option<u64> {
        let ran_us = self.ended_us.unwrap_or(now_us).saturating_sub(self.started_us?);
        Some(ran_us.max(0).unsigned_abs())
    }
}

/// The jobs around a job. The first one is the job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The jobs.
    pub nodes: Vec<Node>,
    /// Which job waits for which: the index of the dependency, and that of the dependent.
    pub edges: Vec<(usize, usize)>,
    /// Whether there are more jobs.
    pub more: bool,
    /// The job's trace, if it is traced: 32 hexadecimal digits.
    pub trace_id: Option<String>,
}

/// Reads the graph around a job, of jobs that the viewer may read. Dependencies that have ended are part of it if
/// their results are inputs; jobs after it that have ended, if they got its result, or were cancelled because of its end.
///
/// # Errors
/// Those of the store.
#[boxed]
pub async fn around<'a>(reader: &'a Reader<'a>, viewer: &dyn Viewer, job: &Job) -> Result<Graph> {
    let read = async |job_type: &str, id: &str| jobs::get(reader.tx, reader.keys, job_type, id).await;
    let mut graph = Graph {
        trace_id: job.trace.map(|trace| u128::from_be_bytes(trace.trace_id)).map(|id| format!("{id:032x}")),
        ..Graph::default()
    };
    let mut known: BTreeMap<(String, String), usize> = BTreeMap::new();
    let own = (job.job_type.clone(), job.id.clone());
    known.insert(own.clone(), 0);
    graph.nodes.push(node(own, Some(job), 0));
    // First what the job waits for, then what waits for it.
    for step in [-1, 1] {
        let mut queue: VecDeque<(usize, Job)> = VecDeque::from([(0, job.clone())]);
        while let Some((from, job)) = queue.pop_front() {
            let next = if step < 0 { before(reader, &job).await? } else { behind(reader, &job).await? };
            for other in next {
                let edge = |to: usize| if step < 0 { (to, from) } else { (from, to) };
                if let Some(to) = known.get(&other) {
                    if !graph.edges.contains(&edge(*to)) {
                        graph.edges.push(edge(*to));
                    }
                    continue;
                }
                if graph.nodes.len() == MAX_NODES {
                    graph.more = true;
                    continue;
                }
                let found = read(&other.0, &other.1).await?;
                // Its row stays until this job is removed. It may have been another tenant's.
                if step > 0 && found.is_none() {
                    continue;
                }
                // What the viewer may not see does not exist. A job that is gone has no tenant to ask about.
                if found.as_ref().is_some_and(|job| !viewer.reads(&job.tenant)) {
                    continue;
                }
                let to = graph.nodes.len();
                graph.edges.push(edge(to));
                let at = graph.nodes[from].step + step;
                graph.nodes.push(node(other.clone(), found.as_ref(), at));
                known.insert(other, to);
                if let Some(job) = found {
                    queue.push_back((to, job));
                }
            }
        }
    }
    graph.mark_critical();
    Ok(graph)
}

fn node(job: (String, String), row: Option<&Job>, step: i32) -> Node {
    Node { job, state: row.map(shown::state), step, times: row.map(Times::of), critical: false }
}

/// What a job waits for, and the jobs whose results it gets.
async fn before(reader: &Reader<'_>, job: &Job) -> Result<Vec<(String, String)>> {
    let unmet = dependencies::unmet(reader.tx, reader.keys, job).await?;
    let mut before: Vec<_> = unmet.into_iter().map(|after| (after.job_type, after.id)).collect();
    for input in job.inputs.values() {
        let input = (input.job_type.clone(), input.id.clone());
        if !before.contains(&input) {
            before.push(input);
        }
    }
    Ok(before)
}

/// What waits for a job, gets its result, or was cancelled because of its end.
async fn behind(reader: &Reader<'_>, job: &Job) -> Result<Vec<(String, String)>> {
    let mut behind = dependencies::dependents(reader.tx, reader.keys, job, MAX_NODES).await?;
    if job.followed {
        let of = (job.job_type.as_str(), job.id.as_str());
        for follower in followers::list(reader.tx, reader.keys, of, None, MAX_NODES).await? {
            if !behind.contains(&follower.job) {
                behind.push(follower.job);
            }
        }
    }
    Ok(behind)
}

impl Graph {
    /// Marks the path that decides when the last job ends: from that job back, each time to the dependency that ends last. What has not ended
    /// ends last.
    fn mark_critical(&mut self) {
        let end = |n: usize, nodes: &[Node]| {
            nodes[n].times.map_or(i64::MIN, |times| times.ended_us.unwrap_or(i64::MAX))
        };
        if self.edges.is_empty() {
            return;
        }
        let is_last = |n: &usize| self.edges.iter().all(|(from, _)| from != n);
        let mut at = (0..self.nodes.len()).filter(is_last).max_by_key(|n| end(*n, &self.nodes));
        while let Some(n) = at.filter(|n| !self.nodes[*n].critical) {
            self.nodes[n].critical = true;
            let before = self.edges.iter().filter(|(_, to)| *to == n).map(|(from, _)| *from);
            at = before.max_by_key(|n| end(*n, &self.nodes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_critical_path_goes_back_over_the_dependencies_that_ended_last() {
        let node = |ended_us: Option<i64>| Node {
            job: Default::default(),
            state: None,
            step: 0,
            times: Some(Times { added_us: 1, started_us: Some(3), ended_us }),
            critical: false,
        };
        let nodes = [Some(9), Some(5), Some(7), None].map(node).to_vec();
        let edges = vec![(0, 2), (1, 2), (1, 3), (2, 3)];
        let mut graph = Graph { nodes, edges, ..Graph::default() };
        graph.mark_critical();
        assert_eq!(
            graph.nodes.iter().map(|node| node.critical).collect::<Vec<_>>(),
            [true, false, true, true]
        );
        let times = graph.nodes[3].times.map(|times| (times.waited_us(8), times.ran_us(8)));
        assert_eq!(times, Some((2, Some(5))));
    }
}
