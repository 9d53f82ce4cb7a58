//! The keys of claims, workers and runs: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// The number of a worker's latest claim.
    pub fn claim_number(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("claims", job_type, worker))
    }

    /// What a worker reports about one of its jobs.
    pub fn active_entry(&self, job_type: &str, worker: &str, id: &str) -> Bytes {
        pack(&self.space, &("active", job_type, worker, id))
    }

    /// The jobs of one worker.
    pub fn active_of(&self, job_type: &str, worker: &str) -> KeyRange {
        children(&self.space, &("active", job_type, worker))
    }

    /// The jobs of all workers of a type.
    pub fn active(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("active", job_type))
    }

    /// The jobs of all workers of all types.
    pub fn all_active(&self) -> KeyRange {
        children(&self.space, &("active",))
    }

    /// Type, worker and job id of a key of [`Keyspace::all_active`].
    pub fn parse_all_active(&self, key: &[u8]) -> Option<(String, String, String)> {
        let (_, job_type, worker, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((job_type, worker, id))
    }

    /// Worker and job id of a key of [`Keyspace::active`].
    pub fn parse_active(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, _, worker, id): (String, String, String, String) = self.space.unpack(key).ok()?;
        Some((worker, id))
    }

    /// The row of a run that servers check at a time.
    pub fn deadline(&self, at_us: i64, job_type: &str, id: &str) -> Bytes {
        pack(&self.space, &("deadlines", at_us, job_type, id))
    }

    /// The runs that servers must check up to `until_us`, earliest first.
    pub fn deadlines_until(&self, until_us: i64) -> KeyRange {
        let (begin, _) = children(&self.space, &("deadlines",));
        (begin, children(&self.space, &("deadlines", until_us)).1)
    }

    /// Time, job type and id of a key of [`Keyspace::deadlines_until`].
    pub fn parse_deadline(&self, key: &[u8]) -> Option<(i64, String, String)> {
        let (_, at_us, job_type, id): (String, i64, String, String) = self.space.unpack(key).ok()?;
        Some((at_us, job_type, id))
    }

    /// Changes whenever there may be a job to start.
    pub fn wake(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("wake", job_type))
    }

    /// Changes whenever a job of this worker must stop.
    pub fn signal(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("signal", job_type, worker))
    }

    /// A registered worker.
    pub fn worker(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("workers", job_type, worker))
    }

    /// All registered workers of a type, sorted by id.
    pub fn workers(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("workers", job_type))
    }

    /// Worker id of a key of [`Keyspace::workers`].
    pub fn parse_worker(&self, key: &[u8]) -> Option<String> {
        self.parse_job(key)
    }

    /// A worker's health counter.
    pub fn health(&self, job_type: &str, worker: &str) -> Bytes {
        pack(&self.space, &("health", job_type, worker))
    }

    /// The health counters of all workers of a type, sorted by worker id.
    pub fn healths(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("health", job_type))
    }

    /// The health counters of all workers of all types.
    pub fn all_healths(&self) -> KeyRange {
        children(&self.space, &("health",))
    }

    /// Job type and worker id of a key of [`Keyspace::healths`].
    pub fn parse_health(&self, key: &[u8]) -> Option<(String, String)> {
        let (_, job_type, worker): (String, String, String) = self.space.unpack(key).ok()?;
        Some((job_type, worker))
    }

    /// The versionstamp of the membership.
    pub fn workers_versionstamp(&self, job_type: &str) -> Bytes {
        pack(&self.space, &("workers_vs", job_type))
    }

    /// The versionstamps of the memberships of all types.
    pub fn all_memberships(&self) -> KeyRange {
        children(&self.space, &("workers_vs",))
    }
}
