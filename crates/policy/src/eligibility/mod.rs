//! Which pending jobs may run at all, before anybody asks whose turn it is.
//!
//! - [`dependencies`]: jobs that wait for the end of others.
//! - [`filters`]: what an operator says about jobs that wait, by [`condition`]s.
//! - [`rate_limits`]: how many of them run at the same time.

pub mod condition;
pub mod dependencies;
pub mod filters;
pub mod rate_limits;
