//! What was charged to tenants, and by which charger.
//!
//! *Model.* There is a row per tenant and charger, which only that charger writes. A charger is a worker of a server, or a
//! node for its external workers ([`crate::workers::node_contender`]). A tenant's charge is the sum over its rows, one range
//! read. A row holds the charger's total, so it only grows, and readers compute what is new since their last read. A charger
//! that is gone leaves its rows, which count until their usage has decayed.

use serde::{Deserialize, Serialize};
pub use turnwise_policy::fair_share::rfc::Boost;
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

/// Up to `limit` rows of a type by tenant and charger, after the row of `after` if given: tenant, charger, what it has
/// charged. Adds no read conflict.
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

/// Calls `each` with every row of a type, after the row of `after` if given: tenant, charger, what it has charged. Reads `page` rows at a
/// time, and stops after `most`: then it returns the tenant and the charger of the last row. Adds no read conflict.
pub async fn each_of_type(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    after: Option<(&str, &str)>,
    (page, most): (usize, usize),
    mut each: impl FnMut(String, String, Charged),
) -> Result<Option<(String, String)>> {
    let mut last = after.map(|(tenant, charger)| (tenant.to_owned(), charger.to_owned()));
    let mut read = 0;
    loop {
        let after = last.as_ref().map(|(tenant, charger)| (tenant.as_str(), charger.as_str()));
        let rows = of_type(tx, keys, job_type, after, page).await?;
        read += rows.len();
        let is_end = rows.len() < page;
        last = rows.last().map(|(tenant, charger, _)| (tenant.clone(), charger.clone()));
        rows.into_iter().for_each(|(tenant, charger, charged)| each(tenant, charger, charged));
        if is_end || read >= most {
            return Ok(last.filter(|_| !is_end));
        }
    }
}

/// The rows of one tenant, the first [`MAX_CHARGERS`] of them: charger, what it has charged. Adds no read conflict.
pub async fn of_tenant(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    tenant: &str,
) -> Result<Vec<(String, Charged)>> {
    let rows = read_rows(tx, keys, keys.usage_of(job_type, tenant), MAX_CHARGERS).await?;
    Ok(rows.into_iter().map(|(_, charger, charged)| (charger, charged)).collect())
}

/// The most rows of one tenant that are read. The rows of dead chargers are cleared once they have decayed.
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

/// Writes the total that `charger` has charged to a tenant. It also reads the row, so that a late write conflicts with a
/// newer one. Its repetition finds a larger total, and changes nothing.
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
    if let Some(value) = tx.get(&row).await? {
        let stored: Charged = decode("usage row", &value)?;
        if (stored.service_us, stored.virtual_us) > (charged.service_us, charged.virtual_us) {
            return Ok(());
        }
    }
    Ok(tx.set(row, encode(charged))?)
}

/// Clears the row of a charger that is permanently gone: it is neither a member nor a live node. Returns whether it is gone.
/// Conflicts with a worker that registers concurrently under the charger's id.
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

/// How far the keys of a type have been lifted; `None` if no worker sorts by keys.
pub async fn read_boost(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<Boost>> {
    match tx.get(&keys.boost(job_type)).await? {
        Some(value) => decode("boost row", &value).map(Some),
        None => Ok(None),
    }
}

/// Writes how far the keys of a type have been lifted. The caller has read it in the same transaction.
pub fn write_boost(tx: &Transaction, keys: &Keyspace, job_type: &str, boost: &Boost) -> Result<()> {
    Ok(tx.set(keys.boost(job_type), encode(boost))?)
}
