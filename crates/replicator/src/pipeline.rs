//! One run of a replication, from its checkpoint to its end.
//!
//! The changes reader, the batches in flight, the checkpoint being written and the clock are all futures of one task, polled
//! by one loop: a run that is dropped leaves nothing behind, and an idle one costs one future.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures::StreamExt;
use futures::future;
use futures::stream::FuturesUnordered;
use rand::Rng;
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Context;
use crate::changes::{Batch, Reader};
use crate::checkpoint::{Checkpoints, MAX_HISTORY, Start};
use crate::copy::Copier;
use crate::database::{self, Info};
use crate::error::{Error, Side};
use crate::http::Peer;
use crate::progress::Progress;
use crate::report::{REPLICATION_ID_VERSION, Report, Session};
use crate::seq::Seq;
use crate::spec::Replication;
use crate::stats::Stats;

/// When a run is stopped, batches in flight have this long to end: a job that is rotated out again and again still gets
/// a large attachment across.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// And the last checkpoint of a run that was stopped or failed has this long.
const LAST_CHECKPOINT: Duration = Duration::from_secs(3);

/// Runs `replication` until it is done (one-shot), stopped, or fails.
///
/// The future is the whole run: dropping it ends the run at once, without a checkpoint.
///
/// # Errors
/// Told by [`Error`]: whether it is worth another try, and what to tell the user. What was copied until then is
/// remembered in a checkpoint, if the peers are well enough to take one.
pub async fn replicate(replication: &Replication, context: &Context) -> Result<Report, Error> {
    let source = Peer::new(Side::Source, replication, &context.client);
    let target = Peer::new(Side::Target, replication, &context.client);
    let id = database::replication_id(replication, &context.client, &context.server_uuid).await?;
    if replication.create_target {
        database::create(&target, replication).await?;
    }
    let (info, target_info) = future::try_join(database::info(&source), database::info(&target)).await?;
    let checkpoints = if replication.use_checkpoints {
        Some(Checkpoints::find(&source, &target, &id.base).await?)
    } else {
        None
    };
    let copier = Copier::new(source.clone(), target, replication, target_info.is_pouchdb());
    let mut run = Run::new(replication, context, &copier, &info, checkpoints);
    let result = run.drive(source, info).await;
    run.end(result).await
}

/// A checkpoint on its way to both sides. It brings the documents' revisions back.
type Checkpointing = Pin<Box<dyn Future<Output = (Checkpoints, Result<Seq, Error>)> + Send>>;

/// Why the loop ended without an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Complete,
    Stopped,
}

struct Run<'a> {
    replication: &'a Replication,
    context: &'a Context,
    copier: &'a Copier,
    /// `None` while one is being written, or if none are wanted.
    checkpoints: Option<Checkpoints>,
    start: Start,
    start_seq: Seq,
    session_id: String,
    started: OffsetDateTime,
    progress: Progress,
    /// What the last checkpoint says.
    checkpointed: Option<Seq>,
    source_seq: Seq,
    /// Changes that were to be done when the run began, if the source knows.
    pending_at_start: Option<u64>,
    changes_done: u64,
}

impl<'a> Run<'a> {
    fn new(
        replication: &'a Replication,
        context: &'a Context,
        copier: &'a Copier,
        info: &Info,
        checkpoints: Option<Checkpoints>,
    ) -> Self {
        let start = checkpoints.as_ref().map(|found| found.start.clone()).unwrap_or_default();
        Self {
            replication,
            context,
            copier,
            checkpoints,
            start_seq: start_seq(replication, &start),
            checkpointed: start.seq.clone(),
            start,
            session_id: format!("{:032x}", rand::rng().random::<u128>()),
            started: OffsetDateTime::now_utc(),
            progress: Progress::default(),
            source_seq: info.update_seq.clone(),
            pending_at_start: None,
            changes_done: 0,
        }
    }

    /// Copies until the feed ends, the run is stopped, or something fails.
    async fn drive(&mut self, source: Peer, info: Info) -> Result<Ending, Error> {
        let (out, mut batches) = mpsc::channel::<Batch>(1);
        let reader =
            Reader::new(source.clone(), self.replication, self.start_seq.clone(), info.is_pouchdb(), out);
        let mut reader = pin!(reader.run());
        let mut pending = pin!(database::pending(source, info, self.start_seq.clone()));
        let mut pending_asked = true;
        let mut in_flight = FuturesUnordered::new();
        let mut checkpointing: Option<Checkpointing> = None;
        let interval = self.replication.checkpoint_interval;
        let mut clock = tokio::time::interval_at(Instant::now() + interval, interval);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The feed's last sequence, once it has ended; whether its last batch has been taken; when to give up waiting.
        let (mut last_seq, mut drained, mut stop_at) = (None, false, None);
        self.publish();
        loop {
            let stopping = stop_at.is_some();
            if in_flight.is_empty() && checkpointing.is_none() {
                if stopping {
                    return Ok(Ending::Stopped);
                }
                if let Some(last) = last_seq.take_if(|_| drained) {
                    self.progress.finish(last);
                    return Ok(Ending::Complete);
                }
            }
            let room = in_flight.len() < self.replication.worker_processes;
            tokio::select! {
                () = self.context.stop.cancelled(), if !stopping => stop_at = Some(Instant::now() + STOP_GRACE),
                () = tokio::time::sleep_until(stop_at.unwrap_or_else(Instant::now)), if stopping => {
                    return Ok(Ending::Stopped);
                }
                end = &mut reader, if last_seq.is_none() && !stopping => last_seq = Some(end?),
                batch = batches.recv(), if room && !drained && !stopping => match batch {
                    None => drained = true,
                    Some(batch) => {
                        self.source_seq = batch.end.clone();
                        let (number, changes) = (self.progress.begin(batch.end.clone()), batch.changes);
                        let copier = self.copier;
                        in_flight.push(async move { copier.copy(batch).await.map(|()| (number, changes)) });
                    }
                },
                Some(done) = in_flight.next() => {
                    let (number, changes) = done?;
                    self.progress.done(number);
                    self.changes_done += changes;
                    self.publish();
                }
                _ = clock.tick() => if let Some(checkpoints) = self.checkpoints.take_if(|_| self.progress.is_beyond(&self.checkpointed)) {
                    let session = self.session();
                    checkpointing = Some(Box::pin(write_checkpoint(checkpoints, session)));
                },
                (checkpoints, written) = wait_for(&mut checkpointing) => {
                    checkpointing = None;
                    self.checkpoints = Some(checkpoints);
                    self.checkpointed = Some(written?);
                    self.publish();
                }
                found = &mut pending, if pending_asked => {
                    pending_asked = false;
                    self.pending_at_start = found;
                    self.publish();
                }
            }
        }
    }

    /// Writes the last checkpoint and tells how the run went.
    async fn end(mut self, result: Result<Ending, Error>) -> Result<Report, Error> {
        let news = self.progress.is_beyond(&self.checkpointed);
        let session = self.session();
        let checkpoint = self
            .checkpoints
            .take_if(|_| news)
            .map(|checkpoints| write_checkpoint(checkpoints, session.clone()));
        let written = match (checkpoint, &result) {
            (None, _) => Ok(()),
            (Some(checkpoint), Ok(Ending::Complete)) => {
                checkpoint.await.1.map(|seq| self.checkpointed = Some(seq))
            }
            (Some(checkpoint), _) => {
                // Of use only to the next run, so its failure is not this run's.
                match tokio::time::timeout(LAST_CHECKPOINT, checkpoint).await {
                    Ok((_, Ok(seq))) => self.checkpointed = Some(seq),
                    Ok((_, Err(error))) => tracing::warn!(%error, "the last checkpoint was not written"),
                    Err(_) => tracing::warn!("the last checkpoint was not written in time"),
                }
                Ok(())
            }
        };
        if matches!(result, Ok(Ending::Complete)) {
            self.pending_at_start = Some(self.changes_done);
        }
        self.publish();
        let ending = result?;
        written?;
        Ok(self.report(session, ending))
    }

    fn report(&self, session: Session, ending: Ending) -> Report {
        let stats = self.stats();
        let no_changes = stats.revisions_checked == 0;
        let old_session = self.start.session_id.clone().filter(|_| no_changes);
        let (session_id, history) = match old_session {
            Some(old) => (old, self.start.history.clone()),
            None => {
                let earlier = self.start.history.iter().take(MAX_HISTORY - 1).cloned();
                (self.session_id.clone(), std::iter::once(session.clone()).chain(earlier).collect())
            }
        };
        Report {
            ok: true,
            no_changes,
            session_id,
            source_last_seq: session.recorded_seq,
            replication_id_version: REPLICATION_ID_VERSION,
            history,
            stopped: ending == Ending::Stopped,
            stats,
        }
    }

    /// This run, as checkpoints remember it.
    fn session(&self) -> Session {
        let stats = self.copier.tally.stats();
        let through = self.progress.through().unwrap_or(&self.start_seq).clone();
        Session {
            session_id: self.session_id.clone(),
            start_time: http_date(self.started),
            end_time: http_date(OffsetDateTime::now_utc()),
            start_last_seq: self.start_seq.clone(),
            end_last_seq: through.clone(),
            recorded_seq: through,
            missing_checked: stats.revisions_checked,
            missing_found: stats.missing_revisions_found,
            docs_read: stats.docs_read,
            docs_written: stats.docs_written,
            doc_write_failures: stats.doc_write_failures,
            bulk_get_attempts: stats.bulk_get_attempts,
            bulk_get_docs: stats.bulk_get_docs,
        }
    }

    fn stats(&self) -> Stats {
        Stats {
            changes_pending: self.pending_at_start.map(|pending| pending.saturating_sub(self.changes_done)),
            checkpointed_source_seq: self.checkpointed.clone(),
            source_seq: Some(self.source_seq.clone()),
            through_seq: Some(self.progress.through().unwrap_or(&self.start_seq).clone()),
            ..self.copier.tally.stats()
        }
    }

    fn publish(&self) {
        self.context.progress.send_replace(self.stats());
    }
}

async fn write_checkpoint(
    mut checkpoints: Checkpoints,
    session: Session,
) -> (Checkpoints, Result<Seq, Error>) {
    let written = checkpoints.write(&session).await;
    (checkpoints, written.map(|()| session.recorded_seq))
}

/// Waits for a future that may not be there; for ever if it is not.
async fn wait_for<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

/// Where a run starts: at its checkpoint, or at `since_seq`, or at the beginning.
///
/// `since_seq` beats a checkpoint that it did not lead to: the user has asked to start there. A checkpoint of runs that did
/// start there is further on the same way.
fn start_seq(replication: &Replication, start: &Start) -> Seq {
    let found = start.seq.clone().filter(|_| match &replication.since_seq {
        None => true,
        Some(since) => start.history.iter().any(|session| session.start_last_seq == *since),
    });
    found.or_else(|| replication.since_seq.clone()).unwrap_or_default()
}

/// A time as in HTTP headers: `Sat, 21 Nov 2026 08:54:30 GMT`.
fn http_date(time: OffsetDateTime) -> String {
    let (weekday, month) = (time.weekday().to_string(), time.month().to_string());
    let (day, year, hour, minute, second) =
        (time.day(), time.year(), time.hour(), time.minute(), time.second());
    format!("{}, {day:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", &weekday[..3], &month[..3])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::spec::Defaults;

    #[test]
    fn a_run_can_be_spawned() {
        fn spawnable<T: Send>(_: impl FnOnce(&'static Replication, &'static Context) -> T) {}
        spawnable(replicate);
    }

    #[test]
    fn times_look_as_in_http() {
        let time = OffsetDateTime::from_unix_timestamp(1_795_251_270).unwrap();
        assert_eq!(http_date(time), "Sat, 21 Nov 2026 08:54:30 GMT");
    }

    #[test]
    fn a_checkpoint_beats_since_seq_only_if_that_is_where_it_began() {
        let body = json!({"source": "http://a/db", "target": "http://b/db", "since_seq": 5});
        let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
        let seq = |number: u64| Seq::from(&json!(number));
        let found = |began: u64| Start {
            seq: Some(seq(9)),
            history: vec![Session { start_last_seq: seq(began), ..Session::default() }],
            session_id: Some("s".to_owned()),
        };
        assert_eq!(start_seq(&replication, &found(5)), seq(9));
        assert_eq!(start_seq(&replication, &found(0)), seq(5));
        assert_eq!(start_seq(&replication, &Start::default()), seq(5));
    }
}
