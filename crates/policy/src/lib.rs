//! Pure scheduling decisions: values in, a decision out.
//!
//! No I/O, no clocks, no randomness: the worker reads, asks [`select`](select::select), and commits. So every
//! decision can be tested, simulated and explained from its inputs alone.
//!
//! - [`select`]: which jobs start now, and why the others do not.
//! - [`contention`]: which jobs a worker takes, where several take from one queue.
//! - [`backoff`]: how long a crashed job waits.

pub mod backoff;
pub mod contention;
pub mod select;
