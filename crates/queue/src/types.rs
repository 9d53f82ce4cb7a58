//! The types of jobs, and what is stated of all jobs of a type.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use turnwise_policy::contention::hash;
use turnwise_store::Transaction;

use crate::encoding::{decode, encode};
use crate::error::{Error, Result};
use crate::filters;
use crate::keyspace::Keyspace;
use crate::names::check_task;
use crate::reads;
use crate::secrets;
use crate::tasks::MAX_TASKS;
use crate::terms::StatedTerms;
pub use crate::type_terms::{DeclaredBy, OF_SERVER, TaskTerms, TermsOfType, TypeTerms, is_of_server, stated};

/// The most types of which something is stated.
pub const MAX_STATED_TYPES: usize = 1_000;

/// The most types of which something is stated, if workers declare it. Operators may state something of more.
const MAX_DECLARED_TYPES: usize = MAX_STATED_TYPES / 2;
/// The most bytes of what is stated of a type and its tasks. A claim reads it.
const MAX_TERMS_BYTES: usize = 64 << 10;

fn check(terms: &TypeTerms) -> Result<()> {
    terms.terms.check()?;
    secrets::check(&terms.secrets)?;
    if terms.tasks.len() > MAX_TASKS {
        let problem = format!("has {} tasks; at most {MAX_TASKS} are allowed", terms.tasks.len());
        return Err(Error::Invalid { field: "tasks", problem });
    }
    for (task, of_task) in &terms.tasks {
        check_task(task)?;
        of_task.terms.check()?;
    }
    let bytes = encode(terms).len();
    if bytes > MAX_TERMS_BYTES {
        let problem =
            format!("are {bytes} bytes with those of the type; at most {MAX_TERMS_BYTES} are allowed");
        return Err(Error::Invalid { field: "tasks", problem });
    }
    Ok(())
}

/// A number that differs for terms that differ.
pub fn digest(terms: &StatedTerms) -> u64 {
    let json = encode(terms);
    hash(&String::from_utf8_lossy(&json), 0)
}

/// The tasks for which a worker has declared other terms than those that hold.
pub fn contradicted(stated: &TypeTerms, declared: &BTreeMap<String, u64>) -> Vec<String> {
    let holds = |(task, of_worker): &(&String, &u64)| {
        stated.of_task(Some(task)).is_some_and(|terms| digest(terms) == **of_worker)
    };
    declared.iter().filter(|declared| !holds(declared)).map(|(task, _)| task.clone()).collect()
}

/// States the terms of some tasks that a worker has declared, in place of those that other workers have declared. What was stated otherwise
/// stays: that is an operator's. Writes only what changes. If there are too many tasks, those that were declared first are forgotten.
///
/// # Errors
/// As [`put_terms`].
#[boxed]
pub async fn declare(
    tx: &Transaction,
    keys: &Keyspace,
    job_type: &str,
    declared: &BTreeMap<String, StatedTerms>,
    by: &DeclaredBy,
    now_us: i64,
) -> Result<()> {
    let before = stated(tx, keys, job_type).await?;
    let is_new = |(task, terms): &(&String, &StatedTerms)| {
        let known = before.as_ref().and_then(|before| before.tasks.get(*task));
        known.is_none_or(|known| known.declared.is_some() && known.terms != **terms)
    };
    let new: Vec<_> = declared.iter().filter(is_new).collect();
    if new.is_empty() {
        return Ok(());
    }
    let is_first = before.is_none();
    if is_first && stated_types(tx, keys).await?.len() >= MAX_DECLARED_TYPES {
        let problem = format!(
            "something is stated of {MAX_DECLARED_TYPES} types: an operator must state the terms of this one"
        );
        return Err(Error::Invalid { field: "task_terms", problem });
    }
    let mut all = before.unwrap_or_else(|| TypeTerms { changed_us: now_us, ..TypeTerms::default() });
    for (task, terms) in new {
        let declared = Some(by.clone());
        all.tasks.insert(task.clone(), TaskTerms { terms: terms.clone(), declared, changed_us: now_us });
    }
    while all.tasks.len() > MAX_TASKS {
        let others =
            all.tasks.iter().filter(|(task, of)| of.declared.is_some() && !declared.contains_key(*task));
        let first = others.min_by_key(|(_, of)| of.changed_us).map(|(task, _)| task.clone());
        match first {
            Some(first) => drop(all.tasks.remove(&first)),
            None => break,
        }
    }
    tx.add_read_conflict(keys.type_terms(job_type));
    put_terms(tx, keys, job_type, &all).await
}

/// States this of a type, in place of what was stated before.
///
/// # Errors
/// `Invalid` for a wrong value, and if something is stated of too many types.
#[boxed]
pub async fn put_terms(tx: &Transaction, keys: &Keyspace, job_type: &str, terms: &TypeTerms) -> Result<()> {
    check(terms)?;
    if secrets_of(tx, keys, job_type).await? != terms.secrets {
        filters::ask_again(tx, keys).await?;
    }
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

/// States nothing of a type any more. Returns whether something was stated.
#[boxed]
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
#[boxed]
pub async fn stated_types(tx: &Transaction, keys: &Keyspace) -> Result<Vec<(String, TypeTerms)>> {
    let read =
        |key: &Bytes, value: &Bytes| Ok((keys.parse_type_terms(key)?, decode("terms of a type", value)?));
    reads::list(tx, keys.all_type_terms(), MAX_STATED_TYPES * 2, read).await
}
