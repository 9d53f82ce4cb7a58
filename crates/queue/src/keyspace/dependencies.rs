//! The keys of dependencies between jobs: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// The row of a blocked job.
    pub fn blocked_entry(&self, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("blocked", job_type, id))
    }

    /// The blocked jobs of a type, by id.
    pub fn blocked(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("blocked", job_type))
    }

    /// Job id of a key of [`Keyspace::blocked`].
    pub fn parse_blocked(&self, key: &[u8]) -> Option<String> {
        let (_, _, id): (String, String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// The row of one dependency of a job.
    pub fn after_entry(&self, job_type: &str, id: &str, on: (&str, &str)) -> Bytes {
        pack(&self.space, &("after", job_type, id, on.0, on.1))
    }

    /// The dependencies of a job, by type and id.
    pub fn after(&self, job_type: &str, id: &str) -> KeyRange {
        children(&self.space, &("after", job_type, id))
    }

    /// Type and id of the dependency that a key of [`Keyspace::after`] names.
    pub fn parse_after(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, _, on_type, on_id): (String, String, String, String, String) =
            self.space.unpack(key).ok()?;
        Some((on_type, on_id))
    }

    /// The row of one dependent of a job.
    pub fn dependents_entry(&self, on: (&str, &str), group: i64, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("dependents", on.0, on.1, group, job_type, id))
    }

    /// The dependents of a job that are in one group.
    pub fn dependents(&self, on: (&str, &str), group: i64) -> KeyRange {
        children(&self.space, &("dependents", on.0, on.1, group))
    }

    /// Type and id of the dependent that a key of [`Keyspace::dependents`] names.
    pub fn parse_dependents(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, _, _, job_type, id): (String, String, String, i64, String, String) =
            self.space.unpack(key).ok()?;
        Some((job_type, id))
    }

    /// The row of a group whose dependents are not all updated yet.
    pub fn unsettled_entry(&self, on: (&str, &str), group: i64) -> Bytes {
        pack(&self.space, &("unsettled", on.0, on.1, group))
    }

    /// All groups whose dependents are not all updated yet.
    pub fn unsettled(&self) -> KeyRange {
        children(&self.space, &("unsettled",))
    }

    /// Type, id and group of a key of [`Keyspace::unsettled`].
    pub fn parse_unsettled(&self, key: &[u8]) -> Option<(String, String, i64)> {
        let (_, on_type, on_id, group): (String, String, String, i64) = self.space.unpack(key).ok()?;
        Some((on_type, on_id, group))
    }

    /// The row on which adds that search for a cycle conflict.
    pub fn after_guard(&self) -> Bytes {
        pack(&self.space, &("after_guard",))
    }

    /// Changes whenever a row is added to [`Keyspace::unsettled`] or [`Keyspace::unmarked`].
    pub fn unsettled_wake(&self) -> Bytes {
        pack(&self.space, &("unsettled_wake",))
    }
}
