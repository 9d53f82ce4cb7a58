//! The ordered transactional key-value store that holds all of turnwise's rows.
//!
//! An [`Engine`] offers three things: a consistent snapshot, a commit that checks what was read and writes all or nothing,
//! and a watch. Everything else is built on these three and is the same for every engine. A [`Transaction`] reads its own
//! writes, collects conflicts and checks limits. [`Store::transact`] is the retry loop. Keys are tuples in FoundationDB's
//! encoding ([`key`]) and values are JSON, so any client of a distributed engine can read them.
//!
//! ```text
//!   queue, worker, …           Store::transact(|tx| …)        retry
//!        │                            │
//!        ▼                            ▼
//!   Transaction: own writes over a snapshot, conflict keys and ranges, limits
//!        │                            │
//!        ▼                            ▼
//!   Engine: snapshot · commit · watch         embedded/ (one process), etcd/, foundationdb/ (many)
//! ```

mod appends;
mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod counters;
pub mod embedded;
mod engine;
mod error;
pub mod etcd;
#[cfg(feature = "foundationdb")]
pub mod foundationdb;
pub mod key;
pub mod metrics;
mod open;
mod retry;
pub mod runtime;
mod sealed;
mod sum;
mod sync;
mod transaction;
mod url;

pub use appends::Appended;
pub use clock::Clock;
pub use counters::{Condition, Counters, Meter};
pub use engine::{Changes, Engine, KeyValue, Limits, RangeRead, Snapshot, Step, Versionstamp, Visit, Watch};
pub use error::{Error, Result};
pub use foundationdb_tuple as tuple;
pub use open::{open, open_to_read, open_with};
pub use retry::{MaybeStoreError, Store};
pub use runtime::Runtime;
pub use sealed::{Seal, Sealing};
pub use sum::Sum;
pub use transaction::{Isolation, Proof, Transaction};
pub use url::{DEFAULT_PREFIX, EtcdUrl, InvalidUrl, StoreUrl};
