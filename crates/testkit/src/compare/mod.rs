//! Compares two databases: every document, every leaf revision with its history, its body, and the bytes of its attachments.
//!
//! A faithful copy may differ in some things, which are not compared: `seq`, an attachment's `revpos`, the order of the
//! changes, and `_local` documents. Digests are not compared between different kinds of servers, because CouchDB computes
//! them from the compressed bytes of a text (see `peers/README.md`).

mod difference;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use serde_json::Value;

use crate::Database;
pub use difference::{Difference, Summary};
pub use read::{Revision, leaves, revisions};
use read::{attachment_hash, server_kind};

/// The number of leaf revisions in one `_bulk_get`.
const BATCH: usize = 250;

/// The number of batches, or of attachments, that are read at the same time.
const IN_FLIGHT: usize = 4;

/// Compares `target` with `source`, leaf by leaf. `Ok` states how much was compared; `Err` lists every difference.
///
/// # Panics
/// If one of the databases cannot be read.
pub async fn compare(source: &Database, target: &Database) -> Result<Summary, Vec<Difference>> {
    compare_some(source, target, |_| true).await
}

/// Like [`compare`], for a replication of some documents: `target` must hold exactly the documents of `source` whose id is
/// `wanted`.
///
/// # Panics
/// If one of the databases cannot be read.
pub async fn compare_some(
    source: &Database,
    target: &Database,
    wanted: impl Fn(&str) -> bool,
) -> Result<Summary, Vec<Difference>> {
    let (expected, found) = tokio::join!(leaves(source), leaves(target));
    let (mut expected, found) =
        (expected.expect("the source can be read"), found.expect("the target can be read"));
    expected.retain(|id, _| wanted(id));
    let mut differences = Vec::new();
    let common = compare_leaves(&expected, &found, &mut differences);

    let kinds = tokio::join!(server_kind(source), server_kind(target));
    let digests = kinds.0 == kinds.1;
    let batches = common.chunks(BATCH).map(|batch| compare_batch(source, target, batch, digests));
    let compared: Vec<(Summary, Vec<Difference>)> =
        stream::iter(batches).buffer_unordered(IN_FLIGHT).collect().await;

    let mut summary = Summary { documents: expected.len(), ..Summary::default() };
    for (part, found) in compared {
        summary.add(&part);
        differences.extend(found);
    }
    if differences.is_empty() { Ok(summary) } else { Err(differences) }
}

/// The leaf revisions of each document of a database.
pub type Leaves = BTreeMap<String, BTreeSet<String>>;

/// Records leaves that are on only one side, and returns those on both.
fn compare_leaves(
    expected: &Leaves,
    found: &Leaves,
    differences: &mut Vec<Difference>,
) -> Vec<(String, String)> {
    let none = BTreeSet::new();
    let ids: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let mut common = Vec::new();
    for id in ids {
        let expected = expected.get(id).unwrap_or(&none);
        let found = found.get(id).unwrap_or(&none);
        for rev in expected.union(found) {
            let (id, rev) = (id.clone(), rev.clone());
            match (expected.contains(&rev), found.contains(&rev)) {
                (true, false) => differences.push(Difference::MissingLeaf { id, rev }),
                (false, true) => differences.push(Difference::ExtraLeaf { id, rev }),
                _ => common.push((id, rev)),
            }
        }
    }
    common
}

/// Reads the same leaves from both sides, and compares them.
async fn compare_batch(
    source: &Database,
    target: &Database,
    batch: &[(String, String)],
    digests: bool,
) -> (Summary, Vec<Difference>) {
    let (mut expected, mut found) = tokio::join!(revisions(source, batch), revisions(target, batch));
    let mut summary = Summary::default();
    let mut differences = Vec::new();
    let mut bytes_to_compare = Vec::new();
    for leaf in batch {
        let (id, rev) = leaf.clone();
        let (Some(expected), Some(found)) = (expected.remove(leaf), found.remove(leaf)) else {
            differences.push(Difference::Unreadable { id, rev });
            continue;
        };
        summary.leaves += 1;
        summary.deleted_leaves += usize::from(expected.deleted);
        compare_revision(&id, &rev, &expected, &found, &mut differences);
        let names: BTreeSet<&String> = expected.attachments.keys().chain(found.attachments.keys()).collect();
        for name in names {
            let pair = (expected.attachments.get(name), found.attachments.get(name));
            match compare_stubs(pair, digests) {
                Ok(length) => bytes_to_compare.push((id.clone(), rev.clone(), name.clone(), length)),
                Err(what) => {
                    let (id, rev, name) = (id.clone(), rev.clone(), name.clone());
                    differences.push(Difference::Attachment { id, rev, name, what });
                }
            }
        }
    }
    let comparisons = bytes_to_compare.into_iter().map(|(id, rev, name, length)| async move {
        let (expected, found) = tokio::join!(
            attachment_hash(source, &id, &rev, &name),
            attachment_hash(target, &id, &rev, &name)
        );
        let what = match (expected, found) {
            (Some(expected), Some(found)) if expected == found => return Ok(length),
            (Some(_), Some(_)) => "other bytes",
            _ => "its bytes cannot be read on both sides",
        };
        Err(Difference::Attachment { id, rev, name, what: what.to_owned() })
    });
    let results: Vec<_> = stream::iter(comparisons).buffer_unordered(IN_FLIGHT).collect().await;
    for result in results {
        match result {
            Ok(length) => {
                summary.attachments += 1;
                summary.attachment_bytes += length;
            }
            Err(difference) => differences.push(difference),
        }
    }
    (summary, differences)
}

fn compare_revision(
    id: &str,
    rev: &str,
    expected: &Revision,
    found: &Revision,
    differences: &mut Vec<Difference>,
) {
    let (id, rev) = (id.to_owned(), rev.to_owned());
    if expected.history != found.history {
        let (source, target) = (expected.history.to_string(), found.history.to_string());
        differences.push(Difference::History { id: id.clone(), rev: rev.clone(), source, target });
    }
    if expected.deleted != found.deleted {
        differences.push(Difference::Deleted { id: id.clone(), rev: rev.clone(), source: expected.deleted });
    }
    if expected.body != found.body {
        differences.push(Difference::Body { id, rev });
    }
}

/// Compares the stubs of an attachment. `Ok` is its length; `Err` states the difference.
fn compare_stubs(pair: (Option<&Value>, Option<&Value>), digests: bool) -> Result<u64, String> {
    let (expected, found) = match pair {
        (Some(expected), Some(found)) => (expected, found),
        (Some(_), None) => return Err("missing".to_owned()),
        _ => return Err("only in the target".to_owned()),
    };
    let fields: &[&str] =
        if digests { &["content_type", "length", "digest"] } else { &["content_type", "length"] };
    for field in fields {
        if expected[*field] != found[*field] {
            return Err(format!("{field} {} became {}", expected[*field], found[*field]));
        }
    }
    expected["length"].as_u64().ok_or_else(|| format!("no length in {expected}"))
}
