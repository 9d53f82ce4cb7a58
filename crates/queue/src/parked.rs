//! What a parked job waits for.

use serde::{Deserialize, Serialize};

/// What a parked job waits for: a change of `key`, as reported by the watcher of `group`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Parked {
    /// What is watched as a unit, such as a server.
    pub group: String,
    /// What changes within the group, such as a database.
    pub key: String,
}
