//! Parking: when a run that is caught up ends, to resume when its source changes.
//!
//! The run has copied everything, has recorded that in a checkpoint, and has been quiet for a while. It then asks the
//! source for its sequence, and whether there are changes after the copied ones. If there are none, everything up to
//! this sequence is copied, and watchers compare later sequences with it. A change that arrives meanwhile cancels the
//! requests.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;
use turnwise_outbound::Peer;

use crate::database;
use crate::multiplex::Prospect;
use crate::seq::Seq;
use crate::waits::or_never;

/// A run that has copied something stays for this long after its last change. Where documents are written now and then,
/// the next one is copied immediately.
const QUIET_AFTER_WORK: Duration = Duration::from_secs(10);
/// The pause before the next attempt to park, if the run cannot park.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The token of the source, if the run can park.
type Asking = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// The next step towards parking.
pub(super) enum Step {
    /// The run has been quiet for long enough: write a checkpoint, and then ask the source.
    Due,
    /// The token with which the run can park; `None` if it cannot.
    Answer(Option<String>),
}

/// The parking state of one run.
pub(super) struct Parking<'a> {
    prospect: Option<&'a Prospect>,
    /// When the run will have been quiet for long enough.
    due: Option<Instant>,
    /// The earliest time of the next attempt, after one that failed.
    not_before: Option<Instant>,
    asking: Option<Asking>,
    /// Whether the run has copied something.
    has_worked: bool,
}

impl<'a> Parking<'a> {
    pub fn new(prospect: Option<&'a Prospect>) -> Self {
        Parking { prospect, due: None, not_before: None, asking: None, has_worked: false }
    }

    /// Updates whether the run has nothing to do, and whether it has copied something before, which determines the wait.
    pub fn consider(&mut self, nothing_to_do: bool, has_worked: bool) {
        self.has_worked = has_worked;
        let Some(prospect) = self.prospect.filter(|_| nothing_to_do) else {
            (self.due, self.asking) = (None, None);
            return;
        };
        if self.due.is_none() && self.asking.is_none() {
            // A run that has copied nothing has only verified that there is nothing to copy.
            let quiet = if has_worked { QUIET_AFTER_WORK } else { prospect.quiet_in_vain() };
            let due = Instant::now() + quiet;
            self.due = Some(self.not_before.map_or(due, |not_before| not_before.max(due)));
        }
    }

    /// Asks whether the run can park, having copied everything up to `through`.
    pub fn ask(&mut self, source: Peer, is_pouchdb: bool, through: Seq) {
        self.due = None;
        if let Some(prospect) = self.prospect.cloned() {
            self.asking = Some(Box::pin(ask(prospect, source, is_pouchdb, through)));
        }
    }

    /// The next step; never returns while there is something to do.
    pub async fn next(&mut self) -> Step {
        let Some(asking) = &mut self.asking else {
            or_never(self.due.map(tokio::time::sleep_until)).await;
            return Step::Due;
        };
        let answer = asking.await;
        self.asking = None;
        match (&answer, self.prospect) {
            (Some(_), Some(prospect)) => prospect.parks(self.has_worked),
            _ => self.not_before = Some(Instant::now() + ASK_AGAIN),
        }
        Step::Answer(answer)
    }
}

async fn ask(prospect: Prospect, source: Peer, is_pouchdb: bool, through: Seq) -> Option<String> {
    if !prospect.is_open().await {
        return None;
    }
    let info = database::info(&source).await.ok()?;
    let token = Prospect::token(&info.update_seq)?;
    match database::has_more(&source, is_pouchdb, &through).await {
        Ok(Some(false)) => Some(token),
        // A source that does not report it may have changes that its feed has not sent, and that the token covers.
        Ok(Some(true) | None) | Err(_) => None,
    }
}
