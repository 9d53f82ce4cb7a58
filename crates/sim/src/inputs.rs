//! Results that are handed on, in worlds with dependencies.
//!
//! *Rules.* A job has a result from the commit that records that its run has completed until it is added again, or is removed. It is the one that the handler of
//! this run returned. A run that reads its inputs gets, of each job of its tenant that it names, the result that this job had at some time meanwhile, or
//! learns that it has none; and nothing of other jobs. While a job that was added with an input has not ended, only a client removes that input.

use std::collections::{BTreeMap, BTreeSet};

use turnwise_queue::output::{self, JobResult};
use turnwise_queue::{Claim, Input, Job, Keyspace, Result, claims, followers};
use turnwise_store::Store;

use crate::broken::{Broken, ensure, in_words};
use crate::ledger::JobKey;
use crate::model::JobRows;

/// How much some results have more than a record keeps, so that they have rows of their own.
const LARGE: usize = 13_000;

/// The result of the run under a claim, as JSON.
pub fn result_of(claim: &Claim) -> String {
    let padding = if claim.number.is_multiple_of(4) { LARGE } else { 0 };
    format!("\"{}/{}{}\"", claim.worker, claim.number, " ".repeat(padding))
}

/// What a run reads.
pub struct Given {
    /// The job, as it is then.
    job: Job,
    /// Each input by its name, with its result if there is one.
    inputs: Vec<(Input, Option<String>)>,
}

/// Reads the inputs of a run, as the server does for its worker.
///
/// # Errors
/// `Halt` if the claim is lost.
pub async fn read(store: &Store, job_type: &str, id: &str, claim: &Claim) -> Result<Given> {
    let keys = Keyspace::default();
    let tx = store.begin().await?;
    let job = claims::held(&tx, &keys, job_type, id, claim).await?;
    let mut inputs = Vec::new();
    for (_, input, other) in followers::inputs(&tx, &keys, &job).await? {
        let result = match &other {
            Some(other) => output::result(&tx, &keys, other).await?,
            None => None,
        };
        let text = result.map(|result| match result {
            JobResult::Json(json) => json.get().to_owned(),
            JobResult::Bytes { media_type, .. } => media_type,
        });
        inputs.push((input, text));
    }
    Ok(Given { job, inputs })
}

/// The tenant and the result of a job that exists.
type Source = Option<(String, Option<String>)>;

/// What the checker knows about results.
#[derive(Default)]
pub struct Inputs {
    /// What each job has had, and since when, in µs since the world began.
    sources: BTreeMap<JobKey, Vec<(i64, Source)>>,
    /// The jobs that were added with each job among their inputs, while it was there.
    followers: BTreeMap<JobKey, BTreeSet<JobKey>>,
}

impl Inputs {
    /// Notes what a commit does to a job. `is_added` tells whether a client adds it.
    pub(crate) fn note(
        &mut self,
        key: &JobKey,
        (old, new): (Option<&Job>, Option<&Job>),
        is_added: bool,
        known: &BTreeMap<JobKey, JobRows>,
        now_us: i64,
    ) {
        let log = self.sources.entry(key.clone()).or_default();
        let last = log.last().and_then(|(_, source)| source.clone());
        let result = || match old.and_then(|old| old.claim()) {
            Some(claim) => Some(result_of(claim)),
            None => last.clone().and_then(|(_, result)| result),
        };
        let source = new.map(|new| {
            let completed = new.state() == turnwise_queue::State::Completed;
            (new.tenant.clone(), completed.then(result).flatten())
        });
        if log.is_empty() || last != source {
            log.push((now_us, source));
        }
        let Some(new) = new else { return };
        for input in new.inputs.values().filter(|_| is_added) {
            let on = (input.job_type.clone(), input.id.clone());
            let there = known.get(&on).and_then(|rows| rows.record.as_ref());
            if there.is_some_and(|there| there.tenant == new.tenant) {
                self.followers.entry(on).or_default().insert(key.clone());
            }
        }
    }

    /// Checks a job that is removed: if the retention does it, no job that has not ended names it.
    pub(crate) fn check_removed(
        &mut self,
        key: &JobKey,
        is_pruned: bool,
        known: &BTreeMap<JobKey, JobRows>,
    ) -> Result<(), Broken> {
        let followers = self.followers.remove(key).filter(|_| is_pruned).unwrap_or_default();
        // A job that was added again for another tenant is nobody's input any more.
        let log = self.sources.get(key).into_iter().flatten();
        let tenant = log.rev().find_map(|(_, source)| source.as_ref().map(|(tenant, _)| tenant.as_str()));
        let needs = |follower: &&JobKey| {
            let job = known.get(*follower).and_then(|rows| rows.record.as_ref());
            job.is_some_and(|job| {
                let mut inputs = job.inputs.values();
                !job.state().is_final()
                    && tenant == Some(job.tenant.as_str())
                    && inputs.any(|input| (&input.job_type, &input.id) == (&key.0, &key.1))
            })
        };
        let needed = followers.iter().find(needs);
        ensure(needed.is_none(), "no result is gone while a job needs it", || {
            let job = needed.and_then(|job| known.get(job)?.record.as_ref());
            format!("{key:?} is removed, and an input of {needed:?}: {}", in_words(job))
        })
    }

    /// Whether some job was added with this one among its inputs.
    pub(crate) fn has_followers(&self, key: &JobKey) -> bool {
        self.followers.contains_key(key)
    }

    /// Checks what a run has read since `begun_us`, in µs since the world began.
    pub(crate) fn check_given(&self, key: &JobKey, given: &Given, begun_us: i64) -> Result<(), Broken> {
        let Given { job, inputs } = given;
        let named: Vec<&Input> = job.inputs.values().collect();
        let read: Vec<&Input> = inputs.iter().map(|(input, _)| input).collect();
        ensure(named == read, "a run gets all of its inputs", || format!("{key:?}: {read:?} of {named:?}"))?;
        for (input, result) in inputs {
            let on = (input.job_type.clone(), input.id.clone());
            let log = self.sources.get(&on).map_or(&[][..], |log| &log[..]);
            let first = log.iter().rposition(|(at_us, _)| *at_us < begun_us).unwrap_or(0);
            let fits = |source: &Source| match source {
                Some((tenant, had)) if *tenant == job.tenant => had == result,
                _ => result.is_none(),
            };
            let right =
                log[first..].iter().any(|(_, source)| fits(source)) || log.is_empty() && result.is_none();
            ensure(right, "a run gets exactly the results of its inputs", || {
                let had = log[first..].iter().map(|(at_us, source)| {
                    let brief = source
                        .as_ref()
                        .map(|(tenant, result)| (tenant, result.as_deref().map(str::trim_end)));
                    format!("\n  {at_us}: {brief:?}")
                });
                let result = result.as_deref().map(str::trim_end);
                format!(
                    "{key:?} of {} since {begun_us}: {result:?} of {on:?}, which had{}",
                    job.tenant,
                    had.collect::<String>()
                )
            })?;
        }
        Ok(())
    }
}
