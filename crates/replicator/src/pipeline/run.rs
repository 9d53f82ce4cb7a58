//! The loop of one run.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use turnwise_outbound::{Error, Peer};

use super::account::Account;
use super::park::{Parking, Step};
use super::{
    GRACE, IDLE_INTERVALS, INCOMPLETE_INTERVALS, INCOMPLETE_READS, LAST_CHECKPOINT, QUIET, VERIFY_AFTER,
};
use crate::Context;
use crate::changes::{Batch, Reader};
use crate::checkpoint::{Checkpoints, Log};
use crate::copy::Copier;
use crate::database::{self, Info};
use crate::report::Report;
use crate::seq::Seq;
use crate::spec::{Filter, Replication};
use crate::waits::or_never;

/// A one-shot run that ends sooner needs no progress bar, and so does not ask for the number of pending changes. This
/// saves one request, which matters for small databases.
const PROGRESS_BAR: Duration = Duration::from_secs(1);

/// Writes a checkpoint to both sides, or only verifies the databases. Returns the documents' revisions.
type Checkpointing = Pin<Box<dyn Future<Output = (Checkpoints, Result<Option<Seq>, Error>)> + Send>>;
/// An open request for the number of pending changes.
type Asking = Pin<Box<dyn Future<Output = Option<u64>> + Send>>;

/// Why the loop ended.
enum Ending {
    Complete,
    Stopped,
    /// The run has nothing to do until the source's state differs from this token.
    Parked(String),
    Failed(crate::Error),
}

/// What the loop waited for.
enum Happened {
    Stop,
    /// The run has been quiet for long enough.
    Quiet,
    Parking(Step),
    TooSlow(Error),
    /// It is time to ask again for what was not read.
    Again,
    FeedEnded(Result<Seq, Error>),
    /// The next batch; `None` after the last one.
    Read(Option<Batch>),
    /// A batch was copied: its number, and whether completely.
    Copied(Result<(u64, bool), Error>),
    /// It is time for a checkpoint.
    Tick,
    /// It is time to verify both databases.
    Verify,
    Recorded(Box<(Checkpoints, Result<Option<Seq>, Error>)>),
    Pending(Option<u64>),
}

/// The state of the loop.
struct Drive<'a> {
    source: Peer,
    info: Info,
    /// The batches that are being copied.
    in_flight: FuturesUnordered<BoxFuture<'a, Result<(u64, bool), Error>>>,
    checkpointing: Option<Checkpointing>,
    /// Whether that only verifies both databases.
    verifying: bool,
    /// The next verification, unless a checkpoint is written before.
    verify_after: Duration,
    verify_at: Instant,
    asking: Option<Asking>,
    parking: Parking<'a>,
    /// The feed's last sequence, once it has ended.
    last_seq: Option<Seq>,
    /// Whether its last batch has been received.
    drained: bool,
    /// How the run ends, once nothing is in flight, or at the given time.
    ending: Option<(Ending, Instant)>,
    /// When the run will have been quiet for long enough.
    idle_at: Option<Instant>,
    began: Instant,
    /// When a continuous run that is incomplete ends, so that the next one asks again.
    again_at: Option<Instant>,
}

/// The state of one run.
pub(super) struct Run<'a> {
    pub replication: &'a Replication,
    pub context: &'a Context,
    pub copier: &'a Copier,
    pub account: Account<'a>,
    /// `None` while a checkpoint is being written, or if the run uses none.
    pub checkpoints: Option<Checkpoints>,
}

impl<'a> Run<'a> {
    /// Copies until the feed ends, the run is stopped, or something fails.
    pub async fn run(mut self, source: Peer, infos: (Info, Info)) -> Result<Report, crate::Error> {
        self.publish();
        match self.drive(source, infos).await {
            Ending::Complete => {
                self.last_checkpoint().await?;
                self.account.ask_pending();
                // The end of the feed means that there are no pending changes.
                self.account.source_says_pending(Some(0));
                self.publish();
                Ok(self.account.report(false))
            }
            Ending::Stopped => {
                self.try_last_checkpoint().await;
                Ok(self.account.report(true))
            }
            Ending::Parked(token) => Ok(Report { parked: Some(token), ..self.account.report(true) }),
            Ending::Failed(error) => {
                if error.is_replaced() {
                    // The replaced database has no record of what was copied.
                    self.checkpoints = None;
                }
                self.try_last_checkpoint().await;
                Err(error)
            }
        }
    }

    async fn drive(&mut self, source: Peer, (info, target_info): (Info, Info)) -> Ending {
        let (out, mut batches) = mpsc::channel::<Batch>(1);
        let start = self.account.start_seq.clone();
        let Copier { demand, pace, on_target, target, .. } = self.copier;
        let shared = (demand.clone(), pace.clone(), on_target.clone());
        let reader = Reader::new(source.clone(), self.replication, start.clone(), &info, shared, out);
        let mut reader = pin!(reader.run());
        let mut target_is_read = false;
        let infos = (&info, &target_info);
        let mut read_target = pin!(on_target.read(target, self.replication, infos, &start));
        let interval = self.replication.settings.checkpoint_interval;
        let mut clock = tokio::time::interval_at(Instant::now() + interval, interval);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A filter owes nothing before the end of its feed.
        let mut search = self.replication.filter.as_ref().map(|_| source.excuse());
        let mut too_slow = pin!(source.too_slow());
        let mut drive = self.begin(&source, &info);
        loop {
            if let Some(ending) = self.end(&mut drive) {
                return ending;
            }
            self.look_ahead(&mut drive);
            let going_on = drive.ending.is_none();
            let room = drive.in_flight.len() < source.reduced(self.replication.settings.worker_processes);
            let deadline = drive.ending.as_ref().map(|(_, deadline)| *deadline);
            let happened = tokio::select! {
                () = self.context.stop.cancelled(), if going_on => Happened::Stop,
                () = or_never(drive.idle_at.map(sleep_until)), if going_on => Happened::Quiet,
                step = drive.parking.next(), if going_on => Happened::Parking(step),
                error = &mut too_slow, if going_on && !self.replication.continuous => Happened::TooSlow(error),
                () = or_never(drive.again_at.map(sleep_until)), if going_on => Happened::Again,
                () = or_never(deadline.map(sleep_until)) => return drive.ending.map_or(Ending::Stopped, |(ending, _)| ending),
                end = &mut reader, if drive.last_seq.is_none() && going_on => Happened::FeedEnded(end),
                () = &mut read_target, if !target_is_read && going_on => {
                    target_is_read = true;
                    continue;
                }
                batch = batches.recv(), if room && !drive.drained && going_on => Happened::Read(batch),
                Some(done) = drive.in_flight.next() => Happened::Copied(done),
                _ = clock.tick(), if going_on => Happened::Tick,
                () = sleep_until(drive.verify_at), if going_on && self.checkpoints.is_some() => Happened::Verify,
                recorded = or_never(drive.checkpointing.as_mut()) => Happened::Recorded(Box::new(recorded)),
                pending = or_never(drive.asking.as_mut()), if going_on => Happened::Pending(pending),
            };
            let failure = self.handle(&mut drive, happened);
            if drive.last_seq.is_some() {
                drop(search.take());
            }
            // The first failure is reported; later ones are its consequences.
            if let Some(error) = failure
                && !matches!(drive.ending, Some((Ending::Failed(_), _)))
            {
                drive.ending = Some((Ending::Failed(error), Instant::now() + GRACE));
            }
        }
    }

    fn begin(&mut self, source: &Peer, info: &Info) -> Drive<'a> {
        let verify_after = verify_after(self.replication.settings.checkpoint_interval);
        let question = database::pending(source.clone(), info.clone(), self.account.ask_pending());
        let wait = if self.replication.continuous { Duration::ZERO } else { PROGRESS_BAR };
        Drive {
            source: source.clone(),
            info: info.clone(),
            in_flight: FuturesUnordered::new(),
            checkpointing: None,
            verifying: false,
            verify_after,
            verify_at: Instant::now() + verify_after,
            asking: Some(Box::pin(async move {
                tokio::time::sleep(wait).await;
                question.await
            })),
            parking: Parking::new(self.context.parking.as_ref()),
            last_seq: None,
            drained: false,
            ending: None,
            idle_at: None,
            began: Instant::now(),
            again_at: None,
        }
    }

    /// How the run ends, if it ends now: once nothing is in flight.
    fn end(&mut self, drive: &mut Drive<'a>) -> Option<Ending> {
        if !drive.in_flight.is_empty() || drive.checkpointing.is_some() {
            return None;
        }
        if let Some((ending, _)) = drive.ending.take() {
            return Some(ending);
        }
        let drained = drive.drained;
        let last = drive.last_seq.take_if(|_| drained)?;
        if let Some(error) = self.copier.tally.unread.error() {
            return Some(Ending::Failed(error.into()));
        }
        self.account.progress.finish(last);
        Some(Ending::Complete)
    }

    /// Decides when the run is idle, when it asks again for what was not read, and whether it may be parked.
    fn look_ahead(&mut self, drive: &mut Drive<'a>) {
        let continuous = self.replication.continuous;
        // A verification is no work: it must not begin the quiet time anew.
        let all_recorded = drive.checkpointing.is_none() || drive.verifying && !self.account.has_news();
        let rests = drive.in_flight.is_empty() && all_recorded;
        if rests && self.is_caught_up(drive.asking.is_some()) {
            if !*self.context.idle.borrow() {
                drive.idle_at.get_or_insert_with(|| Instant::now() + QUIET);
            }
        } else {
            drive.idle_at = None;
            self.say_idle(false);
        }
        if continuous && drive.in_flight.is_empty() && self.copier.tally.unread.revisions() > 0 {
            let interval = self.replication.settings.checkpoint_interval;
            let pause = (interval * INCOMPLETE_INTERVALS).max(drive.began.elapsed() * INCOMPLETE_READS);
            drive.again_at.get_or_insert_with(|| Instant::now() + pause);
        }
        let nothing_to_do = rests
            && drive.asking.is_none()
            && drive.ending.is_none()
            && continuous
            && drive.again_at.is_none()
            && self.account.changes_pending() == Some(0);
        drive.parking.consider(nothing_to_do, self.account.progress.changes() > 0);
    }

    /// Handles what happened. Returns an error that ends the run.
    fn handle(&mut self, drive: &mut Drive<'a>, happened: Happened) -> Option<crate::Error> {
        match happened {
            Happened::Stop => drive.ending = Some((Ending::Stopped, Instant::now() + GRACE)),
            Happened::Quiet => {
                drive.idle_at = None;
                self.say_idle(true);
            }
            Happened::Parking(Step::Due) => match self.checkpoint() {
                // Parking is due again afterwards.
                Some(checkpointing) => drive.checkpointing = Some(checkpointing),
                None => {
                    let (source, is_pouchdb) = (drive.source.clone(), drive.info.is_pouchdb());
                    drive.parking.ask(source, is_pouchdb, self.account.through());
                }
            },
            Happened::Parking(Step::Answer(Some(token))) => {
                drive.ending = Some((Ending::Parked(token), Instant::now() + GRACE));
            }
            Happened::Parking(Step::Answer(None)) => {}
            Happened::Again => {
                drive.again_at = None;
                return self.copier.tally.unread.error().map(Into::into);
            }
            Happened::FeedEnded(Ok(last)) => drive.last_seq = Some(last),
            Happened::FeedEnded(Err(error)) => {
                self.context.metrics.reader_deaths.add(1);
                return Some(error.into());
            }
            Happened::Read(None) => drive.drained = true,
            Happened::Read(Some(batch)) => {
                self.account.source_seq = batch.end.clone();
                let number = batch.number;
                self.account.progress.begin(number, batch.end.clone(), batch.changes);
                let copier = self.copier;
                drive.in_flight.push(Box::pin(async move { Ok((number, copier.copy(batch).await?)) }));
            }
            Happened::Copied(Ok((number, complete))) => {
                self.account.progress.ended(number, complete);
                self.publish();
            }
            Happened::Tick => {
                if let Some(checkpointing) = self.checkpoint() {
                    drive.checkpointing = Some(checkpointing);
                }
            }
            Happened::Verify => {
                drive.verify_at = Instant::now() + drive.verify_after;
                if let Some(checkpoints) = self.checkpoints.take_if(|_| !self.account.has_news()) {
                    drive.verifying = true;
                    drive.checkpointing = Some(Box::pin(verify(checkpoints)));
                }
            }
            Happened::Recorded(recorded) => {
                let (checkpoints, written) = *recorded;
                return self.recorded(drive, checkpoints, written);
            }
            Happened::Pending(pending) => {
                drive.asking = None;
                self.account.source_says_pending(pending);
                self.publish();
            }
            Happened::TooSlow(error) | Happened::Copied(Err(error)) => return Some(error.into()),
        }
        None
    }

    /// Begins to write a checkpoint, if there is something to record and none is being written.
    fn checkpoint(&mut self) -> Option<Checkpointing> {
        let checkpoints = self.checkpoints.take_if(|_| self.account.has_news())?;
        Some(Box::pin(write(checkpoints, self.account.log())))
    }

    /// A checkpoint was written or not, or both databases are verified.
    fn recorded(
        &mut self,
        drive: &mut Drive<'a>,
        checkpoints: Checkpoints,
        written: Result<Option<Seq>, Error>,
    ) -> Option<crate::Error> {
        drive.checkpointing = None;
        self.count_checkpoint(&checkpoints, &written);
        drive.verifying = false;
        drive.verify_at = Instant::now() + drive.verify_after;
        self.checkpoints = Some(checkpoints);
        match written {
            Ok(Some(seq)) => {
                self.account.checkpointed = Some(seq);
                self.publish();
                let question = self.account.ask_pending();
                drive.asking =
                    Some(Box::pin(database::pending(drive.source.clone(), drive.info.clone(), question)));
                None
            }
            Ok(None) => None,
            Err(error) => Some(error.into()),
        }
    }

    /// Whether a continuous run has copied all that its source has, as far as the source reports it. Otherwise a silent
    /// feed counts as the end. This does not hold for a filter, which may search a large database for a long time
    /// before it finds something.
    fn is_caught_up(&self, asking: bool) -> bool {
        self.replication.continuous
            && match self.account.changes_pending() {
                Some(changes) => changes == 0,
                None => !asking && !matches!(&self.replication.filter, Some(filter) if searches(filter)),
            }
    }

    fn say_idle(&self, idle: bool) {
        self.context.idle.send_if_modified(|said| std::mem::replace(said, idle) != idle);
    }

    /// Writes a checkpoint of what the run has done, if anything.
    async fn last_checkpoint(&mut self) -> Result<(), Error> {
        if self.account.has_news()
            && let Some(checkpoints) = self.checkpoints.take()
        {
            let (checkpoints, written) = write(checkpoints, self.account.log()).await;
            self.count_checkpoint(&checkpoints, &written);
            self.account.checkpointed = written?;
        }
        Ok(())
    }

    /// Counts a checkpoint that was written, or not, and notes whether the source has rejected it.
    fn count_checkpoint(&mut self, checkpoints: &Checkpoints, written: &Result<Option<Seq>, Error>) {
        self.account.source_rejects_checkpoints = checkpoints.rejected.clone();
        let metrics = &self.context.metrics;
        match written {
            Ok(Some(_)) => metrics.checkpoints.add(1),
            Ok(None) => {}
            Err(_) => metrics.checkpoint_failures.add(1),
        }
    }

    /// The same where only the next run benefits, so that an error is not this run's.
    async fn try_last_checkpoint(&mut self) {
        match tokio::time::timeout(LAST_CHECKPOINT, self.last_checkpoint()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last checkpoint was not written"),
            Err(_) => tracing::warn!("the last checkpoint was not written in time"),
        }
        self.publish();
    }

    fn publish(&self) {
        self.context.progress.send_replace(self.account.stats());
    }
}

/// How long a run without checkpoints to write goes on before it verifies both databases.
fn verify_after(checkpoint_interval: Duration) -> Duration {
    checkpoint_interval.saturating_mul(IDLE_INTERVALS).min(VERIFY_AFTER)
}

/// Whether the source must read every document for this filter.
fn searches(filter: &Filter) -> bool {
    match filter {
        Filter::DocIds(_) => false,
        Filter::Selector(_) | Filter::Function { .. } => true,
    }
}

async fn write(mut checkpoints: Checkpoints, log: Log) -> (Checkpoints, Result<Option<Seq>, Error>) {
    let seq = log.source_last_seq.clone();
    let written = checkpoints.write(log).await;
    (checkpoints, written.map(|()| Some(seq)))
}

async fn verify(mut checkpoints: Checkpoints) -> (Checkpoints, Result<Option<Seq>, Error>) {
    let verified = checkpoints.verify().await;
    (checkpoints, verified.map(|()| None))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::verify_after;
    use crate::{Context, Replication, replicate};

    #[test]
    fn an_idle_run_verifies_its_databases_within_half_a_minute() {
        let after_ms =
            [30, 3_000, 30_000, 600_000].map(|ms| verify_after(Duration::from_millis(ms)).as_millis());
        assert_eq!(after_ms, [300, 30_000, 30_000, 30_000]);
    }

    #[test]
    fn a_run_can_be_spawned() {
        fn spawnable<T: Send>(_: impl FnOnce(&'static Replication, &'static Context) -> T) {}
        spawnable(replicate);
    }
}
