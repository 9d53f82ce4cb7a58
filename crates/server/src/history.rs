//! Takes samples for the history ([`turnwise_queue::history`]), and merges and removes those of earlier times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_explain::types::{OfTenant, OfType};
use turnwise_metrics::{Metrics, entitled_slots};
use turnwise_queue::history::{self, MAX_TENANTS_OF_TYPE, Sample, State, Step, TenantState, Work};
use turnwise_queue::{Result, counts};
use turnwise_store::Error as StoreError;
use turnwise_web::Web;
use turnwise_worker::{RunResult, TypeMetrics};

/// Intervals that one sample merges at most: more than pass between two samples, so that what a stop has left is soon merged.
const MAX_MERGED: usize = 20;
/// The samples between two removals of old rows.
const SAMPLES_PER_EXPIRY: u64 = 60;
/// After reading the state of the store, a node leaves that to others for this many times as long.
const STATE_REST: i64 = 20;
/// The first sample of a node is this much later than the interval's begin, at most: nodes do not write all at once.
const SPREAD_MS: u64 = 3_000;

/// Takes a sample in each interval until the server stops.
pub(crate) async fn run(metrics: Arc<Metrics>, stop: CancellationToken) {
    let runtime = metrics.web.store.runtime().clone();
    let delay_us = i64::try_from(runtime.random() % SPREAD_MS).unwrap_or(0) * 1_000;
    let mut sampler =
        Sampler { metrics, known: BTreeMap::new(), last: i64::MIN, taken: 0, rests_until_us: 0 };
    sampler.known = sampler.done();
    loop {
        let now_us = sampler.metrics.web.now_us();
        let next_us = Step::Fine.begin_us(Step::Fine.slot(now_us - delay_us) + 1) + delay_us;
        let pause = Duration::from_micros(next_us.saturating_sub(now_us).unsigned_abs());
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        if let Err(error) = sampler.sample().await {
            tracing::warn!(%error, "cannot write a sample of the history: tries again with the next one");
        }
    }
}

struct Sampler {
    metrics: Arc<Metrics>,
    /// What the workers of this node had done at the last sample.
    known: BTreeMap<String, Work>,
    /// The interval of the last sample.
    last: i64,
    taken: u64,
    /// It reads no state of the store before this time, in µs of elapsed time.
    rests_until_us: i64,
}

impl Sampler {
    async fn sample(&mut self) -> Result<()> {
        let web = self.metrics.web.clone();
        let now_us = web.now_us();
        let slot = Step::Fine.slot(now_us);
        if slot <= self.last {
            // The clock was set back, or the timer was early.
            return Ok(());
        }
        let done = self.done();
        let work: BTreeMap<String, Work> = done
            .iter()
            .map(|(job_type, work)| (job_type.clone(), since(work, self.known.get(job_type))))
            .filter(|(_, work)| *work != Work::default())
            .collect();
        let own = Sample { work, ..Sample::default() }.bounded();
        let tx = web.store.begin().await?;
        let begun_us = web.store.runtime().elapsed_us();
        let reads_state =
            begun_us >= self.rests_until_us && !history::has_state(&tx, &web.keys, slot).await?;
        drop(tx);
        let mut state = None;
        if reads_state {
            state = Some(Sample { state: self::state(&web).await?, ..Sample::default() }.bounded());
            let ended_us = web.store.runtime().elapsed_us();
            self.rests_until_us = ended_us.saturating_add((ended_us - begun_us).saturating_mul(STATE_REST));
        }
        let tx = web.store.begin().await?;
        if let Some(state) = state {
            history::write(&tx, &web.keys, slot, "", &state)?;
        }
        if !own.work.is_empty() {
            history::write(&tx, &web.keys, slot, &web.node, &own)?;
        }
        if self.taken.is_multiple_of(SAMPLES_PER_EXPIRY) {
            history::expire(&tx, &web.keys, now_us)?;
        }
        tx.commit().await?;
        (self.known, self.last, self.taken) = (done, slot, self.taken + 1);
        for _ in 0..MAX_MERGED {
            let tx = web.store.begin().await?;
            let found = history::compact(&tx, &web.keys, now_us).await?;
            match tx.commit().await {
                Ok(_) => {}
                // Another node has merged it.
                Err(StoreError::Conflict) => break,
                Err(error) => return Err(error.into()),
            }
            if !found {
                break;
            }
        }
        Ok(())
    }

    /// What the workers of this node have done so far.
    fn done(&self) -> BTreeMap<String, Work> {
        let all = self.metrics.workers.all();
        all.into_iter().map(|(job_type, metrics)| (job_type.to_owned(), work(metrics))).collect()
    }
}

fn work(metrics: &TypeMetrics) -> Work {
    Work {
        claims: metrics.claims.get(),
        completed: metrics.results(RunResult::Completed),
        failed: metrics.results(RunResult::Failed),
        crashed: metrics.results(RunResult::Crashed),
        ran_ms: metrics.runs.sum_us() / 1_000,
        waits: metrics.waits.read().counts,
    }
}

/// What was done since an earlier reading.
fn since(now: &Work, before: Option<&Work>) -> Work {
    let none = Work::default();
    let before = before.unwrap_or(&none);
    let earlier = |n: usize| before.waits.get(n).copied().unwrap_or(0);
    let mut waits: Vec<u64> =
        now.waits.iter().enumerate().map(|(n, count)| count.saturating_sub(earlier(n))).collect();
    let length = waits.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    waits.truncate(length);
    Work {
        claims: now.claims.saturating_sub(before.claims),
        completed: now.completed.saturating_sub(before.completed),
        failed: now.failed.saturating_sub(before.failed),
        crashed: now.crashed.saturating_sub(before.crashed),
        ran_ms: now.ran_ms.saturating_sub(before.ran_ms),
        waits,
    }
}

/// The state of the store now, by job type.
async fn state(web: &Web) -> Result<BTreeMap<String, State>> {
    let mut states = BTreeMap::new();
    for job_type in web.types().await? {
        let of_type = web.of_type(&job_type).await?;
        let tx = web.store.begin().await?;
        let counts = counts::of_type(&tx, &web.keys, &job_type).await?;
        let jobs = counts
            .iter()
            .filter(|(_, jobs)| *jobs > 0)
            .map(|(kind, jobs)| (kind.name().to_owned(), jobs as f64));
        let oldest_us = of_type.oldest_us.map_or(0, |oldest_us| web.now_us().saturating_sub(oldest_us));
        let state = State {
            jobs: jobs.collect(),
            slots: of_type.slots as f64,
            oldest_ms: u64::try_from(oldest_us / 1_000).unwrap_or(0),
            tenants: tenants(&of_type),
        };
        states.insert(job_type, state);
    }
    Ok(states)
}

/// The tenants with the most jobs that run or could run.
fn tenants(of_type: &OfType) -> BTreeMap<String, TenantState> {
    let entitled = entitled_slots(of_type);
    let mut all: Vec<_> = of_type.tenants.iter().zip(entitled).collect();
    all.retain(|(tenant, _)| tenant.running + tenant.pending > 0);
    all.sort_by(|(one, _), (other, _)| {
        (other.running + other.pending, &one.tenant).cmp(&(one.running + one.pending, &other.tenant))
    });
    let state = |(tenant, entitled): &(&OfTenant, f64)| {
        let state = TenantState {
            entitled: *entitled,
            received: tenant.running as f64,
            waiting: tenant.pending as f64,
        };
        (tenant.tenant.clone(), state)
    };
    all.iter().take(MAX_TENANTS_OF_TYPE).map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_what_was_done_since_the_last_sample() {
        let before = Work { claims: 3, waits: vec![1, 2, 0], ran_ms: 7, ..Work::default() };
        let now = Work { claims: 5, completed: 1, waits: vec![1, 4, 0, 0], ran_ms: 9, ..Work::default() };
        let done = Work { claims: 2, completed: 1, waits: vec![0, 2], ran_ms: 2, ..Work::default() };
        assert_eq!(since(&now, Some(&before)), done);
        assert_eq!(since(&now, Some(&now)), Work::default());
        assert_eq!(since(&before, None).waits, [1, 2]);
    }
}
