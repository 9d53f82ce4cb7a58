//! Which pending jobs may run at all, whatever their order is.
//!
//! - [`dependencies`]: jobs that wait for the end of other jobs.
//! - [`filters`]: an operator's rules for jobs that wait, with [`condition`]s.
//! - [`concurrency`]: how many jobs of a bucket run at the same time.
//! - [`rate`]: how many jobs of a bucket start per period.

pub mod concurrency;
pub mod condition;
pub mod dependencies;
pub mod filters;
pub mod rate;
