//! Locks that hold, as rows.
//!
//! *Model.* What a job declares ([`Requests`](turnwise_policy::predictive_queue::locks::Requests)) and knows, it takes with its claim, all or nothing ([`crate::claims::claim_with`]): one that
//! cannot have it stays pending and holds nothing. What it finds out, it asks for while it runs ([`request`]), and waits for under its
//! claim, first come first served at each lock. All of it goes with the claim, in the transaction that ends it; nobody else takes
//! it away, and a stale claim changes nothing. A job that was kept from its claim for too long [`reserve`]s.
//!
//! *Nobody waits in a circle.* Who holds nothing is waited for by nobody, so any claim may be refused. Who runs waits for a lock
//! only if it comes after all that it holds, and holders do so, too; all of a level, once held, comes after each of its
//! resources. Reservations keep claims only. And who waits for something of a level, and holds nothing there, keeps nobody who does: that one may be
//! whom it waits for.
//!
//! *Rows.* Holders of each mode are apart, so that who shares reads nothing that others who share write. Keys have the
//! names of levels, never their order.

mod claimed;
mod held;
mod list;
mod rows;
mod running;
mod search;
mod told;

pub(crate) use claimed::{Known, known, take};
pub use claimed::{blocked, reserve};
pub(crate) use held::most_locks;
pub use held::{Held, HeldAt, LockAt, MAX_LOCKS_BYTES, Spot, has_room};
pub use list::{Behind, Entry, Kind, Running, Which, list, list_by_place, running, running_of};
pub use rows::{AllOf, HolderRow, QueueRow, Waiter, Waits};
pub(crate) use rows::{of_pending_value, pending_value, release, unreserve};
pub use running::{Asked, poll, release_some, request, withdraw};
pub use search::{Blocked, Blocker, How};
pub use told::{in_the_way, may_ask};
