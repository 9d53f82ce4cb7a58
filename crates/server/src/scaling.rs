//! Slots of this server's workers that follow the demand: `max_jobs = 4..64`.
//!
//! The service reads the demand for a type (`turnwise_explain::demand`) whenever a job becomes pending, and at least every five seconds. It gives
//! the worker of this node its part of the wanted slots (`policy::slots`). The worker fills new slots at once. If it has fewer slots, it only
//! starts no further jobs.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use turnwise_config::{Config, Slots};
use turnwise_policy::slots::{Member, parts};
use turnwise_queue::{Bounds, Result, Worker};
use turnwise_store::Watch;
use turnwise_web::Web;
use turnwise_worker::{Live, Tunables};

/// The longest time between two readings.
const PAUSE: Duration = Duration::from_secs(5);
/// The shortest time between two readings.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time is also this many times as long as the reading before it.
const PAUSE_FACTOR: u32 = 20;

/// The worker of one type on this node.
#[derive(Clone)]
pub(crate) struct Scaling {
    pub web: Web,
    pub job_type: &'static str,
    /// Its setting.
    pub slots: fn(&Config) -> Slots,
    pub tunables: Live<Tunables>,
}

impl Scaling {
    /// Runs until the server stops. Costs nothing while the setting is a plain number.
    pub async fn run(self, stop: CancellationToken) {
        let mut changes = self.web.config.changes();
        loop {
            let begun = Instant::now();
            let config = changes.borrow_and_update().clone();
            let bounds = (self.slots)(&config).bounds();
            let mut wake = None;
            if let Some(bounds) = bounds {
                match self.follow(bounds, &config).await {
                    Ok(watch) => wake = Some(watch),
                    Err(error) => {
                        let job_type = self.job_type;
                        tracing::warn!(job_type, %error, "cannot read the demand: the slots stay");
                    }
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = changes.changed() => continue,
                () = tokio::time::sleep(SHORTEST_PAUSE.max(begun.elapsed() * PAUSE_FACTOR)), if bounds.is_some() => {}
            }
            let woken = async {
                match wake {
                    Some(wake) => wake.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = changes.changed() => {}
                () = woken => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Gives the worker its part of the wanted slots. Returns a watch of the type's wake key.
    async fn follow(&self, bounds: Bounds, config: &Config) -> Result<Watch> {
        let Scaling { web, job_type, tunables, .. } = self;
        let seen = web.wanted(job_type, config.workers.drain_target).await?;
        if let Some(slots) = own_part(seen.wanted_slots, &seen.workers, &web.node) {
            tunables.update(|now| match now.bounds == Some(bounds) {
                true => Tunables { max_jobs: slots.clamp(bounds.least, bounds.most), ..now.clone() },
                // The configuration has changed meanwhile.
                false => now.clone(),
            });
        }
        Ok(web.store.watch(web.keys.wake(job_type), seen.wake).await?)
    }
}

/// The slots of this node's worker, among all workers of the type and the number of jobs that each runs. `None` if the worker is not
/// registered, or takes no jobs.
fn own_part(wanted: u64, workers: &[(Worker, u64)], node: &str) -> Option<usize> {
    let (quiet, active): (Vec<_>, Vec<_>) = workers.iter().partition(|(worker, _)| worker.mode.is_quiet());
    let own = active.iter().position(|(worker, _)| worker.node == node && worker.bounds.is_some())?;
    // What runs at quiet workers is a part of what is wanted.
    let wanted = wanted.saturating_sub(quiet.iter().map(|(_, running)| running).sum());
    let member = |(worker, running): &&(Worker, u64)| {
        let Bounds { least, most } =
            worker.bounds.unwrap_or(Bounds { least: worker.slots, most: worker.slots });
        Member { least: least as u64, most: most as u64, running: *running }
    };
    let members: Vec<Member> = active.iter().map(member).collect();
    usize::try_from(parts(wanted, &members)[own]).ok()
}

#[cfg(test)]
mod tests {
    use turnwise_queue::Mode;

    use super::*;

    fn worker(node: &str, bounds: Option<(usize, usize)>, slots: usize, running: u64) -> (Worker, u64) {
        let bounds = bounds.map(|(least, most)| Bounds { least, most });
        (Worker { bounds, ..Worker::new(node, node, 0, slots) }, running)
    }

    #[test]
    fn each_node_takes_its_part_and_quiet_ones_take_none() {
        let mut workers = vec![
            worker("a", Some((1, 20)), 1, 0),
            worker("b", Some((1, 20)), 1, 0),
            worker("external", None, 4, 0),
        ];
        let all = |workers: &[(Worker, u64)]| ["a", "b"].map(|node| own_part(24, workers, node));
        assert_eq!(all(&workers), [Some(10), Some(10)]);
        workers[0] = worker("a", Some((1, 20)), 9, 9);
        workers[0].0.mode = Mode::Drain;
        assert_eq!(all(&workers), [None, Some(11)], "nine run at the quiet one, and four elsewhere");
        workers.remove(1);
        assert_eq!(all(&workers), [None, None]);
    }
}
