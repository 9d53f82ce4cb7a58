//! Pure scheduling decisions: values in, a decision out.
//!
//! No I/O, no clocks, no randomness: the worker reads, asks [`select`](select::select), and commits. So every
//! decision can be tested, simulated and explained from its inputs alone.
//!
//! - [`select`]: which jobs start now, and why the others do not.
//! - [`backoff`]: how long a crashed job waits.

pub mod backoff;
pub mod select;
