//! Which waiting jobs are likely to get their locks without waiting.
//!
//! - [`locks`]: the locks that a job declares, and those that it holds.
//! - [`contention`]: how likely a job is to wait for them: the table, and the weight.
//! - [`summary`]: what all running jobs lock, so that one weight costs no more than the job's own resources.
//! - [`aging`]: weights shrink to zero with time.
//! - [`mod@line`]: how many other jobs of the window name a resource that a job wants exclusively.
//! - [`order`]: which jobs of the window start, which one reserves, and why the others do not start.
//! - [`window`]: how many jobs at the head of the queue a pass compares.

pub mod aging;
pub mod contention;
pub mod line;
pub mod locks;
pub mod order;
pub mod summary;
#[cfg(test)]
pub(crate) mod tests;
pub mod window;
