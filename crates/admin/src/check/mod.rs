//! Checks every invariant over all rows of a store.
//!
//! *Model.* Rows that belong together (a job's record and its place, a document's head and its change) are far apart in key
//! order. So one pass over all rows keeps [`books`]: for each subject, it adds what the subject's record promises, and
//! subtracts what the indexes show. A balanced subject is forgotten. A subject that is still open at the end is
//! *suspected*. Only suspected subjects are examined ([`mod@examine`]): all rows of the subject in one transaction, by the
//! functions that also check the simulation.
//!
//! *Forces.* The pass may take minutes, a transaction only seconds, and a cluster keeps working meanwhile. A job that moved
//! during the pass is suspected, and its transaction clears it. So each finding was true at one moment, and a store in use
//! causes no false alarms. The books hold subjects as hashes of 64 bits, with 20 to 40 bytes of memory for each open
//! subject. A pass with more than [`OPEN_SUBJECTS`] is repeated in parts. If there are suspected subjects, a second pass
//! finds their names.

mod books;
mod examine;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use turnwise_queue::check::{Finding, Invariant, Row};
use turnwise_queue::keyspace::FORMAT_VERSION;
use turnwise_queue::{Format, Keyspace};
use turnwise_replicator::check::check_database;
use turnwise_store::{Result, Store};

use crate::scan::{Scan, everything};
use books::{Books, Full};
use examine::{Count, Examiner, Subject};

/// The maximum number of subjects that are open at the same time: 160 MB.
const OPEN_SUBJECTS: usize = 4_000_000;
/// The maximum number of suspected subjects that are examined.
const SUSPECTS: usize = 200_000;
const EXAMINED_AT_ONCE: usize = 32;
/// The maximum number of findings that the report lists; it counts all of them.
const FINDINGS: usize = 1_000;

/// The progress of a check, readable while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Rows that were read.
    pub rows: AtomicU64,
    /// Subjects that were examined.
    pub examined: AtomicU64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Rows of each family.
    pub families: BTreeMap<String, u64>,
    /// The first violations of invariants.
    pub findings: Vec<Finding>,
    /// The number of all findings.
    pub found: u64,
    /// Subjects that were examined in a transaction of their own.
    pub examined: u64,
    /// Messages about what could not be decided.
    pub undecided: Vec<String>,
}

impl Report {
    /// The number of rows in the store.
    pub fn rows(&self) -> u64 {
        self.families.values().sum()
    }

    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            let known = |other: &Finding| (other.invariant, &other.key) == (finding.invariant, &finding.key);
            if self.findings.iter().any(known) {
                continue;
            }
            self.found += 1;
            if self.findings.len() < FINDINGS {
                self.findings.push(finding);
            }
        }
    }
}

/// Checks a store.
///
/// # Errors
/// As the store.
pub fn check<'a>(store: &'a Store, is_shared: bool, progress: &'a Progress) -> BoxFuture<'a, Result<Report>> {
    // Boxed, so that the crates that await it do not compile it again.
    Box::pin(check_with(store, is_shared, progress, OPEN_SUBJECTS))
}

async fn check_with(store: &Store, is_shared: bool, progress: &Progress, open: usize) -> Result<Report> {
    let keys = Keyspace::default();
    let mut report = Report::default();
    let mut suspects = BTreeSet::new();
    let mut parts = 1;
    let mut part = 0;
    let mut first = None;
    while part < parts {
        let mut books = Books::new(&keys, (part, parts), open);
        match pass(store, &mut books, progress).await? {
            Err(Full) => {
                // Start again, with twice as many parts.
                (part, parts) = (0, parts * 2);
                suspects.clear();
                first = None;
                continue;
            }
            Ok(()) => part += 1,
        }
        suspects.append(&mut books.take_suspects());
        first.get_or_insert(books);
    }
    let Some(mut books) = first else { return Ok(report) };
    report.families = std::mem::take(&mut books.families);
    report.add(std::mem::take(&mut books.findings));
    check_format(store, &keys, &mut report).await?;
    let differences = books.counts.differences(&keys);
    match is_shared {
        // Jobs may have moved meanwhile.
        true => check_counts(store, &keys, differences, &mut report).await?,
        false => report.add(differences.into_iter().map(|(_, finding)| finding)),
    }
    for (group, finding) in books.counts.group_differences(&keys) {
        match is_shared {
            true => match Count::Group(&group).check(store, &keys).await? {
                Some(findings) => report.add(findings),
                None => report.undecided.push(format!(
                    "jobs of the group {:?} move, and are too many to be counted in one transaction",
                    group.1
                )),
            },
            false => report.add([finding]),
        }
    }

    let lost = books.lost_holders();
    let mut subjects: BTreeMap<Subject, BTreeSet<Bytes>> =
        books.whole().into_iter().map(|subject| (subject, BTreeSet::new())).collect();
    if !suspects.is_empty() || !lost.is_empty() {
        let left_out = name(store, &keys, &suspects, &lost, &mut subjects, progress).await?;
        if left_out > 0 {
            report.undecided.push(format!(
                "{left_out} more jobs and documents were suspected, and not looked at: run the check again, at a calmer time"
            ));
        }
    }
    examine(store, &keys, subjects, &mut report, progress).await?;
    for (db, (database, counters, tally)) in &books.databases {
        let finding = check_database(&keys, db, database.as_ref(), counters.as_ref(), tally);
        match finding {
            Some(_) if is_shared => match Count::Documents(db).check(store, &keys).await? {
                Some(finding) => report.add(finding),
                None => report.undecided.push(format!(
                    "database {db:?} is in use, and has too many documents to be counted in one transaction"
                )),
            },
            finding => report.add(finding),
        }
    }
    report.findings.sort_by(|a, b| (a.invariant, &a.key).cmp(&(b.invariant, &b.key)));
    Ok(report)
}

/// Compares the counts of types that seem to differ from their jobs again, each in one transaction.
async fn check_counts(
    store: &Store,
    keys: &Keyspace,
    differences: Vec<(String, Finding)>,
    report: &mut Report,
) -> Result<()> {
    let types: BTreeSet<String> = differences.into_iter().map(|(job_type, _)| job_type).collect();
    for job_type in types {
        match Count::Jobs(&job_type).check(store, keys).await? {
            Some(findings) => report.add(findings),
            None => report.undecided.push(format!(
                "jobs of type {job_type:?} move, and are too many to be counted in one transaction"
            )),
        }
    }
    Ok(())
}

async fn pass(store: &Store, books: &mut Books<'_>, progress: &Progress) -> Result<Result<(), Full>> {
    let mut scan = Scan::new(store, everything());
    while let Some((key, value)) = scan.next().await? {
        progress.rows.fetch_add(1, Ordering::Relaxed);
        if let Err(full) = books.enter(&key, &value) {
            return Ok(Err(full));
        }
    }
    Ok(Ok(()))
}

/// Finds the names of the suspected subjects, and the keys of their rows. Returns how many subjects are left out.
async fn name(
    store: &Store,
    keys: &Keyspace,
    suspects: &BTreeSet<u64>,
    lost: &BTreeSet<(String, String)>,
    subjects: &mut BTreeMap<Subject, BTreeSet<Bytes>>,
    progress: &Progress,
) -> Result<u64> {
    let mut left_out = BTreeSet::new();
    let mut scan = Scan::new(store, everything());
    while let Some((key, value)) = scan.next().await? {
        progress.rows.fetch_add(1, Ordering::Relaxed);
        let Some(row) = Row::parse(keys, &key) else { continue };
        let of_row = books::subjects(&row, &value);
        let is_suspected = |subject| suspects.contains(&books::hash(subject));
        if !of_row.iter().any(is_suspected) && !books::is_of_lost(&row, lost) {
            continue;
        }
        for subject in of_row {
            let named = subjects.len();
            if let Some(seen) = subjects.get_mut(&subject) {
                seen.insert(key.clone());
            } else if named < SUSPECTS {
                subjects.insert(subject, BTreeSet::from([key.clone()]));
            } else {
                left_out.insert(books::hash(&subject));
            }
        }
    }
    Ok(left_out.len() as u64)
}

/// Examines each subject in its own transaction, several concurrently.
async fn examine(
    store: &Store,
    keys: &Keyspace,
    subjects: BTreeMap<Subject, BTreeSet<Bytes>>,
    report: &mut Report,
    progress: &Progress,
) -> Result<()> {
    let examiner = Arc::new(Examiner { store: store.clone(), keys: keys.clone() });
    let mut at_work: JoinSet<Result<Vec<Finding>>> = JoinSet::new();
    let mut rest = subjects.into_iter();
    loop {
        while at_work.len() < EXAMINED_AT_ONCE
            && let Some((subject, seen)) = rest.next()
        {
            let examiner = examiner.clone();
            at_work.spawn(async move { examiner.examine(&subject, &seen).await });
        }
        let Some(done) = at_work.join_next().await else { return Ok(()) };
        report.add(done.expect("an examination ends without a panic")?);
        report.examined += 1;
        progress.examined.fetch_add(1, Ordering::Relaxed);
    }
}

async fn check_format(store: &Store, keys: &Keyspace, report: &mut Report) -> Result<()> {
    let format = store.transact(|tx| async move { tx.get(&keys.format()).await }).await?;
    let problem = match format.as_deref().map(Format::read) {
        Some(Format::Version(FORMAT_VERSION)) => return Ok(()),
        Some(Format::Version(other)) => {
            format!("it is in format {other}, and this release knows format {FORMAT_VERSION}")
        }
        Some(Format::Copying(copying)) => format!("it is an unfinished copy of {}", copying.from),
        Some(Format::Unknown(found)) => format!("its format is {found:?}"),
        // Every server writes the format row when it starts, so a store without it must be empty.
        None if report.rows() == 0 => return Ok(()),
        None => "it has no format row".to_owned(),
    };
    report.add([Finding::new(Invariant::Format, &keys.format(), problem)]);
    Ok(())
}

#[cfg(test)]
mod tests;
