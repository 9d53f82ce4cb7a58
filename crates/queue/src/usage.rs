//! What was charged to tenants, by whom.
//!
//! *Model.* A row per tenant and charger, which only that charger writes: a worker of a server, or a node for the external workers
//! that it speaks for ([`crate::workers::node_contender`]). What a tenant was charged is the sum over its rows, one range read. A row holds what its
//! charger has charged *ever*, so it only grows, and others find out what is new since they last looked. A charger that is gone leaves
//! its rows: they count until what they tell has decayed away.

use serde::{Deserialize, Serialize};
use turnwise_store::{Isolation, RangeRead, Transaction};

use crate::error::corrupt;
use crate::keyspace::KeyRange;
use crate::rows::{decode, encode};
use crate::workers::{self, Worker};
use crate::{Keyspace, Result, nodes};

/// What one charger has charged to one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Charged {
    /// How long the tenant's jobs have run, ever, in µs.
    pub service_us: u64,
    /// The same, each part of it divided by the tenant's shares of that moment, in virtual µs.
    pub virtual_us: f64,
    /// The tenant's tag as the charger last knew it, in virtual µs.
    pub tag: f64,
    /// The system's virtual time as the charger last knew it.
    pub now: f64,
    /// What its running jobs are expected to cost, in µs.
    pub in_flight_us: f64,
    /// How many of its jobs run.
    pub running: u64,
    /// What one of its jobs is expected to cost, in µs, once something is known of that.
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
    /// The first number that cannot be what it is called, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let times = [
            ("virtual_us", self.virtual_us),
            ("tag", self.tag),
            ("now", self.now),
            ("in_flight_us", self.in_flight_us),
            ("expected_us", self.expected_us.unwrap_or(0.0)),
            ("usage_us", self.usage_us),
            ("accumulated_us", self.accumulated_us),
        ];
        let (name, number) = times.into_iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0))?;
        Some(format!("{name} is {number}"))
    }
}

/// How far the keys of a type have been lifted: a key grows less with time than those that come later, so nothing that waits is
/// ever rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Boost {
    /// How far, at `at_us`.
    pub v: f64,
    /// When, in µs since the epoch.
    pub at_us: i64,
    /// By what a priority is multiplied in each interval.
    pub coeff: f64,
    /// The interval, in µs.
    pub interval_us: i64,
}

/// Up to `limit` rows of a type by tenant and charger, after those of `after` if it is given: tenant, charger, what it has charged.
/// Takes no conflict.
pub async fn of_type(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<(&str, &str)>,
    limit: usize,
) -> Result<Vec<(String, String, Charged)>> {
    let (mut begin, end) = keys.usage(job_type);
    if let Some((tenant, charger)) = after {
        begin = turnwise_store::key::successor(&keys.usage_entry(job_type, tenant, charger));
    }
    read_rows(tx, keys, (begin, end), limit).await
}

/// The rows of one tenant, the first [`MAX_CHARGERS`] of them: charger, what it has charged. Takes no conflict.
pub async fn of_tenant(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
) -> Result<Vec<(String, Charged)>> {
    let rows = read_rows(tx, keys, keys.usage_of(job_type, tenant), MAX_CHARGERS).await?;
    Ok(rows.into_iter().map(|(_, charger, charged)| (charger, charged)).collect())
}

/// Rows of one tenant that are read at once. Those of the dead are cleared when they have decayed.
pub const MAX_CHARGERS: usize = 10_000;

async fn read_rows(
    tx: &Transaction,
    keys: &Keyspace,
    (begin, end): KeyRange,
    limit: usize,
) -> Result<Vec<(String, String, Charged)>> {
    let rows = tx.range_with(RangeRead { begin, end, limit, reverse: false }, Isolation::Snapshot).await?;
    rows.iter()
        .map(|(key, value)| {
            let (tenant, charger) =
                keys.parse_usage(key).ok_or_else(|| corrupt("usage key", "not a tuple of four"))?;
            Ok((tenant, charger, decode("usage row", value)?))
        })
        .collect()
}

/// Writes what `charger` has charged to a tenant, all of it. The row is read, too: a write that comes late conflicts with a later
/// one, and then, tried again, finds that more has been charged by now, and changes nothing.
pub async fn write(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
    charger: &str,
    charged: &Charged,
) -> Result<()> {
    let row = keys.usage_entry(job_type, tenant, charger);
    if let Some(value) = tx.get(&row).await? {
        let stored: Charged = decode("usage row", &value)?;
        if (stored.service_us, stored.virtual_us) > (charged.service_us, charged.virtual_us) {
            return Ok(());
        }
    }
    Ok(tx.set(row, encode(charged))?)
}

/// Clears the row of a charger that is gone, for good: it is no member, nor a node that lives. Whether it is gone. Conflicts with
/// whoever registers meanwhile under the charger's id.
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

/// Clears a row that its charger needs no more; conflicts with whoever writes it meanwhile.
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

/// How far the keys of a type have been lifted; `None` if nobody orders by keys.
pub async fn read_boost(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<Boost>> {
    match tx.get(&keys.boost(job_type)).await? {
        Some(value) => decode("boost row", &value).map(Some),
        None => Ok(None),
    }
}

/// Writes how far the keys of a type have been lifted. Whoever does has read it in the same transaction.
pub fn write_boost(tx: &Transaction, keys: &Keyspace, job_type: &str, boost: &Boost) -> Result<()> {
    Ok(tx.set(keys.boost(job_type), encode(boost))?)
}
