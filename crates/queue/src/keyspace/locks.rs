//! The keys of locks: a part of [`Keyspace`].

use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_store::Result;
use turnwise_store::tuple::Element;

use super::Keyspace;
use crate::locks::Spot;

const EXCLUSIVE: &str = "exclusive";
const SHARED: &str = "shared";

/// A key of [`Keyspace::locks`].
type LockKey<'a> = (Element<'a>, Option<String>, String, Option<String>, String, String);
/// A key of [`Keyspace::lock_queues`].
type QueueKey<'a> = (Element<'a>, Option<String>, Option<String>, i64, String, String);

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => EXCLUSIVE,
        Mode::Shared => SHARED,
    }
}

impl Keyspace {
    /// Lock, mode, job type and id of a key of [`Keyspace::locks`].
    pub fn parse_lock(&self, key: &[u8]) -> Result<(Spot, Mode, String, String)> {
        let (_, level, mode, name, job_type, id): LockKey<'_> = self.read(key)?;
        let mode = match mode.as_str() {
            EXCLUSIVE => Mode::Exclusive,
            SHARED => Mode::Shared,
            _ => return Err(self.unreadable(key)),
        };
        Ok((Spot::new(level, name).ok_or_else(|| self.unreadable(key))?, mode, job_type, id))
    }

    /// Lock, ticket, job type and id of a key of [`Keyspace::lock_queues`].
    pub fn parse_lock_queue(&self, key: &[u8]) -> Result<(Spot, i64, String, String)> {
        let (_, level, name, ticket, job_type, id): QueueKey<'_> = self.read(key)?;
        Ok((Spot::new(level, name).ok_or_else(|| self.unreadable(key))?, ticket, job_type, id))
    }
}
