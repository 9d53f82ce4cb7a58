//! The terms of a run: what a job states of its attempts, and what holds for a run of it.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use turnwise_policy::backoff::{self, OnLost, Waits, jittered_us};
use turnwise_policy::contention::hash;

use crate::error::{Error, Result};
use crate::lifetime::Lifetime;
use crate::names::{MAX_CLASS_BYTES, check_name};
use crate::timeouts::Timeouts;

/// The most snoozes of a job that states no other number. After them, the job fails.
pub const DEFAULT_MAX_SNOOZES: u32 = 1_000;
/// The attempts of a job whose type's server sets none: see [`Terms::max_attempts`].
pub const DEFAULT_MAX_ATTEMPTS: u32 = 20;
/// The most classes of errors that may be stated as final. The record of a run has them.
pub const MAX_FINAL_ERRORS: usize = 20;

/// What a job states of its attempts, beside `max_attempts` and its timeouts. What it leaves out follows from its type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// The waits after its crashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Waits>,
    /// Whether they have jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<bool>,
    /// How the loss of its worker counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
    /// The most snoozes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_snoozes: Option<u32>,
}

impl Retry {
    /// Whether the job states nothing.
    pub fn is_none(&self) -> bool {
        *self == Retry::default()
    }

    /// These; those of `others` where there is none.
    #[must_use]
    pub fn or(self, others: Retry) -> Retry {
        let Retry { backoff, jitter, on_lost, max_snoozes } = others;
        Retry {
            backoff: self.backoff.or(backoff),
            jitter: self.jitter.or(jitter),
            on_lost: self.on_lost.or(on_lost),
            max_snoozes: self.max_snoozes.or(max_snoozes),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let checked = self.backoff.as_ref().map_or(Ok(()), Waits::check);
        checked.map_err(|problem| Error::Invalid { field: "backoff", problem })
    }
}

/// What is stated of the jobs of a type, or of one of its tasks. It holds for those that do not state it themselves. What it leaves
/// out follows from what is stated of the type, and at last from the settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatedTerms {
    /// As [`JobSpec::max_attempts`](crate::JobSpec::max_attempts).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Their timeouts.
    #[serde(skip_serializing_if = "Timeouts::is_none")]
    pub timeouts: Timeouts,
    /// How they are tried again.
    #[serde(skip_serializing_if = "Retry::is_none")]
    pub retry: Retry,
    /// How long they may wait, and are kept.
    #[serde(skip_serializing_if = "Lifetime::is_none")]
    pub lifetime: Lifetime,
    /// See [`Terms::final_errors`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub final_errors: Vec<String>,
}

impl StatedTerms {
    /// Whether nothing is stated.
    pub fn is_none(&self) -> bool {
        *self == StatedTerms::default()
    }

    /// These terms, and `others` where there are none.
    #[must_use]
    pub fn over(&self, others: &Terms) -> Terms {
        let Retry { backoff, jitter, on_lost, max_snoozes } = &self.retry;
        let final_errors =
            if self.final_errors.is_empty() { &others.final_errors } else { &self.final_errors };
        Terms {
            backoff: others.backoff,
            waits: backoff.clone().or_else(|| others.waits.clone()),
            jitter: jitter.unwrap_or(others.jitter),
            on_lost: on_lost.unwrap_or(others.on_lost),
            timeouts: self.timeouts.or(others.timeouts),
            max_attempts: self.max_attempts.or(others.max_attempts),
            max_snoozes: max_snoozes.or(others.max_snoozes),
            lifetime: self.lifetime.or(others.lifetime),
            final_errors: final_errors.clone(),
        }
    }

    /// Whether these may be stated.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        self.timeouts.check()?;
        self.retry.check()?;
        self.lifetime.check()?;
        let most = MAX_FINAL_ERRORS;
        if self.final_errors.len() > most {
            let problem = format!("has {} classes; at most {most} are allowed", self.final_errors.len());
            return Err(Error::Invalid { field: "final_errors", problem });
        }
        self.final_errors.iter().try_for_each(|class| check_name("final_errors", class, MAX_CLASS_BYTES))
    }
}

/// The terms of a claim: when a run counts as healthy, and what happens to the job when the run ends. The record keeps them
/// during the run, so that the claim can be revoked without the worker's settings, and a run ends by the terms with which it
/// began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// How long a run must last to be healthy, and the backoff where the job states no waits.
    pub backoff: backoff::Rules,
    /// The waits that the job states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Whether waits have jitter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub jitter: bool,
    /// How the loss of the worker counts.
    pub on_lost: OnLost,
    /// The run's timeouts: the job's own, or else its type's.
    #[serde(skip_serializing_if = "Timeouts::is_none")]
    pub timeouts: Timeouts,
    /// The crash of this attempt, counted from 1, fails the job; `None` retries it forever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The most snoozes; `None` stands for [`DEFAULT_MAX_SNOOZES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_snoozes: Option<u32>,
    /// How long the job may wait for its first start, and how long its record is kept.
    #[serde(skip_serializing_if = "Lifetime::is_none")]
    pub lifetime: Lifetime,
    /// The classes of errors after which the job is not tried again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub final_errors: Vec<String>,
}

/// The terms of a run of a job that states nothing, under the settings as they are by default.
static USUAL: LazyLock<Terms> = LazyLock::new(|| Terms {
    backoff: backoff::Rules { base_us: 1_000_000, max_exponent: 12, ..backoff::Rules::default() },
    jitter: true,
    max_attempts: Some(DEFAULT_MAX_ATTEMPTS),
    ..Terms::default()
});

impl Terms {
    /// Those of most runs: the records of these do not repeat them. So they are a part of the format of rows: with other settings by default,
    /// these stay as they are.
    pub fn usual() -> &'static Terms {
        &USUAL
    }

    /// The wait of the job with this id after `crashes` consecutive crashes, in µs.
    pub fn wait_us(&self, id: &str, crashes: u32) -> i64 {
        let wait_us = match &self.waits {
            Some(waits) => waits.wait_us(crashes),
            None => self.backoff.wait_us(crashes),
        };
        if self.jitter { jittered_us(wait_us, hash(id, u64::from(crashes))) } else { wait_us }
    }

    /// Whether a job that crashes for the `attempts`-th time has used up its attempts.
    pub fn is_last(&self, attempts: u32) -> bool {
        self.max_attempts.is_some_and(|most| attempts >= most)
    }

    /// Whether an error of this class fails the job, whatever attempts are left.
    pub fn is_final(&self, class: Option<&str>) -> bool {
        class.is_some_and(|class| self.final_errors.iter().any(|last| last == class))
    }

    /// Whether a job that was snoozed this often may be snoozed once more.
    pub fn may_snooze(&self, snoozes: u32) -> bool {
        snoozes < self.max_snoozes.unwrap_or(DEFAULT_MAX_SNOOZES)
    }
}
