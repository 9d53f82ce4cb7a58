//! A job's locks: those that it holds, those that delay it with the jobs that block them, and its weight.

use async_recursion::async_recursion as boxed;
use turnwise_policy::predictive_queue::locks::Mode;
use turnwise_policy::schedule;
use turnwise_protocol::{LevelWeight, LockWeight, Reason, WhyLocks};
use turnwise_queue::locks::{self, Blocked, Entry, Held, How, LockAt, Spot};
use turnwise_queue::tenants::Pending;
use turnwise_queue::{Job, State, timestamp};
use turnwise_worker::{QueueRules, Weight, weigh};

use crate::shown::{blocker, lock as shown};
use crate::snapshot::Snapshot;
use crate::{Reader, Result, Viewer, position, unknown};

/// Maximum number of blocking jobs in a response.
const MAX_BY: usize = 10;
/// Maximum number of blocking jobs in a sentence.
const MAX_DESCRIBED: usize = 2;
/// Maximum number of held locks in a response.
const MAX_HELD: usize = 100;

/// A job and its locks.
pub(crate) struct Locked {
    rules: std::sync::Arc<QueueRules>,
    blocked: Option<Blocked>,
}

/// Finds the jobs that block a job's locks. `None` for a job that declares no locks, and for one that has ended.
pub(crate) async fn look(reader: &Reader<'_>, job: &Job) -> Result<Option<Locked>> {
    if job.locks.is_none() || job.state().is_final() {
        return Ok(None);
    }
    let rules = reader.rules.queue.clone();
    let (tx, keys, levels) = (reader.tx, reader.keys, &rules.levels);
    let blocked = match job.state() {
        State::Pending => locks::blocked(tx, keys, levels, job, MAX_BY + 1).await?,
        State::Waiting => locks::blockers_of_run(tx, keys, levels, job, MAX_BY + 1).await?,
        _ => None,
    };
    Ok(Some(Locked { rules, blocked }))
}

impl Locked {
    /// Why the job does not start or continue, if a lock is the cause.
    pub fn reason(&self, job: &Job) -> Option<Reason> {
        match (job.state(), &self.blocked) {
            (State::Waiting, _) => Some(Reason::WaitsForLock),
            (State::Pending, Some(blocked)) => {
                let reserved = blocked.by.iter().all(|by| by.how == How::Reserved);
                Some(if reserved { Reason::LockReserved } else { Reason::Locked })
            }
            _ => None,
        }
    }

    /// The reason as a sentence. `runs` states where a running job runs.
    pub fn sentence(&self, viewer: &dyn Viewer, job: &Job, runs: &str) -> String {
        let waits = job.waits().map(|waits| (&waits.lock, waits.since_us));
        let first = match (waits, &self.blocked) {
            (Some((lock, since_us)), _) => {
                format!("{runs}, and has waited for {lock} since {}", timestamp(since_us))
            }
            (None, Some(blocked)) => format!("Starts when it can take {}", blocked.lock),
            (None, None) => return format!("{runs}."),
        };
        let by = self.blocked.iter().flat_map(|blocked| &blocked.by);
        let blockers: Vec<String> = by.clone().take(MAX_DESCRIBED).map(|by| described(viewer, by)).collect();
        let more = match by.count().saturating_sub(blockers.len()) {
            0 => String::new(),
            1 => ", and one more job blocks it".to_owned(),
            more => format!(", and {more} more jobs block it"),
        };
        let because = if blockers.is_empty() { String::new() } else { format!(": {}", blockers.join(", ")) };
        let reserved = match job.reserved() {
            Some(us) => format!(" It reserved its locks at {}.", timestamp(us)),
            None => String::new(),
        };
        format!("{first}{because}{more}.{reserved}")
    }

    /// The sentence about a lock that is free now, but not for this job. The next decision gives the lock to an earlier
    /// job, or reserves it for one. `None` if the job waits for another reason.
    pub fn before(&self, reason: &schedule::HoldReason) -> Option<String> {
        let (obstacle, does) = match reason {
            schedule::HoldReason::Locked(obstacle) => (obstacle, "takes it when it starts"),
            schedule::HoldReason::LockReserved(obstacle) => (obstacle, "reserves it"),
            _ => return None,
        };
        let lock = LockAt::of(&obstacle.wanted, &self.rules.levels)?;
        Some(format!("Starts when it can take {lock}: a job before it {does}."))
    }

    /// All details, for programs.
    #[boxed]
    pub async fn why<'a>(
        self,
        reader: &'a Reader<'a>,
        viewer: &dyn Viewer,
        snapshot: &Snapshot,
        job: &Job,
    ) -> Result<WhyLocks> {
        let pending = job.state() == State::Pending;
        let weight = match pending {
            true => {
                let window = self.window(reader, snapshot, job).await?;
                let weight = weigh(reader.tx, reader.keys, &self.rules, job, &window).await?;
                Some(self.weight(&weight, job, snapshot.now_us))
            }
            false => None,
        };
        let unknown = unknown::look(reader, job).await?;
        let declared = serde_json::to_value(&job.locks);
        let alone = |lock: &LockAt| lock.spot != Spot::BIG_LOCK || lock.mode == Mode::Exclusive;
        let held = job.held().map(Held::locks).unwrap_or_default().into_iter().filter(alone);
        let (wanted, by) = match self.blocked {
            Some(Blocked { lock, by }) => (Some(lock), by),
            None => (job.waits().map(|waits| waits.lock.clone()), Vec::new()),
        };
        Ok(WhyLocks {
            declared: declared.unwrap_or_default(),
            unknown,
            held: held.take(MAX_HELD).map(shown).collect(),
            wanted: wanted.map(shown),
            by_more: by.len() > MAX_BY,
            by: by.into_iter().take(MAX_BY).map(|by| blocker(viewer, by)).collect(),
            reserved_us: job.reserved(),
            weight,
        })
    }

    /// The other jobs that a pass currently compares with this job.
    async fn window(&self, reader: &Reader<'_>, snapshot: &Snapshot, job: &Job) -> Result<Vec<Pending>> {
        let room = snapshot.free();
        let front = position::front(reader, snapshot, self.rules.window(room)).await?;
        let others = front.into_iter().map(|next| next.pending).filter(|other| other.id != job.id);
        Ok(others.collect())
    }

    /// The weight of a pending job, at its age and with its line.
    fn weight(&self, Weight { predicted, line }: &Weight, job: &Job, now_us: i64) -> LockWeight {
        let QueueRules { levels, rules, .. } = &*self.rules;
        let aging = rules.aging;
        let age = aging.age(job.order_us(), now_us);
        let wants = |level: &str| job.locks.big_lock || job.locks.levels.contains_key(level);
        let levels = levels.names().zip(&predicted.levels).filter(|(level, _)| wants(level));
        let tick_us = aging.tick_us.max(1);
        let over = aging.tick(job.order_us()).saturating_add(i64::from(aging.ticks));
        LockWeight {
            base: predicted.base.to_f64(),
            levels: levels
                .map(|(level, weight)| LevelWeight { level: level.to_owned(), weight: weight.to_f64() })
                .collect(),
            total: predicted.total.to_f64(),
            age,
            line: *line,
            tick_ms: tick_us.unsigned_abs() / 1_000,
            aging_ticks: aging.ticks,
            aged: aging.aged(predicted.total, age.saturating_add(*line)).to_f64(aging),
            nothing_us: over.saturating_mul(tick_us),
        }
    }
}

/// `migrate-17` of type `cluster` holds instance/web1 (exclusive) since …
fn described(viewer: &dyn Viewer, by: &Entry) -> String {
    let Entry { lock, how, job_type, id, tenant, since_us, .. } = by;
    let does = match how {
        How::Holds => "holds",
        How::Waits => "waits for",
        How::Reserved => "has reserved",
    };
    if !viewer.reads(tenant) {
        return format!("another tenant's job {does} it, or a part of it, since {}", timestamp(*since_us));
    }
    format!("`{id}` of type `{job_type}` {does} {lock} since {}", timestamp(*since_us))
}
