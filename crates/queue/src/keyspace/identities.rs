//! The keys of users, of tokens and of sealing: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// A user.
    pub fn user(&self, name: &str) -> Bytes {
        pack(&self.space, &("users", name))
    }

    /// All users, by name.
    pub fn users(&self) -> KeyRange {
        children(&self.space, &("users",))
    }

    /// A token.
    pub fn token(&self, id: &str) -> Bytes {
        pack(&self.space, &("tokens", id))
    }

    /// All tokens, by id.
    pub fn tokens(&self) -> KeyRange {
        children(&self.space, &("tokens",))
    }

    /// When a token was last used.
    pub fn token_use(&self, id: &str) -> Bytes {
        pack(&self.space, &("token_uses", id))
    }

    /// The name of a key of [`Keyspace::users`], or the id of a key of [`Keyspace::tokens`].
    pub fn parse_identity(&self, key: &[u8]) -> Option<String> {
        let (_, name): (String, String) = self.space.unpack(key).ok()?;
        Some(name)
    }

    /// The key that signs sessions.
    pub fn session_key(&self) -> Bytes {
        pack(&self.space, &("session_key",))
    }

    /// The versionstamp of users and tokens.
    pub fn identities_versionstamp(&self) -> Bytes {
        pack(&self.space, &("identities_vs",))
    }

    /// The mark of a store with sealed rows.
    pub fn sealed(&self) -> Bytes {
        pack(&self.space, &("sealed",))
    }

    /// All rows of a family.
    pub fn family_range(&self, family: &str) -> KeyRange {
        let (begin, end) = children(&self.space, &(family,));
        // A family may be one row, whose key has no further elements.
        (pack(&self.space, &(family,)).min(begin), end)
    }
}
