//! What the store and its nodes did over time: samples in rows, in three resolutions.
//!
//! *Model.* Every 10 s, each node writes what its workers did since its last sample ([`Work`]), and the first node writes the
//! state of the store ([`State`]). After five minutes, and after an hour, some node merges the finer rows into one row
//! ([`compact`]). The finer rows expire, so the history has a bounded size, and a restart loses nothing but the sample that was
//! being taken.
//!
//! *Forces.* A chart of a day must not read a day of fine rows of all nodes. And no particular node may be needed to merge: a node that
//! finds an interval that is over and has no row merges it, and two that do conflict.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::key::{children, pack};
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::encoding::{decode, encode};
use crate::keyspace::KeyRange;
use crate::{Keyspace, Result, reads};

const SECOND_US: i64 = 1_000_000;
/// The most types of one sample.
pub const MAX_TYPES: usize = 100;
/// The most tenants of one sample, of all types together.
pub const MAX_TENANTS: usize = 200;
/// The most tenants of one type in a sample.
pub const MAX_TENANTS_OF_TYPE: usize = 20;
/// Tenants with longer names, in bytes, are left out: a sample must fit into a row.
pub const MAX_TENANT_BYTES: usize = 128;
/// The most rows that one merge or one read takes.
const MAX_ROWS: usize = 10_000;
/// How long after its end an interval is merged: by then, all nodes have written.
const GRACE_US: i64 = 30 * SECOND_US;

/// A resolution of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// 10 s, kept for a day.
    Fine,
    /// Five minutes, kept for a week.
    Middle,
    /// An hour, kept for 30 days.
    Hour,
}

impl Step {
    /// All of them, finest first.
    pub const ALL: [Step; 3] = [Step::Fine, Step::Middle, Step::Hour];

    /// Its length in seconds.
    pub fn seconds(self) -> i64 {
        match self {
            Step::Fine => 10,
            Step::Middle => 300,
            Step::Hour => 3_600,
        }
    }

    /// How long its rows are kept, in seconds.
    pub fn kept_seconds(self) -> i64 {
        match self {
            Step::Fine => 24 * 3_600,
            Step::Middle => 7 * 24 * 3_600,
            Step::Hour => 30 * 24 * 3_600,
        }
    }

    /// The number of the interval that contains a time, in µs.
    pub fn slot(self, at_us: i64) -> i64 {
        at_us.div_euclid(self.seconds() * SECOND_US)
    }

    /// The begin of an interval, in µs.
    pub fn begin_us(self, slot: i64) -> i64 {
        slot.saturating_mul(self.seconds() * SECOND_US)
    }

    fn finer(self) -> Option<Step> {
        match self {
            Step::Fine => None,
            Step::Middle => Some(Step::Fine),
            Step::Hour => Some(Step::Middle),
        }
    }
}

/// What happened in an interval, by job type.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The state of the store. Missing in the sample of a node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<String, State>,
    /// What the workers did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, Work>,
}

/// The state of a job type: at one moment, or the mean over an interval.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Numbers of jobs by state ([`crate::counts::Kind::name`]), without those that are 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub jobs: BTreeMap<String, f64>,
    /// Slots of its workers.
    #[serde(default)]
    pub slots: f64,
    /// How long the oldest job that could run has waited, in ms; the largest of an interval.
    #[serde(default)]
    pub oldest_ms: u64,
    /// The tenants with the largest demand.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantState>,
}

/// The state of a tenant.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TenantState {
    /// Slots that it is entitled to, by its shares and its jobs.
    pub entitled: f64,
    /// Slots that it has.
    pub received: f64,
    /// Its jobs that could run, and do not.
    pub waiting: f64,
}

/// What workers did with jobs of a type.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Runs that began.
    pub claims: u64,
    /// Jobs that completed.
    pub completed: u64,
    /// Jobs that failed permanently.
    pub failed: u64,
    /// Runs that crashed.
    pub crashed: u64,
    /// The run time of the runs that ended, in ms.
    pub ran_ms: u64,
    /// How long jobs had waited when they were claimed: a number per bucket, without the empty ones at the end. The caller knows the
    /// bounds.
    pub waits: Vec<u64>,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.claims += other.claims;
        self.completed += other.completed;
        self.failed += other.failed;
        self.crashed += other.crashed;
        self.ran_ms += other.ran_ms;
        if self.waits.len() < other.waits.len() {
            self.waits.resize(other.waits.len(), 0);
        }
        for (count, more) in self.waits.iter_mut().zip(&other.waits) {
            *count += more;
        }
    }
}

impl Sample {
    /// The mean of all states, and the sum of all work.
    pub fn merged<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Sample {
        let mut merged = Sample::default();
        let mut states: f64 = 0.0;
        for sample in samples {
            states += if sample.state.is_empty() { 0.0 } else { 1.0 };
            for (job_type, state) in &sample.state {
                let sum = merged.state.entry(job_type.clone()).or_default();
                sum.slots += state.slots;
                sum.oldest_ms = sum.oldest_ms.max(state.oldest_ms);
                for (name, jobs) in &state.jobs {
                    *sum.jobs.entry(name.clone()).or_default() += jobs;
                }
                for (tenant, state) in &state.tenants {
                    let sum = sum.tenants.entry(tenant.clone()).or_default();
                    sum.entitled += state.entitled;
                    sum.received += state.received;
                    sum.waiting += state.waiting;
                }
            }
            for (job_type, work) in &sample.work {
                merged.work.entry(job_type.clone()).or_default().add(work);
            }
        }
        // Three decimals are enough, and shorter.
        let mean = |sum: &mut f64| *sum = (*sum / states.max(1.0) * 1_000.0).round() / 1_000.0;
        for state in merged.state.values_mut() {
            mean(&mut state.slots);
            state.jobs.values_mut().for_each(mean);
            for tenant in state.tenants.values_mut() {
                [&mut tenant.entitled, &mut tenant.received, &mut tenant.waiting].into_iter().for_each(mean);
            }
        }
        merged.bounded()
    }

    /// The same with at most [`MAX_TYPES`] types and [`MAX_TENANTS`] tenants: those with the largest demand.
    #[must_use]
    pub fn bounded(mut self) -> Sample {
        bound(&mut self.state, MAX_TYPES, |state| state.jobs.values().sum());
        #[allow(clippy::cast_precision_loss, reason = "only the order counts")]
        bound(&mut self.work, MAX_TYPES, |work| work.claims as f64);
        // Each type has the same room.
        let most = (MAX_TENANTS / self.state.len().max(1)).clamp(1, MAX_TENANTS_OF_TYPE);
        for state in self.state.values_mut() {
            state.tenants.retain(|tenant, _| tenant.len() <= MAX_TENANT_BYTES);
            bound(&mut state.tenants, most, |of| of.waiting + of.received + of.entitled);
        }
        self
    }
}

/// Keeps the `most` rows with the largest weights.
fn bound<V>(rows: &mut BTreeMap<String, V>, most: usize, weight: impl Fn(&V) -> f64) {
    if rows.len() <= most {
        return;
    }
    let mut weights: Vec<(f64, String)> =
        rows.iter().map(|(name, row)| (weight(row), name.clone())).collect();
    weights.sort_by(|(one, name), (other, other_name)| other.total_cmp(one).then(name.cmp(other_name)));
    for (_, name) in weights.drain(most..) {
        rows.remove(&name);
    }
}

impl Keyspace {
    /// A sample: of a node, or with an empty name of the store or of all.
    pub fn history_entry(&self, step: Step, slot: i64, node: &str) -> Bytes {
        pack(&self.space, &("history", step.seconds(), slot, node))
    }

    /// The samples of the intervals `[from, to)`.
    fn history(&self, step: Step, from: i64, to: i64) -> KeyRange {
        let key = |slot: i64| pack(&self.space, &("history", step.seconds(), slot));
        (key(from), key(to))
    }

    fn history_of(&self, step: Step) -> KeyRange {
        children(&self.space, &("history", step.seconds()))
    }

    /// The interval of a key of [`Keyspace::history_entry`].
    fn parse_history(&self, key: &[u8]) -> Result<i64> {
        let (_, _, slot, _): (String, i64, i64, String) = self.read(key)?;
        Ok(slot)
    }
}

/// Writes a sample of the finest resolution. With an empty `node`, it is the store's.
pub fn write(tx: &Transaction, keys: &Keyspace, slot: i64, node: &str, sample: &Sample) -> Result<()> {
    Ok(tx.set(keys.history_entry(Step::Fine, slot, node), encode(sample))?)
}

/// Whether the state of the store in an interval of the finest resolution is known.
#[boxed]
pub async fn has_state(tx: &Transaction, keys: &Keyspace, slot: i64) -> Result<bool> {
    let row = tx.get_with(&keys.history_entry(Step::Fine, slot, ""), Isolation::Snapshot).await?;
    Ok(row.is_some())
}

/// Merges the samples of one interval that is over and was not merged yet. Returns whether it has found one.
#[boxed]
pub async fn compact(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<bool> {
    for step in Step::ALL {
        let Some(finer) = step.finer() else { continue };
        let ratio = step.seconds() / finer.seconds();
        let latest = edge(tx, keys, keys.history_of(step), true).await?;
        let from = latest.map_or(i64::MIN / 2, |latest| (latest + 1) * ratio);
        let rest = (keys.history(finer, from, from).0, keys.history_of(finer).1);
        // After a time without nodes, the next interval is not the one after the latest.
        let Some(first) = edge(tx, keys, rest, false).await? else { continue };
        let slot = first.div_euclid(ratio);
        if step.begin_us(slot + 1).saturating_add(GRACE_US) > now_us {
            continue;
        }
        let slots = keys.history(finer, slot * ratio, (slot + 1) * ratio);
        let samples: Vec<Sample> =
            reads::list(tx, slots, MAX_ROWS, |_, value| decode("history", value)).await?;
        let key = keys.history_entry(step, slot, "");
        // Another node that does the same conflicts.
        let _ = tx.get(&key).await?;
        tx.set(key, encode(&Sample::merged(&samples)))?;
        return Ok(true);
    }
    Ok(false)
}

/// Removes what is older than it is kept.
pub fn expire(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<()> {
    for step in Step::ALL {
        let before = step.slot(now_us.saturating_sub(step.kept_seconds() * SECOND_US));
        let (begin, _) = keys.history_of(step);
        tx.clear_range((begin, keys.history(step, before, before).0))?;
    }
    Ok(())
}

/// The number of the first or the last interval of a range that has a row.
async fn edge(tx: &Transaction, keys: &Keyspace, range: KeyRange, last: bool) -> Result<Option<i64>> {
    let (begin, end) = range;
    let read = RangeRead { begin, end, limit: 1, reverse: last };
    let rows = tx.range_with(read, Isolation::Snapshot).await?;
    rows.first().map(|(key, _)| keys.parse_history(key)).transpose()
}

/// The samples that were taken in `[from_us, to_us)`, each with the begin of its interval in µs, oldest first. At most 10,000 rows are
/// read. Returns the samples, and where to continue.
#[boxed]
pub async fn read(
    tx: &Transaction,
    keys: &Keyspace,
    step: Step,
    (from_us, to_us): (i64, i64),
) -> Result<(Vec<(i64, Sample)>, Option<i64>)> {
    let rows = reads::rows(tx, keys.history(step, step.slot(from_us), step.slot(to_us)), MAX_ROWS).await?;
    let is_cut = rows.len() == MAX_ROWS;
    let mut slots: BTreeMap<i64, Vec<Sample>> = BTreeMap::new();
    for (key, value) in &rows {
        let slot = keys.parse_history(key)?;
        slots.entry(slot).or_default().push(decode("history", value)?);
    }
    // The last interval may be incomplete.
    let next = slots.last_key_value().map(|(slot, _)| step.begin_us(*slot)).filter(|_| is_cut);
    if is_cut {
        slots.pop_last();
    }
    let samples = slots.into_iter().map(|(slot, samples)| (step.begin_us(slot), Sample::merged(&samples)));
    Ok((samples.collect(), next))
}

#[cfg(test)]
mod tests;
