//! Revisions: `N-hash`, equal for equal histories.

use std::fmt;
use std::str::FromStr;

use md5::{Digest, Md5};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Error;

/// The longest hash that is accepted from a client. CouchDB's have 32 digits.
const MAX_HASH_BYTES: usize = 64;
/// The largest generation with which a client may begin a new document. It is far beyond the number of writes of any
/// document. It is also far below an overflow, so that later generations can be counted, stored and read.
pub(super) const MAX_FIRST_GENERATION: u64 = 1 << 52;

/// A document's revision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The number of writes that led to it, 1 for the first.
    pub generation: u64,
    /// 32 hexadecimal digits if this server created it.
    pub hash: String,
}

impl Revision {
    /// The revision that a write creates from `parent`: the MD5 of the parent's hash, of whether it deletes, and of the
    /// body. Two servers with the same writes have the same revisions.
    pub fn next(parent: Option<&Revision>, deleted: bool, body: &[u8]) -> Self {
        let mut digest = Md5::new();
        digest.update(parent.map_or("", |parent| parent.hash.as_str()));
        digest.update([0, u8::from(deleted)]);
        digest.update(body);
        let hash = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Revision { generation: parent.map_or(1, |parent| parent.generation.saturating_add(1)), hash }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.generation, self.hash)
    }
}

impl FromStr for Revision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::Invalid("Invalid rev format".to_owned());
        let (generation, hash) = text.split_once('-').ok_or_else(invalid)?;
        // Any generation is valid here, because stored rows are parsed as well.
        let generation: u64 = generation.parse().map_err(|_| invalid())?;
        let known = hash.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if generation == 0 || hash.is_empty() || hash.len() > MAX_HASH_BYTES || !known {
            return Err(invalid());
        }
        Ok(Revision { generation, hash: hash.to_owned() })
    }
}

impl Serialize for Revision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Revision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
