//! Groups, in the worlds with schedules: each calls back once.
//!
//! *Rules.* Only a node ends a group: one that is closed, and of which nothing is open ([`turnwise_queue::check`] compares the counts with the jobs at every
//! commit). The commit that ends it has the jobs with which it calls back, and no other commit adds one of them. What has ended does not change. While nodes are
//! well, no group with nothing open stays without an end ([`crate::liveness`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_queue::check::Row;
use turnwise_queue::groups::{CallbackJob, Group, NewGroup, On};
use turnwise_queue::schedules::Template;
use turnwise_queue::{Job, JobSpec, Member};

use crate::broken::{Broken, ensure};
use crate::ledger::{JobKey, Op, OpKind};
use crate::plan::Plan;
use crate::rng::SeededRng;
use crate::rows::RowChange;
use crate::script::Script;

const ONCE: &str = "each group calls back exactly once";

/// Few names, so that they are used again.
const NAMES: u64 = 5;
/// The longest run of the jobs that groups add, in ms.
const RUN_MS: u64 = 2_000;
/// The longest time that a group is kept after its end, in µs.
const KEEP_US: u64 = 60_000_000;

/// Tenant and name of a group.
pub type GroupKey = (String, String);

/// A group of a world.
pub fn some(rng: &SeededRng, plan: &Plan, open: &[GroupKey]) -> NewGroup {
    let tenant = plan.tenant(rng);
    let callback = |on: On| {
        let spec = JobSpec { tenant: tenant.clone(), ..JobSpec::default() };
        let template =
            Template { job_type: rng.choose(&plan.types).clone(), spec, priority: None, states_locks: true };
        (on, CallbackJob { template, options: Script::long(rng.below(RUN_MS)).options(rng) })
    };
    let parents: Vec<&GroupKey> = open.iter().filter(|(of, _)| *of == tenant).collect();
    let has_parent = !parents.is_empty() && rng.chance(300);
    NewGroup {
        parent: has_parent.then(|| rng.choose(&parents).1.clone()),
        keep_us: i64::try_from(rng.below(KEEP_US)).expect("a minute"),
        callbacks: On::ALL.into_iter().map(callback).collect(),
        ..NewGroup::new(&tenant, &format!("g{}", rng.below(NAMES)))
    }
}

/// A change of the row of a group.
pub(crate) struct Change {
    key: GroupKey,
    old: Option<Group>,
    new: Option<Group>,
}

impl Change {
    pub(crate) fn read(key: GroupKey, change: &RowChange) -> Result<Change, serde_json::Error> {
        let read =
            |value: &Option<Bytes>| value.as_ref().map(|value| serde_json::from_slice(value)).transpose();
        Ok(Change { key, old: read(&change.old)?, new: read(&change.new)? })
    }
}

/// The groups, as their rows have them, and the jobs that they have added.
#[derive(Default)]
pub struct Groups {
    rows: BTreeMap<GroupKey, Group>,
    /// When each group was last marked, in µs since the world began.
    marked_us: BTreeMap<GroupKey, i64>,
    called: BTreeSet<JobKey>,
}

impl Groups {
    /// Those to which jobs can be added.
    pub fn open(&self) -> Vec<GroupKey> {
        self.rows.iter().filter(|(_, group)| group.open).map(|(key, _)| key.clone()).collect()
    }

    /// Those that have not ended.
    pub fn lasting(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        self.rows.iter().filter(|(_, group)| group.ended.is_none())
    }

    /// The closed groups of which nothing is open, and since when at the latest, in µs since the world began.
    pub fn due<'a>(&'a self, jobs: impl Iterator<Item = &'a Job>) -> Vec<(&'a GroupKey, i64)> {
        let mut open: BTreeSet<(&str, &str, u64)> = BTreeSet::new();
        for job in jobs.filter(|job| !job.state().is_final()) {
            if let Some(Member { name, id, .. }) = &job.spec.group {
                open.insert((&job.spec.tenant, name, *id));
            }
        }
        for ((tenant, _), group) in self.lasting() {
            if let Some(parent) = &group.parent {
                open.insert((tenant, &parent.name, parent.id));
            }
        }
        let due = self.lasting().filter(|((tenant, name), group)| {
            !group.open && !open.contains(&(tenant.as_str(), name.as_str(), group.id))
        });
        due.map(|(key, _)| (key, self.marked_us.get(key).copied().unwrap_or(0))).collect()
    }

    /// Notes a row that a commit has written.
    pub(crate) fn observe(&mut self, row: &Row, change: &RowChange, now_us: i64) {
        if let (Row::GroupMark(tenant, name), Some(_)) = (row, &change.new) {
            self.marked_us.insert((tenant.clone(), name.clone()), now_us);
        }
    }

    /// Checks what a commit does to groups. `added` are the jobs that it has added for them.
    pub(crate) fn check(
        &mut self,
        changes: Vec<Change>,
        mut added: BTreeMap<JobKey, Job>,
        op: Option<&Op>,
    ) -> Result<(), Broken> {
        for Change { key, old, new } in changes {
            let story = || format!("{key:?}\n  was {old:?}\n  is  {new:?}");
            match (&old, &new) {
                (None, Some(new)) => {
                    let is_client = op.is_some_and(|op| op.kind == OpKind::Group);
                    ensure(is_client && new.ended.is_none() && new.called.is_empty(), ONCE, story)?;
                }
                (Some(old), None) => {
                    ensure(old.ended.is_some(), "no group is removed before its end", story)?
                }
                (Some(old), Some(new)) => self.check_change(old, new, &mut added, op, &story)?,
                (None, None) => {}
            }
            match new {
                Some(new) => drop(self.rows.insert(key, new)),
                None => drop(self.rows.remove(&key)),
            }
        }
        ensure(added.is_empty(), ONCE, || format!("{:?} are of no group that calls back", added.keys()))
    }

    fn check_change(
        &mut self,
        old: &Group,
        new: &Group,
        added: &mut BTreeMap<JobKey, Job>,
        op: Option<&Op>,
        story: &dyn Fn() -> String,
    ) -> Result<(), Broken> {
        ensure(old.id == new.id && (old.open || !new.open), ONCE, story)?;
        ensure(new.called.starts_with(&old.called), ONCE, story)?;
        let called = &new.called[old.called.len()..];
        ensure(called.is_empty() || op.is_none(), ONCE, story)?;
        for called in called {
            ensure(called.refused.is_none(), ONCE, story)?;
            let job = (called.job_type.clone(), called.id.clone());
            let of = added.remove(&job).and_then(|job| job.into_fields().spec.callback);
            ensure(of.is_some_and(|of| of.on == called.on), ONCE, story)?;
            ensure(self.called.insert(job), ONCE, story)?;
        }
        let has = |on: On| new.called.iter().filter(|called| called.on == on).count();
        match (&old.ended, &new.ended) {
            (None, None) => ensure(has(On::Complete) + has(On::Success) == 0, ONCE, story),
            (None, Some(ended)) => {
                let counts = ended.counts;
                ensure(!old.open && counts.open == 0, "a group ends with the last of its jobs", story)?;
                let is_success = counts.failed + counts.cancelled + counts.removed == 0;
                ensure(has(On::Complete) == 1 && has(On::Success) == usize::from(is_success), ONCE, story)?;
                ensure(has(On::FirstFailure) == usize::from(counts.failures > 0), ONCE, story)
            }
            (Some(before), after) => ensure(after.as_ref() == Some(before) && called.is_empty(), ONCE, story),
        }
    }
}
