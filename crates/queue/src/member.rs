//! What jobs state of groups ([`crate::groups`]): of which one a job is a member, and which one has added it.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use turnwise_policy::eligibility::condition::GROUP_TAG;

use crate::error::{Error, Result};
use crate::names::{MAX_TAG_BYTES, check_tag};

/// Longest name of a group, in bytes: its tag is a tag.
pub const MAX_GROUP_NAME_BYTES: usize = MAX_TAG_BYTES - GROUP_TAG.len();

/// The group of which a job is a member. Stored as one text, `name@id` or `name@id/index`, with the id in hexadecimal digits: each move of a
/// job reads and writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// The group's name, within the job's tenant.
    pub name: String,
    /// The group's own number, which a later group of the same name does not have; 0 in a request.
    pub id: u64,
    /// The job's place in its array, from 0 on.
    pub index: Option<u32>,
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = numbered(&self.name, self.id);
        if let Some(index) = self.index {
            text.push('/');
            text.push_str(&index.to_string());
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let read = || {
            let (name, rest) = text.split_once('@')?;
            let (id, index) = match rest.split_once('/') {
                Some((id, index)) => (id, Some(index.parse().ok()?)),
                None => (rest, None),
            };
            Some(Member { name: name.to_owned(), id: u64::from_str_radix(id, 16).ok()?, index })
        };
        read().ok_or_else(|| D::Error::custom("the group of a job is `name@id` or `name@id/index`"))
    }
}

/// The name and the number of a group, as one text. Written out: with `format!`, it takes ten times as long.
pub(crate) fn numbered(name: &str, id: u64) -> String {
    let mut text = String::with_capacity(name.len() + 20);
    text.push_str(name);
    text.push('@');
    let digits = (u64::BITS - id.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        text.push(char::from(b"0123456789abcdef"[(id >> (4 * digit) & 15) as usize]));
    }
    text
}

impl Member {
    /// A member of the group with this name, as a client states it.
    pub fn of(name: &str) -> Self {
        Member { name: name.to_owned(), ..Member::default() }
    }

    /// The tag of all members.
    pub(crate) fn tag(&self) -> String {
        [GROUP_TAG, &self.name].concat()
    }

    /// The reason that limits how many members of the group with this number run at the same time.
    pub(crate) fn limit(most: u32, id: u64) -> String {
        format!("concurrency:{most}:group-{id:x}")
    }

    /// Whether a reason is that of its group.
    pub(crate) fn is_limit(&self, reason: &str) -> bool {
        let stated = reason.strip_prefix("concurrency:").and_then(|limit| limit.split_once(":group-"));
        self.id != 0 && stated.is_some_and(|(_, id)| id == format!("{:x}", self.id))
    }
}

/// Whether a text may be the name of a group.
///
/// # Errors
/// `Invalid` with the field.
pub fn check_group_name(field: &'static str, name: &str) -> Result<()> {
    check_tag(field, name)?;
    let problem = match name.len() {
        n if n > MAX_GROUP_NAME_BYTES => {
            format!("has {n} bytes; at most {MAX_GROUP_NAME_BYTES} are allowed")
        }
        _ if name.contains(['@', '/']) => "must not contain @ or /".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Invalid { field, problem })
}

/// What a group calls back about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// It has ended.
    Complete,
    /// It has ended, and all its jobs have completed.
    Success,
    /// A job of it has failed, for the first time.
    FirstFailure,
}

impl On {
    /// All of them.
    pub const ALL: [On; 3] = [On::Complete, On::Success, On::FirstFailure];

    /// Its name in keys and ids.
    pub fn name(self) -> &'static str {
        match self {
            On::Complete => "complete",
            On::Success => "success",
            On::FirstFailure => "first_failure",
        }
    }
}

/// How many jobs of a group, and groups in it, have ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Those that have not ended.
    pub open: u64,
    /// Those that have completed.
    pub completed: u64,
    /// Those that have failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Jobs that were removed, or left the group, before they had ended.
    pub removed: u64,
    /// How often one of them has failed, also if it was retried.
    pub failures: u64,
}

impl GroupCounts {
    /// All that were ever in the group.
    pub fn total(&self) -> u64 {
        self.open + self.completed + self.failed + self.cancelled + self.removed
    }
}

/// The group that has added a job, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The group's name.
    pub group: String,
    /// What has happened.
    pub on: On,
    /// The numbers of its jobs then.
    pub counts: GroupCounts,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_one_text() {
        for (name, id, index, text) in [
            ("g", 0, None, "g@0"),
            ("g", 0x1f, Some(3), "g@1f/3"),
            ("a.b", u64::MAX, None, "a.b@ffffffffffffffff"),
        ] {
            let member = Member { name: name.into(), id, index };
            assert_eq!(serde_json::to_value(&member).unwrap(), text);
            assert_eq!(serde_json::from_value::<Member>(text.into()).unwrap(), member);
        }
        for wrong in ["", "g", "g@", "g@x", "g@1/", "g@1/-1", "g@1/2/3"] {
            assert!(serde_json::from_value::<Member>(wrong.into()).is_err(), "{wrong}");
        }
    }
}
