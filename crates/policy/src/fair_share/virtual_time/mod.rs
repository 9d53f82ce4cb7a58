//! Fair share by virtual time: the run time that a tenant has received, divided by its shares.
//!
//! Start-time fair queueing over `D` slots (SFQ(D)), with one tag per tenant:
//!
//! ```text
//! tag        += ran / shares                        ran: what its jobs ran, charged as they run
//! start tag   = tag + in flight / shares            in flight: the remaining expected cost of its running jobs
//! next        = start tag + ½ · expected / shares   the waiting tenant with the lowest `next` starts a job
//! last        = start tag − ½ · expected / shares   the running tenant with the highest `last` is preempted for a lower `next`
//! now         = the highest start tag of a job that started in its turn: the virtual time of the job type
//! ```
//!
//! A start tag is an estimate. If jobs end sooner than expected, the start tags of their tenant fall, and so does `now`
//! ([`Ledger::end`]).
//!
//! Forces:
//!
//! - *A backlog costs nothing.* A tag belongs to a tenant, not to a job. So a million waiting jobs hold no tags that
//!   would have to be written when a cost turns out differently or shares change. A job's tag is fixed when it
//!   starts.
//! - *Jobs are indivisible.* The midpoint (½) is how seats of a parliament are apportioned (Webster, Sainte-Laguë): a
//!   tenant gets its n-th slot once it is entitled to more than n − ½. So a tenant with 1 share beside one with 1000
//!   gets a run when half a run is due. It does not wait for ever, and does not get more than its share.
//! - *No tenant saves up.* A tenant has a deficit only while it has waiting jobs. A tenant that had none starts at
//!   `now`, and one whose jobs all run is never further behind than `now`. Deleting jobs and adding them again
//!   changes no tag. The one exception is what slow churn has withheld from a tenant, for a limited time
//!   ([`Ledger::cycle`]).
//! - *Surplus is bounded.* While churn limits rotation, a tenant may keep slots that it is not entitled to. What it
//!   then runs is charged only up to a bound ([`DEBT_CYCLES`]). Without the bound, it could wait for days for its
//!   next turn.
//! - *Costs are estimates until a job ends.* An [`Expectation`] is learnt, and the real run time is charged.
//!
//! The bound on unfairness, with proof: `docs/design/fair-share.md`. Source: Goyal, Vin and Cheng, "Start-time
//! Fair Queueing" (1996); Jin, Chase and Kaur, "Interposed proportional sharing" (SFQ(D), 2004).

mod apportion;
mod expectation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::fair_share::Shares;
use crate::rotation;

pub use apportion::{TenantTurn, apportion, first, order};
pub use expectation::{Expectation, LEAST_COST_US, MAX_TASKS, UNKNOWN_COST_US};

/// The most cycles for which charges of rotating jobs may hold their tenant back; they are bounded accordingly. It is
/// longer than the 25 cycles that turn over all slots at the default churn (500 / 20). So a tenant with shares like
/// the others' pays back in full what it got in excess meanwhile.
pub const DEBT_CYCLES: f64 = 30.0;
/// What slow churn withholds from a tenant stays due to it after a break, up to its entitlement in this many cycles.
/// With 0, a visiting tenant with hardly more jobs than slots got 3 % too little. With 5, one with more jobs got 5 %
/// too much. With 2, all tenants are within 1.6 %, for visits of 10 to 50 cycles
/// (`examples/scenarios/come-and-go.toml`, and its visitor with 50, 100 and 200 jobs).
const WITHHELD_CYCLES: f64 = 2.0;

/// One tenant's account.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Account {
    /// The tag, in virtual µs.
    tag: f64,
    /// The remaining expected cost of its running jobs, in µs.
    in_flight_us: f64,
    /// The same for the jobs of other workers, as last reported.
    elsewhere_us: f64,
    /// What it was entitled to in the last cycles, but slow churn has withheld, in µs.
    withheld_us: f64,
    /// It has waiting jobs.
    waits: bool,
    /// Its shares, as of the last change of this account.
    shares: u32,
    /// The highest start tag of a job that started in its turn, as far as costs are known now.
    turn: f64,
    /// The start tag before and after the tag was raised because of where `now` was.
    raised: (f64, f64),
}

/// The accounts of all tenants that share a queue, and the virtual time of the queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ledger {
    /// The highest of `settled` and all accounts' turns.
    now: f64,
    /// What `now` is without the turns of these accounts: no estimate of them contributed to it.
    settled: f64,
    /// What `now` is without raises: the highest of `settled` and the accounts' turns without raises.
    unraised: f64,
    accounts: BTreeMap<String, Account>,
    /// How fast virtual time advances.
    pace: Pace,
}

impl Account {
    fn all_in_flight_us(&self) -> f64 {
        self.in_flight_us + self.elsewhere_us
    }

    fn start_tag(&self, shares: u32) -> f64 {
        self.tag + self.all_in_flight_us() / f64::from(shares.max(1))
    }

    /// Removes a deficit, except what churn has withheld: the next start is then at `now` at the earliest.
    fn lift(&mut self, shares: u32, now: f64) {
        let earliest = now - self.withheld_us / f64::from(shares.max(1));
        self.raise(shares, earliest - self.start_tag(shares));
    }

    /// Raises the tag, because of where `now` is.
    fn raise(&mut self, shares: u32, by: f64) {
        if by > 0.0 {
            let start_tag = self.start_tag(shares);
            self.tag += by;
            // Earlier ones may have been too high as well.
            let (from, to) = self.raised;
            self.raised = (start_tag - (to - from), start_tag + by);
        }
    }

    /// Whether a job has started in its turn since the tag was last raised. Equal values may differ by rounding.
    fn has_started_since(&self) -> bool {
        let to = self.raised.1;
        self.turn >= to - to.abs() * 1e-12
    }

    /// The turn without what the tag was raised beyond `level`.
    fn turn_without_raise(&self, level: f64) -> f64 {
        if self.has_started_since() { self.turn - self.raised_beyond(level) } else { self.turn }
    }

    /// What the tag was raised beyond `now`.
    fn raised_beyond(&self, now: f64) -> f64 {
        let (from, to) = self.raised;
        (to - now).clamp(0.0, to - from)
    }

    /// The turn without estimates: the tag, if that is lower, and nothing that the tag was raised beyond `now`.
    fn certain_turn(&self, now: f64) -> f64 {
        let tag = self.tag - self.raised_beyond(now);
        if self.has_started_since() {
            tag.min(self.turn - self.raised_beyond(now))
        } else {
            tag.min(self.turn)
        }
    }

    /// Takes back what the tag was raised too far, because `now` has fallen by `fall`. Returns whether it was.
    fn lower(&mut self, now: f64, fall: f64) -> bool {
        let (from, to) = self.raised;
        let is_later = self.has_started_since();
        let highest = if is_later { self.turn } else { to };
        let excess = (highest - now).clamp(0.0, fall).min(to - from);
        if is_later {
            self.turn -= excess;
        }
        self.tag -= excess;
        // Rounding must not swap them.
        self.raised.1 = (to - excess).max(from);
        excess > 0.0
    }

    /// Sets the shares. If they grow, a deficit stays the same in µs.
    fn follow(&mut self, shares: u32, now: f64) {
        let deficit = now - self.tag;
        if self.shares != 0 && shares > self.shares && deficit > 0.0 {
            self.raise(shares, deficit - deficit * f64::from(self.shares) / f64::from(shares));
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

    /// The virtual time of the queue.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Virtual time as far as charged run time justifies it, for other workers. They could not take back what an estimate
    /// has advanced: virtual time does not fall there when the job ends here.
    pub fn certain_now(&self) -> f64 {
        let mut accounts: Vec<&Account> =
            self.accounts.values().filter(|account| account.turn > self.settled).collect();
        // A tag was raised to what earlier turns justified.
        accounts.sort_by(|one, other| one.raised.1.total_cmp(&other.raised.1));
        accounts
            .into_iter()
            .fold(self.settled, |now, account| now.max(account.certain_turn(now)))
            .min(self.now)
    }

    /// A tenant's tag without what it was raised beyond [`Ledger::certain_now`].
    pub fn certain_tag(&self, tenant: &str, shares: u32, certain_now: f64) -> f64 {
        let account = self.look(tenant, shares);
        account.tag - account.raised_beyond(certain_now)
    }

    /// Advances virtual time to that of other workers.
    pub fn advance_to(&mut self, now: f64) {
        self.settled = self.settled.max(now);
        self.now = self.now.max(now);
    }

    /// Raises a tenant's tag to the one that other workers have written. Call it after [`Ledger::charge_elsewhere`],
    /// because the written tag may include those charges.
    pub fn load(&mut self, tenant: &str, tag: f64) {
        let account = self.accounts.entry(tenant.to_owned()).or_default();
        account.tag = account.tag.max(tag);
    }

    /// Changes a tenant's shares. Call it at once: the deficit until now is computed with the old shares.
    pub fn new_shares(&mut self, tenant: &str, shares: u32) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.follow(shares.max(1), self.now);
        }
    }

    /// Changes the shares of all tenants, as [`Ledger::new_shares`] does.
    pub fn all_new_shares(&mut self, shares: &Shares) {
        for (tenant, account) in &mut self.accounts {
            account.follow(shares.of(tenant), self.now);
        }
    }

    /// A tenant without waiting jobs gets one. Nothing changes if it already has one.
    pub fn arrive(&mut self, tenant: &str, shares: u32) {
        let now = self.now;
        let account = self.account(tenant, shares);
        if !account.waits {
            account.waits = true;
            account.lift(shares, now);
        }
    }

    /// A tenant has waiting jobs, and may have had them before this worker first looked. It keeps its deficit up to
    /// the expected cost of one job: the largest deficit of a tenant that waits for its turn.
    pub fn resume(&mut self, tenant: &str, shares: u32, expected_us: f64) {
        let earliest = self.now - expected_us / f64::from(shares.max(1));
        let account = self.account(tenant, shares);
        if !account.waits {
            account.waits = true;
            account.lift(shares, earliest);
        }
    }

    /// A tenant has no waiting jobs.
    pub fn emptied(&mut self, tenant: &str) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.waits = false;
        }
    }

    /// A job of a tenant starts in its turn.
    pub fn start(&mut self, tenant: &str, shares: u32, expected_us: f64) {
        self.start_up_to(tenant, shares, expected_us, f64::INFINITY);
    }

    /// A job of a tenant starts out of turn: the tenant `first`, with its shares, is in turn, but its job is skipped
    /// for another worker. Virtual time advances at most to the start tag of `first`. Otherwise a tenant far ahead
    /// would advance it, and lift the tags of tenants whose jobs all run. These would wait for that long once they
    /// have waiting jobs.
    pub fn start_out_of_turn(&mut self, tenant: &str, shares: u32, expected_us: f64, first: (&str, u32)) {
        let (first, of) = first;
        let bound = self.look(first, of).start_tag(of);
        self.start_up_to(tenant, shares, expected_us, bound);
    }

    fn start_up_to(&mut self, tenant: &str, shares: u32, expected_us: f64, bound: f64) {
        let account = self.account(tenant, shares);
        let start_tag = account.start_tag(shares);
        account.in_flight_us += expected_us;
        account.turn = account.turn.max(start_tag.min(bound));
        let (turn, unraised) = (account.turn, account.turn_without_raise(f64::MIN));
        self.now = self.now.max(turn);
        self.unraised = self.unraised.max(unraised);
    }

    /// The expected cost of a running job changes from `before_us` to what is left of it, `after_us`.
    pub fn expect(&mut self, tenant: &str, before_us: f64, after_us: f64) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.in_flight_us = (account.in_flight_us - before_us + after_us).max(0.0);
        }
    }

    /// A job has ended, or did not start after all: what is left of its expected cost is subtracted. Its run time must have
    /// been charged.
    ///
    /// If that cost has advanced virtual time, virtual time falls to what it would be without. Tags that were raised to it
    /// meanwhile fall with it. Otherwise their tenants would wait until this one has received all that its jobs were wrongly
    /// expected to cost. Returns whether another tag has changed.
    pub fn end(&mut self, tenant: &str, left_us: f64) -> bool {
        self.expect(tenant, left_us, 0.0);
        let Some(account) = self.accounts.get_mut(tenant) else { return false };
        let (turn, start_tag) = (account.turn, account.start_tag(account.shares));
        if turn <= start_tag {
            return false;
        }
        let unraised = account.turn_without_raise(f64::MIN);
        account.turn = start_tag;
        // Otherwise, other tenants justify virtual time.
        (turn >= self.now || unraised >= self.unraised) && self.lower_now()
    }

    /// Recomputes virtual time after a turn has fallen. Returns whether a tag has changed.
    ///
    /// A tenant may have started jobs after its tag was raised to a virtual time that was too high, so that its own turn is
    /// too high as well. It counts as if its tag had been raised only to what all turns justify without any raise.
    fn lower_now(&mut self) -> bool {
        let highest = |from: f64, level: f64| {
            self.accounts.values().map(|account| account.turn_without_raise(level)).fold(from, f64::max)
        };
        let unraised = highest(self.settled, f64::MIN);
        let now = highest(unraised, unraised).min(self.now);
        self.unraised = unraised;
        let fall = self.now - now;
        self.now = now;
        self.accounts.values_mut().filter_map(|account| account.lower(now, fall).then_some(())).count() > 0
    }

    /// Charges the run time of a tenant's job. Returns the charge in virtual µs.
    pub fn charge(&mut self, tenant: &str, shares: u32, ran_us: f64) -> f64 {
        self.charge_up_to(tenant, shares, ran_us, f64::INFINITY)
    }

    /// Charges a job that rotates in turns of `expected_us`, up to a bound: the tag that holds its tenant back for
    /// [`DEBT_CYCLES`]. Use [`Ledger::charge`] for a job that nothing could have stopped, whatever it ran.
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

    /// Adds what other workers have charged a tenant since the last call, in virtual µs.
    pub fn charge_elsewhere(&mut self, tenant: &str, virtual_us: f64) {
        self.accounts.entry(tenant.to_owned()).or_default().tag += virtual_us.max(0.0);
    }

    /// Sets the remaining expected cost of a tenant's jobs that run at other workers, in µs. Returns whether it fell: call
    /// [`Ledger::settle`] then, once all charges of other workers were added.
    pub fn in_flight_elsewhere(&mut self, tenant: &str, us: f64) -> bool {
        let account = self.accounts.entry(tenant.to_owned()).or_default();
        let before = std::mem::replace(&mut account.elsewhere_us, us.max(0.0));
        us < before
    }

    /// Jobs of these tenants have ended at other workers. As in [`Ledger::end`], virtual time falls if their expected cost
    /// was too high. Returns whether a tag has changed.
    pub fn settle<'a>(&mut self, tenants: impl IntoIterator<Item = &'a str>) -> bool {
        let mut fell = false;
        for tenant in tenants {
            let Some(account) = self.accounts.get_mut(tenant) else { continue };
            let start_tag = account.start_tag(account.shares);
            if account.turn > start_tag {
                account.turn = start_tag;
                fell = true;
            }
        }
        fell && self.lower_now()
    }

    /// No tenant has a waiting job, so no tenant has a deficit. Virtual time advances to the highest tag of a tenant
    /// in flight. The other tags follow as their tenants are charged.
    pub fn nobody_waits(&mut self) {
        let in_flight = self.accounts.values().filter(|account| account.all_in_flight_us() > 0.0);
        let now = in_flight.map(|account| account.tag).fold(self.now, f64::max);
        self.advance_to(now);
        self.accounts.values_mut().for_each(|account| account.withheld_us = 0.0);
    }

    /// Begins a cycle. Call it once per cycle, before its charges, where jobs rotate. It computes how fast virtual
    /// time advances: the cost in flight of the waiting tenants, per cycle, divided by their shares. It also computes
    /// what each of them lacks of its entitlement because churn has not given it yet. That stays due if the tenant
    /// goes and comes back, up to a bound.
    ///
    /// Rotating jobs begin another turn at each cycle. So while a tenant waits, virtual time advances to the lowest
    /// tag in flight. Otherwise it would stand still where no running tenant ever waits, and a waiting tenant would
    /// wait for ever.
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
            let lowest = in_flight.map(|account| account.tag).min_by(f64::total_cmp);
            self.advance_to(lowest.unwrap_or(0.0));
        }
        for account in self.accounts.values_mut() {
            let (has_us, of) = (account.all_in_flight_us(), f64::from(account.shares));
            account.withheld_us = if account.waits {
                let entitled_us = of * in_flight_us / shares;
                (account.withheld_us + entitled_us - has_us).clamp(0.0, WITHHELD_CYCLES * entitled_us)
            } else {
                // All its jobs run: it may have more than its entitlement.
                let entitled_us = of * (in_flight_us + has_us) / (shares + of);
                (account.withheld_us - (has_us - entitled_us).max(0.0)).max(0.0)
            };
        }
    }

    /// The cost in flight of the waiting tenants, divided by their shares. Tenants without waiting jobs count as
    /// well, if they have more than that in flight per share: without that surplus, they would wait.
    fn per_cycle(&self, mut in_flight_us: f64, mut shares: f64) -> f64 {
        let satisfied = self.accounts.values().filter(|account| !account.waits && account.shares > 0);
        let mut satisfied: Vec<(f64, f64)> =
            satisfied.map(|account| (account.all_in_flight_us(), f64::from(account.shares))).collect();
        satisfied.sort_by(|(one_us, one), (other_us, other)| (other_us / other).total_cmp(&(one_us / one)));
        for (has_us, of) in satisfied {
            if has_us / of <= in_flight_us / shares {
                break;
            }
            in_flight_us += has_us;
            shares += of;
        }
        in_flight_us / shares
    }

    /// How fast virtual time advances, where jobs rotate.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// A tenant's account as of now, with these shares.
    fn look(&self, tenant: &str, shares: u32) -> Account {
        let mut account = self.accounts.get(tenant).copied().unwrap_or_default();
        account.follow(shares.max(1), self.now);
        account
    }

    /// A tenant's tag: run time received, divided by shares, in virtual µs.
    pub fn tag(&self, tenant: &str, shares: u32) -> f64 {
        self.look(tenant, shares).tag
    }

    /// A tenant as rotation sees it. `expected_us` is the expected cost of one of its jobs.
    pub fn tenant(&self, tenant: &str, shares: u32, expected_us: f64) -> rotation::Tenant {
        let account = self.look(tenant, shares);
        rotation::Tenant { tag: account.tag, in_flight_us: account.all_in_flight_us(), shares, expected_us }
    }

    /// The remaining expected cost of a tenant's running jobs, at this worker and at others, in µs.
    pub fn in_flight_us(&self, tenant: &str) -> f64 {
        self.accounts.get(tenant).map_or(0.0, |account| account.all_in_flight_us())
    }

    /// The same, at this worker only.
    pub fn in_flight_here_us(&self, tenant: &str) -> f64 {
        self.accounts.get(tenant).map_or(0.0, |account| account.in_flight_us)
    }

    /// The position of a tenant's next job. Of the tenants with waiting jobs, the one with the lowest is next.
    pub fn next(&self, tenant: &str, shares: u32, expected_us: f64) -> f64 {
        self.tenant(tenant, shares, expected_us).next(&self.pace)
    }

    /// The position of a tenant's last running job. Of the tenants with rotating jobs, the one with the highest is
    /// preempted first.
    pub fn last(&self, tenant: &str, shares: u32, expected_us: f64) -> f64 {
        self.tenant(tenant, shares, expected_us).last(&self.pace)
    }

    /// Whether forgetting a tenant changes nothing for it: none of its jobs runs or waits, and its tag is not above
    /// `now`.
    pub fn is_forgettable(&self, tenant: &str) -> bool {
        self.accounts.get(tenant).is_none_or(|account| {
            !account.waits && account.all_in_flight_us() <= 0.0 && account.tag <= self.now
        })
    }

    /// Forgets a tenant, whatever its account holds.
    pub fn forget(&mut self, tenant: &str) {
        if let Some(account) = self.accounts.remove(tenant) {
            self.settled = self.settled.max(account.turn);
        }
    }

    /// The tenants with an account, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.accounts.keys().map(String::as_str)
    }
}

/// How fast virtual time advances where jobs rotate, and how fast slots move between tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Virtual µs per cycle. Infinite while it is unknown: before the first cycle, and while no tenant waits.
    pub per_cycle: f64,
    /// The most jobs that are preempted in one cycle.
    pub max_churn: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { per_cycle: f64::INFINITY, max_churn: 0 }
    }
}

impl Pace {
    /// The position of a job, in virtual µs. `in_flight_us` is the cost in flight of the tenant's jobs before it, and
    /// half of its own.
    ///
    /// A tenant with more slots than it is entitled to keeps them until churn has taken them back, `c` in each cycle.
    /// With a surplus of `s` jobs, nothing can prevent `(s − c) + (s − 2c) + … = s · (s − c) / 2c` more runs. They
    /// count as if they were in flight. Otherwise, a tenant that catches up would be far ahead before its jobs were
    /// preempted, then far behind, and so on for hundreds of cycles.
    pub fn position(&self, tag: f64, in_flight_us: f64, shares: u32, expected_us: f64) -> f64 {
        let shares = f64::from(shares.max(1));
        let expected_us = expected_us.max(LEAST_COST_US);
        let churn = self.max_churn.max(1) as f64;
        let surplus = (in_flight_us - self.per_cycle * shares) / expected_us;
        let runs = if surplus > churn { surplus * (surplus - churn) / (2.0 * churn) } else { 0.0 };
        tag + (in_flight_us + runs * expected_us) / shares
    }
}
