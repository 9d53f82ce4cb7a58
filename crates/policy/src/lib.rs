//! Pure scheduling decisions: values in, a decision out.
//!
//! No I/O, no clocks, no randomness: the worker reads, calls [`schedule`](schedule::schedule), and commits. So every
//! decision can be tested, simulated and explained from its inputs alone.
//!
//! - [`schedule`]: which jobs start now, which one reserves locks, and why the others wait.
//! - [`fair_share`]: which tenant is served next.
//! - [`rotation`]: which running jobs are preempted.
//! - [`contention`]: which jobs a worker claims, where several workers share one queue.
//! - [`eligibility`]: which jobs may run at all.
//! - [`predictive_queue`]: which jobs are likely to get their locks without waiting.
//! - [`demand`]: how many slots a job type needs.
//! - [`slots`]: how they are divided among workers.
//! - [`backoff`]: how long a crashed job waits.
//! - [`fire`]: what a fire of a schedule does.
//! - [`timestamp`](mod@timestamp): times as text.

pub mod backoff;
pub mod contention;
pub mod demand;
pub mod eligibility;
pub mod fair_share;
pub mod fire;
pub mod predictive_queue;
pub mod rotation;
pub mod schedule;
pub mod slots;
pub mod timestamp;
