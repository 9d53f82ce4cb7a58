//! Predicts the locks of jobs that do not know them yet. Only the jobs' weights use the prediction.
//!
//! The prediction comes from records of past runs: the *experience* with each value of an option. The records change
//! slowly, and a pass compares many jobs. So a process reads each value at most once in [`FRESH_US`], and a limited
//! number per pass. A value that was not read yet predicts nothing until a later pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{self, StreamExt, TryStreamExt};
use turnwise_policy::predictive_queue::contention::Predicted;
use turnwise_policy::predictive_queue::experience::{Experience, Likely, Traits, guess};
use turnwise_policy::predictive_queue::line::line;
use turnwise_policy::predictive_queue::locks::Requests;
use turnwise_queue::tenants::{self, Pending};
use turnwise_queue::{Job, Keyspace, Result, learnt};
use turnwise_store::{Store, Transaction};

use super::QueueRules;
use super::view::LocksView;
use crate::pass;

/// How long the experience with a value may be used, in µs.
const FRESH_US: i64 = 30_000_000;
/// The maximum number of values that one pass reads; each needs two rows.
const MAX_READ: usize = 64;
/// The maximum number of values that are remembered.
const MAX_KNOWN: usize = 4_096;
/// The maximum number of pending jobs that [`startable`] reads.
const MAX_COUNTED: usize = 20_000;
/// The number of pending jobs per read.
const COUNT_PAGE: usize = 1_000;
/// The number of concurrent reads of values.
const AT_ONCE: usize = 16;

/// The experience that a process has read.
#[derive(Default)]
pub(crate) struct LockHistory {
    known: Mutex<BTreeMap<Value, CachedExperience>>,
}

/// A kind of jobs, an option, and its value.
type Value = (String, String, String);

/// The experience with a value, and when it was read.
struct CachedExperience {
    read_us: i64,
    /// `None` if no run has recorded anything.
    experience: Option<Arc<Experience>>,
}

impl LockHistory {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Value, CachedExperience>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the values of these jobs that are unknown or too old. Snapshot reads, without conflicts.
    pub async fn read<'a>(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        jobs: impl Iterator<Item = &'a Traits>,
        now_us: i64,
    ) -> Result<()> {
        let mut wanted: Vec<Value> = Vec::new();
        {
            let known = self.known();
            let is_fresh =
                |known: &CachedExperience| (0..FRESH_US).contains(&now_us.saturating_sub(known.read_us));
            for traits in jobs {
                for (option, value) in &traits.values {
                    let value = (traits.kind.clone(), option.clone(), value.clone());
                    if !known.get(&value).is_some_and(is_fresh) && !wanted.contains(&value) {
                        wanted.push(value);
                    }
                }
                if wanted.len() >= MAX_READ {
                    wanted.truncate(MAX_READ);
                    break;
                }
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let read = |value: Value| async move {
            let experience = learnt::get(tx, keys, &value.0, &value.1, &value.2).await?;
            Ok::<_, turnwise_queue::Error>((value, experience))
        };
        let read: Vec<(Value, Option<Experience>)> =
            stream::iter(wanted.into_iter().map(read)).buffered(AT_ONCE).try_collect().await?;
        let mut known = self.known();
        if known.len() + read.len() > MAX_KNOWN {
            known.retain(|_, known| now_us.saturating_sub(known.read_us) < FRESH_US);
        }
        if known.len() + read.len() > MAX_KNOWN {
            known.clear();
        }
        for (value, experience) in read {
            known.insert(value, CachedExperience { read_us: now_us, experience: experience.map(Arc::new) });
        }
        Ok(())
    }

    /// A job's declaration, with a likely set for each unknown request that has one, and these sets. `None` if there is
    /// no likely set.
    pub fn guess(&self, declared: &Requests, traits: &Traits) -> Option<(Requests, Vec<Likely>)> {
        if traits.is_empty() || !declared.has_unknown() {
            return None;
        }
        let experiences: Vec<(&(String, String), Arc<Experience>)> = {
            let known = self.known();
            let of = |pair: &(String, String)| {
                known.get(&(traits.kind.clone(), pair.0.clone(), pair.1.clone()))?.experience.clone()
            };
            traits.values.iter().filter_map(|pair| Some((pair, of(pair)?))).collect()
        };
        let find = |option: &str, value: &str| {
            let found = experiences.iter().find(|(pair, _)| pair.0 == option && pair.1 == value);
            found.map(|(_, experience)| &**experience)
        };
        let (guessed, likely) = guess(declared, traits, find);
        (!likely.is_empty()).then_some((guessed, likely))
    }
}

/// Which jobs [`startable`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startable {
    /// All of them.
    All,
    /// Those that declare locks.
    Locking,
}

/// How many pending jobs of a type could start together, as far as locks are concerned: all jobs, or only those that declare locks.
/// Counts up to `most`, among the first [`MAX_COUNTED`] by tenant.
///
/// # Errors
/// Those of the store.
pub async fn startable(
    store: &Store,
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job_type: &str,
    (which, most): (Startable, usize),
) -> Result<usize> {
    let (lock_history, now_us) = (LockHistory::default(), store.runtime().now_us());
    let view = LocksView::read(tx, keys, &rules.levels, (&lock_history, now_us)).await?;
    let (mut startable, mut from) = (0, None);
    for _ in 0..MAX_COUNTED / COUNT_PAGE {
        let counts =
            |requests: &Requests| (which == Startable::All || !requests.is_none()) && view.is_free(requests);
        let page = tenants::page(tx, keys, job_type, from, COUNT_PAGE, counts).await?;
        let jobs: Vec<&Pending> = page.jobs.iter().map(|(_, pending)| pending).collect();
        startable += pass::startable(&jobs, (&view, &lock_history), (job_type, rules), now_us).len();
        if startable >= most || page.next.is_none() {
            break;
        }
        from = page.next;
    }
    Ok(startable.min(most))
}

/// A pending job's weight.
#[derive(Debug)]
pub struct Weight {
    /// The weight against all held and requested locks, as a pass would compute it now.
    pub predicted: Predicted,
    /// The number of other jobs in the window that name a resource which it wants exclusively. Each makes it older by a
    /// tick.
    pub line: u64,
    /// The locks that it will probably take, but does not know yet.
    pub likely: Vec<Likely>,
}

/// A pending job's weight within its window.
///
/// # Errors
/// Those of the store.
pub async fn weigh(
    store: &Store,
    tx: &Transaction,
    keys: &Keyspace,
    rules: &QueueRules,
    job: &Job,
    others: &[Pending],
) -> Result<Weight> {
    // A new history has no cached values, so the current records are read.
    let lock_history = LockHistory::default();
    let now_us = store.runtime().now_us();
    let view = LocksView::read(tx, keys, &rules.levels, (&lock_history, now_us)).await?;
    let traits = std::iter::once(&job.traits).chain(others.iter().map(|other| &*other.traits));
    lock_history.read(tx, keys, traits, now_us).await?;
    let guess = lock_history.guess(&job.locks, &job.traits);
    let wanted = guess.as_ref().map_or(&job.locks, |(guessed, _)| guessed);
    let guesses: Vec<_> =
        others.iter().map(|other| lock_history.guess(&other.locks, &other.traits)).collect();
    let others = others.iter().zip(&guesses);
    let line = line(
        wanted,
        others.map(|(other, guess)| guess.as_ref().map_or(&*other.locks, |(guessed, _)| guessed)),
    );
    let predicted = view.foreseen().weigh(wanted, rules.rules.least_base());
    Ok(Weight { predicted, line, likely: guess.map(|(_, likely)| likely).unwrap_or_default() })
}
