//! The invariants of filters, concurrency limits and rates, checked at every commit, by rules of its own.
//!
//! - A job starts only if no filter then pauses or rejects it, and if each of its buckets has room. Its buckets are those
//!   of its reasons, and the filter that decides about it if that one has a limit.
//! - A job leaves the queue only because a filter pauses or rejects it, or because of a bucket that it is in. It returns to
//!   its old place; a paused job returns only when the filters have changed.
//! - No period, by the times at which jobs started, has more starts than the rate of their filter allows. Those before a change of the filter
//!   do not count. A job that only waits for a rate starts soon after a place is free.
//!
//! A job is in a bucket from its claim to the end of that claim, even if the filter or the job's reasons change. The module
//! also knows since when a waiting job could start, for [`crate::liveness`].

use std::collections::{BTreeMap, BTreeSet};

use turnwise_policy::eligibility::concurrency::Bucket;
use turnwise_policy::eligibility::filters::{Action, Rule};
use turnwise_policy::eligibility::rate::Rate;
use turnwise_queue::check::Row;
use turnwise_queue::{Job, State};

use crate::broken::{Broken, ensure, in_words};
use crate::core::Stats;
use crate::eligibility::{Question, stated};
use crate::ledger::JobKey;
use crate::model::JobRows;
use crate::rows::RowChange;

/// How much later than the worker of whose part a bucket of starts is, others look at it, in µs.
const MOVED_MARK_US: i64 = 1_000_000;

/// What the checker knows about filters and buckets.
#[derive(Default)]
pub struct Filters {
    rules: BTreeMap<String, Rule>,
    /// When the filters changed, in µs since the world began. Their version is the number of changes.
    changes_us: Vec<i64>,
    /// Jobs that are paused or limited, with the version of the filters that decided it.
    kept: BTreeMap<JobKey, usize>,
    /// When jobs of each filter with a rate started since it was written, in µs of the clocks of their workers.
    starts: BTreeMap<String, Vec<i64>>,
    /// The same since the world began. A start counts from the time of the one before it, if that is later.
    all_starts: BTreeMap<String, Vec<i64>>,
    /// Running jobs, by bucket.
    running: BTreeMap<Bucket, BTreeSet<JobKey>>,
    /// Waiting jobs, since when no filter and no bucket stops them, in µs since the world began, and whether they lock. If
    /// a job gains or loses its locks, its time starts again, because something else may have stopped it before.
    free_since_us: BTreeMap<JobKey, (i64, bool)>,
    /// When a job of each type last left the queue because of a filter or bucket, or returned, in µs since the world began.
    sorted_us: BTreeMap<String, i64>,
    /// When a job that was kept by filters of an older version last returned to the queue, in µs since the world began.
    released_us: i64,
    /// When a job of each bucket last started or ended, in µs since the world began.
    moved_us: BTreeMap<Bucket, i64>,
    touched: Touched,
}

/// The effects of the commit that is checked.
#[derive(Default)]
struct Touched {
    rules: bool,
    /// For each bucket, the limits that the jobs claimed in this commit had to obey.
    claimed: BTreeMap<Bucket, Vec<usize>>,
    released: bool,
}

impl Filters {
    /// Notes a changed row.
    ///
    /// # Errors
    /// If the row is a filter that cannot be read.
    pub fn observe(&mut self, row: &Row, change: &RowChange, now_us: i64) -> Result<(), serde_json::Error> {
        let Row::Filter(name) = row else { return Ok(()) };
        self.starts.remove(name);
        match &change.new {
            Some(value) => {
                let mut rule: Rule = serde_json::from_slice(value)?;
                rule.id.clone_from(name);
                self.rules.insert(name.clone(), rule);
            }
            None => drop(self.rules.remove(name)),
        }
        self.changes_us.push(now_us);
        self.touched.rules = true;
        Ok(())
    }

    /// The names of all filters.
    pub fn names(&self) -> Vec<String> {
        self.rules.keys().cloned().collect()
    }

    /// The filter that decides about a job, if one does.
    fn decides(&self, job: &Job) -> Option<&Rule> {
        let asks = |rule: &&Rule| {
            let is_about = rule.watermark_us == 0 || rule.watermark_us <= job.added_us;
            let question = Question::parse(&rule.when).expect("the world's own clients wrote it");
            rule.action != Action::Continue && is_about && question.holds(job)
        };
        self.rules.values().filter(asks).min_by_key(|rule| (rule.priority, rule.watermark_us, &rule.id))
    }

    /// The rate that a job obeys, with the name of its filter.
    fn rate(&self, job: &Job) -> Option<(String, Rate)> {
        let rule = self.decides(job).filter(|rule| rule.action == Action::Rate)?;
        Some((rule.id.clone(), rule.rate.clone()?))
    }

    /// The buckets that a job has to be in to run, each with its limit. `None` if a filter stops the job.
    fn buckets(&self, job: &Job) -> Option<BTreeMap<Bucket, usize>> {
        let mut buckets = BTreeMap::new();
        match self.decides(job).map(|rule| (rule.action, rule)) {
            Some((Action::Pause | Action::Reject, _)) => return None,
            Some((Action::Concurrency, rule)) => {
                let most = rule.limit.map_or(0, |most| most as usize);
                buckets.insert(Bucket::Filter(rule.id.clone()), most);
            }
            _ => {}
        }
        for (name, most) in job.reasons.iter().filter_map(|reason| stated(reason)) {
            let lowest = buckets.entry(Bucket::Reason(name.to_owned())).or_insert(usize::MAX);
            *lowest = (*lowest).min(most as usize);
        }
        Some(buckets)
    }

    fn in_bucket(&self, bucket: &Bucket) -> usize {
        self.running.get(bucket).map_or(0, BTreeSet::len)
    }

    /// Checks a claim.
    pub fn claimed(&mut self, key: &JobKey, job: &Job, now_us: i64) -> Result<(), Broken> {
        let story = || format!("{key:?} {:?}: {}", self.decides(job), in_words(Some(job)));
        let buckets =
            self.buckets(job).ok_or_else(|| ("no job starts that a filter pauses or rejects", story()))?;
        let named: BTreeSet<&Bucket> = job.buckets().iter().collect();
        ensure(buckets.keys().eq(named), "a job that starts has a place in each of its buckets", || {
            format!("{buckets:?}, but {}", story())
        })?;
        if let Some((filter, rate)) = self.rate(job) {
            let started_us = job.started_us.expect("a job that was claimed has started");
            let all = self.all_starts.entry(filter.clone()).or_default();
            all.push(all.last().copied().unwrap_or(i64::MIN).max(started_us));
            let starts = self.starts.entry(filter).or_default();
            let in_period = starts.iter().filter(|at_us| **at_us > started_us - rate.per_us()).count();
            let told = || format!("{starts:?} came before {started_us}, and {rate} holds for {key:?}");
            ensure(
                in_period < rate.at_most as usize,
                "no period has more starts than its rate allows",
                told,
            )?;
            starts.push(started_us);
        }
        for (bucket, most) in buckets {
            self.running.entry(bucket.clone()).or_default().insert(key.clone());
            self.moved_us.insert(bucket.clone(), now_us);
            self.touched.claimed.entry(bucket).or_default().push(most);
        }
        Ok(())
    }

    /// Notes the end of a claim.
    pub fn released(&mut self, key: &JobKey, now_us: i64) {
        for (bucket, jobs) in &mut self.running {
            if jobs.remove(key) {
                self.touched.released = true;
                self.moved_us.insert(bucket.clone(), now_us);
            }
        }
    }

    /// Whether a pass may have paused, limited or rejected the job as it did. Only for changes that no client requested.
    pub fn sorts_out(
        &mut self,
        key: &JobKey,
        new: &Job,
        now_us: i64,
        count: impl FnOnce(&dyn Fn(&mut Stats)),
    ) -> bool {
        self.sorted_us.insert(key.0.clone(), now_us);
        let decides = self.decides(new).map(|rule| (rule.action, rule.id.as_str()));
        let is_right = match (new.state(), new.paused(), new.limited()) {
            (State::Delayed, Some(filter), None) => {
                count(&|stats| stats.paused += 1);
                decides == Some((Action::Pause, filter))
            }
            (State::Delayed, None, Some(limit)) => {
                count(&|stats| stats.held_back += 1);
                // Some worker does not take its task.
                let task = new.task.as_deref().unwrap_or_default();
                let is_of_task = matches!(&limit.bucket, Bucket::Task(name) if name == task);
                let buckets = self.buckets(new).unwrap_or_default();
                let by_rate = |(filter, rate): (String, Rate)| {
                    limit.bucket == Bucket::Rate(filter) && limit.most == rate.at_most
                };
                is_of_task
                    || buckets.get(&limit.bucket) == Some(&(limit.most as usize))
                    || self.rate(new).is_some_and(by_rate)
            }
            (State::Cancelled, ..) => {
                count(&|stats| stats.rejected += 1);
                let names = |filter: &str| {
                    let told = format!("filter `{filter}`");
                    new.refused.as_ref().is_some_and(|reason| reason.contains(&told))
                };
                decides.is_some_and(|(action, filter)| action == Action::Reject && names(filter))
            }
            _ => false,
        };
        self.kept.insert(key.clone(), self.changes_us.len());
        is_right
    }

    /// Whether a paused or limited job may return to its old place.
    pub fn lets_go(&mut self, key: &JobKey, old: &Job, new: &Job, now_us: i64) -> bool {
        self.sorted_us.insert(key.0.clone(), now_us);
        let has_changed = self.kept.get(key).is_some_and(|version| *version < self.changes_us.len());
        if has_changed {
            self.released_us = now_us;
        }
        let may = old.limited().is_some() || has_changed;
        // The record of a job that is claimed or rejected in the same transaction no longer states its old place.
        let stands = new.state().is_claimed() || new.state().is_final() || old.order_us() == new.order_us();
        may && stands && (&old.tenant, old.priority) == (&new.tenant, new.priority)
    }

    /// Checks that no bucket holds more running jobs than its limit. The jobs claimed in this commit must obey their limits
    /// in some order.
    pub fn check(&self) -> Result<(), Broken> {
        for (bucket, mosts) in &self.touched.claimed {
            let mut mosts = mosts.clone();
            mosts.sort_unstable();
            let there = self.in_bucket(bucket);
            let before = there - mosts.len();
            let too_many = (1..).zip(mosts.iter()).any(|(n, most)| before + n > *most);
            ensure(!too_many, "no more jobs of a bucket run than its limit allows", || {
                format!("{mosts:?} came to {before} of {bucket}: {:?}", self.running.get(bucket))
            })?;
        }
        Ok(())
    }

    /// Updates since when jobs could start, after a commit.
    pub fn look<'a>(
        &mut self,
        touched_jobs: impl Iterator<Item = &'a JobKey>,
        known: &BTreeMap<JobKey, JobRows>,
        now_us: i64,
    ) {
        let touched = std::mem::take(&mut self.touched);
        let all = touched.rules || touched.released || !touched.claimed.is_empty();
        let keys: Vec<&JobKey> = if all { known.keys().collect() } else { touched_jobs.collect() };
        for key in keys {
            let job = known.get(key).and_then(|rows| rows.record.as_ref());
            // What a client holds waits for no filter.
            let is_kept = |job: &Job| job.paused().is_some() || job.limited().is_some();
            if job.is_none_or(|job| !is_kept(job) || job.holder().is_some()) {
                self.kept.remove(key);
            }
            if let Some(job) = job.filter(|job| self.could_start(job)) {
                let locks = !job.locks.is_none();
                let since = self.free_since_us.entry(key.clone()).or_insert((now_us, locks));
                if since.1 != locks {
                    *since = (now_us, locks);
                }
            } else {
                self.free_since_us.remove(key);
            }
        }
    }

    fn could_start(&self, job: &Job) -> bool {
        let is_kept = job.paused().is_some() || job.limited().is_some();
        let waits = job.state() == State::Pending || job.state() == State::Delayed && is_kept;
        let has_room = |buckets: BTreeMap<Bucket, usize>| {
            buckets.iter().all(|(bucket, most)| self.in_bucket(bucket) < *most)
        };
        waits && job.holder().is_none() && self.buckets(job).is_some_and(has_room)
    }

    /// When the rate of a job has a place, in µs of the clocks of the workers of its starts, and how much later a pass may find it, in µs. `None` without a
    /// rate. No commit tells this.
    pub fn place_us(&self, job: &Job) -> Option<(i64, i64)> {
        let (filter, rate) = self.rate(job)?;
        let late_us = rate.per_us() / 10 + MOVED_MARK_US;
        let times = self.all_starts.get(&filter).map_or(&[][..], |times| &times[..]);
        let first = times.len().checked_sub(rate.at_most as usize).map(|first| times[first]);
        Some((first.map_or(i64::MIN, |at_us| at_us.saturating_add(rate.per_us())), late_us))
    }

    /// Since when filters and buckets have left the queue of a job type unchanged.
    pub fn sorted_since_us(&self, job_type: &str) -> i64 {
        let sorted_us = self.sorted_us.get(job_type).copied().unwrap_or(0);
        self.changes_us.last().map_or(sorted_us, |changed_us| sorted_us.max(*changed_us))
    }

    /// When the buckets of waiting jobs last changed, by job type. A pass that conflicts with such a change runs again.
    pub fn contended_us(&self, known: &BTreeMap<JobKey, JobRows>) -> BTreeMap<String, i64> {
        let mut contended_us = BTreeMap::new();
        for (key, rows) in known {
            let job =
                rows.record.as_ref().filter(|job| job.state() == State::Pending || job.limited().is_some());
            let buckets = job.and_then(|job| self.buckets(job)).unwrap_or_default();
            let moved_us = buckets.keys().filter_map(|bucket| self.moved_us.get(bucket)).max();
            if let Some(moved_us) = moved_us {
                let latest = contended_us.entry(key.0.clone()).or_insert(*moved_us);
                *latest = (*latest).max(*moved_us);
            }
        }
        contended_us
    }

    /// Since when a waiting job could start, as far as filters and buckets decide it.
    pub fn free_since_us(&self, key: &JobKey) -> Option<i64> {
        self.free_since_us.get(key).map(|(since_us, _)| *since_us)
    }

    /// Since when newer filters exist than those that keep a job, and no other such job has returned. Many jobs may be
    /// kept, and each transaction checks only some of them.
    pub fn outdated_since_us(&self, key: &JobKey, job: &Job) -> Option<i64> {
        let by_filter =
            job.limited().map(|limit| matches!(limit.bucket, Bucket::Filter(_) | Bucket::Rate(_)));
        let version = self.kept.get(key).filter(|_| job.paused().is_some() || by_filter == Some(true))?;
        self.changes_us.get(*version).map(|changed_us| self.released_us.max(*changed_us))
    }
}
