//! The keys of locks: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};
use crate::locks::Spot;

const EXCLUSIVE: &str = "exclusive";
const SHARED: &str = "shared";

/// A key of [`Keyspace::locks`].
type LockKey = (String, Option<String>, String, Option<String>, String, String);
/// A key of [`Keyspace::lock_queues`].
type QueueKey = (String, Option<String>, Option<String>, i64, String, String);

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => EXCLUSIVE,
        Mode::Shared => SHARED,
    }
}

impl Keyspace {
    /// The row of a job that holds a lock.
    pub fn lock_holder(&self, spot: &Spot, mode: Mode, job_type: &str, id: &str) -> Bytes {
        let Spot { level, name } = spot;
        pack(&self.space, &("locks", level.as_deref(), mode_name(mode), name.as_deref(), job_type, id))
    }

    /// The holders of a lock in this mode.
    pub fn lock_holders(&self, spot: &Spot, mode: Mode) -> KeyRange {
        let Spot { level, name } = spot;
        children(&self.space, &("locks", level.as_deref(), mode_name(mode), name.as_deref()))
    }

    /// The jobs of a type that hold the big lock in this mode.
    pub fn big_lock_holders_of(&self, mode: Mode, job_type: &str) -> KeyRange {
        let none = None::<&str>;
        children(&self.space, &("locks", none, mode_name(mode), none, job_type))
    }

    /// The holders of any lock of a level in this mode.
    pub fn lock_holders_at(&self, level: &str, mode: Mode) -> KeyRange {
        children(&self.space, &("locks", Some(level), mode_name(mode)))
    }

    /// The holders of all locks: the big lock first, then by level.
    pub fn locks(&self) -> KeyRange {
        children(&self.space, &("locks",))
    }

    /// Lock, mode, job type and id of a key of [`Keyspace::locks`].
    pub fn parse_lock(&self, key: &[u8]) -> Option<(Spot, Mode, String, String)> {
        let (_, level, mode, name, job_type, id): LockKey = self.space.unpack(key).ok()?;
        let mode = match mode.as_str() {
            EXCLUSIVE => Mode::Exclusive,
            SHARED => Mode::Shared,
            _ => return None,
        };
        Some((Spot::new(level, name)?, mode, job_type, id))
    }

    /// The row of a job that waits for a lock, or has reserved it.
    pub fn lock_queue_entry(&self, spot: &Spot, ticket: i64, job_type: &str, id: &str) -> Bytes {
        let Spot { level, name } = spot;
        pack(&self.space, &("lock_queue", level.as_deref(), name.as_deref(), ticket, job_type, id))
    }

    /// The queue of a lock, in the order of tickets.
    pub fn lock_queue(&self, spot: &Spot) -> KeyRange {
        let Spot { level, name } = spot;
        children(&self.space, &("lock_queue", level.as_deref(), name.as_deref()))
    }

    /// The queues of all locks of a level.
    pub fn lock_queues_at(&self, level: &str) -> KeyRange {
        children(&self.space, &("lock_queue", Some(level)))
    }

    /// The queues of all locks: the big lock first, then by level and name.
    pub fn lock_queues(&self) -> KeyRange {
        children(&self.space, &("lock_queue",))
    }

    /// Lock, ticket, job type and id of a key of [`Keyspace::lock_queues`].
    pub fn parse_lock_queue(&self, key: &[u8]) -> Option<(Spot, i64, String, String)> {
        let (_, level, name, ticket, job_type, id): QueueKey = self.space.unpack(key).ok()?;
        Some((Spot::new(level, name)?, ticket, job_type, id))
    }

    /// Changes whenever a job may get a lock that it could not get before.
    pub fn lock_wake(&self) -> Bytes {
        pack(&self.space, &("lock_wake",))
    }
}
