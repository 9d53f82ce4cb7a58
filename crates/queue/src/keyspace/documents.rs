//! The keys of `_replicator` databases and their documents: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// A `_replicator` database.
    pub fn database(&self, db: &str) -> Bytes {
        pack(&self.space, &("databases", db))
    }

    /// All `_replicator` databases, by name.
    pub fn databases(&self) -> KeyRange {
        children(&self.space, &("databases",))
    }

    /// The update sequence of a database.
    pub fn sequence(&self, db: &str) -> Bytes {
        pack(&self.space, &("sequence", db))
    }

    /// The head of a document.
    pub fn document(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("documents", db, id))
    }

    /// The heads of all documents of a database, by id.
    pub fn documents(&self, db: &str) -> KeyRange {
        children(&self.space, &("documents", db))
    }

    /// The n-th piece of a document's body.
    pub fn body_piece(&self, db: &str, id: &str, n: u32) -> Bytes {
        pack(&self.space, &("bodies", db, id, n))
    }

    /// All pieces of a document's body.
    pub fn body(&self, db: &str, id: &str) -> KeyRange {
        children(&self.space, &("bodies", db, id))
    }

    /// The bodies of all documents of a database.
    pub fn bodies(&self, db: &str) -> KeyRange {
        children(&self.space, &("bodies", db))
    }

    /// A `_local` document.
    pub fn local(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("local", db, id))
    }

    /// All `_local` documents of a database.
    pub fn locals(&self, db: &str) -> KeyRange {
        children(&self.space, &("local", db))
    }

    /// The change with this sequence number.
    pub fn change(&self, db: &str, sequence: i64) -> Bytes {
        pack(&self.space, &("changes", db, sequence))
    }

    /// All changes of a database, oldest first.
    pub fn changes(&self, db: &str) -> KeyRange {
        children(&self.space, &("changes", db))
    }

    /// The state of a document's replication.
    pub fn replication(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("replications", db, id))
    }

    /// The states of the replications of one database, by document id.
    pub fn replications(&self, db: &str) -> KeyRange {
        children(&self.space, &("replications", db))
    }

    /// Database and document id of a key of [`Keyspace::replications`].
    pub fn parse_replication(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, db, id): (String, String, String) = self.space.unpack(key).ok()?;
        Some((db, id))
    }

    /// The row of a database that mirrors one of an upstream CouchDB.
    pub fn mirror(&self, db: &str) -> Bytes {
        pack(&self.space, &("mirror", db))
    }

    /// All other rows of a mirror.
    pub fn mirror_details(&self, db: &str) -> KeyRange {
        children(&self.space, &("mirror", db))
    }

    /// The upstream's revision that a mirrored document has.
    pub fn mirror_seen(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("mirror", db, "seen", id))
    }

    /// The row of a mirrored document whose state must still be written back.
    pub fn mirror_owed(&self, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("mirror", db, "owed", id))
    }

    /// All states of a mirror that must still be written back, by document id.
    pub fn mirror_all_owed(&self, db: &str) -> KeyRange {
        children(&self.space, &("mirror", db, "owed"))
    }

    /// Document id of a key of [`Keyspace::mirror_all_owed`].
    pub fn parse_mirror_owed(&self, key: &[u8]) -> Option<String> {
        let (_, _, _, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some(id)
    }

    /// A document whose replication id must still be computed.
    pub fn unresolved_entry(&self, due_us: i64, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("unresolved", due_us, db, id))
    }

    /// All documents whose replication ids must still be computed, earliest due first.
    pub fn unresolved(&self) -> KeyRange {
        children(&self.space, &("unresolved",))
    }

    /// Due time, database and document id of a key of [`Keyspace::unresolved`].
    pub fn parse_unresolved(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, due_us, db, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((due_us, db, id))
    }

    /// Changes whenever a row is added to [`Keyspace::unresolved`].
    pub fn unresolved_wake(&self) -> Bytes {
        pack(&self.space, &("unresolved_wake",))
    }

    /// A document whose job depends on the code of a filter function.
    pub fn filter_check(&self, due_us: i64, db: &str, id: &str) -> Bytes {
        pack(&self.space, &("filter_checks", due_us, db, id))
    }

    /// All documents whose filter functions are checked again, earliest due first.
    pub fn filter_checks(&self) -> KeyRange {
        children(&self.space, &("filter_checks",))
    }

    /// Due time, database and document id of a key of [`Keyspace::filter_checks`].
    pub fn parse_filter_check(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, due_us, db, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((due_us, db, id))
    }

    /// Document id of a key of [`Keyspace::documents`].
    pub fn parse_document(&self, key: &[u8]) -> Option<String> {
        self.parse_job(key)
    }

    /// Database name of a key of [`Keyspace::databases`].
    pub fn parse_database(&self, key: &[u8]) -> Option<String> {
        let (_, db): (String, String) = self.space.unpack(key).ok()?;
        Some(db)
    }
}
