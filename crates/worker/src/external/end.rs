//! The ends of external workers' runs.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use futures::future::BoxFuture;
use serde_json::value::RawValue;
use turnwise_queue::claims::{self, Ended, Ending, Report, StopCause};
use turnwise_queue::jobs::PREFETCHED;
use turnwise_queue::workers::RunSummary;
use turnwise_queue::{Context, Error, Job, JobResult, LogLine, Result, RunError, jobs};

use super::{External, claim_of};
use crate::accounts::{Account, RunStatus};
use crate::metrics::{CrashKind, RunResult};
use crate::record::{GROUP, is_passing};
use crate::spans::RunOutcome;

/// How an external worker ended a run.
#[derive(Debug, Clone)]
pub enum ExternalEnd {
    /// It completed, with this result.
    Completed(JobResult),
    /// It failed with a permanent error: not retried.
    Failed(RunError),
    /// It failed with an error that may pass: retried after a backoff.
    Crashed {
        /// The error.
        error: RunError,
        /// How long to wait instead of the job's backoff, in µs.
        retry_after_us: Option<i64>,
    },
    /// Its handler puts it off, to the later of these times.
    Snoozed {
        /// Not before this time, in µs.
        until_us: i64,
        /// Not before this long from now on, in µs.
        for_us: i64,
    },
    /// The worker gave the job back.
    Released,
}

impl ExternalEnd {
    /// It completed, with this result.
    pub fn completed(json: Box<RawValue>) -> Self {
        ExternalEnd::Completed(json.into())
    }

    /// A crash after which the job waits for the backoff of its terms.
    pub fn crashed(error: impl Into<RunError>) -> Self {
        ExternalEnd::Crashed { error: error.into(), retry_after_us: None }
    }
}

/// The end of a run.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// The job's id.
    pub id: String,
    /// The number of the worker's claim.
    pub claim: u64,
    /// How it ended.
    pub end: ExternalEnd,
    /// The last report.
    pub info: Option<Box<RawValue>>,
    /// Its last lines of log.
    pub log: Vec<LogLine>,
}

impl RunEnd {
    /// Whether the run ended by itself.
    fn by_itself(&self) -> bool {
        !matches!(self.end, ExternalEnd::Released)
    }
}

/// An end, and what this server knew of its run before.
struct Known<'a> {
    run: &'a RunEnd,
    status: RunStatus,
}

/// The result of writing one end.
struct Written {
    ending: Ending,
    ended: Ended,
    /// The job before its end, if this server did not know the run.
    before: Option<Job>,
    /// Whether an earlier attempt of the same transaction may have recorded it.
    retried: bool,
}

impl External {
    /// Ends a run. Returns the job as it is now, or `None` if it was removed. Idempotent.
    ///
    /// # Errors
    /// `Halt` if another claim holds the job, or its worker is no longer a member: nothing was changed. `Invalid` for an info that is too
    /// large, or too many lines of log.
    pub fn end<'a>(
        &'a self,
        job_type: &'a str,
        worker: &'a str,
        id: &'a str,
        claim: u64,
        end: ExternalEnd,
        info: Option<&'a RawValue>,
    ) -> BoxFuture<'a, Result<Option<Job>>> {
        let info = info.map(ToOwned::to_owned);
        let run = RunEnd { id: id.to_owned(), claim, end, info, log: Vec::new() };
        self.end_run(job_type, worker, run)
    }

    /// The same with lines of log.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn end_run<'a>(
        &'a self,
        job_type: &'a str,
        worker: &'a str,
        run: RunEnd,
    ) -> BoxFuture<'a, Result<Option<Job>>> {
        Box::pin(async move {
            let mut results = self.end_all(job_type, worker, &[run]).await?;
            results.pop().expect("one end goes in, one result comes out")
        })
    }

    /// Ends runs of a worker, in as few transactions as the store allows. Returns the result of each, as [`Self::end`] does.
    ///
    /// # Errors
    /// The store's: it is unknown which ends were recorded. Repeat the request.
    pub fn end_all<'a>(
        &'a self,
        job_type: &'a str,
        worker: &'a str,
        ends: &'a [RunEnd],
    ) -> BoxFuture<'a, Result<Vec<Result<Option<Job>>>>> {
        // Boxed, so that the crates that await it do not compile it again.
        Box::pin(async move {
            let now_us = self.store.runtime().now_us();
            let account = &*self.account(job_type);
            let known = |run: &'a RunEnd| Known {
                run,
                status: account.ends(worker, run.claim, run.by_itself(), now_us),
            };
            let ends: Vec<Known> = ends.iter().map(known).collect();
            let mut results = Vec::with_capacity(ends.len());
            // One end can make the transaction of a whole group fail. Each end then gets a transaction of its own.
            let mut most = GROUP;
            while results.len() < ends.len() {
                let rest = &ends[results.len()..];
                let group = &rest[..rest.len().min(most)];
                let written = match self.write(job_type, worker, group, now_us).await {
                    Ok(written) => written,
                    Err(error) if is_passing(&error) => return Err(error),
                    Err(error) if group.len() == 1 => vec![Err(error)],
                    Err(_) => {
                        most = 1;
                        continue;
                    }
                };
                for (end, written) in group.iter().zip(written) {
                    results.push(self.charge(account, job_type, worker, end, written));
                }
            }
            if ends.iter().any(|end| end.status == RunStatus::Unknown) {
                account.maintain(&self.store, &self.keys, job_type).await;
            }
            Ok(results)
        })
    }

    /// Writes ends in one transaction: at least the first, and as many as fit. Returns the result of each.
    async fn write(
        &self,
        job_type: &str,
        worker: &str,
        ends: &[Known<'_>],
        now_us: i64,
    ) -> Result<Vec<Result<Written>>> {
        let (keys, kept) = (&self.keys, self.tunables.get().kept());
        let attempts = &AtomicU32::new(0);
        self.store
            .transact(|tx| async move {
                let attempt = attempts.fetch_add(1, Relaxed);
                // Each attempt writes half as many ends as the one before it, which halves the chance of the same failure.
                let most = ends.len().checked_shr(attempt).unwrap_or(0).max(1);
                let context = Context { tx: &tx, keys, job_type, now_us, kept };
                let mut written = Vec::with_capacity(most);
                for (n, end) in ends[..most].iter().enumerate() {
                    if n % PREFETCHED == 0 {
                        let next = ends[n..most].iter().take(PREFETCHED);
                        let runs = next.map(|end| (end.run.id.as_str(), worker));
                        claims::prefetch_ends(&tx, keys, job_type, runs).await?;
                    }
                    let one = write_one(context, worker, end, attempt > 0).await;
                    match one {
                        // Nothing was written for this end.
                        Ok(_) | Err(Error::Halt | Error::Invalid { .. }) => written.push(one),
                        Err(error) => return Err(error),
                    }
                    if !tx.has_room() {
                        break;
                    }
                }
                Ok(written)
            })
            .await
    }

    /// Records the span of a run whose end was written. `job` is the job after it.
    fn trace_end(&self, (job_type, worker): (&str, &str), run: &RunEnd, ending: &Ending, job: &Job) {
        if job.trace.is_none() {
            return;
        }
        let now_us = self.store.runtime().now_us();
        let traced = RunSummary {
            trace: job.trace,
            claim: run.claim,
            id: run.id.clone(),
            tenant: job.tenant.clone(),
            task: job.task.clone(),
            started_us: job.started_us.unwrap_or(now_us),
            // A run that was given back is no attempt.
            attempt: job.attempts.saturating_add(u32::from(!run.by_itself())).max(1),
        };
        self.options.spans.ended(
            (job_type, worker),
            &traced,
            &RunOutcome::of(ending, RunResult::of(ending, Some(job))),
            now_us,
            0,
        );
    }

    /// Charges a run whose end was written.
    fn charge(
        &self,
        account: &Account,
        job_type: &str,
        worker: &str,
        end: &Known<'_>,
        written: Result<Written>,
    ) -> Result<Option<Job>> {
        let Known { run, status } = end;
        let (claim, by_itself) = (run.claim, run.by_itself());
        let Written { ending, ended, before, retried } = match written {
            Ok(written) => written,
            Err(error) => {
                match error {
                    // The job's record is gone: the earlier attempt of this server has recorded the end.
                    Error::Halt if *status == RunStatus::EndTried => {
                        account.ended(worker, claim, by_itself);
                    }
                    Error::Halt => account.ended_elsewhere(worker, claim),
                    Error::Invalid { .. } if *status == RunStatus::Running => account.ends_not(worker, claim),
                    // It is unknown whether the end was recorded.
                    Error::Store(_) | Error::Invalid { .. } | Error::NotFound => {}
                }
                return Err(error);
            }
        };
        self.run_observations.ended(job_type, worker, claim);
        if let Ended::Recorded(Some(job)) = &ended {
            self.trace_end((job_type, worker), run, &ending, job);
        }
        Ok(match ended {
            Ended::Recorded(job) => {
                let now_us = self.store.runtime().now_us();
                let started_us = job.as_ref().and_then(|job| job.started_us).unwrap_or(now_us);
                let ran_us = now_us.saturating_sub(started_us);
                let of = (job_type, job.as_ref().and_then(|job| job.task.as_deref()));
                let result = RunResult::of(&ending, job.as_ref());
                self.metrics().ended(of, result, CrashKind::Error, ran_us);
                if !account.ended(worker, claim, by_itself)
                    && let Some(before) = &before
                    && let Some(started_us) = before.started_us
                {
                    account.fair.end_unknown((&before.tenant, before.task.as_deref()), started_us, by_itself);
                }
                job
            }
            Ended::AlreadyRecorded(job) => {
                // An earlier attempt with unknown outcome has recorded it, or another server, which charges it.
                match *status == RunStatus::EndTried || retried {
                    true => drop(account.ended(worker, claim, by_itself)),
                    false => account.ended_elsewhere(worker, claim),
                }
                Some(job)
            }
        })
    }
}

async fn write_one(context: Context<'_>, worker: &str, end: &Known<'_>, retried: bool) -> Result<Written> {
    let Context { tx, keys, job_type, now_us, .. } = context;
    let Known { run: RunEnd { id, claim, end, info, log }, status } = end;
    // If another server claimed the job, or this one before a restart, only the record has the tenant and the start time.
    let before = match status {
        RunStatus::Running | RunStatus::EndTried => None,
        RunStatus::Unknown => jobs::get(tx, keys, job_type, id).await?,
    };
    let ending = match end.clone() {
        ExternalEnd::Completed(result) => Ending::Completed(result),
        ExternalEnd::Failed(error) => Ending::Failed(error),
        ExternalEnd::Released => Ending::Stopped,
        ExternalEnd::Crashed { error, retry_after_us } => {
            Ending::Crashed { error, retry_us: retry_after_us.map(|wait_us| now_us.saturating_add(wait_us)) }
        }
        ExternalEnd::Snoozed { until_us, for_us } => {
            Ending::Snoozed { until_us: until_us.max(now_us.saturating_add(for_us)) }
        }
    };
    let claim = claim_of(worker, *claim);
    let cause = matches!(end, ExternalEnd::Released).then_some(StopCause::Released);
    let report = Report { info: info.as_deref(), log, cause };
    let ended = claims::end_with(context, id, &claim, &ending, report, None).await?;
    Ok(Written { ending, ended, before, retried })
}
