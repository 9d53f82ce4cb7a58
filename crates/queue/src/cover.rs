//! What the rows of ended jobs say, and in which partition each is ([`crate::ended`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::Bytes;
use serde::Deserialize;

use crate::encoding::encode;
use crate::job::Job;
use crate::place::End;
use crate::reason_class::{self, hash};

/// The partitions of completed jobs, and of cancelled ones.
pub(crate) const BY_TENANT: u16 = 64;
/// Failed jobs: partitions by tenant, and by the class of the reason.
pub(crate) const FAILED_BY_TENANT: u16 = 8;
pub(crate) const FAILED_BY_CLASS: u16 = 8;
pub(crate) const FIRST_CANCELLED: u16 = BY_TENANT;
pub(crate) const FIRST_FAILED: u16 = 2 * BY_TENANT;
/// The partitions of a type.
pub const PARTITIONS: u16 = FIRST_FAILED + FAILED_BY_TENANT * FAILED_BY_CLASS;

/// What a row says about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cover<'a> {
    pub tenant: Cow<'a, str>,
    /// The number of the class of its reason; `None` for a job without a reason.
    pub class: Option<u32>,
    /// The number of the task of a job with a reason, if it names one.
    pub task: Option<u32>,
}

impl<'a> Cover<'a> {
    pub(crate) fn of(job: &'a Job) -> Self {
        let class = job.reason_class().map(|class| reason_class::number(&class));
        let task = job.task.as_deref().filter(|_| class.is_some()).map(hash);
        Cover { tenant: Cow::Borrowed(&job.tenant), class, task }
    }

    /// The row's value.
    pub(crate) fn bytes(&self) -> Bytes {
        match (self.class, self.task) {
            (Some(class), Some(task)) => encode(&(&self.tenant, class, task)),
            (Some(class), None) => encode(&(&self.tenant, class)),
            (None, _) => encode(&self.tenant),
        }
    }

    /// `None` for a row without a value.
    pub(crate) fn read(value: &'a [u8]) -> Option<Self> {
        /// A text is borrowed if it has no escapes.
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
        #[derive(Deserialize)]
        struct WithReason<'a>(#[serde(borrow)] Cow<'a, str>, u32, #[serde(default)] Option<u32>);
        if value.first()? == &b'"' {
            let Text(tenant) = serde_json::from_slice(value).ok()?;
            return Some(Cover { tenant, class: None, task: None });
        }
        let WithReason(tenant, class, task) = serde_json::from_slice(value).ok()?;
        Some(Cover { tenant, class: Some(class), task })
    }
}

/// The partition of a job that ended like this.
pub(crate) fn partition_of(end: End, job: &Job) -> u16 {
    let by_tenant = |of: u16| remainder(hash(&job.tenant), of);
    match end {
        End::Completed => by_tenant(BY_TENANT),
        End::Cancelled => FIRST_CANCELLED + by_tenant(BY_TENANT),
        End::Failed => {
            let class = job.reason_class().map_or(0, |class| reason_class::number(&class));
            FIRST_FAILED + by_tenant(FAILED_BY_TENANT) * FAILED_BY_CLASS + remainder(class, FAILED_BY_CLASS)
        }
    }
}

/// The remainder of a division.
pub(crate) fn remainder(hash: u32, of: u16) -> u16 {
    u16::try_from(hash % u32::from(of)).unwrap_or(0)
}

/// The partitions of jobs that ended like this, of these tenants and of this class, if any are named: sorted ranges.
pub(crate) fn partitions(
    end: End,
    tenants: Option<&[String]>,
    class: Option<u32>,
) -> Vec<RangeInclusive<u16>> {
    let slots = |of: u16| -> BTreeSet<u16> {
        match tenants {
            Some(tenants) => tenants.iter().map(|tenant| remainder(hash(tenant), of)).collect(),
            None => (0..of).collect(),
        }
    };
    let classes = match class.map(|class| remainder(class, FAILED_BY_CLASS)) {
        Some(class) => class..class + 1,
        None => 0..FAILED_BY_CLASS,
    };
    let of_slot = |slot: u16| classes.clone().map(move |class| FIRST_FAILED + slot * FAILED_BY_CLASS + class);
    let partitions: Vec<u16> = match end {
        End::Completed => slots(BY_TENANT).into_iter().collect(),
        End::Cancelled => slots(BY_TENANT).into_iter().map(|slot| FIRST_CANCELLED + slot).collect(),
        End::Failed => slots(FAILED_BY_TENANT).into_iter().flat_map(of_slot).collect(),
    };
    let ranges = partitions.chunk_by(|one, next| one + 1 == *next);
    ranges.map(|range| range[0]..=range[range.len() - 1]).collect()
}
