//! Which pending jobs may run at all, before anybody asks whose turn it is.
//!
//! - [`dependencies`]: jobs that wait for the end of others.
//! - [`filters`]: what an operator says about jobs that wait, by [`condition`]s.

pub mod condition;
pub mod dependencies;
pub mod filters;
