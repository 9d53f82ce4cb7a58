//! How the store is: whether what is stored is damaged, and whether it can go on at all.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Shared;
use super::disk::{Trouble, TroubleKind};
use crate::Error;

/// What everyone who uses the store can know.
pub(super) struct Health {
    /// What was found damaged first. Nothing is written from then on.
    damage: Mutex<Option<Error>>,
    /// Why the store cannot go on, and its process should end.
    ended: watch::Sender<Option<String>>,
}

impl Default for Health {
    fn default() -> Self {
        Health { damage: Mutex::default(), ended: watch::Sender::new(None) }
    }
}

impl Health {
    fn locked(&self) -> MutexGuard<'_, Option<Error>> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is damaged.
    pub(super) fn damage(&self) -> Option<Error> {
        self.locked().clone()
    }

    /// Why nothing is written.
    pub(super) fn stopped(&self) -> Trouble {
        let error = self.damage().unwrap_or_else(|| Error::Corrupt("the store is damaged".into()));
        Trouble { kind: TroubleKind::Damage, error }
    }

    /// Returns once the store cannot go on, and why.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }
}

impl Shared {
    /// What is stored is not what was written: nothing is written any more, and what can be read is read.
    pub(super) fn is_damaged(&self, error: &Error) {
        let mut damage = self.health.locked();
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

    /// The store cannot go on, and whoever uses it should end: opened anew it works, or says what is wrong.
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

/// How long a thread of the store bears a disk that fails.
pub(super) struct Patience {
    longest: Duration,
    failing: Option<Instant>,
    /// What was logged last.
    said: Option<String>,
}

impl Patience {
    pub(super) fn new(longest: Duration) -> Self {
        Patience { longest, failing: None, said: None }
    }

    /// What failed works again.
    pub(super) fn works(&mut self) {
        if self.said.take().is_some() {
            tracing::info!("the store writes again");
        }
        self.failing = None;
    }

    /// Says what failed, and gives up if that makes no sense to try any more. A disk without room may get some at any time;
    /// one that only fails has to work within a while.
    pub(super) fn bear(&mut self, trouble: &Trouble, what: &str, shared: &Shared) {
        let line = trouble.error.to_string();
        if self.said.as_ref() != Some(&line) {
            tracing::error!("{what}: {line}");
            self.said = Some(line.clone());
        }
        match trouble.kind {
            TroubleKind::Room => self.failing = None,
            TroubleKind::Damage => shared.is_damaged(&trouble.error),
            TroubleKind::Disk => {
                let failing = self.failing.get_or_insert_with(Instant::now);
                if failing.elapsed() >= self.longest {
                    shared.end(&format!("{what} for {} s: {line}", self.longest.as_secs()));
                }
            }
        }
    }
}
