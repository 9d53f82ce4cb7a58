//! What a parked job assumes of its target: that the database is there, lets its user read, and has the checkpoint.
//!
//! A feed reports the source's changes, and nothing reports the target's. The node that owns a group therefore looks at
//! the targets of its jobs, one after the other, and begins again at the end. A look is one `GET` of the checkpoint. It
//! detects a database that was deleted, or deleted and created anew, or restored from an older backup; rights that were
//! withdrawn; and a disk that cannot be read. The job of such a target is woken: its run copies what is missing, or
//! reports the error. A look does not write, so a full disk shows only with the next change.
//!
//! *Bounds.* A round begins [`EVERY`] after the one before. A server gets at most one look per [`PACE`] from each node,
//! so with more jobs a round takes longer: 750 jobs take 30 s, and 100,000 jobs 67 minutes. If a server does not
//! respond, its next jobs are woken without a request, at the same pace, until [`SILENT_FOR`] is over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::Instant;
use turnwise_outbound::{Error, Side};
use turnwise_queue::parking::ParkedJob;

use super::feed::{Feed, Left, PAGE};
use crate::stats::Stats;
use crate::{Replication, checkpoint};

/// The pause before the first round, in which the jobs of a new group may run.
const FIRST: Duration = Duration::from_secs(5);
/// The shortest interval between the beginnings of two rounds.
const EVERY: Duration = Duration::from_secs(30);
/// The interval between two looks at databases of one server: 25 per second.
const PACE: Duration = Duration::from_millis(40);
/// Concurrent looks of one group, so that a server that responds slowly does not delay the others.
const AT_ONCE: usize = 8;
/// How long a server that did not respond is not asked again.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// The most servers whose pace is kept. Further ones share one.
const MAX_SERVERS: usize = 4_096;

/// The servers of targets, which all groups of a node share.
#[derive(Default)]
pub(super) struct Servers(Mutex<HashMap<String, Target>>);

#[derive(Clone, Copy)]
struct Target {
    /// The time of the next look.
    next: Instant,
    silent_until: Option<Instant>,
}

impl Target {
    fn is_in_use(&self, now: Instant) -> bool {
        self.next > now || self.silent_until.is_some_and(|until| until > now)
    }
}

impl Servers {
    fn with<T>(&self, server: &str, change: impl FnOnce(&mut Target, Instant) -> T) -> T {
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(server) && all.len() >= MAX_SERVERS {
            all.retain(|_, target| target.is_in_use(now));
        }
        let name = if all.contains_key(server) || all.len() < MAX_SERVERS { server } else { "" };
        let target = all.entry(name.to_owned()).or_insert(Target { next: now, silent_until: None });
        change(target, now)
    }

    /// Waits for the server's next look.
    async fn turn(&self, server: &str) {
        let turn = self.with(server, |target, now| {
            let turn = target.next.max(now);
            target.next = turn + PACE;
            turn
        });
        tokio::time::sleep_until(turn).await;
    }

    fn is_silent(&self, server: &str) -> bool {
        self.with(server, |target, now| target.silent_until.is_some_and(|until| until > now))
    }

    fn silent(&self, server: &str) {
        self.with(server, |target, now| target.silent_until = Some(now + SILENT_FOR));
    }
}

impl Feed {
    /// Looks at the targets of the group's jobs, again and again.
    pub(super) async fn look_at_targets(&self) -> Left {
        let mut round = Instant::now() + FIRST;
        loop {
            tokio::time::sleep_until(round).await;
            round = Instant::now() + EVERY;
            let mut last = None;
            loop {
                let page = self.jobs.list(&self.group, last.as_ref(), PAGE).await;
                let Some(end) = page.last().cloned() else { break };
                let mut looks = stream::iter(page).map(|job| self.look(job)).buffer_unordered(AT_ONCE);
                while let Some(changed) = looks.next().await {
                    if let Some(job) = changed {
                        self.jobs.record(&[job], &[]).await;
                    }
                }
                last = Some(end);
            }
        }
    }

    /// Returns the job if its target is not as the job left it.
    async fn look(&self, parked: ParkedJob) -> Option<ParkedJob> {
        // The job's next run reports that its options are not valid. A job that is gone leaves rows behind.
        let Some((replication, job)) = self.replication(&parked.id).await else { return Some(parked) };
        let stats: Stats =
            job.info.as_ref().and_then(|info| serde_json::from_str(info.get()).ok()).unwrap_or_default();
        match self.target_is_same(&replication, &parked.id, &stats).await {
            Ok(true) => None,
            Ok(false) => {
                tracing::info!(
                    job = parked.id,
                    "a parked replication runs: its target has another checkpoint"
                );
                Some(parked)
            }
            // The server asks for fewer requests. A run would send more.
            Err(error) if error.status() == Some(429) => None,
            Err(error) => {
                tracing::info!(job = parked.id, %error, "a parked replication runs: its target has changed");
                Some(parked)
            }
        }
    }

    async fn target_is_same(
        &self,
        replication: &Replication,
        id: &str,
        stats: &Stats,
    ) -> Result<bool, Error> {
        let (servers, client) = (&self.multiplex.0.targets, &self.multiplex.0.client);
        let server = replication.target.server();
        let server = server.url().as_str();
        servers.turn(server).await;
        if servers.is_silent(server) {
            return Ok(false);
        }
        let target = replication.peer(Side::Target, client);
        let seq = stats.checkpointed_source_seq.as_ref().filter(|seq| !seq.is_zero());
        // The base of the id, which names the checkpoint, ends with its first suffix.
        let base = id.split('+').next().unwrap_or(id);
        let found = checkpoint::is_at(&target, base, seq).await;
        if found.as_ref().is_err_and(|error| error.is_passing() && error.status().is_none()) {
            servers.silent(server);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_gets_no_more_looks_than_its_pace_however_many_ask() {
        let servers = Servers::default();
        let begun = Instant::now();
        // Groups that share a server share its pace; another server has its own.
        let one = futures::future::join_all((0..1_000).map(|_| servers.turn("http://t/")));
        let other = futures::future::join_all((0..10).map(|_| servers.turn("http://u/")));
        let other = async {
            other.await;
            assert_eq!(begun.elapsed().as_millis(), 9 * PACE.as_millis());
        };
        tokio::join!(one, other);
        assert_eq!(begun.elapsed().as_millis(), 999 * PACE.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn further_servers_share_one_pace_and_none_is_kept_for_long() {
        let servers = Servers::default();
        for n in 0..MAX_SERVERS + 100 {
            servers.silent(&format!("http://{n}/"));
        }
        assert_eq!(servers.0.lock().map(|all| all.len()).ok(), Some(MAX_SERVERS + 1));
        tokio::time::advance(SILENT_FOR).await;
        assert!(!servers.is_silent("http://1/"));
        servers.turn("http://another/").await;
        assert_eq!(servers.0.lock().map(|all| all.len()).ok(), Some(1));
    }
}
