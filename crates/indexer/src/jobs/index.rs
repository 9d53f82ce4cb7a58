//! An index, its job, and what is known about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use turnwise_policy::predictive_queue::locks::{AtLevel, Request, Requests};
use turnwise_queue::parking::MAX_TOKEN_BYTES;
use turnwise_queue::{Job, JobSpec, MAX_ID_BYTES, NewJob, Parked};
use turnwise_replicator::{Seq, encode};

use super::{JOB_TYPE, LEVEL};
use crate::Kind;

/// The token of a job whose index must be built whatever its database has.
const NOTHING: &str = "none";

/// The indexes of one kind in one design document. The options of its job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Index {
    /// The server's name.
    pub server: String,
    /// The database.
    pub database: String,
    /// The design document, without `_design/`.
    pub design: String,
    /// The kind.
    pub kind: Kind,
}

/// What may be shown of its job: the index, and the revision of the design document that the job was added for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The index.
    #[serde(flatten)]
    pub index: Index,
    /// The revision.
    pub rev: String,
}

/// What is known about an index: the report of its job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The last build that was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
    /// The build that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub building: Option<Building>,
    /// Why the last build was interrupted, if the server gave no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many builds in a row were interrupted in this way.
    pub interrupted: u32,
}

/// A completed build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Built {
    /// When it began, in µs: the index has everything that was written before.
    pub began_us: i64,
    /// When it ended, in µs.
    pub ended_us: i64,
    /// How long the server built, in ms.
    pub took_ms: u64,
    /// How many changes the index lacked before, on all copies of all shards; 0 if the server does not tell.
    pub changes: u64,
    /// The database's update sequence at its beginning, as a number.
    pub seq: u64,
    /// The index's size on the disk, in bytes.
    pub size_bytes: u64,
}

/// A build that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Building {
    /// The changes that it has read, of `total`.
    pub done: u64,
    /// The changes that it reads.
    pub total: u64,
    /// When it will end, in µs, at its present speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_us: Option<i64>,
}

impl Index {
    /// The id of its job; `None` if that would be too long.
    pub fn id(&self) -> Option<String> {
        let Index { server, database, design, kind } = self;
        let id = format!("{server}/{}/{}/{}", encode(database), encode(design), kind.name());
        (id.len() <= MAX_ID_BYTES).then_some(id)
    }

    /// Where its job parks.
    pub fn place(&self) -> Parked {
        Parked { group: self.server.clone(), key: self.database.clone() }
    }

    /// Its job; `None` if a name is too long for one.
    pub fn job(&self, tenant: String, rev: &str) -> Option<NewJob> {
        let summary = Summary { index: self.clone(), rev: rev.to_owned() };
        let unit = Request::Shared([(self.server.clone(), 1)].into());
        let spec = JobSpec {
            tenant,
            summary: to_raw_value(&summary).ok()?,
            locks: Requests {
                big_lock: false,
                levels: BTreeMap::from([(LEVEL.to_owned(), AtLevel::new([unit]).ok()?)]),
            },
            ..JobSpec::default()
        };
        Some(NewJob { spec, ..NewJob::new(JOB_TYPE, &self.id()?, to_raw_value(self).ok()?) })
    }
}

impl Summary {
    /// The summary of a job.
    pub fn of(job: &Job) -> Option<Summary> {
        serde_json::from_str(job.summary.get()).ok()
    }
}

impl Info {
    /// The report of a job; empty if it has none.
    pub fn of(info: Option<&RawValue>) -> Info {
        info.and_then(|info| serde_json::from_str(info.get()).ok()).unwrap_or_default()
    }
}

/// The token of a job whose index has everything up to `seq`; without `seq`, of one that must be built.
pub(super) fn token(seq: Option<&Seq>) -> String {
    let Some(seq) = seq else { return NOTHING.to_owned() };
    let text = seq.to_string();
    if text.len() <= MAX_TOKEN_BYTES {
        return text;
    }
    // The sequence of a database with very many shards. It is only compared.
    format!("{:016x}", hash(text.as_bytes()))
}

/// FNV-1a.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_job_tells_its_index() {
        let index = Index {
            server: "couch:5984".into(),
            database: "acme/orders".into(),
            design: "by date".into(),
            kind: Kind::Views,
        };
        assert_eq!(index.id().as_deref(), Some("couch:5984/acme%2Forders/by%20date/views"));
        assert_eq!(Index { design: "x".repeat(600), ..index.clone() }.id(), None);
        let job = index.job("acme".into(), "1-a").expect("a job");
        assert_eq!(serde_json::from_str::<Index>(job.options.get()).expect("options"), index);
        assert_eq!(
            job.locks.levels[LEVEL].requests()[0],
            &Request::Shared([("couch:5984".into(), 1)].into())
        );
    }

    #[test]
    fn a_token_fits_however_long_the_sequence_is() {
        let seq = Seq::from(&serde_json::json!("5-abc"));
        assert_eq!(token(Some(&seq)), "\"5-abc\"");
        assert_eq!(token(None), "none");
        let long =
            |end: &str| token(Some(&Seq::from(&serde_json::json!(format!("{}{end}", "9".repeat(9_000))))));
        assert!(long("a").len() == 16 && long("a") != long("b"));
    }
}
