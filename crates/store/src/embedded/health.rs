//! The store's health: whether its data is damaged, and whether it can continue at all.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Shared;
use crate::sync::Mutex;
use crate::{Error, Result};

/// The health that all threads and snapshots of the store share.
#[derive(Default)]
pub(super) struct Health {
    /// The first damage found. The store writes nothing from then on.
    damage: Mutex<Option<Error>>,
    /// Why the store cannot continue and its process should end.
    ended: watch::Sender<Option<String>>,
}

impl Health {
    /// Refuses to write to a damaged store.
    pub(super) fn check(&self) -> Result<()> {
        self.damage.lock().clone().map_or(Ok(()), Err)
    }

    /// Returns the reason once the store cannot continue.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await.expect("the sender lives as long as `self`");
        reason.clone().expect("it was waited for")
    }
}

impl Shared {
    /// Records that stored data is damaged. The store no longer writes, and still serves reads where it can.
    pub(super) fn is_damaged(&self, error: &Error) {
        let mut damage = self.health.damage.lock();
        if damage.is_some() {
            return;
        }
        tracing::error!(
            "{error}; the store takes no more writes: restore it from a backup, and keep what is there"
        );
        *damage = Some(error.clone());
        drop(damage);
        self.submissions.refuse(error);
        self.watches.wake_all();
    }

    /// Ends the store because it cannot continue. Its process should end: a new open either works or reports the problem.
    pub(super) fn end(&self, reason: &str) {
        self.submissions.refuse(&Error::Unavailable(reason.to_owned()));
        self.watches.wake_all();
        self.health.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                tracing::error!("the store cannot go on: {reason}");
                *ended = Some(reason.to_owned());
            }
            first
        });
    }
}

/// How long a thread of the store tolerates a failing disk.
pub(super) struct Patience {
    longest: Duration,
    failing: Option<Instant>,
    /// The message that was logged last.
    said: Option<String>,
}

impl Patience {
    pub(super) fn new(longest: Duration) -> Self {
        Patience { longest, failing: None, said: None }
    }

    /// Records that writes work again.
    pub(super) fn works(&mut self) {
        if self.said.take().is_some() {
            tracing::info!("the store writes again");
        }
        self.failing = None;
    }

    /// Logs the failure, and ends the store if further attempts make no sense. A disk without room may get some at any time. A
    /// disk that fails otherwise must work again within `longest`.
    pub(super) fn bear(&mut self, error: &Error, what: &str, shared: &Shared) {
        self.say(error, what);
        match error {
            Error::NoRoom { .. } => self.failing = None,
            Error::Corrupt(_) => shared.is_damaged(error),
            _ => {
                let failing = self.failing.get_or_insert_with(Instant::now);
                if failing.elapsed() >= self.longest {
                    shared.end(&format!("{what} for {} s: {error}", self.longest.as_secs()));
                }
            }
        }
    }

    /// Only logs a failure that another thread bears.
    pub(super) fn pass(&mut self, error: &Error, what: &str) {
        self.say(error, what);
        self.failing = None;
    }

    fn say(&mut self, error: &Error, what: &str) {
        let line = Some(error.to_string());
        if self.said != line {
            tracing::error!("{what}: {error}");
            self.said = line;
        }
    }
}
