//! The filters that a worker applies to a job before it starts, and the release of jobs when filters change.

use std::sync::{Arc, Mutex};

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use turnwise_policy::eligibility::concurrency::{self as at_a_time, Limit};
use turnwise_policy::eligibility::condition::{Condition, Subject, Value};
use turnwise_policy::eligibility::filters::{Filters, Limits, Verdict};
use turnwise_policy::eligibility::rate::{self, RateLimit};
use turnwise_queue::selection::{TestedOptions, searching};
use turnwise_queue::{Error, Job, Keyspace, Result, concurrency, filters, jobs, webhooks};
use turnwise_store::{Error as StoreError, Isolation, Store, Transaction, Watch};

use crate::service::{keep_up, until_stopped};
use crate::sync::lock;

/// The maximum number of paused jobs that one transaction reads.
const BATCH: usize = 200;

/// The filters, as last read.
#[derive(Default)]
pub(crate) struct FilterCache(Mutex<Option<(Bytes, Arc<Filters>)>>);

/// The filters of one pass.
pub(crate) struct FilterSet {
    stamp: Bytes,
    rules: Arc<Filters>,
}

impl FilterCache {
    /// The current filters for jobs of a type; `None` if there are none. Reads them only when they have changed. They do not apply to
    /// deliveries of webhooks: these tell what happens to jobs, and a drained server has much to tell.
    #[boxed]
    pub async fn load(&self, tx: &Transaction, keys: &Keyspace, job_type: &str) -> Result<Option<FilterSet>> {
        if job_type == webhooks::JOB_TYPE {
            return Ok(None);
        }
        let Some(stamp) = filters::stamp(tx, keys).await? else { return Ok(None) };
        let known = lock(&self.0).clone();
        let rules = match known {
            Some((seen, rules)) if seen == stamp => rules,
            _ => {
                let rules = Filters::new(filters::list(tx, keys).await?);
                // Filters are checked before they are written, but this release may not know those of a newer one.
                // It is better to start no job than to start one that such a filter forbids.
                let rules = rules.map_err(|(id, mistake)| {
                    Error::Store(StoreError::Corrupt(format!("filter {id}: {mistake}")))
                })?;
                let rules = Arc::new(rules);
                *lock(&self.0) = Some((stamp.clone(), rules.clone()));
                rules
            }
        };
        Ok((!rules.is_empty()).then_some(FilterSet { stamp, rules }))
    }
}

/// Whether a pending job may run according to the filters.
pub(crate) enum Admission {
    /// It may, if these limits have room.
    Admitted(Limits),
    /// It may not: a filter has removed it from the queue, or it is gone.
    Filtered,
}

impl FilterSet {
    /// The version of the filters: it changes with them.
    pub fn stamp(&self) -> &[u8] {
        &self.stamp
    }

    /// Whether a pending job may run. If not, removes it from the queue.
    #[boxed]
    pub async fn admits(
        &self,
        tx: &Transaction,
        keys: &Keyspace,
        job_type: &str,
        id: &str,
        now_us: i64,
    ) -> Result<Admission> {
        let Some(job) = jobs::peek(tx, keys, job_type, id).await? else { return Ok(Admission::Filtered) };
        let (verdict, limits) = self.verdict(tx, keys, &job).await?;
        match verdict {
            Verdict::Accept | Verdict::Limited(_) => return Ok(Admission::Admitted(limits)),
            Verdict::Pause(rule) => {
                filters::pause(tx, keys, job_type, id, &rule.id, &self.stamp, now_us).await?;
            }
            Verdict::Reject(rule) => {
                let note = rule.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
                let reason = format!("filter `{}` rejects it{note}", rule.id);
                filters::reject(tx, keys, job_type, id, &reason, now_us).await?;
            }
        }
        Ok(Admission::Filtered)
    }

    /// What the filters decide about a job, and the limits of the filter that decides.
    async fn verdict(&self, tx: &Transaction, keys: &Keyspace, job: &Job) -> Result<(Verdict<'_>, Limits)> {
        let options = match self.rules.ask_for_options() {
            true => TestedOptions::of(tx, keys, job).await?,
            false => TestedOptions::hidden(),
        };
        let judge = || {
            let members = options.members();
            let option = |path: &[String]| members.option(path);
            let subject = subject(job, &option);
            let verdict = self.rules.judge(&subject);
            let limits = match verdict {
                Verdict::Limited(rule) => rule.limits(&subject),
                _ => Limits::default(),
            };
            (verdict, limits)
        };
        Ok(searching(self.rules.pattern_bytes(), judge).await)
    }
}

impl FilterCache {
    /// The limits that a pending job obeys; `None` if a filter will remove it from the queue. Changes nothing.
    #[boxed]
    pub async fn limits(
        filters: Option<&FilterSet>,
        tx: &Transaction,
        keys: &Keyspace,
        job: &Job,
    ) -> Result<Option<(Vec<Limit>, Vec<RateLimit>)>> {
        let limits = match filters {
            None => Limits::default(),
            Some(filters) => match filters.verdict(tx, keys, job).await? {
                (Verdict::Accept | Verdict::Limited(_), limits) => limits,
                (Verdict::Pause(_) | Verdict::Reject(_), _) => return Ok(None),
            },
        };
        let concurrency = at_a_time::of_job(limits.concurrency, &job.reasons);
        Ok(Some((concurrency, rate::of_job(limits.rate, &job.reasons))))
    }
}

/// Whether a filter that does not accept applies to a job.
#[boxed]
pub async fn holds(tx: &Transaction, keys: &Keyspace, condition: &Condition, job: &Job) -> Result<bool> {
    let options = match condition.asks_for_options() {
        true => TestedOptions::of(tx, keys, job).await?,
        false => TestedOptions::hidden(),
    };
    let evaluate = || {
        let members = options.members();
        condition.applies(&subject(job, &|path| members.option(path)))
    };
    Ok(searching(condition.pattern_bytes(), evaluate).await)
}

fn subject<'a>(job: &'a Job, option: &'a dyn Fn(&[String]) -> Option<Value>) -> Subject<'a> {
    Subject {
        id: &job.id,
        job_type: &job.job_type,
        tenant: &job.tenant,
        user: job.user.as_deref(),
        task: job.task.as_deref(),
        tags: &job.tags,
        group: job.group.as_ref().map(|group| group.name.as_str()),
        reasons: &job.reasons,
        added_us: job.added_us,
        option,
        standing: None,
    }
}

/// Returns paused jobs, and jobs that filters limit, to the queue ([`filters::release`], [`concurrency::release_old`]): once at its start,
/// and again after each change of the filters, until it is stopped. Any number of servers may do this at the same time.
pub fn release_filtered((store, keys): (Store, Keyspace), stop: CancellationToken) -> BoxFuture<'static, ()> {
    until_stopped(stop, async move {
        keep_up(&store, "cannot release paused jobs", || pass(&store, &keys)).await;
    })
}

async fn pass(store: &Store, keys: &Keyspace) -> Result<Watch> {
    let row = &keys.filters_versionstamp();
    let seen = store.begin().await?.get_with(row, Isolation::Snapshot).await?;
    let mut cursor: Option<filters::Cursor> = None;
    loop {
        let after = cursor.as_ref();
        cursor = store.transact(|tx| async move { filters::release(&tx, keys, after, BATCH).await }).await?;
        if cursor.is_none() {
            break;
        }
    }
    loop {
        let after = cursor.as_ref();
        cursor = store
            .transact(|tx| async move { concurrency::release_old(&tx, keys, after, BATCH).await })
            .await?;
        if cursor.is_none() {
            return Ok(store.watch(row.clone(), seen).await?);
        }
    }
}
