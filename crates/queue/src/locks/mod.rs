//! Locks as rows.
//!
//! *Model.* A job takes its declared and known locks ([`Requests`](turnwise_policy::predictive_queue::locks::Requests))
//! with its claim, all or nothing ([`crate::claims::claim_with`]). A job that cannot have them stays pending and holds
//! nothing. It requests further locks while it runs ([`request`]), and waits for them under its claim, in the order of each
//! lock's queue. The transaction that ends the claim releases all of them; nothing else does, and a stale claim changes
//! nothing. A job whose claim was refused for too long [`reserve`]s its locks.
//!
//! *No deadlocks.* No job waits for a job that holds nothing, so any claim may be refused. A running job waits only for a
//! lock that comes after all that it holds in the lock order, and so do the holders. A held lock on a whole level comes
//! after each of its resources. Reservations block only claims. A job may wait for a lock of a level of which it holds
//! nothing. It does not block a job that holds something of that level, because it may be waiting for that job.
//!
//! *Rows.* Holders of each mode have separate ranges, so that a job that shares a lock reads nothing that other sharers
//! write. Keys have the names of levels, never their order.

mod claimed;
mod entry;
mod held;
mod list;
mod rows;
mod running;
mod search;

pub(crate) use claimed::{Availability, known, take};
pub use claimed::{blocked, prefetch, reserve};
pub use entry::{Entry, How};
pub use held::Waits;
pub(crate) use held::most_locks;
pub use held::{Held, HeldAt, LockAt, MAX_LOCKS_BYTES, Spot, has_room};
pub use list::{Behind, Kind, Running, Which, list, list_by_place, running, running_of};
pub use rows::{AllOf, HolderRow, QueueRow, Waiter};
pub(crate) use rows::{of_pending_value, pending_value, release, unreserve};
pub use running::{Asked, blockers_of_run, may_request, poll, release_some, request, withdraw};
pub use search::Blocked;
