//! The rates of the world. A job that its rate refuses leaves the queue until its bucket has a place, as in a server. Which job may start is decided
//! by the numbers of starts that the server keeps ([`StartCount`]).
//!
//! How many starts a period has had is counted apart from that, by their times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnwise_policy::eligibility::rate::{NextStart, Rate, StartCount};

use super::{Event, World};
use crate::planned::{self, Key};
use crate::results::RateResults;
use crate::rng::SeededRng;
use crate::scheme::{Job, JobId};

/// The most tenants of which jobs return to the queue at once, as in a server.
const MAX_TENANTS: usize = 100;

/// All rates, and which jobs obey them.
#[derive(Default)]
pub(super) struct Limits {
    rates: Vec<Limit>,
    buckets: Vec<Bucket>,
    /// The bucket of each job, if there are rates.
    of: Vec<Option<usize>>,
    /// The jobs that were refused since they were last asked for.
    refused: Vec<JobId>,
}

struct Limit {
    name: String,
    rate: Rate,
    key: Option<Key>,
    /// The index of its first bucket.
    first: usize,
    /// The jobs that wait for a place.
    limited: usize,
    /// The time since which there are such jobs, and how long there were some before.
    since_us: i64,
    waited_us: i64,
}

#[derive(Default)]
struct Bucket {
    rate: usize,
    count: StartCount,
    /// The last starts: the number of the last one of a moment, and the moment.
    log: VecDeque<(u64, i64)>,
    /// The last start before them.
    forgotten: u64,
    /// The most starts of a period.
    highest: u64,
    /// The jobs that wait for a place, by tenant, each with its time in the queue.
    limited: BTreeMap<usize, BTreeSet<(i64, JobId)>>,
    /// The first tenant whose jobs return next.
    turn: usize,
    /// When it next has a place.
    wakes_us: Option<i64>,
}

impl Bucket {
    /// When the `n`-th more job may start, in µs.
    fn next_us(&self, rate: &Rate, n: u32) -> i64 {
        match self.count.next_start(rate, n) {
            NextStart::At(at_us) => at_us,
            NextStart::PeriodAfter(number) => {
                let found = self.log.partition_point(|(until, _)| *until < number);
                let at_us = self.log.get(found).map_or(self.count.last_us, |(_, at_us)| *at_us);
                at_us.saturating_add(rate.per_us())
            }
        }
    }

    fn take(&mut self, rate: &Rate, now_us: i64) {
        let (number, at_us) = self.count.take(rate, now_us);
        match self.log.back_mut().filter(|(_, last_us)| *last_us == at_us) {
            Some((last, _)) => *last = number,
            None => self.log.push_back((number, at_us)),
        }
        // A start that is a period old has left it.
        let older_us = now_us - rate.per_us();
        let left = self.log.partition_point(|(_, at_us)| *at_us <= older_us);
        let left = left.checked_sub(1).map_or(self.forgotten, |last| self.log[last].0);
        self.highest = self.highest.max(number - left);
        let needed = (number + 1).saturating_sub(rate.at_most.into());
        while let Some((until, at_us)) = self.log.front().copied()
            && until < needed
            && at_us <= older_us
        {
            self.forgotten = until;
            self.log.pop_front();
        }
    }

    /// Takes out the jobs that may take the places of now: of each tenant so many, among which the policy chooses. Then determines
    /// the time of the next place.
    fn returning(&mut self, rate: &Rate, now_us: i64) -> Vec<JobId> {
        let fit = rate.at_most / rate.weight.max(1);
        let limited: usize = self.limited.values().map(BTreeSet::len).sum();
        let most = u32::try_from(limited).unwrap_or(u32::MAX).min(fit);
        let places = (0..most).take_while(|n| self.next_us(rate, n + 1) <= now_us).count();
        let in_turn = self.limited.range(self.turn..).chain(self.limited.range(..self.turn));
        let tenants: Vec<usize> = in_turn.map(|(tenant, _)| *tenant).take(MAX_TENANTS).collect();
        let mut jobs = Vec::new();
        for tenant in tenants {
            self.turn = tenant + 1;
            let Some(waiting) = self.limited.get_mut(&tenant) else { continue };
            jobs.extend(std::iter::from_fn(|| waiting.pop_first()).take(places).map(|(_, job)| job));
        }
        self.limited.retain(|_, jobs| !jobs.is_empty());
        let next = u32::try_from(places).unwrap_or(u32::MAX);
        let next_us = match next >= fit {
            true => now_us + rate.per_us(),
            false => self.next_us(rate, next + 1).max(now_us),
        };
        self.wakes_us = (!self.limited.is_empty()).then_some(next_us);
        jobs
    }
}

impl Limits {
    pub fn new(stated: &[planned::Rate], tenants: usize) -> Self {
        let mut limits = Limits::default();
        for (n, of) in stated.iter().enumerate() {
            let first = limits.buckets.len();
            limits.rates.push(Limit {
                name: of.name.clone(),
                rate: of.rate(),
                key: of.key,
                first,
                limited: 0,
                since_us: 0,
                waited_us: 0,
            });
            let buckets = (0..of.buckets(tenants as u64)).map(|_| Bucket { rate: n, ..Bucket::default() });
            limits.buckets.extend(buckets);
        }
        limits
    }

    /// The number of the rate with a name.
    pub fn named(&self, name: Option<&String>) -> Option<usize> {
        self.rates.iter().position(|limit| Some(&limit.name) == name)
    }

    /// A new job obeys a rate.
    pub fn put(&mut self, rate: Option<usize>, tenant: usize, rng: &mut SeededRng) {
        if self.rates.is_empty() {
            return;
        }
        let bucket = rate.map(|rate| {
            let Limit { first, key, .. } = &self.rates[rate];
            first
                + match key {
                    None => 0,
                    Some(Key::Tenant) => tenant,
                    Some(Key::Values(values)) => {
                        usize::try_from(rng.between(0, values.get() - 1)).expect("it is an index")
                    }
                }
        });
        self.of.push(bucket);
    }

    /// Counts the start of a job if its rate allows it.
    pub fn claim(&mut self, job: JobId, now_us: i64) -> bool {
        let Some(bucket) = self.of.get(job as usize).copied().flatten() else { return true };
        let bucket = &mut self.buckets[bucket];
        let rate = &self.rates[bucket.rate].rate;
        let is_free = bucket.next_us(rate, 1) <= now_us;
        match is_free {
            true => bucket.take(rate, now_us),
            false => self.refused.push(job),
        }
        is_free
    }

    /// A refused job waits for a place. Returns its bucket, and the time of the next place if it is not known yet.
    fn limit(&mut self, id: JobId, job: &Job, now_us: i64) -> Option<(usize, i64)> {
        let number = self.of[id as usize]?;
        let bucket = &mut self.buckets[number];
        let limit = &mut self.rates[bucket.rate];
        bucket.limited.entry(job.tenant).or_default().insert((job.order_us, id));
        if limit.limited == 0 {
            limit.since_us = now_us;
        }
        limit.limited += 1;
        let next_us = bucket.next_us(&limit.rate, 1);
        let is_new = bucket.wakes_us.is_none_or(|wakes_us| next_us < wakes_us);
        is_new.then(|| {
            bucket.wakes_us = Some(next_us);
            (number, next_us)
        })
    }

    /// A job waits for a place no longer.
    fn leave(&mut self, id: JobId, job: &Job, now_us: i64) {
        let Some(bucket) = self.of[id as usize] else { return };
        let bucket = &mut self.buckets[bucket];
        if let Some(waiting) = bucket.limited.get_mut(&job.tenant) {
            waiting.remove(&(job.order_us, id));
            if waiting.is_empty() {
                bucket.limited.remove(&job.tenant);
            }
        }
        let limit = &mut self.rates[bucket.rate];
        limit.limited -= 1;
        if limit.limited == 0 {
            limit.waited_us += now_us - limit.since_us;
        }
    }

    /// What is known of each rate at the end.
    pub fn results(&self, end_us: i64) -> Vec<RateResults> {
        let of = |limit: &Limit| {
            let buckets =
                || self.buckets.iter().filter(|bucket| std::ptr::eq(&self.rates[bucket.rate], limit));
            let waits_us = if limit.limited > 0 { end_us - limit.since_us } else { 0 };
            RateResults {
                name: limit.name.clone(),
                at_most: limit.rate.at_most,
                per_ms: limit.rate.per_ms,
                starts: buckets().map(|bucket| bucket.count.total).sum(),
                highest_use: buckets().map(|bucket| bucket.highest).max().unwrap_or(0),
                reason_share: (limit.waited_us + waits_us) as f64 / end_us as f64,
            }
        };
        self.rates.iter().map(of).collect()
    }
}

impl World<'_> {
    /// The jobs that rates have just refused leave the queue.
    pub(super) fn limit_refused(&mut self) {
        for job in std::mem::take(&mut self.limits.refused) {
            let seen = self.jobs[job as usize];
            self.fates[job as usize].limited = true;
            self.limited += 1;
            self.owners[seen.tenant].limited += 1;
            self.set_due(seen.tenant);
            if let Some((bucket, at_us)) = self.limits.limit(job, &seen, self.now_us) {
                self.at(at_us, Event::Place(bucket));
            }
        }
    }

    /// A job that was refused is no longer limited. The caller decides whether it returns to the queue.
    pub(super) fn unlimit(&mut self, job: JobId) {
        let seen = self.jobs[job as usize];
        self.fates[job as usize].limited = false;
        self.limited -= 1;
        self.owners[seen.tenant].limited -= 1;
        self.set_due(seen.tenant);
        self.limits.leave(job, &seen, self.now_us);
    }

    /// A bucket has places: jobs return to the queue.
    pub(super) fn places(&mut self, number: usize) {
        let bucket = &mut self.limits.buckets[number];
        if bucket.wakes_us != Some(self.now_us) {
            return;
        }
        let jobs = bucket.returning(&self.limits.rates[bucket.rate].rate, self.now_us);
        let wakes_us = bucket.wakes_us;
        for job in jobs {
            self.unlimit(job);
            let (scheme, view) = self.split();
            scheme.waits(view, job);
        }
        if let Some(at_us) = wakes_us {
            self.at(at_us, Event::Place(number));
        }
    }
}
