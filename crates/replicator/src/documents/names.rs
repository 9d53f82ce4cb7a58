//! The names that databases and documents may have.

use super::{Error, Result};

/// The replicator database that always exists.
pub const REPLICATOR: &str = "_replicator";
/// The suffix of all other replicator databases.
pub const SUFFIX: &str = "/_replicator";
/// The longest name of a database, in bytes, as in CouchDB.
pub const MAX_DATABASE_BYTES: usize = 238;
/// The longest id of a document, in bytes. Keys thus stay far below the store's 10 kB.
pub const MAX_ID_BYTES: usize = 1_024;

/// Whether this is the name of a replicator database.
pub fn is_replicator(db: &str) -> bool {
    db == REPLICATOR
        || db.strip_suffix(SUFFIX).is_some_and(|prefix| is_legal(prefix) && db.len() <= MAX_DATABASE_BYTES)
}

/// The prefix of mirrors.
pub const MIRROR_PREFIX: &str = "upstream/";

/// Whether this is the name of a mirror of an upstream CouchDB's database: `upstream/_replicator`, `upstream/x/_replicator`.
pub fn is_mirror(db: &str) -> bool {
    db.starts_with(MIRROR_PREFIX) && is_replicator(db)
}

/// The upstream's name of a mirrored database.
pub fn without_mirror(db: &str) -> &str {
    db.strip_prefix(MIRROR_PREFIX).unwrap_or(db)
}

/// Checks the name of a database for creation or reading.
///
/// # Errors
/// `IllegalName` if CouchDB rejects the name as well, `NotReplicator` if only turnwise does.
pub fn check_database(db: &str) -> Result<()> {
    let prefix = db.strip_suffix(SUFFIX).unwrap_or(db);
    if is_replicator(db) {
        Ok(())
    } else if db.len() > MAX_DATABASE_BYTES
        || !(is_legal(prefix) || db == "_users" || db == "_global_changes")
    {
        let shown: String = db.chars().take(MAX_DATABASE_BYTES).collect();
        Err(Error::IllegalName(shown))
    } else {
        Err(Error::NotReplicator(db.to_owned()))
    }
}

/// CouchDB's rule: a lowercase letter, then letters, digits and some punctuation.
fn is_legal(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(known)
}

/// Whether the document is a design document, which is stored but has no effect.
pub fn is_design(id: &str) -> bool {
    id.starts_with("_design/")
}

/// Checks the id of a document.
///
/// # Errors
/// `IllegalId`, with CouchDB's message.
pub fn check_id(id: &str) -> Result<()> {
    let design = id.strip_prefix("_design/");
    match id {
        "" => Err(Error::IllegalId("Document id must not be empty")),
        _ if id.len() > MAX_ID_BYTES => {
            Err(Error::IllegalId("Document id is too long: at most 1024 bytes are allowed"))
        }
        _ if design == Some("") => Err(Error::IllegalId("Illegal document id `_design/`")),
        _ if id.starts_with('_') && design.is_none() => {
            Err(Error::IllegalId("Only reserved document ids may start with underscore."))
        }
        _ => Ok(()),
    }
}
