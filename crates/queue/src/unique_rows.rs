//! The rows of unique keys ([`crate::unique`] has the model).

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_store::Transaction;

use crate::encoding::encode;
use crate::spec::{JobSpec, NewJob};
use crate::unique_key::{Key, Mode};
use crate::{Job, Keyspace, Result, reads};

/// The row `("unique", hash)`: which job has the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueRow {
    /// The job's type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// Its id.
    pub id: String,
    /// The key is free from this time on, in µs, whatever becomes of the job. By default, the job's record states that it holds the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<i64>,
}

/// A key that is free for a job.
pub(crate) struct Free {
    key: Key,
    /// The time of the row that the job's row replaces.
    replaced_us: Option<i64>,
}

impl Free {
    /// The hash that stands for the key.
    pub(crate) fn into_hash(self) -> String {
        self.key.hash
    }
}

/// The text that is part of all keys of the store. The first use of a key makes it.
async fn secret(tx: &Transaction, keys: &Keyspace) -> Result<String> {
    let row = keys.unique_secret();
    if let Some(secret) = reads::value(tx, &row, "secret of unique keys").await? {
        return Ok(secret);
    }
    let secret: String = (0..4).map(|_| format!("{:016x}", tx.random())).collect();
    tx.set(row, encode(&secret))?;
    Ok(secret)
}

/// The hash of the key that a job of this spec, with these options, would have.
async fn hash(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    spec: &JobSpec,
    options: &RawValue,
) -> Result<Option<String>> {
    let Some(unique) = &spec.unique else { return Ok(None) };
    let of = (spec.tenant.as_str(), job_type, spec.task.as_deref());
    unique.hash(&secret(tx, keys).await?, of, options).map(Some)
}

/// The key of a job that is added, or added again; nothing if it states none. If it is not free: the row of the key, and its hash.
pub(crate) async fn find_free(
    tx: &Transaction,
    keys: &Keyspace,
    new: &NewJob,
    old: Option<&Job>,
    now_us: i64,
) -> Result<Result<Option<Free>, (String, UniqueRow)>> {
    let Some(hash) = hash(tx, keys, &new.job_type, &new.spec, &new.options).await? else {
        return Ok(Ok(None));
    };
    let until_us = match new.unique.as_ref().map(|unique| unique.mode) {
        Some(Mode::Period(us)) => Some(now_us.saturating_add(us)),
        _ => None,
    };
    let key = Key { hash, held: until_us.is_none(), until_us };
    let own = old.map(|old| (old.job_type.as_str(), old.id.as_str()));
    Ok(free(tx, keys, key, own, now_us).await?.map(Some))
}

/// The key of a job that gets these options; nothing if the key stays as it is. `Err` if another job has it.
pub(crate) async fn find_edited(
    tx: &Transaction,
    keys: &Keyspace,
    job: &Job,
    options: &RawValue,
    now_us: i64,
) -> Result<Result<Option<Free>, ()>> {
    if !job.unique.as_ref().is_some_and(|unique| unique.follows_options()) {
        return Ok(Ok(None));
    }
    let hash = hash(tx, keys, &job.job_type, &job.spec, options).await?;
    let Some(hash) = hash.filter(|hash| job.unique_key.as_ref().is_none_or(|key| key.hash != *hash)) else {
        return Ok(Ok(None));
    };
    let key = Key { hash, held: true, until_us: None };
    Ok(free(tx, keys, key, Some((&job.job_type, &job.id)), now_us).await?.map(Some).map_err(drop))
}

async fn free(
    tx: &Transaction,
    keys: &Keyspace,
    key: Key,
    own: Option<(&str, &str)>,
    now_us: i64,
) -> Result<Result<Free, (String, UniqueRow)>> {
    let row: Option<UniqueRow> = reads::value(tx, &keys.unique(&key.hash), "unique row").await?;
    let replaced_us = row.as_ref().and_then(|row| row.until_us);
    Ok(match row {
        Some(row)
            if own != Some((&row.job_type, &row.id))
                && row.until_us.is_none_or(|until_us| until_us > now_us) =>
        {
            Err((key.hash, row))
        }
        _ => Ok(Free { key, replaced_us }),
    })
}

/// Gives a job this key, in place of the one that it has held.
pub(crate) fn take(tx: &Transaction, keys: &Keyspace, job: &mut Job, free: Option<Free>) -> Result<()> {
    release(tx, keys, job)?;
    job.unique_key = None;
    let Some(Free { key, replaced_us }) = free else { return Ok(()) };
    if let Some(until_us) = replaced_us {
        tx.clear(keys.unique_until(until_us, &key.hash))?;
    }
    if let Some(until_us) = key.until_us {
        tx.set(keys.unique_until(until_us, &key.hash), Bytes::new())?;
    }
    let row = UniqueRow { job_type: job.job_type.clone(), id: job.id.clone(), until_us: key.until_us };
    tx.set(keys.unique(&key.hash), encode(&row))?;
    job.unique_key = Some(key);
    Ok(())
}

/// Frees the key for a period of a job that a client removes, unless another job has it by now.
pub(crate) async fn end_period(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    let Some(Key { hash, until_us: Some(until_us), .. }) = &job.unique_key else { return Ok(()) };
    let row: Option<UniqueRow> = reads::value(tx, &keys.unique(hash), "unique row").await?;
    let own = UniqueRow { job_type: job.job_type.clone(), id: job.id.clone(), until_us: Some(*until_us) };
    if row == Some(own) {
        tx.clear(keys.unique(hash))?;
        tx.clear(keys.unique_until(*until_us, hash))?;
    }
    Ok(())
}

/// Clears the row of a key that a job holds until it gives it up.
pub(crate) fn clear(tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<()> {
    match &job.unique_key {
        Some(key) if key.held => Ok(tx.clear(keys.unique(&key.hash))?),
        _ => Ok(()),
    }
}

/// Frees such a key.
pub(crate) fn release(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    clear(tx, keys, job)?;
    if let Some(key) = &mut job.unique_key {
        key.held = false;
    }
    Ok(())
}

/// Frees the key of a job that holds it while it waits: it begins to run, or no run follows the one that it has.
pub(crate) fn stop_waiting(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    match &job.spec.unique {
        Some(unique) if unique.mode == Mode::WhileWaiting => release(tx, keys, job),
        _ => Ok(()),
    }
}

/// Gives a job that waits again the key that it has given up. Returns whether it has what it should: `false` if another job has the key.
pub(crate) async fn take_again(
    tx: &Transaction,
    keys: &Keyspace,
    job: &mut Job,
    now_us: i64,
) -> Result<bool> {
    let Some(key) = job.unique_key.as_ref().filter(|key| !key.held && key.until_us.is_none()) else {
        return Ok(true);
    };
    let key = Key { held: true, ..key.clone() };
    match free(tx, keys, key, None, now_us).await? {
        Ok(free) => take(tx, keys, job, Some(free)).map(|()| true),
        Err(_) => Ok(false),
    }
}
