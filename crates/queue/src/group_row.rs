//! The row of a group, and how jobs become members of it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use turnwise_store::Transaction;

use crate::encoding::{decode, encode};
use crate::error::{Error, Result};
use crate::group_counts;
use crate::keyspace::Keyspace;
use crate::member::{GroupCounts, Member, On};
use crate::place::{End, Place};
use crate::spec::{JobSpec, NewJob};
use crate::{Job, reads};

/// A group, without its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its tenant. In the key, not in the value.
    #[serde(skip)]
    pub tenant: String,
    /// Its name. In the key, not in the value.
    #[serde(skip)]
    pub name: String,
    /// A number that no other group of this name has.
    pub id: u64,
    /// Jobs may still be added to it.
    #[serde(default)]
    pub open: bool,
    /// The group of which it is a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// How many groups it is in.
    #[serde(default)]
    pub(crate) depth: u8,
    /// At most so many of its jobs run at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
    /// How long it is kept after its end, in µs.
    pub keep_us: i64,
    /// What it calls back about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<On>,
    /// The jobs that it has added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub called: Vec<Called>,
    /// Its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<GroupEnd>,
    /// How many of its jobs were retried after its end.
    #[serde(default)]
    pub retried: u64,
    /// When it is removed, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_us: Option<i64>,
    /// When it was created, in µs.
    pub created_us: i64,
    /// The identity that has created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The group of which a group is a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u64,
}

/// A job that a group has added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// What about.
    pub on: On,
    /// The job's type.
    pub job_type: String,
    /// The job's id.
    pub id: String,
    /// When, in µs.
    pub at_us: i64,
    /// Why the job could not be added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The end of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEnd {
    /// When, in µs.
    pub at_us: i64,
    /// The numbers of its jobs then.
    pub counts: GroupCounts,
}

impl GroupEnd {
    /// What its end counts as in the group of which it is a part.
    pub fn end(&self) -> End {
        let GroupCounts { failed, cancelled, removed, .. } = self.counts;
        match (failed, cancelled + removed) {
            (0, 0) => End::Completed,
            (0, _) => End::Cancelled,
            _ => End::Failed,
        }
    }
}

impl Group {
    /// The key of its counts.
    pub(crate) fn counts_key(&self, keys: &Keyspace) -> Bytes {
        group_counts::key(keys, &self.tenant, &self.name, self.id)
    }

    /// The reason that limits how many of its jobs run at the same time.
    fn limit(&self) -> Option<String> {
        self.at_once.map(|most| Member::limit(most, self.id))
    }
}

/// A group, if it exists.
#[boxed]
pub async fn get(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<Option<Group>> {
    let group: Option<Group> = reads::value(tx, &keys.group(tenant, name), "group").await?;
    Ok(group.map(|group| Group { tenant: tenant.to_owned(), name: name.to_owned(), ..group }))
}

pub(crate) fn save(tx: &Transaction, keys: &Keyspace, group: &Group) -> Result<()> {
    Ok(tx.set(keys.group(&group.tenant, &group.name), encode(group))?)
}

/// A row that was read, and its key.
struct LastRead {
    space: Bytes,
    tenant: String,
    name: String,
    key: Bytes,
    value: Bytes,
    group: Rc<Group>,
}

thread_local! {
    /// The row of a group that this thread read last: the jobs of a request are added to one group.
    static LAST_READ: RefCell<Option<LastRead>> = const { RefCell::new(None) };
}

/// Reads the row of a group. It is decoded only if it is not the one that was read last.
async fn read(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<Option<Rc<Group>>> {
    let space = keys.space.bytes();
    let is_last = |last: &&LastRead| last.name == name && last.tenant == tenant && last.space == space;
    let key = LAST_READ.with_borrow(|last| last.as_ref().filter(is_last).map(|last| last.key.clone()));
    let key = key.unwrap_or_else(|| keys.group(tenant, name));
    let Some(value) = tx.get(&key).await? else { return Ok(None) };
    LAST_READ.with_borrow_mut(|last| {
        if let Some(last) = last
            && (&last.key, &last.value) == (&key, &value)
        {
            return Ok(Some(last.group.clone()));
        }
        let group: Rc<Group> = Rc::new(decode("group", &value)?);
        let (space, tenant, name) = (Bytes::copy_from_slice(space), tenant.to_owned(), name.to_owned());
        *last = Some(LastRead { space, tenant, name, key, value, group: group.clone() });
        Ok(Some(group))
    })
}

/// The job as a member of the group that it names, or of none: [`join`].
pub(crate) async fn joined<'a>(
    tx: &Transaction,
    keys: &Keyspace,
    new: &'a NewJob,
    old: &Job,
) -> Result<Cow<'a, NewJob>> {
    if new.group.is_none() && old.group.is_none() {
        return Ok(Cow::Borrowed(new));
    }
    let mut job = new.clone();
    join(tx, keys, &mut job.spec, Some(old)).await?;
    Ok(Cow::Owned(job))
}

/// Makes what is stated of a job that of a member of the group that it names, or of none. Reads the row of the group, and writes nothing:
/// adds to a group conflict with its end and its close, and not with each other.
///
/// # Errors
/// `Invalid` if there is no such group, or if it is closed.
pub(crate) async fn join(
    tx: &Transaction,
    keys: &Keyspace,
    spec: &mut JobSpec,
    old: Option<&Job>,
) -> Result<()> {
    // What the job keeps of its last add may have the limit of its group then.
    if let Some(before) = old.and_then(|old| old.group.as_ref()) {
        leave(spec, before);
    }
    let Some(stated) = spec.group.take() else { return Ok(()) };
    let group = read(tx, keys, &spec.tenant, &stated.name).await?;
    // One that has not ended stays a member, also of a group that is closed.
    let before = old.filter(|old| old.tenant == spec.tenant && !matches!(old.place, Place::Ended(_)));
    let before = before.and_then(|old| old.group.as_ref()).filter(|before| before.name == stated.name);
    let is_before = |group: &Group| before.is_some_and(|before| before.id == group.id);
    // A job that the request does not put into a group is in no later one of the name, and in none of another tenant.
    let is_meant = |group: &Group| stated.id == 0 || stated.id == group.id;
    let member = match group {
        Some(group) if group.open && is_meant(&group) || is_before(&group) => {
            let index = stated.index.or(before.and_then(|before| before.index));
            spec.reasons.extend(group.limit());
            Member { name: stated.name, id: group.id, index }
        }
        // The request does not state it: the job had it before.
        _ if stated.id != 0 => return Ok(()),
        Some(_) => return Err(refused(format!("`{}` is closed: no job can be added to it", stated.name))),
        None => {
            let (name, tenant) = (&stated.name, &spec.tenant);
            return Err(refused(format!("there is no group `{name}` of tenant `{tenant}`: create it first")));
        }
    };
    spec.group = Some(member);
    Ok(())
}

/// Takes from a spec the limit of a group of which the job is no member any more.
pub(crate) fn leave(spec: &mut JobSpec, member: &Member) {
    spec.reasons.retain(|reason| !member.is_limit(reason));
}

pub(crate) fn refused(problem: String) -> Error {
    Error::Invalid { field: "group", problem }
}

/// Prepares to run a job again that has ended. If its group is gone, it is no member any more. If its group has ended, the row says
/// how many were retried, on which this conflicts with the removal of the group. If it is about to end, this conflicts with the end over the mark.
pub(crate) async fn rerun(tx: &Transaction, keys: &Keyspace, job: &mut Job) -> Result<()> {
    let Some(member) = job.spec.group.clone() else { return Ok(()) };
    match get(tx, keys, &job.tenant, &member.name).await?.filter(|group| group.id == member.id) {
        Some(group) if group.ended.is_some() => {
            save(tx, keys, &Group { retried: group.retried + 1, ..group })
        }
        Some(group) if !group.open => group_counts::mark(tx, keys, &job.tenant, &member.name),
        Some(_) => Ok(()),
        None => {
            tx.clear(keys.tag_entry(&job.job_type, &member.tag(), &job.tenant, &job.id))?;
            leave(&mut job.spec, &member);
            job.spec.group = None;
            Ok(())
        }
    }
}
