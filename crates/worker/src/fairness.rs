//! What a worker is told about fair share and rotation.

use std::sync::Arc;
use std::time::Duration;

use turnwise_policy::fair_share::{Fairness, Shares, rfc};
use turnwise_queue::usage::{Boost, Charged};

/// How jobs of a type are shared out among tenants.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FairRules {
    /// By which of the two schemes.
    pub fairness: Fairness,
    /// What the scheme of the RFC goes by; usage decays by it in both.
    pub rfc: rfc::Rules,
    /// Each tenant's entitlement.
    pub shares: Arc<Shares>,
    /// How continuous jobs are preempted for others; jobs of a type without are never stopped for others.
    pub rotation: Option<RotationRules>,
}

/// How continuous jobs are preempted for those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationRules {
    /// Between two cycles.
    pub interval: Duration,
    /// Jobs that one cycle stops at most so that others can run.
    pub max_churn: usize,
    /// Jobs that start together are spread over at most this long.
    pub startup_jitter: Duration,
    /// A continuous job that has nothing to do keeps its slot for at least this long.
    pub idle_turn: Duration,
    /// The workers of a type must not have changed for this long before one gives running jobs back so that others have their shard.
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

/// The decayed usage that a row tells.
pub fn usage_of(charged: &Charged) -> rfc::Usage {
    let Charged { usage_us, accumulated_us, period, .. } = *charged;
    rfc::Usage { usage_us, accumulated_us, period }
}

/// How far keys have been lifted, as a row tells.
pub fn boost_of(Boost { v, at_us, coeff, interval_us }: Boost) -> rfc::Boost {
    rfc::Boost { v, at_us, coeff, interval_us }
}
