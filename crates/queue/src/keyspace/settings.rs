//! The keys of settings that servers share: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// A setting that all servers share.
    pub fn config_entry(&self, section: &str, key: &str) -> Bytes {
        pack(&self.space, &("config", section, key))
    }

    /// All settings that servers share, by section.
    pub fn config(&self) -> KeyRange {
        children(&self.space, &("config",))
    }

    /// Section and name of a key of [`Keyspace::config`].
    pub fn parse_config(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, section, key): (String, String, String) = self.space.unpack(key).ok()?;
        Some((section, key))
    }

    /// The versionstamp of the settings that servers share.
    pub fn config_versionstamp(&self) -> Bytes {
        pack(&self.space, &("config_vs",))
    }
}
