//! The keys of fleets: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// What a fleet has reported.
    pub fn fleet(&self, name: &str) -> Bytes {
        pack(&self.space, &("fleets", name))
    }

    /// All fleets, by name.
    pub fn fleets(&self) -> KeyRange {
        children(&self.space, &("fleets",))
    }

    /// The name of a key of [`Keyspace::fleets`].
    pub fn parse_fleet(&self, key: &[u8]) -> Option<String> {
        let (_, name): (String, String) = self.space.unpack(key).ok()?;
        Some(name)
    }
}
