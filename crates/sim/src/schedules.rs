//! Schedules, in worlds that have some: each instant of a calendar that passes is dealt with once.
//!
//! *Rules.* Only a node fires, when the time has come by its clock. The commit moves the next instant forward, and states what came of each instant between the
//! old one and the new one. Of those it has added, it has the jobs, and no other commit has added one of them before. An instant is missed only if the first one
//! of the commit was late. While nodes are well, no schedule is late ([`crate::liveness`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use turnwise_calendar::{Calendar, When};
use turnwise_queue::schedules::{
    GRACE_US, Missed, NewSchedule, Outcome, Overlap, Schedule, Template, job_id,
};
use turnwise_queue::{Job, JobSpec};

use crate::broken::{Broken, ensure};
use crate::ledger::JobKey;
use crate::plan::Plan;
use crate::rng::SeededRng;
use crate::script::Script;

const FIRES: &str = "each instant of a schedule fires once";

/// The most schedules of a world.
const MOST: u64 = 5;
/// The longest run of their jobs, in ms.
const RUN_MS: u64 = 5_000;
/// Few enough that a schedule remembers all that one commit did.
const MOST_MISSED: u64 = 8;

/// The schedules of a world. An interval is long enough that a schedule remembers all that one commit did.
pub fn some(rng: &SeededRng, plan: &Plan) -> Vec<NewSchedule> {
    let one = |n: u64| {
        let every_us = i64::try_from(rng.between(10, 40) * 1_000_000).expect("some seconds");
        let when = match rng.chance(300) {
            true => When::Cron { expression: "*/20 * * * * *".to_owned(), zone: "UTC".to_owned() },
            false => When::Every { every_us, offset_us: 0 },
        };
        let most = u32::try_from(rng.between(1, MOST_MISSED)).expect("a small number");
        let spec = JobSpec { tenant: plan.tenant(rng), ..JobSpec::default() };
        let template =
            Template { job_type: rng.choose(&plan.types).clone(), spec, priority: None, states_locks: false };
        let calendar = Calendar { when, from_us: None, until_us: None };
        let options = Script::long(rng.below(RUN_MS)).options(rng);
        let missed = *rng.choose(&[Missed::One, Missed::One, Missed::Skip, Missed::All { most }]);
        let overlap = *rng.choose(&[Overlap::Skip, Overlap::Allow]);
        NewSchedule {
            missed,
            // `skip` is not possible with `all`.
            overlap: if missed == (Missed::All { most }) { Overlap::Allow } else { overlap },
            jitter_us: if rng.chance(300) { every_us / 2 } else { 0 },
            ..NewSchedule::new(&format!("schedule-{n}"), calendar, template, options)
        }
    };
    (0..rng.between(1, MOST)).map(one).collect()
}

/// A change of the row of a schedule.
pub(crate) struct Change {
    name: String,
    old: Option<Schedule>,
    new: Option<Schedule>,
}

impl Change {
    pub(crate) fn read(
        name: &str,
        old: Option<&Bytes>,
        new: Option<&Bytes>,
    ) -> Result<Change, serde_json::Error> {
        let read = |value: Option<&Bytes>| value.map(|value| serde_json::from_slice(value)).transpose();
        Ok(Change { name: name.to_owned(), old: read(old)?, new: read(new)? })
    }
}

/// The schedules, as their rows have them, and what they have fired.
#[derive(Default)]
pub struct Schedules {
    next: BTreeMap<String, Option<i64>>,
    fired: BTreeSet<(String, i64)>,
}

impl Schedules {
    /// Those that fire again, and when.
    pub fn due(&self) -> impl Iterator<Item = (&String, i64)> {
        self.next.iter().filter_map(|(name, next)| Some((name, (*next)?)))
    }

    /// The names of all.
    pub fn names(&self) -> Vec<String> {
        self.next.keys().cloned().collect()
    }

    /// Checks what a commit does to schedules. `added` are the jobs that it has added for them.
    pub(crate) fn check(
        &mut self,
        changes: Vec<Change>,
        mut added: BTreeMap<JobKey, Job>,
        is_client: bool,
        clock_us: i64,
    ) -> Result<(), Broken> {
        for Change { name, old, new } in changes {
            match &new {
                Some(new) => drop(self.next.insert(name.clone(), new.next)),
                None => drop(self.next.remove(&name)),
            }
            match (old, new) {
                _ if is_client => {}
                (Some(old), Some(new)) => self.check_fire(&name, &old, &new, &mut added, clock_us)?,
                (old, new) => {
                    return Err((FIRES, format!("a node changes {name} from {old:?} to {new:?}")));
                }
            }
        }
        ensure(added.is_empty(), FIRES, || format!("{:?} are of no fire", added.keys()))
    }

    fn check_fire(
        &mut self,
        name: &str,
        old: &Schedule,
        new: &Schedule,
        added: &mut BTreeMap<JobKey, Job>,
        clock_us: i64,
    ) -> Result<(), Broken> {
        let story = || format!("{name} at {clock_us}\n  was {old:?}\n  is  {new:?}");
        let Some(next_us) = old.next else { return Err((FIRES, story())) };
        ensure(clock_us >= next_us, "no schedule fires before its time", story)?;
        ensure(new.next.is_none_or(|after_us| after_us > next_us), FIRES, story)?;
        let fires: Vec<_> = new.fires.iter().take_while(|fire| old.fires.first() != Some(*fire)).collect();
        let mut dropped_us = i64::MIN;
        for fire in &fires {
            match &fire.outcome {
                Outcome::Added => {
                    let job = (old.template.job_type.clone(), job_id(name, fire.at_us));
                    let job = added.remove(&job);
                    let of = job.as_ref().and_then(|job| job.schedule.as_ref());
                    ensure(of.is_some_and(|of| of.name == name && of.at_us == fire.at_us), FIRES, story)?;
                    ensure(self.fired.insert((name.to_owned(), fire.at_us)), FIRES, story)?;
                }
                Outcome::Missed => {
                    let is_late = fire.fired_us.saturating_sub(next_us) > GRACE_US;
                    ensure(is_late, "no instant is missed that could fire in time", story)?;
                    dropped_us = dropped_us.max(fire.at_us);
                }
                Outcome::Skipped => {}
                Outcome::Exists | Outcome::Refused(_) | Outcome::Found | Outcome::Full => {
                    return Err((FIRES, story()));
                }
            }
        }
        let mut at_us = Some(next_us);
        while let Some(passed_us) = at_us.filter(|at_us| new.next.is_none_or(|next_us| *at_us < next_us)) {
            let is_told = passed_us <= dropped_us || fires.iter().any(|fire| fire.at_us == passed_us);
            ensure(is_told, FIRES, || format!("{passed_us} is lost: {}", story()))?;
            at_us = old.calendar.next(passed_us).map(|fire| fire.at_us);
        }
        Ok(())
    }
}
