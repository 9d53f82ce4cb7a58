//! The job handler: what a worker runs for a job of type [`JOB_TYPE`](crate::JOB_TYPE).

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::watch;
use turnwise_outbound::{Client, FieldError};
use turnwise_queue::{Job, Keyspace, MAX_INFO_BYTES, Parked, Result as QueueResult};
use turnwise_store::{Runtime, Transaction};
use turnwise_worker::{JobContext, JobHandler, Live, Outcome};

use crate::doc_processor::Settings;
use crate::metrics::{Metrics, Part};
use crate::multiplex::{Multiplex, Prospect};
use crate::request_spans;
use crate::{Context, Error, Replication, Report, Stats, doc_processor, replicate};

/// Runs replications. A job's options are the JSON object of its document or `_replicate` body.
pub struct Handler {
    /// The connections, which all jobs share.
    pub client: Client,
    /// Counts what the runs do.
    pub metrics: Arc<Metrics>,
    /// Each run uses the settings at its start.
    pub settings: Live<Settings>,
    /// The clock.
    pub runtime: Arc<dyn Runtime>,
    /// Jobs that have nothing to do park here, and its owner watches their sources.
    pub multiplex: Multiplex,
}

impl Handler {
    /// Runs a job. Returns its report and, if the run parked, where.
    async fn replicate(&self, job: &JobContext) -> Result<(Report, Option<Parked>), Error> {
        let object: Map<String, Value> = serde_json::from_str(job.options.get())
            .map_err(|error| FieldError::new("options", error.to_string()))?;
        let Settings { server_uuid, defaults } = self.settings.get();
        let replication = Replication::parse(&object, &defaults)?.of_tenant(&job.job.tenant);
        let mut context = Context::new(self.client.clone(), server_uuid);
        context.metrics = Arc::clone(&self.metrics);
        context.stop = job.stop.clone();
        context.parking = self.multiplex.prospect(&job.job.id, &replication);
        // A job's numbers continue through crashes, preemptions and moves to other workers. Only a new job begins at zero.
        let info = job.job.info.as_deref().map_or("null", RawValue::get);
        let before: Stats = serde_json::from_str(info).unwrap_or_default();
        let mut part = Part::new(&self.metrics, &before);
        let (progress, mut stats) = watch::channel(before.clone());
        context.before = Some(before.clone());
        context.progress = progress;
        let (idle, mut is_idle) = watch::channel(false);
        context.idle = idle;
        let mut run = std::pin::pin!(request_spans::traced(job.spans(), replicate(&replication, &context)));
        loop {
            tokio::select! {
                ended = &mut run => {
                    part.count(&stats.borrow());
                    if ended.is_err() {
                        part.failed(&before);
                    }
                    job.report(&*stats.borrow());
                    return ended.map(|report| (report, context.parking.as_ref().map(Prospect::at).cloned()));
                }
                Ok(()) = stats.changed() => {
                    part.count(&stats.borrow());
                    job.report(&*stats.borrow_and_update());
                }
                Ok(()) = is_idle.changed() => job.idle(*is_idle.borrow_and_update()),
            }
        }
    }
}

#[async_trait]
impl JobHandler for Handler {
    async fn run(&self, job: JobContext) -> Outcome {
        match self.replicate(&job).await {
            Ok((Report { parked: Some(token), .. }, Some(at))) => Outcome::Parked { at, token },
            Ok((report, _)) if report.stopped => Outcome::Stopped,
            Ok((report, _)) => Outcome::completed(&fitting(report)),
            Err(error) if error.is_terminal() => Outcome::Failed(error.to_string()),
            Err(error) => Outcome::Crashed(error.to_string()),
        }
    }

    async fn ended(&self, tx: &Transaction, keys: &Keyspace, job: Option<&Job>) -> QueueResult<()> {
        match job {
            Some(job) => doc_processor::job_ended(tx, keys, job, self.runtime.now_us()).await,
            None => Ok(()),
        }
    }
}

/// The report, with as much of its history, newest first, as fits into a job's record.
fn fitting(mut report: Report) -> Report {
    let bytes = |report: &Report| serde_json::to_vec(report).map_or(0, |json| json.len());
    while bytes(&report) > MAX_INFO_BYTES && !report.history.is_empty() {
        let half = report.history.len() / 2;
        report.history.truncate(half);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;

    #[test]
    fn a_long_history_is_cut_at_its_old_end_until_it_fits() {
        let session =
            |n: usize| Session { session_id: format!("{n}-{}", "x".repeat(1000)), ..Session::default() };
        let report = Report {
            ok: true,
            no_changes: false,
            session_id: "s".into(),
            source_last_seq: Default::default(),
            replication_id_version: 4,
            history: (0..50).map(session).collect(),
            stopped: false,
            parked: None,
            stats: Stats::default(),
        };
        let fitting = fitting(report);
        assert!((3..12).contains(&fitting.history.len()), "{}", fitting.history.len());
        assert!(fitting.history[0].session_id.starts_with("0-"));
        assert!(serde_json::to_vec(&fitting).is_ok_and(|json| json.len() <= MAX_INFO_BYTES));
    }
}
