//! Errors of replicator databases, grouped by what the client does next.

use turnwise_store::{Error as StoreError, MaybeStoreError};

/// A result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a database or a document could not be read or written. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An error of the store or the queue, with its own groups.
    #[error(transparent)]
    Queue(#[from] turnwise_queue::Error),
    /// The database does not exist.
    #[error("Database does not exist.")]
    NoDatabase,
    /// The database already exists.
    #[error("The database could not be created, the file already exists.")]
    DatabaseExists,
    /// No database can have this name.
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, \
         and / are allowed. Must begin with a letter."
    )]
    IllegalName(String),
    /// The name is valid for a database of CouchDB, but not for one of turnwise.
    #[error(
        "turnwise holds replicator databases only: `_replicator`, and names that end in `/_replicator`. \
         '{0}' is neither; ordinary databases stay on the CouchDB servers between which turnwise replicates."
    )]
    NotReplicator(String),
    /// The database mirrors one of an upstream CouchDB; only the upstream's database may be written to.
    #[error(
        "this database mirrors one of the upstream CouchDB, and follows it: write to that server, to the database whose name is \
         this one without `upstream/`"
    )]
    Mirror,
    /// The document does not exist, or not in this revision.
    #[error("missing")]
    Missing,
    /// The document was deleted.
    #[error("deleted")]
    Deleted,
    /// The write does not name the document's current revision. Read the document and try again.
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
    /// A member that starts with `_` and has no meaning.
    #[error("Bad special document member: {0}")]
    SpecialMember(String),
    /// The document requests a replication that is impossible; the text names the field. CouchDB forbids such documents.
    #[error("{0}")]
    Refused(String),
    /// The document or the request is invalid in another way, which the text states.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// An invalid field of a document.
    pub fn field(error: turnwise_outbound::FieldError) -> Self {
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

/// A row that cannot be parsed.
pub(crate) fn corrupt(what: &str, error: impl std::fmt::Display) -> turnwise_queue::Error {
    turnwise_queue::Error::Store(StoreError::Corrupt(format!("{what}: {error}")))
}
