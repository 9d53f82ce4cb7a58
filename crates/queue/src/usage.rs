//! What was charged to tenants, and by which charger.
//!
//! *Model.* There is a row per tenant and charger, which only that charger writes. A charger is a worker of a server, or a
//! node for its external workers ([`crate::workers::node_contender`]). A tenant's charge is the sum over its rows, one range
//! read. A row holds the charger's total, so it only grows, and readers compute what is new since their last read. A charger
//! that is gone leaves its rows, which count until their usage has decayed.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
pub use turnwise_policy::fair_share::rfc::Boost;
use turnwise_policy::fair_share::virtual_time::MAX_TASKS;
use turnwise_store::{Isolation, Transaction};

use crate::encoding::{decode, encode};
use crate::keyspace::behind;
use crate::workers::{self, Worker};
use crate::{Keyspace, Result, nodes, reads};

/// What one charger has charged to one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Charged {
    /// The total run time of the tenant's jobs, in µs.
    pub service_us: u64,
    /// The same, each part divided by the tenant's shares at that time, in virtual µs.
    pub virtual_us: f64,
    /// The tenant's virtual time as the charger last knew it, in virtual µs.
    pub tag: f64,
    /// The job type's virtual time as the charger last knew it.
    pub now: f64,
    /// `tag` and `now` as far as charged run time justifies them, where that is less: other chargers use these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certain_tag: Option<f64>,
    /// See `certain_tag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certain_now: Option<f64>,
    /// The expected cost of its running jobs, in µs.
    pub in_flight_us: f64,
    /// How many of its jobs run.
    pub running: u64,
    /// The expected cost of one of its jobs, in µs, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_us: Option<f64>,
    /// Its decayed run time, in µs, as of `period`.
    pub usage_us: f64,
    /// What was charged since then, in µs.
    pub accumulated_us: f64,
    /// The number of the interval after which usage was last decayed.
    pub period: i64,
    /// When the row was written, in µs since the epoch.
    pub at_us: i64,
}

impl Charged {
    /// The tag without estimates.
    pub fn certain_tag(&self) -> f64 {
        self.certain_tag.unwrap_or(self.tag)
    }

    /// The job type's virtual time without estimates.
    pub fn certain_now(&self) -> f64 {
        self.certain_now.unwrap_or(self.now)
    }

    /// The first number that is negative or not finite, with its name.
    pub(crate) fn problem(&self) -> Option<String> {
        let times = [
            ("virtual_us", self.virtual_us),
            ("tag", self.tag),
            ("now", self.now),
            ("certain_tag", self.certain_tag.unwrap_or(0.0)),
            ("certain_now", self.certain_now.unwrap_or(0.0)),
            ("in_flight_us", self.in_flight_us),
            ("expected_us", self.expected_us.unwrap_or(0.0)),
            ("usage_us", self.usage_us),
            ("accumulated_us", self.accumulated_us),
        ];
        let (name, number) = times.into_iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0))?;
        Some(format!("{name} is {number}"))
    }
}

/// Calls `each` with every row of a type, after the row of `after` if given: tenant, charger, what it has charged. Reads `page` rows at a
/// time, and stops after `most`: then it returns the tenant and the charger of the last row. Adds no read conflict.
pub async fn each_of_type(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<(&str, &str)>,
    bounds: (usize, usize),
    mut each: impl FnMut(String, String, Charged),
) -> Result<Option<(String, String)>> {
    let after = after.map(|(tenant, charger)| keys.usage_entry(job_type, tenant, charger));
    let read = |key: &Bytes, value: &Bytes| {
        let (tenant, charger) = keys.parse_usage(key)?;
        each(tenant, charger, decode("usage row", value)?);
        Ok(())
    };
    let last = reads::each(tx, behind(keys.usage(job_type), after), bounds, read).await?;
    Ok(last.map(|last| keys.parse_usage(&last)).transpose()?)
}

/// The rows of one tenant, the first [`MAX_CHARGERS`] of them: charger, what it has charged. Adds no read conflict.
#[boxed]
pub async fn of_tenant(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
) -> Result<Vec<(String, Charged)>> {
    let read = |key: &Bytes, value: &Bytes| Ok((keys.parse_usage(key)?.1, decode("usage row", value)?));
    reads::list(tx, keys.usage_of(job_type, tenant), MAX_CHARGERS, read).await
}

/// The most rows of one tenant that are read. The rows of dead chargers are cleared once they have decayed.
pub const MAX_CHARGERS: usize = 10_000;

/// Writes the total that `charger` has charged to a tenant. It also reads the row, so that a late write conflicts with a
/// newer one. Its repetition finds a larger total, and changes nothing.
#[boxed]
pub async fn write(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    charger: &str,
    charged: &Charged,
) -> Result<()> {
    debug_assert_eq!(charged.problem(), None, "{charger} charges {tenant}");
    let row = keys.usage_entry(job_type, tenant, charger);
    if let Some(stored) = reads::value::<Charged>(tx, &row, "usage row").await?
        && (stored.service_us, stored.virtual_us) > (charged.service_us, charged.virtual_us)
    {
        return Ok(());
    }
    Ok(tx.set(row, encode(charged))?)
}

/// Clears the row of a charger that is permanently gone: it is neither a member nor a live node. Returns whether it is gone.
/// Conflicts with a worker that registers concurrently under the charger's id.
#[boxed]
pub async fn forget_gone(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    charger: &str,
) -> Result<bool> {
    if workers::get(tx, keys, job_type, charger).await?.is_some() {
        return Ok(false);
    }
    let of_node = |node: Worker| workers::node_contender(&node.node) == charger;
    if nodes::list(tx, keys).await?.into_iter().any(of_node) {
        return Ok(false);
    }
    forget(tx, keys, job_type, tenant, charger).await?;
    Ok(true)
}

/// Clears a row that its charger no longer needs; conflicts with a concurrent write of the row.
#[boxed]
pub async fn forget(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    charger: &str,
) -> Result<()> {
    let row = keys.usage_entry(job_type, tenant, charger);
    if tx.get(&row).await?.is_some() {
        tx.clear(row)?;
    }
    Ok(())
}

/// How long the jobs of tasks run, in µs, by task.
pub type RunTimes = BTreeMap<String, f64>;

/// What was learnt of the run times of a type's tasks. Adds no read conflict.
#[boxed]
pub async fn run_times(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<RunTimes> {
    let value = tx.get_with(&keys.run_times(job_type), Isolation::Snapshot).await?;
    value.map_or(Ok(RunTimes::new()), |value| decode("run times", &value))
}

/// Writes what a charger has learnt of a type's tasks, up to [`MAX_TASKS`]. Others keep the run times that they have, as far as there is
/// room.
#[boxed]
pub async fn write_run_times(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    learnt: &RunTimes,
) -> Result<()> {
    let row = keys.run_times(job_type);
    let mut all = learnt.clone();
    for (task, us) in reads::value::<RunTimes>(tx, &row, "run times").await?.unwrap_or_default() {
        if all.len() < MAX_TASKS {
            all.entry(task).or_insert(us);
        }
    }
    Ok(tx.set(row, encode(&all))?)
}

/// How far the keys of a type have been lifted; `None` if no worker sorts by keys.
#[boxed]
pub async fn read_boost(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<Boost>> {
    reads::value(tx, &keys.boost(job_type), "boost row").await
}

/// Writes how far the keys of a type have been lifted. The caller has read it in the same transaction.
pub fn write_boost(tx: &Transaction, keys: &Keyspace, job_type: &str, boost: &Boost) -> Result<()> {
    Ok(tx.set(keys.boost(job_type), encode(boost))?)
}
