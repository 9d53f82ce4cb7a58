//! What fleets report about themselves. A fleet is a supervisor of worker processes, outside of the servers.
//!
//! A report is valid for the time that it states. Later ones replace it. One that is not valid any more is not listed, and the next
//! report of any fleet removes its row.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use turnwise_store::Transaction;

use crate::encoding::{decode, encode};
use crate::names::check_name;
use crate::reads;
use crate::{Error, Keyspace, Result};

/// The most fleets of a store.
pub const MAX_FLEETS: usize = 100;
/// Longest name of a fleet, in bytes.
pub const MAX_FLEET_NAME_BYTES: usize = 64;

/// A fleet's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// When it was made.
    pub seen_us: i64,
    /// When it is not valid any more.
    pub expires_us: i64,
    /// The state of the fleet, in the form of the API.
    pub state: Value,
}

/// Writes a report, in place of the fleet's report before. Reports that are not valid any more are removed.
///
/// # Errors
/// `Invalid` for a wrong name, and if there are too many fleets.
#[boxed]
pub async fn put(tx: &Transaction, keys: &Keyspace, name: &str, report: &Report) -> Result<()> {
    check_name("name", name, MAX_FLEET_NAME_BYTES)?;
    let mut others = 0;
    for (other, known) in rows(tx, keys).await? {
        match known.expires_us <= report.seen_us {
            true => tx.clear(keys.fleet(&other))?,
            false => others += usize::from(other != name),
        }
    }
    if others >= MAX_FLEETS {
        let problem = format!("there are {MAX_FLEETS} fleets, which is the most: put types of two into one");
        return Err(Error::Invalid { field: "name", problem });
    }
    Ok(tx.set(keys.fleet(name), encode(report))?)
}

/// Removes a fleet's report; returns whether there was one.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, name: &str) -> Result<bool> {
    let was_there = tx.get(&keys.fleet(name)).await?.is_some();
    if was_there {
        tx.clear(keys.fleet(name))?;
    }
    Ok(was_there)
}

/// All valid reports, by name. Adds no read conflict.
#[boxed]
pub async fn list(tx: &Transaction, keys: &Keyspace, now_us: i64) -> Result<Vec<(String, Report)>> {
    let mut reports = rows(tx, keys).await?;
    reports.retain(|(_, report)| report.expires_us > now_us);
    Ok(reports)
}

async fn rows(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(String, Report)>> {
    let read = |key: &Bytes, value: &Bytes| Ok((keys.parse_fleet(key)?, decode("fleet row", value)?));
    // Two fleets that report for the first time at the same time may exceed the limit by one each.
    reads::list(tx, keys.fleets(), MAX_FLEETS * 2, read).await
}
