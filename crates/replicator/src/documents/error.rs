//! What can go wrong with a replicator database, sorted by what its client does next.

use turnwise_store::{Error as StoreError, MaybeStoreError};

/// A result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a database or a document could not be read or written. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The store's or the queue's; its own order says what to do.
    #[error(transparent)]
    Queue(#[from] turnwise_queue::Error),
    /// There is no such database.
    #[error("Database does not exist.")]
    NoDatabase,
    /// The database is there already.
    #[error("The database could not be created, the file already exists.")]
    DatabaseExists,
    /// No database can have this name.
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, \
         and / are allowed. Must begin with a letter."
    )]
    IllegalName(String),
    /// A fine name for a database of CouchDB, but not for one of turnwise.
    #[error(
        "turnwise holds replicator databases only: `_replicator`, and names that end in `/_replicator`. \
         '{0}' is neither; ordinary databases stay on the CouchDB servers between which turnwise replicates."
    )]
    NotReplicator(String),
    /// The database mirrors one of an upstream CouchDB: only that one may be written to.
    #[error(
        "this database mirrors one of the upstream CouchDB, and follows it: write to that server, to the database whose name is \
         this one without `upstream/`"
    )]
    Mirror,
    /// There is no such document, or not in this revision.
    #[error("missing")]
    Missing,
    /// The document was deleted.
    #[error("deleted")]
    Deleted,
    /// The write does not name the document's current revision. Read it and try again.
    #[error("Document update conflict.")]
    Conflict,
    /// The body exceeds [`MAX_BODY_BYTES`](super::MAX_BODY_BYTES).
    #[error("{id}: the document has {size} bytes; at most {limit} are allowed")]
    TooLarge {
        /// The document.
        id: String,
        /// The size of its body, in bytes.
        size: usize,
        /// The size allowed, in bytes.
        limit: usize,
    },
    /// No document can have this id.
    #[error("{0}")]
    IllegalId(&'static str),
    /// A member that starts with `_` and means nothing.
    #[error("Bad special document member: {0}")]
    SpecialMember(String),
    /// The document asks for a replication that there cannot be; the text names the field. CouchDB forbids such documents.
    #[error("{0}")]
    Refused(String),
    /// The document, or the request, is wrong in another way; the text says in which.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// A field of a document has a problem.
    pub fn field(error: crate::SpecError) -> Self {
        Error::Refused(format!("{}: {}", error.field, error.problem))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Error::Queue(error.into())
    }
}

impl MaybeStoreError for Error {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Error::Queue(error) => error.store_error(),
            _ => None,
        }
    }
}

/// A row that cannot be understood.
pub(crate) fn corrupt(what: &str, error: impl std::fmt::Display) -> turnwise_queue::Error {
    turnwise_queue::Error::Store(StoreError::Corrupt(format!("{what}: {error}")))
}
