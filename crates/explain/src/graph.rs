//! What a job waits for, and what waits for it, as a graph: for its page.

use std::collections::{BTreeMap, VecDeque};

use turnwise_protocol::State;
use turnwise_queue::{Job, dependencies, jobs};

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

/// Reads the graph around a job, of jobs that the viewer may read. Dependencies that have ended are not stored, and so are not part of it.
///
/// # Errors
/// Those of the store.
pub async fn around(reader: &Reader<'_>, viewer: &dyn Viewer, job: &Job) -> Result<Graph> {
    let read = async |job_type: &str, id: &str| jobs::get(reader.tx, reader.keys, job_type, id).await;
    let mut graph = Graph {
        trace_id: job.trace.map(|trace| u128::from_be_bytes(trace.trace_id)).map(|id| format!("{id:032x}")),
        ..Graph::default()
    };
    let mut known: BTreeMap<(String, String), usize> = BTreeMap::new();
    let own = (job.job_type.clone(), job.id.clone());
    known.insert(own.clone(), 0);
    graph.nodes.push(Node { job: own, state: Some(shown::state(job)), step: 0 });
    // First what the job waits for, then what waits for it.
    for step in [-1, 1] {
        let mut queue: VecDeque<(usize, Job)> = VecDeque::from([(0, job.clone())]);
        while let Some((from, job)) = queue.pop_front() {
            let next: Vec<(String, String)> = if step < 0 {
                let unmet = dependencies::unmet(reader.tx, reader.keys, &job).await?;
                unmet.into_iter().map(|after| (after.job_type, after.id)).collect()
            } else {
                dependencies::dependents(reader.tx, reader.keys, &job, MAX_NODES).await?
            };
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
                // What the viewer may not see does not exist. A job that is gone has no tenant to ask about.
                if found.as_ref().is_some_and(|job| !viewer.reads(&job.tenant)) {
                    continue;
                }
                let to = graph.nodes.len();
                graph.edges.push(edge(to));
                graph.nodes.push(Node {
                    job: other.clone(),
                    state: found.as_ref().map(shown::state),
                    step: graph.nodes[from].step + step,
                });
                known.insert(other, to);
                if let Some(job) = found {
                    queue.push_back((to, job));
                }
            }
        }
    }
    Ok(graph)
}
