//! A worker's settings for fair share and rotation.

use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_queue::usage::Charged;

/// How tenants share the slots for jobs of a type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FairRules {
    /// Which of the two schemes applies.
    pub fairness: Fairness,
    /// The parameters of CouchDB's fair-share scheduling (RFC 017). In both schemes, usage decays by them.
    pub rfc: rfc::Rules,
    /// Each tenant's share.
    pub shares: Arc<Shares>,
    /// How continuous jobs are preempted. Without this, jobs of the type are never preempted.
    pub rotation: Option<RotationRules>,
}

/// How continuous jobs are preempted for jobs that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationRules {
    /// The time between two cycles.
    pub interval: Duration,
    /// The maximum number of jobs that one cycle preempts.
    pub max_churn: usize,
    /// The starts of jobs that start together are spread over at most this time.
    pub startup_jitter: Duration,
    /// An idle continuous job keeps its slot for at least this long.
    pub idle_turn: Duration,
    /// The set of workers must not have changed for this long before a worker gives running jobs back to balance the
    /// load.
    pub quiet_period: Duration,
}

impl Default for RotationRules {
    fn default() -> Self {
        RotationRules {
            interval: Duration::from_secs(60),
            max_churn: 20,
            startup_jitter: Duration::from_secs(5),
            idle_turn: Duration::from_secs(10),
            quiet_period: Duration::from_secs(60),
        }
    }
}

/// The decayed usage that a row holds.
pub fn usage_of(charged: &Charged) -> rfc::Usage {
    let Charged { usage_us, accumulated_us, period, .. } = *charged;
    rfc::Usage { usage_us, accumulated_us, period }
}
