//! When a run that is caught up leaves, to be woken when its source changes.
//!
//! It has copied everything, has remembered that in a checkpoint, and has been quiet for a while. Then it asks the source how far it
//! is, and whether anything comes after what was copied: if not, what the source said first is covered, and later changes are what whoever
//! watches will compare it with. A change that comes meanwhile ends the question.

use std::pin::Pin;
use std::time::Duration;

use futures::future;
use tokio::time::Instant;

use crate::database;
use crate::http::Peer;
use crate::multiplex::Prospect;
use crate::seq::Seq;

/// A run that has copied something stays for so long after its last change: where documents are written now and then, the next
/// one is copied at once.
const QUIET_AFTER_WORK: Duration = Duration::from_secs(10);
/// Before the question is put again, where the answer was no.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// What the source is remembered as, if the run can leave.
type Asking = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// What a run does next about leaving.
pub(super) enum Step {
    /// It has been quiet for long enough: what was done is to be remembered, and then the source to be asked.
    Due,
    /// It can leave, and the source is remembered as this; or it cannot.
    Answer(Option<String>),
}

/// One run's way out.
pub(super) struct Parking<'a> {
    prospect: Option<&'a Prospect>,
    /// When it will have been quiet for long enough.
    due: Option<Instant>,
    /// Not before, because the answer was no.
    not_before: Option<Instant>,
    asking: Option<Asking>,
    /// Whether the run has copied something.
    has_worked: bool,
}

impl<'a> Parking<'a> {
    pub fn new(prospect: Option<&'a Prospect>) -> Self {
        Parking { prospect, due: None, not_before: None, asking: None, has_worked: false }
    }

    /// Whether the run has nothing to do, and whether it had before: what it waits for is decided by that.
    pub fn consider(&mut self, nothing_to_do: bool, has_worked: bool) {
        self.has_worked = has_worked;
        let Some(prospect) = self.prospect.filter(|_| nothing_to_do) else {
            (self.due, self.asking) = (None, None);
            return;
        };
        if self.due.is_none() && self.asking.is_none() {
            // Who has copied nothing has only made sure that there is nothing.
            let quiet = if has_worked { QUIET_AFTER_WORK } else { prospect.quiet_in_vain() };
            let due = Instant::now() + quiet;
            self.due = Some(self.not_before.map_or(due, |not_before| not_before.max(due)));
        }
    }

    /// Asks whether it can leave, having copied everything up to `through`.
    pub fn ask(&mut self, source: Peer, is_pouchdb: bool, through: Seq) {
        self.due = None;
        if let Some(prospect) = self.prospect.cloned() {
            self.asking = Some(Box::pin(ask(prospect, source, is_pouchdb, through)));
        }
    }

    /// What comes next of it; never, while there is something to do.
    pub async fn next(&mut self) -> Step {
        let Some(asking) = &mut self.asking else {
            match self.due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => future::pending().await,
            }
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
        // One that does not say may have something that its feed has not brought, and that the token covers.
        Ok(Some(true) | None) | Err(_) => None,
    }
}
