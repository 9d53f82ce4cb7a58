//! The types of jobs, and what is stated of all jobs of a type.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::{Isolation, Transaction};

use crate::encoding::{decode, encode};
use crate::error::{Error, Result};
use crate::filters;
use crate::keyspace::Keyspace;
use crate::output::MAX_CLASS_BYTES;
use crate::reads;
use crate::secrets;
use crate::spec::check_name;
use crate::terms::{Retry, Terms};
use crate::timeouts::Timeouts;
use crate::webhooks;

/// The most types of which something is stated.
pub const MAX_STATED_TYPES: usize = 1_000;

/// The types whose jobs the server runs itself.
pub const OF_SERVER: [&str; 4] = ["command", "indexing", "replication", webhooks::JOB_TYPE];

/// Whether the server itself runs jobs of this type.
pub fn is_of_server(job_type: &str) -> bool {
    OF_SERVER.contains(&job_type)
}

/// The most classes of errors that a type may state as final. The record of a run has them.
pub const MAX_FINAL_ERRORS: usize = 20;

/// What is stated of the jobs of a type: it holds for those that do not state it themselves, from their next start on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeTerms {
    /// As [`JobSpec::max_attempts`](crate::JobSpec::max_attempts).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Their timeouts.
    #[serde(skip_serializing_if = "Timeouts::is_none")]
    pub timeouts: Timeouts,
    /// How they are tried again.
    #[serde(skip_serializing_if = "Retry::is_none")]
    pub retry: Retry,
    /// See [`Terms::final_errors`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub final_errors: Vec<String>,
    /// Pointers to the members of their options that no one but their workers sees ([`crate::secrets`]).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Who wrote this; `None` on a server without identities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it was written, in µs.
    pub changed_us: i64,
}

impl TypeTerms {
    /// These terms, and `others`, the settings, where there are none.
    #[must_use]
    pub fn over(&self, others: &Terms) -> Terms {
        let Retry { backoff, jitter, on_lost, max_snoozes } = &self.retry;
        Terms {
            backoff: others.backoff,
            waits: backoff.clone().or_else(|| others.waits.clone()),
            jitter: jitter.unwrap_or(others.jitter),
            on_lost: on_lost.unwrap_or(others.on_lost),
            timeouts: self.timeouts.or(others.timeouts),
            max_attempts: self.max_attempts.or(others.max_attempts),
            max_snoozes: max_snoozes.or(others.max_snoozes),
            final_errors: self.final_errors.clone(),
        }
    }
}

/// What is stated of a type, if anything is. A transaction reads it once. Adds no read conflict: a change holds from the next start on.
pub async fn stated(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<TypeTerms>> {
    let row = keys.type_terms(job_type);
    tx.prefetch([row.clone()]).await?;
    let value = tx.get_with(&row, Isolation::Snapshot).await?;
    value.map(|value| decode("terms of a type", &value)).transpose()
}

/// What holds for the jobs of a type that state nothing: what is stated of the type, and `settings` where nothing is.
pub async fn terms(tx: &Transaction, keys: &Keyspace, job_type: &str, settings: &Terms) -> Result<Terms> {
    let stated = stated(tx, keys, job_type).await?;
    Ok(stated.map_or_else(|| settings.clone(), |stated| stated.over(settings)))
}

/// States this of a type, in place of what was stated before.
///
/// # Errors
/// `Invalid` for a wrong value, and if something is stated of too many types.
pub async fn put_terms(tx: &Transaction, keys: &Keyspace, job_type: &str, terms: &TypeTerms) -> Result<()> {
    terms.timeouts.check()?;
    terms.retry.check()?;
    secrets::check(&terms.secrets)?;
    if secrets_of(tx, keys, job_type).await? != terms.secrets {
        filters::ask_again(tx, keys).await?;
    }
    check_final_errors(&terms.final_errors)?;
    // Two types that are written for the first time at the same time may exceed the limit by one each.
    let stated = stated_types(tx, keys).await?;
    if stated.len() >= MAX_STATED_TYPES && !stated.iter().any(|(known, _)| known == job_type) {
        let problem =
            format!("something is stated of {MAX_STATED_TYPES} types, which is the most: remove one");
        return Err(Error::Invalid { field: "type", problem });
    }
    Ok(tx.set(keys.type_terms(job_type), encode(terms))?)
}

async fn secrets_of(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Vec<String>> {
    Ok(stated(tx, keys, job_type).await?.map(|terms| terms.secrets).unwrap_or_default())
}

fn check_final_errors(classes: &[String]) -> Result<()> {
    let most = MAX_FINAL_ERRORS;
    if classes.len() > most {
        let problem = format!("has {} classes; at most {most} are allowed", classes.len());
        return Err(Error::Invalid { field: "final_errors", problem });
    }
    classes.iter().try_for_each(|class| check_name("final_errors", class, MAX_CLASS_BYTES))
}

/// States nothing of a type any more. Returns whether something was stated.
pub async fn remove_terms(tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<bool> {
    let was_there = tx.get(&keys.type_terms(job_type)).await?.is_some();
    if was_there {
        if !secrets_of(tx, keys, job_type).await?.is_empty() {
            filters::ask_again(tx, keys).await?;
        }
        tx.clear(keys.type_terms(job_type))?;
    }
    Ok(was_there)
}

/// All types of which something is stated, sorted. Adds no read conflict.
pub async fn stated_types(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(String, TypeTerms)>> {
    let read =
        |key: &Bytes, value: &Bytes| Ok((keys.parse_type_terms(key)?, decode("terms of a type", value)?));
    reads::list(tx, keys.all_type_terms(), MAX_STATED_TYPES * 2, read).await
}
