//! The loop of one run.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures::future;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

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
use crate::error::Error;
use crate::http::Peer;
use crate::report::Report;
use crate::seq::Seq;
use crate::spec::{Filter, Replication};

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
    Failed(Error),
}

/// The state of one run.
pub(super) struct Run<'a> {
    replication: &'a Replication,
    context: &'a Context,
    copier: &'a Copier,
    account: Account<'a>,
    /// `None` while a checkpoint is being written, or if the run uses none.
    checkpoints: Option<Checkpoints>,
}

impl<'a> Run<'a> {
    pub fn new(
        replication: &'a Replication,
        context: &'a Context,
        copier: &'a Copier,
        account: Account<'a>,
        checkpoints: Option<Checkpoints>,
    ) -> Self {
        Self { replication, context, copier, account, checkpoints }
    }

    /// Copies until the feed ends, the run is stopped, or something fails.
    pub async fn run(mut self, source: Peer, infos: (Info, Info)) -> Result<Report, Error> {
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
        let Copier { demand, pace, on_target, .. } = self.copier;
        let shared = (demand.clone(), pace.clone(), on_target.clone());
        let reader = Reader::new(source.clone(), self.replication, start.clone(), &info, shared, out);
        let mut reader = pin!(reader.run());
        let mut target_is_read = false;
        let infos = (&info, &target_info);
        let mut read_target = pin!(self.copier.read_target(self.replication, infos, &start));
        let ask_pending = |seq: Seq| database::pending(source.clone(), info.clone(), seq);
        let first_question = ask_pending(self.account.ask_pending());
        let wait = if self.replication.continuous { Duration::ZERO } else { PROGRESS_BAR };
        let mut asking: Option<Asking> = Some(Box::pin(async move {
            tokio::time::sleep(wait).await;
            first_question.await
        }));
        let mut in_flight = FuturesUnordered::new();
        let mut checkpointing: Option<Checkpointing> = None;
        let interval = self.replication.checkpoint_interval;
        let mut clock = tokio::time::interval_at(Instant::now() + interval, interval);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // `last_seq`: the feed's last sequence once it has ended. `drained`: whether its last batch has been received.
        // `ending`: how the run ends, once nothing is in flight, or at the given time.
        let (mut last_seq, mut drained) = (None, false);
        let mut ending: Option<(Ending, Instant)> = None;
        // The next verification of both databases, unless a checkpoint is written before, and whether one is in progress.
        let verify_after = verify_after(interval);
        let mut verify_at = Instant::now() + verify_after;
        let mut verifying = false;
        // When the run will have been quiet for long enough.
        let mut idle_at: Option<Instant> = None;
        // When a continuous run that is incomplete ends, so that the next one asks again.
        let (began, mut again_at) = (Instant::now(), None);
        // A filter owes nothing before the end of its feed.
        let mut search = self.replication.filter.as_ref().map(|_| source.excuse());
        let mut too_slow = pin!(source.too_slow());
        let mut parking = Parking::new(self.context.parking.as_ref());
        loop {
            if in_flight.is_empty() && checkpointing.is_none() {
                if let Some((ending, _)) = ending {
                    return ending;
                }
                if let Some(last) = last_seq.take_if(|_| drained) {
                    if let Some(error) = self.copier.tally.unread.error() {
                        return Ending::Failed(error);
                    }
                    self.account.progress.finish(last);
                    return Ending::Complete;
                }
            }
            let going_on = ending.is_none();
            let room = in_flight.len() < source.reduced(self.replication.worker_processes);
            let deadline = ending.as_ref().map(|(_, deadline)| *deadline);
            // A verification is no work: it must not begin the quiet time anew.
            let all_recorded = checkpointing.is_none() || verifying && !self.account.has_news();
            if in_flight.is_empty() && all_recorded && self.is_caught_up(asking.is_some()) {
                if !*self.context.idle.borrow() {
                    idle_at.get_or_insert_with(|| Instant::now() + QUIET);
                }
            } else {
                idle_at = None;
                self.say_idle(false);
            }
            if self.replication.continuous && in_flight.is_empty() && self.copier.tally.unread.revisions() > 0
            {
                let pause = (interval * INCOMPLETE_INTERVALS).max(began.elapsed() * INCOMPLETE_READS);
                again_at.get_or_insert_with(|| Instant::now() + pause);
            }
            let nothing_to_do = in_flight.is_empty()
                && all_recorded
                && asking.is_none()
                && going_on
                && self.replication.continuous
                && again_at.is_none()
                && self.account.changes_pending() == Some(0);
            parking.consider(nothing_to_do, self.account.progress.changes() > 0);
            let failure = tokio::select! {
                () = self.context.stop.cancelled(), if going_on => {
                    ending = Some((Ending::Stopped, Instant::now() + GRACE));
                    None
                }
                () = until(idle_at), if going_on => {
                    idle_at = None;
                    self.say_idle(true);
                    None
                }
                step = parking.next(), if going_on => {
                    match step {
                        Step::Due => match self.checkpoints.take_if(|_| self.account.has_news()) {
                            // Parking is due again afterwards.
                            Some(checkpoints) => {
                                checkpointing = Some(Box::pin(write(checkpoints, self.account.log())));
                            }
                            None => parking.ask(source.clone(), info.is_pouchdb(), self.account.through()),
                        },
                        Step::Answer(Some(token)) => {
                            ending = Some((Ending::Parked(token), Instant::now() + GRACE));
                        }
                        Step::Answer(None) => {}
                    }
                    None
                }
                error = &mut too_slow, if going_on && !self.replication.continuous => Some(error),
                () = until(again_at), if going_on => {
                    again_at = None;
                    self.copier.tally.unread.error()
                }
                () = until(deadline) => return ending.map_or(Ending::Stopped, |(ending, _)| ending),
                end = &mut reader, if last_seq.is_none() && going_on => match end {
                    Ok(last) => {
                        last_seq = Some(last);
                        drop(search.take());
                        None
                    }
                    Err(error) => {
                        self.context.client.metrics().reader_deaths.add(1);
                        Some(error)
                    }
                },
                () = &mut read_target, if !target_is_read && going_on => {
                    target_is_read = true;
                    None
                }
                batch = batches.recv(), if room && !drained && going_on => {
                    match batch {
                        None => drained = true,
                        Some(batch) => {
                            self.account.source_seq = batch.end.clone();
                            let number = batch.number;
                            self.account.progress.begin(number, batch.end.clone(), batch.changes);
                            let copier = self.copier;
                            in_flight.push(async move { Ok((number, copier.copy(batch).await?)) });
                        }
                    }
                    None
                }
                Some(done) = in_flight.next() => match done {
                    Ok((number, complete)) => {
                        self.account.progress.ended(number, complete);
                        self.publish();
                        None
                    }
                    Err(error) => Some(error),
                },
                _ = clock.tick(), if going_on => {
                    if let Some(checkpoints) = self.checkpoints.take_if(|_| self.account.has_news()) {
                        checkpointing = Some(Box::pin(write(checkpoints, self.account.log())));
                    }
                    None
                }
                () = tokio::time::sleep_until(verify_at), if going_on && self.checkpoints.is_some() => {
                    verify_at = Instant::now() + verify_after;
                    if let Some(checkpoints) = self.checkpoints.take_if(|_| !self.account.has_news()) {
                        verifying = true;
                        checkpointing = Some(Box::pin(verify(checkpoints)));
                    }
                    None
                }
                (checkpoints, written) = of(&mut checkpointing) => {
                    checkpointing = None;
                    self.count_checkpoint(&checkpoints, &written);
                    verifying = false;
                    verify_at = Instant::now() + verify_after;
                    self.checkpoints = Some(checkpoints);
                    match written {
                        Ok(Some(seq)) => {
                            self.account.checkpointed = Some(seq);
                            self.publish();
                            asking = Some(Box::pin(ask_pending(self.account.ask_pending())));
                            None
                        }
                        Ok(None) => None,
                        Err(error) => Some(error),
                    }
                }
                pending = of(&mut asking), if going_on => {
                    asking = None;
                    self.account.source_says_pending(pending);
                    self.publish();
                    None
                }
            };
            // The first failure is reported; later ones are its consequences.
            if let Some(error) = failure
                && !matches!(ending, Some((Ending::Failed(_), _)))
            {
                ending = Some((Ending::Failed(error), Instant::now() + GRACE));
            }
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
        self.account.source_rejects_checkpoints = checkpoints.rejected().map(str::to_owned);
        let metrics = self.context.client.metrics();
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

/// Waits for a future; without one, forever.
async fn of<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

/// Waits until a moment; without one, forever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => future::pending().await,
    }
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
