//! The workers that claim from the same queue, and this worker's shard among them.

use std::time::Duration;

use turnwise_policy::contention::{MAX_CONTENDERS, Shard};
use turnwise_queue::workers;

use super::Incarnation;

/// The additional pause before a worker with too many jobs claims skipped jobs. It is far longer than the normal pause,
/// so that the owners of these jobs come first.
const GIVING_PAUSE: Duration = Duration::from_secs(1);

/// The contenders for the same queue, as of the last heartbeat.
pub(super) struct Contenders {
    pub names: Vec<String>,
    /// Since when the names have not changed, in µs.
    pub since_us: i64,
}

impl Incarnation {
    /// Reads which workers claim from the same queue. Without this knowledge, passes only conflict more often.
    pub(super) async fn read_contenders(&mut self) {
        let (keys, job_type) = (&self.shared.keys, &self.shared.job_type);
        let found = async {
            let tx = self.shared.store.begin().await?;
            workers::contenders(&tx, keys, job_type, MAX_CONTENDERS).await
        };
        match found.await {
            Ok(contenders) => self.learn_contenders(contenders),
            Err(error) => tracing::debug!(%error, "cannot read which workers claim from the same queue"),
        }
    }

    pub(super) fn learn_contenders(&mut self, contenders: workers::Contenders) {
        let workers::Contenders { names, members } = contenders;
        let all = (members.len() < MAX_CONTENDERS).then(|| members.into_iter().collect());
        self.fair.set_members(all);
        if self.contenders.names != names {
            self.balance.is_above_its_part = false;
            self.contenders = Contenders { names, since_us: self.now_us() };
        }
    }

    /// This worker's rank among the contenders, and their number.
    pub(super) fn rank(&self) -> (i64, i64) {
        let rank = self.contenders.names.iter().position(|name| *name == self.id).unwrap_or(0);
        let number = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
        (number(rank), number(self.contenders.names.len()))
    }

    /// This worker's current part of the head of the queue, in the division among all workers.
    pub(super) fn division(&self) -> Shard {
        match self.contenders.names.is_empty() {
            true => Shard::ALL,
            false => {
                let own = Shard::new(&self.contenders.names, &self.id, self.now_us());
                self.sibling
                    .as_ref()
                    .map_or(own, |sibling| own.with(&self.contenders.names, |name| sibling.is_beside(name)))
            }
        }
    }

    /// The part of the head of the queue that this worker claims without a pause.
    pub(super) fn shard(&self) -> Shard {
        if self.balance.is_above_its_part { self.division().of_none() } else { self.division() }
    }

    /// The pause before it claims jobs that it has skipped for their owners.
    pub(super) fn pause(&self, random: u64) -> Duration {
        let pause = self.shard().pause(random);
        if self.balance.is_above_its_part { GIVING_PAUSE + pause } else { pause }
    }
}
