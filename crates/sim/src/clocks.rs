//! Limits on the effect of clock changes. Time does not go backwards for the jobs of a tenant. A job that waits for a time
//! does not wait much longer than asked. The world's own clock measures both.

use std::collections::{BTreeMap, VecDeque};

use turnwise_queue::{Job, State};

use crate::broken::{Broken, ensure, in_words, is_kept};
use crate::ledger::JobKey;

/// A job that was added this much later than another is not queued before it. Two delays add up to this. A process may miss
/// a later time for the length of a comparison of clocks with its retries. A commit may take almost as long.
const UNORDERED_US: i64 = 60_000_000;
/// A job that waits for a time may start this much later, on top of what a clock that is ahead loses. This covers a commit
/// in flight and the comparison of clocks.
const LATE_US: i64 = 30_000_000;

/// Recently added jobs, each with the time of its commit and its own time, and the latest time of earlier jobs, all in µs.
type Added = (VecDeque<(i64, i64)>, i64);

/// What the checker knows about times.
#[derive(Default)]
pub struct Clocks {
    /// The added jobs of each tenant's queue, by job type and tenant.
    added: BTreeMap<(String, String), Added>,
    /// The time by which each job that waits for a time has to be released, in µs since the world began.
    due_us: BTreeMap<JobKey, i64>,
}

/// Whether a job waits for a time, and for nothing else.
fn waits_for_time(job: &Job) -> bool {
    matches!(job.state(), State::Delayed | State::Crashing) && job.unmet() == 0 && !is_kept(job)
}

impl Clocks {
    /// Checks a change of a record. `clock_us` is the clock of its writer.
    pub(crate) fn observe(
        &mut self,
        key: &JobKey,
        (old, new): (Option<&Job>, Option<&Job>),
        is_added: bool,
        clock_us: i64,
        now_us: i64,
    ) -> Result<(), Broken> {
        let Some(new) = new else {
            self.due_us.remove(key);
            return Ok(());
        };
        if !waits_for_time(new) {
            self.due_us.remove(key);
        } else if !old.is_some_and(|old| waits_for_time(old) && old.order_us() == new.order_us()) {
            let left_us = new.order_us().saturating_sub(clock_us).max(0);
            // A clock that is ahead loses an eighth of the time. A clock may also run too slowly, by 2 %.
            self.due_us.insert(key.clone(), now_us + left_us + left_us / 6 + LATE_US);
        }
        let is_queued =
            is_added && new.state() == State::Pending && old.is_none_or(|old| old.state().is_final());
        if !is_queued {
            return Ok(());
        }
        let queue = (key.0.clone(), new.tenant.clone());
        let (lately, before_us) = self.added.entry(queue).or_insert((VecDeque::new(), i64::MIN));
        while let Some((_, order_us)) = lately.pop_front_if(|(at_us, _)| *at_us <= now_us - UNORDERED_US) {
            *before_us = order_us.max(*before_us);
        }
        lately.push_back((now_us, new.order_us()));
        let before_us = *before_us;
        ensure(new.order_us() >= before_us, "a job that is added later is not queued first", || {
            format!("{key:?} is behind one of {before_us}, and is {}", in_words(Some(new)))
        })
    }

    /// Whether a job should have been released by now.
    pub fn is_late(&self, key: &JobKey, now_us: i64) -> bool {
        self.due_us.get(key).is_some_and(|due_us| *due_us < now_us)
    }
}
