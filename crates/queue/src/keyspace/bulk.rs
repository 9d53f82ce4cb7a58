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

    /// Changes whenever a bulk operation begins.
    pub fn bulk_wake(&self) -> Bytes {
        pack(&self.space, &("bulk_wake",))
    }
}
