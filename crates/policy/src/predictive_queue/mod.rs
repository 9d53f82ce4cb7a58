//! Which of the jobs that wait will not have to wait for locks once they run.
//!
//! - [`locks`]: what a job says that it will lock, and what it holds.
//! - [`contention`]: how likely it is to wait for that: the table, and the weight.
//! - [`summary`]: what all running jobs lock, so that one weight costs no more than the job's own resources.
//! - [`aging`]: weights shrink with time, to nothing.
//! - [`experience`]: what past runs locked where nobody could tell, so that it need not be unknown to the weight.
//! - [`mod@line`]: how many wait in line for what a job wants.
//! - [`order`]: which jobs of the queue's front start, which reserve, and why the others do not start.
//! - [`window`]: how much of the queue's front a pass compares.

pub mod aging;
pub mod contention;
pub mod experience;
pub mod line;
pub mod locks;
pub mod order;
pub mod summary;
#[cfg(test)]
pub(crate) mod tests;
pub mod window;
