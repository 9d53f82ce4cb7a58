//! The settings of a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::backoff::{self, OnLost};
use turnwise_queue::deadlines::Timeouts;
use turnwise_queue::output::{DEFAULT_MAX_ERRORS, DEFAULT_MAX_RESULT_BYTES};
use turnwise_queue::{Bounds, DEFAULT_MAX_HISTORY, Kept, NodeOptions, Terms};

use crate::fairness::FairRules;
use crate::locks::QueueRules;
use crate::metrics::Metrics;
use crate::pass::Passes;
use crate::spans::Spans;
use crate::times::{DEFAULT_HEALTH_INTERVAL, DEFAULT_HEALTH_TIMEOUT};

/// A worker's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of this node, as the API shows it.
    pub node: String,
    /// The time between two heartbeats, at most half of the timeout.
    pub health_interval: Duration,
    /// How long the worker may miss its heartbeats before another worker removes it.
    pub health_timeout: Duration,
    /// The minimum time between two writes of a job's report.
    pub report_interval: Duration,
    /// The time that a handler has to stop before the worker aborts it.
    pub stop_grace: Duration,
    /// Whether no other process can use the store. Workers found in it at the start are then dead, unless they are
    /// external.
    pub exclusive: bool,
    /// The passes of this process, if several of its workers have the same job type. Without it, they contend for jobs like
    /// workers of different processes.
    pub passes: Option<Arc<Passes>>,
    /// Counts what the workers of this process do.
    pub metrics: Arc<Metrics>,
    /// What a node publishes about itself ([`join_nodes`](crate::join_nodes)); workers publish nothing.
    pub node_options: Option<NodeOptions>,
    /// Where the spans of traced jobs go.
    pub spans: Spans,
    /// The settings that may change while it runs, at its start.
    pub tunables: Tunables,
}

/// The settings that may change while a worker runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Tunables {
    /// The maximum number of jobs that run at the same time. If jobs of this type rotate, the next cycle after a
    /// reduction stops the excess. Otherwise no job is stopped, and none starts until enough have ended.
    pub max_jobs: usize,
    /// The bounds of `max_jobs`, if it follows the demand. A reduction then never stops a job, unless more jobs run than the
    /// upper bound.
    pub bounds: Option<Bounds>,
    /// The number of history entries that a job keeps, from its next entry on.
    pub max_history: usize,
    /// The number of latest errors with a class or a trace that a job keeps.
    pub max_errors: usize,
    /// The largest result, in bytes.
    pub max_result_bytes: usize,
    /// The backoff of crashed jobs, from their next start on.
    pub backoff: backoff::Rules,
    /// What happens to a job whose worker is lost, from the job's next start on.
    pub on_lost: OnLost,
    /// Whether waits have jitter, from the jobs' next start on.
    pub jitter: bool,
    /// The attempts of jobs that state none, from their next start on; see [`Terms::max_attempts`].
    pub max_attempts: Option<u32>,
    /// The timeouts of jobs that set none themselves, by job type, from their next start on.
    pub timeouts: Arc<BTreeMap<String, Timeouts>>,
    /// How tenants share the slots, from the next cycle on at the latest.
    pub fair: FairRules,
    /// The order of jobs that lock, from the next pass on.
    pub queue: Arc<QueueRules>,
}

impl Tunables {
    /// How many of `running` jobs may continue; at least as many as there are slots.
    pub(crate) fn may_continue(&self, running: usize) -> usize {
        self.bounds.map_or(self.max_jobs, |bounds| running.min(bounds.most).max(self.max_jobs))
    }

    /// How much of its output a job keeps.
    pub(crate) fn kept(&self) -> Kept {
        Kept { history: self.max_history, errors: self.max_errors, result_bytes: self.max_result_bytes }
    }

    /// The terms of a run that starts now.
    pub(crate) fn terms(&self, job_type: &str) -> Terms {
        let Tunables { backoff, jitter, on_lost, max_attempts, .. } = *self;
        let timeouts = self.timeouts.get(job_type).copied().unwrap_or_default();
        Terms { backoff, jitter, on_lost, timeouts, max_attempts, ..Terms::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            node: "turnwise@127.0.0.1".to_owned(),
            health_interval: DEFAULT_HEALTH_INTERVAL,
            health_timeout: DEFAULT_HEALTH_TIMEOUT,
            report_interval: Duration::from_secs(2),
            stop_grace: Duration::from_secs(5),
            exclusive: false,
            passes: None,
            metrics: Arc::default(),
            node_options: None,
            spans: Spans::default(),
            tunables: Tunables::default(),
        }
    }
}

impl Default for Tunables {
    fn default() -> Self {
        Tunables {
            max_jobs: 500,
            bounds: None,
            max_history: DEFAULT_MAX_HISTORY,
            max_errors: DEFAULT_MAX_ERRORS,
            max_result_bytes: DEFAULT_MAX_RESULT_BYTES,
            backoff: backoff::Rules::default(),
            on_lost: OnLost::default(),
            jitter: false,
            max_attempts: None,
            timeouts: Arc::default(),
            fair: FairRules::default(),
            queue: Arc::default(),
        }
    }
}
