//! The RFC as CouchDB implements it. Priorities and usages are integers, truncated at every step. Each cycle rotates
//! as many jobs as it may, even if the starting jobs' tenants have no larger deficit.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobId, Scheme, View};
use crate::scenario::{Rfc, Scenario};

/// The RFC, with truncation to integers.
pub(crate) struct Whole {
    rules: Rfc,
    cycles: u64,
    /// Per tenant: the usage, in µs.
    usage: Vec<u64>,
    /// Per tenant: the charges since the last cycle, in µs.
    charged: Vec<u64>,
    /// Per job: a priority, and the number of cycles after which it was computed.
    priority: Vec<(u64, u64)>,
    /// Waiting jobs by their current priority. Truncation may make priorities equal, and never changes an order. So a
    /// cycle costs as much as there are different priorities, not jobs.
    waiting: BTreeMap<u64, BTreeSet<(i64, JobId)>>,
}

impl Whole {
    pub(crate) fn new(scenario: &Scenario, tenants: usize) -> Self {
        Whole {
            rules: scenario.rfc,
            cycles: 0,
            usage: vec![0; tenants],
            charged: vec![0; tenants],
            priority: Vec::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// A job's priority now.
    fn priority(&mut self, job: JobId) -> u64 {
        let (mut priority, since) = self.priority[job as usize];
        for _ in since..self.cycles {
            let decayed = decay(priority, self.rules.priority_coeff.get());
            if decayed == priority {
                break;
            }
            priority = decayed;
        }
        self.priority[job as usize] = (priority, self.cycles);
        priority
    }

    /// The growth of a job's priority for a run of one cycle.
    fn increment(&self, view: View<'_>, job: JobId) -> u64 {
        let tenant = view.tenant_of(job);
        let shares = f64::from(tenant.shares);
        let usage = self.usage[view.job(job).tenant] as f64;
        (usage * tenant.jobs as f64 / (shares * shares)) as u64
    }
}

fn decay(value: u64, coefficient: f64) -> u64 {
    (value as f64 * coefficient) as u64
}

impl Scheme for Whole {
    fn added(&mut self, view: View<'_>, job: JobId) {
        // The job starts as if it had run one cycle.
        let priority = (self.increment(view, job), self.cycles);
        match self.priority.get_mut(job as usize) {
            Some(known) => *known = priority,
            None => self.priority.push(priority),
        }
        self.waits(view, job);
    }

    fn waits(&mut self, view: View<'_>, job: JobId) {
        let priority = self.priority(job);
        self.waiting.entry(priority).or_default().insert((view.job(job).order_us, job));
    }

    fn removed(&mut self, view: View<'_>, job: JobId, ran: bool) {
        let priority = self.priority(job);
        if let Some(waiting) = self.waiting.get_mut(&priority).filter(|_| !ran) {
            waiting.remove(&(view.job(job).order_us, job));
            if waiting.is_empty() {
                self.waiting.remove(&priority);
            }
        }
    }

    fn charge(&mut self, view: View<'_>, job: JobId, ran_us: i64) {
        self.charged[view.job(job).tenant] += ran_us.unsigned_abs();
    }

    fn fill(&mut self, _: View<'_>, free: usize, claim: &mut dyn FnMut(JobId) -> bool) -> Vec<JobId> {
        let mut start = Vec::new();
        while start.len() < free
            && let Some(mut lowest) = self.waiting.first_entry()
        {
            match lowest.get_mut().pop_first() {
                Some((_, job)) if claim(job) => start.push(job),
                Some(_) => {}
                None => drop(lowest.remove()),
            }
        }
        start
    }

    fn cycle(&mut self, view: View<'_>) -> Vec<JobId> {
        for (usage, charged) in self.usage.iter_mut().zip(&mut self.charged) {
            *usage = decay(*usage, self.rules.usage_coeff.get()) + std::mem::take(charged);
        }
        // The priorities before this cycle.
        let before: Vec<u64> = view.running.iter().map(|job| self.priority(*job)).collect();
        self.cycles += 1;
        let coefficient = self.rules.priority_coeff.get();
        for (job, before) in view.running.iter().zip(before) {
            let priority = decay(before, coefficient) + self.increment(view, *job);
            self.priority[*job as usize] = (priority, self.cycles);
        }
        let mut decayed: BTreeMap<u64, BTreeSet<(i64, JobId)>> = BTreeMap::new();
        for (priority, mut jobs) in std::mem::take(&mut self.waiting) {
            let there = decayed.entry(decay(priority, coefficient)).or_default();
            if there.len() < jobs.len() {
                std::mem::swap(there, &mut jobs);
            }
            there.extend(jobs);
        }
        self.waiting = decayed;

        let mut running: Vec<_> =
            view.running.iter().copied().filter(|job| view.job(*job).continuous).collect();
        let back =
            |job: &JobId| (std::cmp::Reverse(self.priority[*job as usize].0), view.job(*job).order_us, *job);
        running.sort_unstable_by_key(back);
        running.truncate(view.rotation());
        running
    }
}

#[cfg(test)]
#[path = "../../../policy/tests/integers.rs"]
mod integers;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use turnwise_policy::fair_share::Shares;
    use turnwise_policy::fair_share::rfc::Rules;

    use super::integers::Integers;
    use super::*;
    use crate::scheme::{Job, Tenant};

    proptest! {
        /// Priorities that are stored and decayed when they are read equal those of the implementation in the policy's tests,
        /// which reproduces recorded runs of CouchDB.
        #[test]
        fn prop_priorities_equal_those_of_the_recorded_scheme(
            shares in proptest::collection::vec(1_u32..=1000, 3),
            events in proptest::collection::vec((0_u8..4, 0_usize..3, 0_usize..50), 1..80),
        ) {
            let scenario = "name = 'x'\nslots = 9\nchurn = 9\ncycles = 9\n[[tenants]]\nname = 't'\njobs = 0\n";
            let scenario = Scenario::parse(scenario).expect("it is one");
            let names = ["a", "b", "c"];
            let of: Shares = names.iter().zip(&shares).map(|(name, shares)| ((*name).to_owned(), *shares)).collect();
            let (mut mine, mut theirs) = (Whole::new(&scenario, 3), Integers::default());
            let (mut jobs, mut running): (Vec<Job>, Vec<JobId>) = (Vec::new(), Vec::new());
            let tenant = |(name, shares): (&&str, &u32)| Tenant {
                name: (*name).to_owned(), shares: *shares, jobs: 0, waiting: 0,
            };
            let mut tenants: Vec<Tenant> = names.iter().zip(&shares).map(tenant).collect();
            for (event, tenant, many) in events {
                let id = JobId::try_from(jobs.len()).expect("there are few");
                if event == 0 {
                    jobs.push(Job { tenant, continuous: true, order_us: 0, added_us: 0, running: false });
                    tenants[tenant].jobs += 1;
                }
                let view = View {
                    now_us: 0, slots: 1_000, churn: 9, interval_us: 60_000_000,
                    jobs: &jobs, tenants: &tenants, running: &running, waiting: 0,
                };
                match event {
                    0 => {
                        mine.added(view, id);
                        theirs.added(names[tenant], &id.to_string(), &of);
                    }
                    1 => {
                        let started = mine.fill(view, many % 4, &mut |_| true);
                        running.extend(started);
                    }
                    2 if !running.is_empty() => {
                        let job = running[many % running.len()];
                        mine.waits(view, job);
                        running.retain(|other| *other != job);
                    }
                    _ => {
                        for job in &running {
                            mine.charge(view, *job, 60_000_000);
                            theirs.charge(names[view.job(*job).tenant], 60_000_000);
                        }
                        mine.cycle(view);
                        let ran: Vec<(String, String)> = running
                            .iter()
                            .map(|job| (names[view.job(*job).tenant].to_owned(), job.to_string()))
                            .collect();
                        let ran = ran.iter().map(|(tenant, id)| (tenant.as_str(), id.as_str()));
                        theirs.cycle(ran, &Rules::default(), &of);
                    }
                }
                for id in 0..JobId::try_from(jobs.len()).expect("there are few") {
                    prop_assert_eq!(mine.priority(id), theirs.priority(&id.to_string()), "job {}", id);
                }
                for (priority, waiting) in &mine.waiting {
                    for (_, job) in waiting {
                        prop_assert_eq!(*priority, theirs.priority(&job.to_string()), "where job {} waits", job);
                    }
                }
            }
        }
    }
}
