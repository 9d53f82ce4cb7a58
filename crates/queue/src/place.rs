//! Where a job is: the state machine, and what it says of a job.
//!
//! ```text
//!              add                 claim                       ┌─ parks ──────▶ PARKED    until there are changes, or its time
//!   (none) ──────────▶ PENDING ───────────────▶ ACTIVE ────────┼─ crashes ────▶ CRASHING  until its backoff is over
//!     │                ▲ │ │ │                  running, or    ├─ is stopped ─▶ PENDING
//!     │                │ │ │ └─ filter ─▶ PAUSED   waiting for ├─ runs again ─▶ PENDING, DELAYED or BLOCKED
//!     │                │ │ └─ no room ──▶ LIMITED  a lock      └─ ends ───────▶ ENDED     completed, failed or cancelled
//!     │                │ └─ re-added ───▶ BLOCKED
//!     ├─ for later ────┼─▶ DELAYED
//!     └─ after others ─┴─▶ BLOCKED
//! ```
//!
//! A job in any place except ACTIVE and ENDED becomes PENDING when its time comes, when what it waits for has happened, or
//! when a user retries it. It becomes ENDED when it is cancelled, or if it must start within a time and does not ([`crate::lifetimes`]).
//! Adding a job again moves it as a new job, also from ENDED. A client may delay a PENDING job, and hold it, or one that is DELAYED, CRASHING,
//! PAUSED or LIMITED: it is PAUSED then. A job with a hold ([`Job::hold`](crate::JobFields::hold)) that is BLOCKED or ENDED is PAUSED where it would be PENDING or DELAYED. [`Place::leads_to`] has every edge.
//!
//! Each place has a row in its own index. [`move_to`](crate::transition::move_to) is the only way from one place to another. It clears the row of the
//! old place, writes the row of the new place, and wakes the workers that wait for such a change. The caller writes the
//! record.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::dependencies::DependencyEnd;
use turnwise_policy::predictive_queue::locks::Requests;

use crate::job::{Claim, Job, Parked, State, Then, bounded_reason};
use crate::locks::{Held, Waits};
use crate::terms::Terms;

/// Where a job is, with the data of that place.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// In the queue of its tenant.
    Pending {
        /// When it was last started, or added, in µs: the sort order.
        order_us: i64,
        /// [`Job::sort_key`](crate::JobFields::sort_key) sorts it, before its priority and `order_us`.
        keyed: bool,
        /// The ticket of its lock reservation.
        reserved: Option<i64>,
    },
    /// Does not start before a time, in µs.
    Delayed {
        /// That time.
        until_us: i64,
    },
    /// Has crashed, and waits until its backoff is over.
    Crashing {
        /// The end of the backoff, in µs.
        until_us: i64,
    },
    /// Has nothing to do until something outside changes ([`crate::parking`]).
    Parked {
        /// When it runs again without such a change, in µs.
        until_us: i64,
        /// What would wake it.
        at: Parked,
    },
    /// Waits for other jobs to end ([`crate::dependencies`]).
    Blocked {
        /// It does not start before this time, in µs, also once these jobs have ended.
        until_us: i64,
        /// How many of these jobs have not ended; never 0.
        unmet: u32,
    },
    /// A filter has paused it ([`crate::filters`]), or a client or an operator holds it ([`crate::edit`]).
    Paused {
        /// Its time in the queue, to which it returns, in µs. For a held job, also a time before which it does not start.
        order_us: i64,
        /// The filter's name, or that of the [`Holder`].
        filter: String,
    },
    /// Waits until a bucket has room ([`crate::concurrency`]).
    Limited {
        /// Its time in the queue, to which it returns, in µs.
        order_us: i64,
        /// The limit without room.
        limit: Limit,
    },
    /// A worker has claimed it.
    Active(Arc<Run>),
    /// Has ended. It stays in this state until a client adds or retries it.
    Ended(End),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Without an error.
    Completed,
    /// With a permanent error, or with its last attempt.
    Failed,
    /// Cancelled by its user, by a filter, or because a dependency ended in a state that it does not accept.
    Cancelled,
}

/// Who holds a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// A client of its tenant.
    Client,
    /// An operator: clients cannot release the job.
    Operator,
}

impl Holder {
    /// Its name, in place of that of a filter.
    pub fn name(self) -> &'static str {
        match self {
            Holder::Client => "client",
            Holder::Operator => "operator",
        }
    }

    /// The holder of this name, if it is not that of a filter.
    pub fn named(name: &str) -> Option<Holder> {
        [Holder::Client, Holder::Operator].into_iter().find(|holder| holder.name() == name)
    }
}

/// A run: the claim of a worker, and what ends with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The worker's hold on the job.
    pub claim: Claim,
    /// The terms of the run.
    pub terms: Terms,
    /// The locks that it holds, if the job declares any.
    pub held: Option<Held>,
    /// The lock that it waits for.
    pub waits: Option<Waits>,
    /// The buckets in which the run has a place.
    pub buckets: Vec<Bucket>,
    /// A client has asked the run to stop.
    pub cancel_requested: bool,
    /// What happens when it ends.
    pub then: Then,
    /// What a client has requested for the run after this one.
    pub next: Next,
}

/// What a client has requested for the next run, by adding the job again while it runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Next {
    /// The next run does not start before this time, in µs.
    pub not_before_us: i64,
    /// How many jobs the next run waits for.
    pub unmet: u32,
    /// Why the next run was refused. The record has the options, tenant and locks of the refused request. The job does not
    /// start with them unless a client adds or restarts it.
    pub refused: Option<String>,
    /// The locks that the job declares from the next run on, if they differ from the current ones.
    pub locks: Option<Requests>,
}

impl Run {
    /// A run that begins.
    pub fn new(claim: Claim, terms: Terms, held: Option<Held>, buckets: Vec<Bucket>) -> Self {
        Run {
            claim,
            terms,
            held,
            waits: None,
            buckets,
            cancel_requested: false,
            then: Then::Keep,
            next: Next::default(),
        }
    }

    /// Refuses the run after this one: the job does not start again.
    pub(crate) fn refuse_next(&mut self, reason: &str) {
        self.then = Then::Keep;
        self.next.refused = Some(bounded_reason(reason));
    }
}

impl End {
    /// The state of a job that ended this way.
    pub fn state(self) -> State {
        match self {
            End::Completed => State::Completed,
            End::Failed => State::Failed,
            End::Cancelled => State::Cancelled,
        }
    }

    /// The outcome that jobs which depend on this one receive.
    pub fn outcome(self) -> DependencyEnd {
        match self {
            End::Completed => DependencyEnd::Completed,
            End::Failed => DependencyEnd::Failed,
            End::Cancelled => DependencyEnd::Cancelled,
        }
    }
}

impl Place {
    /// In the queue, sorted by its time.
    pub fn pending(order_us: i64) -> Place {
        Place::Pending { order_us, keyed: false, reserved: None }
    }

    /// The state. All places outside of the queue are [`State::Delayed`], except the wait for the end of a backoff.
    pub fn state(&self) -> State {
        match self {
            Place::Pending { .. } => State::Pending,
            Place::Delayed { .. }
            | Place::Parked { .. }
            | Place::Blocked { .. }
            | Place::Paused { .. }
            | Place::Limited { .. } => State::Delayed,
            Place::Crashing { .. } => State::Crashing,
            Place::Active(run) if run.waits.is_some() => State::Waiting,
            Place::Active(_) => State::Running,
            Place::Ended(end) => end.state(),
        }
    }

    /// Whether a job may move from this place to `to`. A move to the same place occurs when a job is added again, or when
    /// its tenant, priority or locks change.
    pub fn leads_to(&self, to: &Place) -> bool {
        let (was, is) = (self, to);
        match is {
            Place::Pending { .. } | Place::Blocked { .. } | Place::Ended(End::Cancelled) => true,
            Place::Delayed { .. } => !matches!(was, Place::Crashing { .. }),
            Place::Crashing { .. } => matches!(was, Place::Active(_) | Place::Crashing { .. }),
            Place::Parked { .. } | Place::Ended(End::Completed) => matches!(was, Place::Active(_)),
            Place::Ended(End::Failed) => {
                !matches!(was, Place::Crashing { .. } | Place::Parked { .. } | Place::Ended(_))
            }
            Place::Paused { .. } => matches!(
                was,
                Place::Pending { .. }
                    | Place::Delayed { .. }
                    | Place::Crashing { .. }
                    | Place::Blocked { .. }
                    | Place::Paused { .. }
                    | Place::Limited { .. }
                    | Place::Ended(_)
            ),
            Place::Limited { .. } | Place::Active(_) => matches!(was, Place::Pending { .. }),
        }
    }
}

impl Job {
    /// The state of its place.
    pub fn state(&self) -> State {
        self.place.state()
    }

    /// Whether it is in the queue of its tenant.
    pub fn is_pending(&self) -> bool {
        matches!(self.place, Place::Pending { .. })
    }

    /// The time of its place, in µs: its order in the queue, or the time before which it does not start. For a running job,
    /// that of the next run. 0 for an ended job.
    pub fn order_us(&self) -> i64 {
        match &self.place {
            Place::Pending { order_us, .. }
            | Place::Paused { order_us, .. }
            | Place::Limited { order_us, .. } => *order_us,
            Place::Delayed { until_us }
            | Place::Crashing { until_us }
            | Place::Parked { until_us, .. }
            | Place::Blocked { until_us, .. } => *until_us,
            Place::Active(run) => run.next.not_before_us,
            Place::Ended(_) => 0,
        }
    }

    /// How many of its dependencies have not ended; for a running job, those of the next run.
    pub fn unmet(&self) -> u32 {
        match &self.place {
            Place::Blocked { unmet, .. } => *unmet,
            Place::Active(run) => run.next.unmet,
            _ => 0,
        }
    }

    /// What would wake it, if it is parked.
    pub fn parked(&self) -> Option<&Parked> {
        match &self.place {
            Place::Parked { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The filter that has paused it, or the [`Holder`].
    pub fn paused(&self) -> Option<&str> {
        match &self.place {
            Place::Paused { filter, .. } => Some(filter),
            _ => None,
        }
    }

    /// Who holds it in its place.
    pub fn held_by(&self) -> Option<Holder> {
        self.paused().and_then(Holder::named)
    }

    /// Who holds it, also while it is in no place in which it would start.
    pub fn holder(&self) -> Option<Holder> {
        self.held_by().or(self.hold)
    }

    /// The filter that has paused it, or the name of [`Job::holder`].
    pub fn paused_by(&self) -> Option<&str> {
        self.paused().or(self.hold.map(Holder::name))
    }

    /// The limit that keeps it out of the queue.
    pub fn limited(&self) -> Option<&Limit> {
        match &self.place {
            Place::Limited { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// Whether it is pending and sorted by its [key](crate::JobFields::sort_key).
    pub fn is_keyed(&self) -> bool {
        matches!(self.place, Place::Pending { keyed: true, .. })
    }

    /// The ticket of its lock reservation.
    pub fn reserved(&self) -> Option<i64> {
        match self.place {
            Place::Pending { reserved, .. } => reserved,
            _ => None,
        }
    }

    /// Its run, while it has one.
    pub fn run(&self) -> Option<&Run> {
        match &self.place {
            Place::Active(run) => Some(run),
            _ => None,
        }
    }

    /// The same, mutable.
    pub(crate) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.place {
            Place::Active(run) => Some(Arc::make_mut(run)),
            _ => None,
        }
    }

    /// Its worker's claim.
    pub fn claim(&self) -> Option<&Claim> {
        self.run().map(|run| &run.claim)
    }

    /// The terms of its run, or the defaults.
    pub fn terms(&self) -> Terms {
        self.run().map(|run| run.terms.clone()).unwrap_or_default()
    }

    /// The attempts that it has, as its run states, or as its next run will if those of its type are these. `None` is without end.
    pub fn attempts_in_all(&self, of_type: Option<u32>) -> Option<u32> {
        match self.run() {
            Some(run) => run.terms.max_attempts,
            None => self.run_attempts(of_type),
        }
    }

    /// The locks that its run holds.
    pub fn held(&self) -> Option<&Held> {
        self.run()?.held.as_ref()
    }

    /// The lock that its run waits for.
    pub fn waits(&self) -> Option<&Waits> {
        self.run()?.waits.as_ref()
    }

    /// The buckets in which its run has a place.
    pub fn buckets(&self) -> &[Bucket] {
        self.run().map_or(&[], |run| &run.buckets)
    }

    /// What happens when its run ends.
    pub fn then(&self) -> Then {
        self.run().map_or(Then::Keep, |run| run.then)
    }

    /// Whether a client has asked its run to stop.
    pub fn cancel_requested(&self) -> bool {
        self.run().is_some_and(|run| run.cancel_requested)
    }
}

#[cfg(test)]
mod tests;
