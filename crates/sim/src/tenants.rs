//! The invariants of tenants, checked at every commit: a tenant with pending jobs is listed as waiting, and no charge of a
//! tenant is lost.

use std::collections::{BTreeMap, BTreeSet};

use turnwise_queue::Job;
use turnwise_queue::check::{check_boost, check_usage, check_waiting};
use turnwise_queue::keyspace::QueuePlace;
use turnwise_queue::usage::Charged;

use crate::broken::{Broken, ensure, none};
use crate::ledger::{ClaimKey, JobKey};
use crate::model::{IndexRow, Row};
use crate::rows::RowChange;
use crate::show;

/// A job type and a tenant.
pub type TenantKey = (String, String);

/// The key of a charge: type, tenant, charger.
type UsageKey = (String, String, String);

/// What the checker knows about tenants.
#[derive(Default)]
pub struct Tenants {
    pending: BTreeMap<TenantKey, BTreeSet<(QueuePlace, String)>>,
    waiting: BTreeSet<TenantKey>,
    usage: BTreeMap<UsageKey, Charged>,
    /// Claims that hold a job.
    held: BTreeMap<ClaimKey, Holding>,
    accounts: BTreeMap<TenantKey, Account>,
}

/// A claim that holds a job.
struct Holding {
    tenant: TenantKey,
    since_us: i64,
    /// Since when it waits for a lock, if it does.
    waits_since_us: Option<i64>,
    /// How long it waited for locks before, in µs.
    waited_us: i64,
}

impl Holding {
    fn waited_us(&self, now_us: i64) -> i64 {
        self.waited_us + self.waits_since_us.map_or(0, |since_us| now_us - since_us)
    }
}

/// How long a tenant's jobs ran, and what the tenant was charged for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Account {
    /// Claims that were given and have ended.
    pub runs: u64,
    /// How long they held their jobs in total.
    pub held_us: i64,
    /// How much of that they waited for locks.
    pub waited_us: i64,
    /// How much of that concerns jobs that were added again under another tenant meanwhile. Either tenant may be charged for it.
    pub unclear_us: i64,
    /// The sum of all charges in all rows since the beginning.
    pub charged_us: u64,
}

/// The effects of one commit on tenants.
#[derive(Default)]
pub struct Touched {
    tenants: BTreeSet<TenantKey>,
    usage: Vec<(UsageKey, Option<Charged>, Option<Charged>)>,
}

impl Tenants {
    /// Notes a claim of a tenant's job.
    pub fn claimed(&mut self, worker: &str, number: u64, job_type: &str, tenant: &str, now_us: i64) {
        let tenant = (job_type.to_owned(), tenant.to_owned());
        let holding = Holding { tenant, since_us: now_us, waits_since_us: None, waited_us: 0 };
        self.held.insert((worker.to_owned(), number), holding);
    }

    /// Notes that a claim still holds its job, and whether it `waits` for a lock.
    pub fn goes_on(&mut self, worker: &str, number: u64, waits: bool, now_us: i64) {
        if let Some(holding) = self.held.get_mut(&(worker.to_owned(), number))
            && holding.waits_since_us.is_some() != waits
        {
            (holding.waited_us, holding.waits_since_us) =
                (holding.waited_us(now_us), waits.then_some(now_us));
        }
    }

    /// Notes the end of a claim. `tenant` is the current tenant of the job.
    pub fn released(&mut self, worker: &str, number: u64, tenant: &str, now_us: i64) {
        let Some(holding) = self.held.remove(&(worker.to_owned(), number)) else { return };
        let waited_us = holding.waited_us(now_us);
        let of = holding.tenant;
        let is = (of.0.clone(), tenant.to_owned());
        let held_us = now_us - holding.since_us;
        if is != of {
            for either in [&is, &of] {
                self.accounts.entry(either.clone()).or_default().unclear_us += held_us;
            }
        }
        let account = self.accounts.entry(of).or_default();
        account.runs += 1;
        account.held_us += held_us;
        account.waited_us += waited_us;
    }

    /// The charges of each tenant, and the run times behind them.
    pub fn accounts(&self) -> impl Iterator<Item = (&TenantKey, &Account)> {
        self.accounts.iter()
    }

    /// Notes a changed row, and checks it alone.
    pub fn observe(&mut self, row: &Row, change: &RowChange, touched: &mut Touched) -> Result<(), Broken> {
        match row {
            Row::Index((job_type, id), IndexRow::Pending(place)) => {
                let tenant = (job_type.clone(), place.tenant.clone());
                let queue = self.pending.entry(tenant.clone()).or_default();
                let entry = (place.clone(), id.clone());
                match &change.new {
                    Some(_) => drop(queue.insert(entry)),
                    None => drop(queue.remove(&entry)),
                }
                if queue.is_empty() {
                    self.pending.remove(&tenant);
                }
                touched.tenants.insert(tenant);
            }
            Row::Waiting(job_type, tenant) => {
                let key = (job_type.clone(), tenant.clone());
                match &change.new {
                    Some(value) => {
                        none(check_waiting(&change.key, Some(value)).into_iter().collect())?;
                        self.waiting.insert(key.clone());
                    }
                    None => drop(self.waiting.remove(&key)),
                }
                touched.tenants.insert(key);
            }
            Row::Usage(job_type, tenant, charger) => {
                let key = (job_type.clone(), tenant.clone(), charger.clone());
                let new = match &change.new {
                    Some(value) => {
                        none(check_usage(&change.key, value).into_iter().collect())?;
                        let read = serde_json::from_slice(value);
                        Some(read.map_err(|error| {
                            ("rows can be read", format!("{error}: {}", show::row(&change.key, Some(value))))
                        })?)
                    }
                    None => None,
                };
                let old = match new.clone() {
                    Some(new) => self.usage.insert(key.clone(), new),
                    None => self.usage.remove(&key),
                };
                let more_us = |new: &Charged| {
                    new.service_us.saturating_sub(old.as_ref().map_or(0, |old| old.service_us))
                };
                let account = self.accounts.entry((job_type.clone(), tenant.clone())).or_default();
                account.charged_us += new.as_ref().map_or(0, more_us);
                touched.usage.push((key, old, new));
            }
            Row::Boost(_) => {
                if let Some(value) = &change.new {
                    none(check_boost(&change.key, value).into_iter().collect())?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks what a commit changed. `speaks_for` returns whether a charger's rows are written where the commit was made,
    /// `is_gone` whether a charger is no longer a member. `removes` is true if the commit ends a membership.
    pub fn check(
        &self,
        touched: &Touched,
        speaks_for: impl Fn(&JobKey) -> bool,
        is_gone: impl Fn(&JobKey) -> bool,
        removes: bool,
    ) -> Result<(), Broken> {
        for tenant in &touched.tenants {
            let waits = self.waiting.contains(tenant);
            ensure(
                waits || !self.pending.contains_key(tenant),
                "a tenant with pending jobs is found",
                || format!("{tenant:?} has {:?}", self.pending.get(tenant)),
            )?;
        }
        for (key, old, new) in &touched.usage {
            let (job_type, _, charger) = key;
            let worker = (job_type.clone(), charger.clone());
            let story = || format!("{key:?} was {old:?}, is {new:?}");
            match (old, new) {
                (_, Some(_)) => {
                    ensure(speaks_for(&worker), "only a charger writes its charges", story)?;
                    let grows = old.as_ref().zip(new.as_ref()).is_none_or(|(old, new)| {
                        new.service_us >= old.service_us && new.virtual_us >= old.virtual_us
                    });
                    ensure(grows, "a charge never shrinks", story)?;
                }
                (Some(_), None) => {
                    ensure(!removes, "a worker's death does not remove its charges", story)?;
                    ensure(
                        speaks_for(&worker) || is_gone(&worker),
                        "only a charger writes its charges",
                        story,
                    )?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }
}

/// Whether only a pending job's place in the queue changed: to a sort key, or back to its time.
pub fn is_sorted_anew(old: &Job, new: &Job) -> bool {
    let same = |job: &Job| (job.tenant.clone(), job.order_us(), job.history.clone(), job.continuous);
    old.is_pending() && new.is_pending() && old.queue_place() != new.queue_place() && same(old) == same(new)
}
