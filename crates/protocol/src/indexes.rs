//! The indexes of CouchDB servers that turnwise keeps up to date.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::State;
use crate::word::words;

/// A page of indexes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Indexes {
    /// The indexes, by server, database, design document and kind.
    pub indexes: Vec<Index>,
    /// The `after` of the next page; missing on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The indexes of one kind in one design document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "couch:5984/acme%2Forders/by-date/views", "server": "couch:5984", "database": "acme/orders", "design": "by-date",
    "kind": "views", "tenant": "acme", "state": "delayed", "parked": true, "changes_behind": 0, "seconds_behind": 0,
    "built": { "began_us": 1_763_734_800_000_000_i64, "ended_us": 1_763_734_802_000_000_i64, "took_ms": 1_950, "changes": 4_000,
        "seq": 81_200, "size_bytes": 1_220_000 }
}))]
pub struct Index {
    /// The id of its job, of type `indexing`.
    pub id: String,
    /// The server: the host, port and path of its URL.
    pub server: String,
    /// The database.
    pub database: String,
    /// The design document, without `_design/`.
    pub design: String,
    /// The kind.
    pub kind: IndexKind,
    /// The tenant that its builds are charged to.
    pub tenant: String,
    /// The state of its job.
    pub state: State,
    /// Whether its job waits for a change of the database: the index had everything when the job ended.
    pub parked: bool,
    /// How many changes of the database it lacks, by the update sequences. Missing if the server did not answer in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_behind: Option<u64>,
    /// The age of the oldest change that it lacks, at most, in seconds; 0 if it lacks none. Missing if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_behind: Option<u64>,
    /// Its last complete build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built: Option<IndexBuilt>,
    /// How far the build is that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub building: Option<IndexBuilding>,
    /// Why the last build failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

words! {
    /// A kind of indexes.
    pub enum IndexKind {
        /// Views.
        Views = "views",
        /// The indexes of `_find`.
        Mango = "mango",
        /// `_search`
        Search = "search",
        /// `_nouveau`
        Nouveau = "nouveau",
    }
}

/// A complete build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexBuilt {
    /// When it began, in µs since the Unix epoch: the index has everything that was written before.
    pub began_us: i64,
    /// When it ended.
    pub ended_us: i64,
    /// How long the server built, in ms.
    pub took_ms: u64,
    /// How many changes the index lacked before, on all copies of all shards; 0 if the server does not tell.
    pub changes: u64,
    /// The number in the database's update sequence when it began.
    pub seq: u64,
    /// The size of the index on the server's disk, in bytes; 0 if the server does not tell.
    pub size_bytes: u64,
}

/// How far a build is, as the server's `_active_tasks` tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexBuilding {
    /// The changes that it has read.
    pub done: u64,
    /// The changes that it reads.
    pub total: u64,
    /// When it will end at its present speed, in µs since the Unix epoch; missing if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_us: Option<i64>,
}
