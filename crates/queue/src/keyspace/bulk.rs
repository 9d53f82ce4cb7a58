//! The keys of bulk operations: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack, successor};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// A bulk operation.
    pub fn bulk(&self, id: &str) -> Bytes {
        pack(&self.space, &("bulk", id))
    }

    /// All bulk operations, by id.
    pub fn bulks(&self) -> KeyRange {
        children(&self.space, &("bulk",))
    }

    /// The bulk operations with ids after `id`.
    pub fn bulks_after(&self, id: &str) -> KeyRange {
        (successor(&self.bulk(id)), self.bulks().1)
    }

    /// The id of a key of [`Keyspace::bulks`].
    pub fn parse_bulk(&self, key: &[u8]) -> Option<String> {
        let (_, id): (String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// The id of a bulk operation whose record is gone, and the identity that began it.
    pub fn bulk_used(&self, by: Option<&str>, id: &str) -> Bytes {
        pack(&self.space, &("bulk_used", by, id))
    }

    /// All of these.
    pub fn bulks_used(&self) -> KeyRange {
        children(&self.space, &("bulk_used",))
    }

    /// The identity and the id of a key of [`Keyspace::bulks_used`].
    pub fn parse_bulk_used(&self, key: &[u8]) -> Option<(Option<String>, String)> {
        let (_, by, id): (String, Option<String>, String) = self.space.unpack(key).ok()?;
        Some((by, id))
    }

    /// Changes whenever a bulk operation begins.
    pub fn bulk_wake(&self) -> Bytes {
        pack(&self.space, &("bulk_wake",))
    }
}
