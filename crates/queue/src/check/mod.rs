//! The invariants that rows can show, each in one place.
//!
//! *Model.* Every key means something ([`Row`]), and rows belong together as what is known of one job ([`JobRows`]) or of one
//! worker. A check is a function from such a group, read in one snapshot, to [`Finding`]s; it reads nothing itself.
//!
//! *Who checks.* The simulation, after every commit, the groups that it touched. `turnwise store check`, every group of a
//! store. Tests, after every step of a random walk. What a *change* may be (who ends a run, who removes a worker) rows cannot show:
//! that is the simulation's own.

mod finding;
mod job;
mod lock;
mod rate;
mod row;
mod tenant;
mod whole;
mod worker;

pub use finding::{Finding, Invariant};
pub use job::{JobRows, check_awaited, check_job, has_other_fields, read_record, whole};
pub use lock::{LockTally, check_learnt};
pub use rate::RateTally;
pub use row::{Row, WorkerRow, key_text};
pub use tenant::{check_boost, check_clock, check_usage, check_waiting};
pub use whole::check_rows;
pub use worker::{check_claims, check_stamp, check_worker};

pub use crate::pieces::PIECE_BYTES;
pub use crate::place::IndexRow;

/// A job's type and id, or a worker's.
pub type JobKey = (String, String);

#[cfg(test)]
mod tests;
