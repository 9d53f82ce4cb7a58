//! Why a job waits, its position and its expected start; what its tenant is entitled to and has received; the demand for slots.
//!
//! Everything is computed from rows of one transaction, so that every node computes the same. Nothing here decides: the functions ask
//! [`turnwise_policy`] what a worker would decide.

mod decision;
pub mod demand;
pub mod graph;
pub mod load;
mod locked;
mod position;
mod queue;
mod reader;
mod reason;
mod shown;
mod snapshot;
mod task;
pub mod types;
mod unknown;
mod why;

pub use self::queue::queue;
pub use self::reader::{Reader, Rules, Viewer};
pub use self::shown::{awaits, blocker, how, limited, lock, lock_mode, state, waits_for_time};
pub use self::snapshot::{Of, Snapshot, Standing, all_of, could_run_since, job_counts, types as types_of};
pub use self::why::{reason_of, waits, why};

/// Errors of the queue and of the store.
pub use turnwise_queue::{Error, Result};
