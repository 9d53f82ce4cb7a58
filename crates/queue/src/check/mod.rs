//! The invariants that rows can show, each in one place.
//!
//! *Model.* Every key has a meaning ([`Row`]), and rows form groups: the rows of one job ([`JobRows`]) or of one worker. A
//! check is a function from such a group, read in one snapshot, to [`Finding`]s; it reads nothing itself.
//!
//! *Users.* The simulation checks the groups that a commit touched, after every commit. `turnwise store check` checks every
//! group of a store. Tests check after every step of a random walk. Rows cannot show whether a *change* was allowed (who may
//! end a run, or remove a worker): the simulation checks that itself.

mod bucket;
mod count;
mod finding;
mod group;
mod job;
mod lock;
mod row;
mod schedule;
mod single;
mod unique;
mod whole;
mod worker;

pub use bucket::BucketTally;
pub use count::CountTally;
pub use finding::{Finding, Invariant};
pub use group::{GroupRows, Groups, check_group};
pub use job::{JobRows, check_awaited, check_follows, check_job, has_other_fields, read_record, whole};
pub use lock::LockTally;
pub use row::{Row, WorkerRow, key_text};
pub use schedule::{ScheduleRows, check_schedule};
pub use single::{check_boost, check_single, check_usage, check_waiting};
pub use unique::{UniqueTally, unique_end, unique_holder};
pub use whole::check_rows;
pub use worker::{check_claims, check_stamp, check_worker};

pub use crate::index_row::IndexRow;
pub use crate::pieces::PIECE_BYTES;

/// Type and id of a job or a worker.
pub type JobKey = (String, String);

#[cfg(test)]
mod tests;
