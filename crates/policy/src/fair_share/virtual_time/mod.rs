//! Fair share by virtual time: the service that a tenant has received, divided by its shares.
//!
//! Start-time fair queueing over `D` slots (SFQ(D)), with one tag per tenant:
//!
//! ```text
//! tag        += ran / shares                                what its jobs ran, charged as they run
//! start tag   = tag + in flight / shares                    in flight: what its running jobs are expected to cost yet
//! next        = start tag + ½ · expected / shares           who waits: the lowest starts
//! last        = start tag − ½ · expected / shares           who runs: the highest gives way, if it is above a `next`
//! now         = the highest start tag that was started      system virtual time, in the order of `next`
//! ```
//!
//! Forces:
//!
//! - *A backlog costs nothing.* Tags are the tenants', not the jobs': a million jobs that wait hold no tag that would have
//!   to be written when a cost turns out differently or shares change. A job's tag is fixed when it starts.
//! - *Jobs are indivisible.* The midpoint (½) is how seats are apportioned (Webster, Sainte-Laguë): a tenant gets its n-th
//!   slot once it is entitled to more than n − ½. So the tenant with 1 share beside one with 1000 gets a run when half of one
//!   is due, and neither waits for ever nor gets more than its share.
//! - *Nobody saves up.* A tenant is owed something only while it has jobs that wait. One that had none starts
//!   at `now`, and one whose jobs all run is never further behind than `now`. Deleting jobs and adding
//!   them again changes no tag.
//!   The one exception is what a slow churn has kept from a tenant, for a while ([`Ledger::cycle`]).
//! - *Nobody is ruined.* While rotation is limited by its churn, a tenant may be served against its will, so to say. What it
//!   then runs is charged up to a bound only ([`DEBT_CYCLES`]); else it could wait for days for its next turn.
//! - *Costs are guesses until they are known*: an [`Expectation`] is learnt, and what has really run is what is charged.
//!
//! Bound on unfairness, with proof: `docs/design/0016-fair-share.md`. Source: Goyal, Vin and Cheng, "Start-time Fair
//! Queueing" (1996); Jin, Chase and Kaur, "Interposed proportional sharing" (SFQ(D), 2004).

mod apportion;
mod expectation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::fair_share::Shares;
use crate::rotation;

pub use apportion::{Candidate, apportion, first, order};
pub use expectation::{Expectation, LEAST_COST_US, UNKNOWN_COST_US};

/// What a tenant's rotating jobs are charged for is bounded such that it is not held back for more cycles than this. Longer than
/// it takes to turn all slots over at the default churn (500 / 20 = 25 cycles), so that what a tenant with shares like the
/// others' gets too much meanwhile is paid back whole.
pub const DEBT_CYCLES: f64 = 30.0;
/// What a slow churn keeps from a tenant is still due to it when it has gone and comes back, up to what it is entitled to in so many cycles.
/// With none, a visitor whose jobs are hardly more than its slots had 3 % too little; with five, one with more jobs 5 % too much; with two,
/// everybody is within 1.6 %, for visits of 10 to 50 cycles (`examples/scenarios/come-and-go.toml`, and the visitor with 50, 100 and 200 jobs).
const OWED_CYCLES: f64 = 2.0;

/// One tenant's account.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Account {
    /// Virtual µs.
    tag: f64,
    /// What its running jobs are expected to cost yet, in µs.
    in_flight_us: f64,
    /// The same of other workers, as last heard.
    elsewhere_us: f64,
    /// What it was entitled to in the last cycles, and a slow churn has kept from it, in µs.
    owed_us: f64,
    /// It has jobs that wait.
    waits: bool,
    /// As of its last change.
    shares: u32,
}

/// The accounts of all tenants that share a queue, and their virtual time.
#[derive(Debug, Clone, PartialEq)]
pub struct Ledger {
    now: f64,
    accounts: BTreeMap<String, Account>,
    /// How fast virtual time goes.
    pace: Pace,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { now: 0.0, accounts: BTreeMap::new(), pace: Pace::default() }
    }
}

impl Account {
    fn all_in_flight_us(&self) -> f64 {
        self.in_flight_us + self.elsewhere_us
    }

    fn start_tag(&self, shares: u32) -> f64 {
        self.tag + self.all_in_flight_us() / f64::from(shares.max(1))
    }

    /// Not owed anything but what churn has kept from it: its next start is at `now` at the earliest.
    fn lift(&mut self, shares: u32, now: f64) {
        let earliest = now - self.owed_us / f64::from(shares.max(1));
        self.tag += (earliest - self.start_tag(shares)).max(0.0);
    }

    /// What it is owed stays what it was, in µs, if it has more shares than before.
    fn follow(&mut self, shares: u32, now: f64) {
        let owed = now - self.tag;
        if self.shares != 0 && shares > self.shares && owed > 0.0 {
            self.tag = now - owed * f64::from(self.shares) / f64::from(shares);
        }
        self.shares = shares;
    }
}

impl Ledger {
    fn account(&mut self, tenant: &str, shares: u32) -> &mut Account {
        if !self.accounts.contains_key(tenant) {
            self.accounts.insert(tenant.to_owned(), Account::default());
        }
        let account = self.accounts.get_mut(tenant).expect("it has just been inserted");
        account.follow(shares.max(1), self.now);
        account
    }

    /// System virtual time.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Other workers have come as far as this.
    pub fn advance_to(&mut self, now: f64) {
        self.now = self.now.max(now);
    }

    /// A tenant's tag is at least this, others say. After [`Ledger::charge_elsewhere`], which it may include.
    pub fn load(&mut self, tenant: &str, tag: f64) {
        let account = self.accounts.entry(tenant.to_owned()).or_default();
        account.tag = account.tag.max(tag);
    }

    /// A tenant has other shares. To be told at once: what is owed until now counts with the old ones.
    pub fn new_shares(&mut self, tenant: &str, shares: u32) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.follow(shares.max(1), self.now);
        }
    }

    /// The same for all tenants.
    pub fn all_new_shares(&mut self, shares: &Shares) {
        for (tenant, account) in &mut self.accounts {
            account.follow(shares.of(tenant), self.now);
        }
    }

    /// A tenant that had no job that waits has one. Nothing changes if it had one already.
    pub fn arrive(&mut self, tenant: &str, shares: u32) {
        let now = self.now;
        let account = self.account(tenant, shares);
        if !account.waits {
            account.waits = true;
            account.lift(shares, now);
        }
    }

    /// A tenant has jobs that wait, and may have had them before this worker looked for the first time. It keeps what a tenant
    /// is owed at most that waits for its turn.
    pub fn resume(&mut self, tenant: &str, shares: u32, expected_us: f64) {
        let owed_at_most = self.now - expected_us / f64::from(shares.max(1));
        let account = self.account(tenant, shares);
        if !account.waits {
            account.waits = true;
            account.lift(shares, owed_at_most);
        }
    }

    /// A tenant has no job that waits.
    pub fn emptied(&mut self, tenant: &str) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.waits = false;
        }
    }

    /// A job of a tenant starts.
    pub fn start(&mut self, tenant: &str, shares: u32, expected_us: f64) {
        self.start_up_to(tenant, shares, expected_us, f64::INFINITY);
    }

    /// A job of a tenant starts although one of the tenant `first`, with so many shares, could start, too, and it is that one's turn: it was
    /// left to another worker. Virtual time is where the tenant is whose turn it is. Otherwise a tenant that is far ahead would take it
    /// along, and with it those that run and do not wait: these would wait for all of that once they do.
    pub fn start_out_of_turn(&mut self, tenant: &str, shares: u32, expected_us: f64, first: (&str, u32)) {
        let (first, of) = first;
        let bound = self.look(first, of).start_tag(of);
        self.start_up_to(tenant, shares, expected_us, bound);
    }

    fn start_up_to(&mut self, tenant: &str, shares: u32, expected_us: f64, bound: f64) {
        let account = self.account(tenant, shares);
        let start_tag = account.start_tag(shares);
        account.in_flight_us += expected_us;
        self.now = self.now.max(start_tag.min(bound));
    }

    /// A job that runs is expected to cost something else from now on: what is left of it.
    pub fn expect(&mut self, tenant: &str, before_us: f64, after_us: f64) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.in_flight_us = (account.in_flight_us - before_us + after_us).max(0.0);
        }
    }

    /// A job has ended, or did not start after all: takes back what it was expected to cost. What it ran is charged beside this.
    pub fn end(&mut self, tenant: &str, expected_us: f64) {
        self.expect(tenant, expected_us, 0.0);
    }

    /// A tenant's job has run for this long. The virtual µs charged.
    pub fn charge(&mut self, tenant: &str, shares: u32, ran_us: f64) -> f64 {
        self.charge_up_to(tenant, shares, ran_us, f64::INFINITY)
    }

    /// The same for a job that rotates, by `expected_us` a turn: up to the bound of what holds a tenant back for
    /// [`DEBT_CYCLES`]. A job that nothing could have stopped is charged with [`Ledger::charge`], whatever it ran.
    pub fn charge_rotating(&mut self, tenant: &str, shares: u32, ran_us: f64, expected_us: f64) -> f64 {
        let turn = expected_us.max(0.0) / f64::from(shares.max(1));
        let bound = self.now + turn + DEBT_CYCLES * self.pace.per_cycle;
        self.charge_up_to(tenant, shares, ran_us, bound)
    }

    fn charge_up_to(&mut self, tenant: &str, shares: u32, ran_us: f64, bound: f64) -> f64 {
        let now = self.now;
        let account = self.account(tenant, shares);
        let left = (bound - account.tag).max(0.0);
        let charged = (ran_us.max(0.0) / f64::from(shares.max(1))).min(left);
        account.tag += charged;
        if !account.waits {
            account.lift(shares, now);
        }
        charged
    }

    /// What other workers have charged a tenant since the last time, in virtual µs.
    pub fn charge_elsewhere(&mut self, tenant: &str, virtual_us: f64) {
        self.accounts.entry(tenant.to_owned()).or_default().tag += virtual_us.max(0.0);
    }

    /// What other workers' running jobs of a tenant are expected to cost.
    pub fn in_flight_elsewhere(&mut self, tenant: &str, us: f64) {
        self.accounts.entry(tenant.to_owned()).or_default().elsewhere_us = us.max(0.0);
    }

    /// No tenant has a job that waits: nobody is owed anything. Virtual time follows the tenant in flight that has received
    /// the most; the others follow it as they are charged.
    pub fn nobody_waits(&mut self) {
        let in_flight = self.accounts.values().filter(|account| account.all_in_flight_us() > 0.0);
        self.now = in_flight.map(|account| account.tag).fold(self.now, f64::max);
        self.accounts.values_mut().for_each(|account| account.owed_us = 0.0);
    }

    /// A cycle begins: once for each, before its charges, where jobs rotate. Looks how fast virtual time goes: what is in
    /// flight of those tenants that wait, in each cycle, divided by their shares; and what each of them lacks of what it is
    /// entitled to, for churn has not given it yet. That is due to it even if it goes and comes back, up to a bound.
    ///
    /// Jobs that rotate begin another turn at each cycle: while someone waits, virtual time is no earlier than the first of these. Without
    /// that it would stand still where nobody who runs ever waits, and whoever waits would do so for ever.
    pub fn cycle(&mut self, max_churn: usize) {
        let (mut in_flight_us, mut shares) = (0.0, 0.0);
        for account in self.accounts.values().filter(|account| account.waits) {
            in_flight_us += account.all_in_flight_us();
            shares += f64::from(account.shares);
        }
        let per_cycle = if shares > 0.0 { self.per_cycle(in_flight_us, shares) } else { f64::INFINITY };
        self.pace = Pace { per_cycle, max_churn };
        if shares > 0.0 {
            let in_flight = self.accounts.values().filter(|account| account.all_in_flight_us() > 0.0);
            self.now =
                in_flight.map(|account| account.tag).min_by(f64::total_cmp).unwrap_or(0.0).max(self.now);
        }
        for account in self.accounts.values_mut() {
            let (has_us, of) = (account.all_in_flight_us(), f64::from(account.shares));
            account.owed_us = if account.waits {
                let entitled_us = of * in_flight_us / shares;
                (account.owed_us + entitled_us - has_us).clamp(0.0, OWED_CYCLES * entitled_us)
            } else {
                // It has all it wants: more than it is entitled to, maybe.
                let entitled_us = of * (in_flight_us + has_us) / (shares + of);
                (account.owed_us - (has_us - entitled_us).max(0.0)).max(0.0)
            };
        }
    }

    /// What those that wait have in flight, divided by their shares. With them count those that do not wait only because they have more
    /// than that for each of their shares.
    fn per_cycle(&self, mut in_flight_us: f64, mut shares: f64) -> f64 {
        let content = self.accounts.values().filter(|account| !account.waits && account.shares > 0);
        let mut content: Vec<(f64, f64)> =
            content.map(|account| (account.all_in_flight_us(), f64::from(account.shares))).collect();
        content.sort_by(|(one_us, one), (other_us, other)| (other_us / other).total_cmp(&(one_us / one)));
        for (has_us, of) in content {
            if has_us / of <= in_flight_us / shares {
                break;
            }
            in_flight_us += has_us;
            shares += of;
        }
        in_flight_us / shares
    }

    /// How fast virtual time goes, where jobs rotate.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// A tenant's account as of now, with these shares.
    fn look(&self, tenant: &str, shares: u32) -> Account {
        let mut account = self.accounts.get(tenant).copied().unwrap_or_default();
        account.follow(shares.max(1), self.now);
        account
    }

    /// Service received divided by shares, in virtual µs.
    pub fn tag(&self, tenant: &str, shares: u32) -> f64 {
        self.look(tenant, shares).tag
    }

    /// A tenant as rotation looks at it; `expected_us` is what one of its jobs is expected to cost.
    pub fn tenant(&self, tenant: &str, shares: u32, expected_us: f64) -> rotation::Tenant {
        let account = self.look(tenant, shares);
        rotation::Tenant { tag: account.tag, in_flight_us: account.all_in_flight_us(), shares, expected_us }
    }

    /// What a tenant's running jobs are expected to cost yet, here and elsewhere, in µs.
    pub fn in_flight_us(&self, tenant: &str) -> f64 {
        self.accounts.get(tenant).map_or(0.0, |account| account.all_in_flight_us())
    }

    /// The same, here only.
    pub fn in_flight_here_us(&self, tenant: &str) -> f64 {
        self.accounts.get(tenant).map_or(0.0, |account| account.in_flight_us)
    }

    /// Of the tenants with jobs that wait, the one with the lowest is next.
    pub fn next(&self, tenant: &str, shares: u32, expected_us: f64) -> f64 {
        self.tenant(tenant, shares, expected_us).next(&self.pace)
    }

    /// Of the tenants with jobs that rotate, the one with the highest gives way first.
    pub fn last(&self, tenant: &str, shares: u32, expected_us: f64) -> f64 {
        self.tenant(tenant, shares, expected_us).last(&self.pace)
    }

    /// Whether forgetting a tenant changes nothing for it: it has nothing that runs or waits, and is not ahead of `now`.
    pub fn is_forgettable(&self, tenant: &str) -> bool {
        self.accounts.get(tenant).is_none_or(|account| {
            !account.waits && account.all_in_flight_us() <= 0.0 && account.tag <= self.now
        })
    }

    /// Forgets a tenant, whatever it has.
    pub fn forget(&mut self, tenant: &str) {
        self.accounts.remove(tenant);
    }

    /// The tenants with an account, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.accounts.keys().map(String::as_str)
    }
}

/// How fast virtual time goes where jobs rotate, and how fast slots can change hands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Virtual µs in each cycle. Unknown before the first one, and while nobody waits: infinite.
    pub per_cycle: f64,
    /// Jobs that are preempted in one cycle.
    pub max_churn: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { per_cycle: f64::INFINITY, max_churn: 0 }
    }
}

impl Pace {
    /// Where a job stands with so much in flight before and with half of it.
    ///
    /// A tenant with more slots than it is entitled to keeps them until churn has taken them back, `c` in each cycle. With a
    /// surplus of `s` jobs that makes `(s − c) + (s − 2c) + … = s · (s − c) / 2c` more runs that nothing
    /// can prevent: they count as if they were in flight. Without that, a tenant that catches up would be far ahead before it
    /// began to give way, then far behind, and so on for hundreds of cycles.
    pub fn position(&self, tag: f64, in_flight_us: f64, shares: u32, expected_us: f64) -> f64 {
        let shares = f64::from(shares.max(1));
        let expected_us = expected_us.max(LEAST_COST_US);
        let churn = self.max_churn.max(1) as f64;
        let surplus = (in_flight_us - self.per_cycle * shares) / expected_us;
        let runs = if surplus > churn { surplus * (surplus - churn) / (2.0 * churn) } else { 0.0 };
        tag + (in_flight_us + runs * expected_us) / shares
    }
}
