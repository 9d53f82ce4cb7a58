//! The order of jobs that have reserved locks, and of jobs that wait for a lock while they run.
//!
//! Each of them has a *ticket*; later tickets are higher. A job that starts is bound by every earlier ticket that
//! conflicts with what it *declared*, even if the locks are free. A declaration covers what the job will request
//! later. Reservations do not bind a job that already holds locks, so it continues: no jobs wait for each other in a
//! circle.

use std::collections::HashMap;

use super::population::{Job, LockScope, ScopeId, Want, Wide, whole};

/// A position in the order. [`NONE`] is after all others.
pub(crate) type Ticket = u64;
/// No ticket.
pub(crate) const NONE: Ticket = Ticket::MAX;

/// The earliest ticket in each mode.
#[derive(Debug, Clone, Copy)]
struct First {
    shared: Ticket,
    exclusive: Ticket,
}

const NO_TICKETS: First = First { shared: NONE, exclusive: NONE };

impl First {
    fn add(&mut self, exclusive: bool, ticket: Ticket) {
        let first = if exclusive { &mut self.exclusive } else { &mut self.shared };
        *first = ticket.min(*first);
    }

    /// The earliest ticket that conflicts with this mode.
    fn against(self, exclusive: bool) -> Ticket {
        if exclusive { self.shared.min(self.exclusive) } else { self.exclusive }
    }
}

/// The tickets that bind starting jobs, at this moment.
pub(crate) struct Tickets<'a> {
    scopes: &'a [LockScope],
    at: Vec<First>,
    named: Vec<First>,
    /// For each scope with counted units: all tickets, with their units.
    counted: HashMap<ScopeId, Vec<(Ticket, u32)>>,
}

impl<'a> Tickets<'a> {
    pub(crate) fn new(scopes: &'a [LockScope], levels: usize) -> Self {
        Tickets {
            scopes,
            at: vec![NO_TICKETS; scopes.len()],
            named: vec![NO_TICKETS; levels],
            counted: HashMap::new(),
        }
    }

    /// Adds a ticket for a lock.
    pub(crate) fn add(&mut self, want: Want, ticket: Ticket) {
        self.at[want.scope as usize].add(want.exclusive, ticket);
        let scope = &self.scopes[want.scope as usize];
        if let (Some(level), false) = (scope.level, scope.whole) {
            self.named[usize::from(level)].add(want.exclusive, ticket);
        }
        if scope.capacity.is_some() && !want.exclusive {
            self.counted.entry(want.scope).or_default().push((ticket, want.units));
        }
    }

    /// Whether an earlier ticket than this one binds the job.
    pub(crate) fn bind(&self, job: &Job, ticket: Ticket) -> bool {
        self.before(job) < ticket || job.known.iter().any(|want| self.no_units(*want, ticket))
    }

    /// The earliest ticket that conflicts with what the job declared.
    fn before(&self, job: &Job) -> Ticket {
        let known = job.known.iter().map(|want| {
            let here = self.at[want.scope as usize].against(want.exclusive);
            let scope = &self.scopes[want.scope as usize];
            let around = match scope.level {
                Some(level) if scope.whole => self.named[usize::from(level)],
                Some(level) => self.at[whole(level) as usize],
                None => NO_TICKETS,
            };
            here.min(around.against(want.exclusive))
        });
        let unknown = job.wide.iter().map(|at| {
            let any = |wide: Wide, exclusive: bool| match wide {
                Wide::Unknown => {
                    let whole = self.at[whole(at.level) as usize].against(exclusive);
                    whole.min(self.named[usize::from(at.level)].against(exclusive))
                }
                Wide::No | Wide::All => NONE,
            };
            any(at.shared, false).min(any(at.exclusive, true))
        });
        known.chain(unknown).min().unwrap_or(NONE)
    }

    /// Whether earlier tickets leave too few units.
    fn no_units(&self, want: Want, ticket: Ticket) -> bool {
        let (Some(capacity), false) = (self.scopes[want.scope as usize].capacity, want.exclusive) else {
            return false;
        };
        let before = self.counted.get(&want.scope).into_iter().flatten().filter(|(other, _)| *other < ticket);
        let units: u64 = before.map(|(_, units)| u64::from(*units)).sum();
        units > 0 && units + u64::from(want.units) > u64::from(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::super::population::Population;
    use super::super::scenario::Scenario;
    use super::*;

    /// Whether the first job, with ticket 5, binds the second one, with ticket `ticket`.
    fn binds(one: &str, other: &str, ticket: Ticket) -> bool {
        let operation = |name: &str, locks: &str| {
            let real = locks.replace("\"unknown\"", "['z']");
            format!(
                "[[operations]]\nname = '{name}'\nweight = 1\nrun_ms = 1\nlocks = {{ {real} }}\nsays = {{ {locks} }}\n"
            )
        };
        let text = format!(
            "name = 'x'\nslots = 1\narrivals = [{{ count = 40 }}]\n\
             levels = [{{ name = 'a' }}, {{ name = 'b' }}, {{ name = 'n', capacity = 3 }}]\n\
             [cluster]\ngroups = 1\nnodes = 2\ninstances = 1\n{}{}",
            operation("one", one),
            operation("other", other)
        );
        let population = Population::new(&Scenario::parse(&text).unwrap()).unwrap();
        let job = |operation| population.jobs.iter().find(|job| job.operation == operation).unwrap();
        let mut tickets = Tickets::new(&population.scopes, 3);
        job(0).known.iter().for_each(|want| tickets.add(*want, 5));
        tickets.bind(job(1), ticket)
    }

    #[test]
    fn an_earlier_ticket_binds_jobs_that_declared_a_conflict() {
        let (shared, exclusive) = ("a = { shared = ['i'] }", "a = { exclusive = ['i'] }");
        let (all, all_exclusive) = ("a = { shared = 'all' }", "a = { exclusive = 'all' }");
        let (some, some_exclusive) = ("a = { shared = \"unknown\" }", "a = { exclusive = \"unknown\" }");
        let big = "big_lock = true";
        let others = [
            "",
            "b = { exclusive = ['i'] }",
            "a = { exclusive = ['j'] }",
            shared,
            exclusive,
            some,
            some_exclusive,
            all,
            all_exclusive,
            big,
        ];
        for (one, bound) in [
            (shared, [false, false, false, false, true, false, true, false, true, true]),
            (exclusive, [false, false, false, true, true, true, true, true, true, true]),
            (all, [false, false, true, false, true, false, true, false, true, true]),
            (all_exclusive, [false, false, true, true, true, true, true, true, true, true]),
            (big, [false, true, true, true, true, true, true, true, true, true]),
        ] {
            assert_eq!(others.map(|other| binds(one, other, NONE)), bound, "{one}");
            assert_eq!(others.map(|other| binds(one, other, 6)), bound, "{one}");
            assert!(!others.iter().any(|other| binds(one, other, 4)), "{one}");
        }
    }

    #[test]
    fn units_are_kept_for_earlier_tickets() {
        let units = |units: u32| format!("n = {{ shared = {{ i = {units} }} }}");
        assert!(!binds(&units(1), &units(2), NONE));
        assert!(binds(&units(2), &units(2), NONE));
        assert!(!binds(&units(2), &units(2), 4));
    }
}
