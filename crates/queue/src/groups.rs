//! Groups: jobs whose ends are counted, and after the last of which another job is added.
//!
//! *Model.* A group is a row ([`Group`]) and a sum of the numbers of its jobs by their ends ([`crate::group_counts`]). Each transaction that moves a
//! job adds to the sum. Adds conflict with nothing, so any number of jobs of a group end at the same time, and none of them knows whether it
//! is the last one. So that is decided apart:
//!
//! ```text
//!   end of a job ──▶ the sum, and ("group_marks", tenant, name)   one transaction, without a read
//!   settle       ──▶ the sum, in a snapshot: none is open, and the row is closed
//!                ──▶ the row has ended, and the callback jobs are added   one transaction, which conflicts on the row
//! ```
//!
//! *Exactly once.* The row has ended in the transaction that adds the callback jobs, and only a row that has not ended is settled. So they are added at most once,
//! whichever server settles, and however often. A mark is there from the creation of a group until its end, and gets another versionstamp with each end of
//! a job: a server that sees the stamp sees the sum with it. So the last end is always looked at, after a crash by the next server.
//!
//! *Adds.* A job is added only to an open group. The add reads the row, which closing and ending write: nothing is added to a group that has ended. Only
//! closed groups end.
//!
//! *After the end.* A job of a group that has ended may be retried. The counts go on, and the group does not end again.
//!
//! *Names.* A group can be removed once it has ended, and its name used again, while jobs of the earlier one are kept. Each group has a number of
//! its own, which its jobs state and which is in the key of the sum: so these jobs do not count in the later one.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use turnwise_policy::eligibility::concurrency::MAX_LIMIT;
use turnwise_store::{Isolation, Transaction};

use crate::encoding::{decode, encode};
use crate::error::{Error, Result};
use crate::events;
use crate::group_counts::{self, Field};
pub use crate::group_row::{Called, Group, GroupEnd, Parent, get};
use crate::group_row::{refused, save};
use crate::jobs::{self, Added};
use crate::keyspace::{Keyspace, behind};
use crate::lifetime::MAX_LIFETIME_US;
use crate::member::numbered;
pub use crate::member::{
    Callback, GROUP_TAG, GroupCounts, MAX_GROUP_NAME_BYTES, Member, On, check_group_name,
};
use crate::place::End;
use crate::reads;
use crate::schedules::Template;
use crate::secrets::Secrets;
use crate::spec::NewJob;

/// The most groups of a tenant that have not ended.
pub const MAX_GROUPS_OF_TENANT: usize = 10_000;
/// Largest options of a callback, in bytes: they are in one row.
pub const MAX_CALLBACK_OPTIONS_BYTES: usize = 32 << 10;
/// The most groups in each other.
pub const MAX_GROUP_DEPTH: u8 = 8;
/// How long a group is kept after its end by default, in µs: a day.
pub const DEFAULT_GROUP_KEEP_US: i64 = 86_400 * 1_000_000;
/// How long the removal of a group is put off whose jobs were retried, in µs.
const POSTPONED_US: i64 = 3_600 * 1_000_000;
/// Rows per read.
const PAGE: usize = 1_000;
/// The most rows that the removal of a group writes.
const REMOVAL_ROWS: usize = 8;

/// A job that a group adds.
#[derive(Clone, Serialize, Deserialize)]
pub struct CallbackJob {
    /// What it is made of.
    pub template: Template,
    /// Its options.
    pub options: Box<RawValue>,
}

impl CallbackJob {
    /// The job with this id.
    pub fn job(self, id: &str) -> NewJob {
        NewJob {
            spec: self.template.spec,
            priority: self.template.priority,
            ..NewJob::new(&self.template.job_type, id, self.options)
        }
    }
}

/// A group as a client states it. Not printable: the options of its callbacks may hold secrets.
#[derive(Clone)]
pub struct NewGroup {
    /// Its tenant.
    pub tenant: String,
    /// Its name, within the tenant.
    pub name: String,
    /// The group of which it is a part.
    pub parent: Option<String>,
    /// See [`Group::at_once`].
    pub at_once: Option<u32>,
    /// See [`Group::keep_us`].
    pub keep_us: i64,
    /// The jobs that it adds.
    pub callbacks: BTreeMap<On, CallbackJob>,
    /// The identity that creates it.
    pub by: Option<String>,
    /// The most groups of the tenant that have not ended.
    pub most_of_tenant: usize,
}

impl NewGroup {
    /// A group that states nothing else.
    pub fn new(tenant: &str, name: &str) -> Self {
        NewGroup {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            parent: None,
            at_once: None,
            keep_us: DEFAULT_GROUP_KEEP_US,
            callbacks: BTreeMap::new(),
            by: None,
            most_of_tenant: MAX_GROUPS_OF_TENANT,
        }
    }

    /// Whether it could be stored, as far as its own fields show.
    ///
    /// # Errors
    /// `Invalid` with the field that is out of bounds.
    pub fn check(&self) -> Result<()> {
        let invalid = |field, problem: String| Err(Error::Invalid { field, problem });
        check_group_name("name", &self.name)?;
        self.parent.as_deref().map_or(Ok(()), |parent| check_group_name("parent", parent))?;
        if self.at_once.is_some_and(|most| !(1..=MAX_LIMIT).contains(&most)) {
            return invalid("at_once", format!("must be from 1 to {MAX_LIMIT}"));
        }
        if !(0..=MAX_LIFETIME_US).contains(&self.keep_us) {
            return invalid("keep", format!("must be from 0 to {MAX_LIFETIME_US} µs"));
        }
        for (on, callback) in &self.callbacks {
            let field = match on {
                On::Complete => "on_complete",
                On::Success => "on_success",
                On::FirstFailure => "on_first_failure",
            };
            let spec = &callback.template.spec;
            if spec.unique.is_some() || spec.group.is_some() {
                return invalid(field, "can have no unique key, and be in no group".to_owned());
            }
            if spec.tenant != self.tenant {
                return invalid(field, "must be of the tenant of its group".to_owned());
            }
            let bytes = callback.options.get().len();
            if bytes > MAX_CALLBACK_OPTIONS_BYTES {
                let most = MAX_CALLBACK_OPTIONS_BYTES;
                return invalid(field, format!("options: have {bytes} bytes; at most {most} are allowed"));
            }
            callback.clone().job(&self.name).check().or_else(|error| invalid(field, error.to_string()))?;
        }
        Ok(())
    }
}

/// What [`create`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is new, and open.
    New,
    /// It was there already, with the same parent, limit and callbacks: nothing was written.
    Same,
}

/// Creates an open group, unless it is there.
///
/// # Errors
/// `Invalid` with the field that is wrong: `groups` if there are too many, `group` if another one has the name, `parent` if that is not an open group.
#[boxed]
pub async fn create(tx: &Transaction, keys: &Keyspace, new: &NewGroup, now_us: i64) -> Result<Created> {
    new.check()?;
    let NewGroup { tenant, name, at_once, keep_us, .. } = new;
    let callbacks: Vec<On> = new.callbacks.keys().copied().collect();
    if let Some(old) = get(tx, keys, tenant, name).await? {
        let is_same = old.parent.as_ref().map(|parent| &parent.name) == new.parent.as_ref()
            && (old.at_once, &old.callbacks) == (*at_once, &callbacks)
            && same_callbacks(tx, keys, &old, new).await?;
        return match is_same {
            true => Ok(Created::Same),
            false => Err(refused(format!("`{name}` exists, and was created with other terms"))),
        };
    }
    let most = new.most_of_tenant;
    if reads::rows(tx, keys.group_marks_of(tenant), most).await?.len() >= most {
        let problem =
            format!("tenant `{tenant}` has {most} groups that have not ended, which is the most: close some");
        return Err(Error::Invalid { field: "groups", problem });
    }
    let parent = match &new.parent {
        None => None,
        Some(parent) => Some(open_parent(tx, keys, tenant, parent).await?),
    };
    let group = Group {
        tenant: tenant.clone(),
        name: name.clone(),
        // 0 is no number, and JSON readers know 53 bits.
        id: (tx.random() >> 12) | 1,
        open: true,
        depth: parent.as_ref().map_or(0, |parent| parent.depth + 1),
        parent: parent.map(|Group { name, id, .. }| Parent { name, id }),
        at_once: *at_once,
        keep_us: *keep_us,
        callbacks,
        called: Vec::new(),
        ended: None,
        retried: 0,
        removed_us: None,
        created_us: now_us,
        by: new.by.clone(),
    };
    if let Some(parent) = &group.parent {
        tx.add(group_counts::key(keys, tenant, &parent.name, parent.id), Field::Open.more(1))?;
    }
    for (on, callback) in &new.callbacks {
        tx.set(keys.group_callback(tenant, name, on.name()), encode(callback))?;
    }
    save(tx, keys, &group)?;
    // Nothing of it has ended, so nobody needs to look. The next creation in this transaction reads the row, and could not read a versionstamp.
    let [a, b, c, d, e, f, g, h] = group.id.to_be_bytes();
    tx.set(keys.group_mark(tenant, name), Bytes::copy_from_slice(&[0, 0, a, b, c, d, e, f, g, h]))?;
    Ok(Created::New)
}

/// Whether callbacks are those that are stored, as far as their options are shown: no client learns hidden ones by guessing them.
async fn same_callbacks(tx: &Transaction, keys: &Keyspace, old: &Group, new: &NewGroup) -> Result<bool> {
    for (on, callback) in &new.callbacks {
        let hidden = Secrets::of_type(tx, keys, &callback.template.job_type).await?;
        let shown = |callback: &CallbackJob| encode(&(&callback.template, hidden.without(&callback.options)));
        let stored = self::callback(tx, keys, old, *on).await?;
        if stored.as_ref().map(shown) != Some(shown(callback)) {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn open_parent(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<Group> {
    let invalid = |problem: String| Err(Error::Invalid { field: "parent", problem });
    match get(tx, keys, tenant, name).await? {
        Some(parent) if parent.open && parent.depth + 1 < MAX_GROUP_DEPTH => Ok(parent),
        Some(parent) if parent.open => invalid(format!("at most {MAX_GROUP_DEPTH} groups are in each other")),
        Some(_) => invalid(format!("`{name}` is closed: no group can be added to it")),
        None => invalid(format!("there is no group `{name}` of tenant `{tenant}`: create it first")),
    }
}

/// Closes a group: nothing is added to it any more, so it ends with the last of its jobs. Returns whether it was open.
///
/// # Errors
/// `NotFound` if it does not exist.
#[boxed]
pub async fn close(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<bool> {
    let mut group = get(tx, keys, tenant, name).await?.ok_or(Error::NotFound)?;
    if !group.open {
        return Ok(false);
    }
    group.open = false;
    save(tx, keys, &group)?;
    group_counts::mark(tx, keys, tenant, name)?;
    Ok(true)
}

/// The numbers of a group's jobs. Adds no read conflict.
#[boxed]
pub async fn counts(tx: &Transaction, keys: &Keyspace, group: &Group) -> Result<GroupCounts> {
    group_counts::read(tx, keys, &group.tenant, &group.name, group.id).await
}

/// Up to `limit` groups by tenant and name, after this one if given; only those of a tenant if given. Adds no read conflict.
#[boxed]
pub async fn list(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<(&str, &str)>,
    tenant: Option<&str>,
    limit: usize,
) -> Result<Vec<Group>> {
    let range = tenant.map_or_else(|| keys.groups(), |tenant| keys.groups_of(tenant));
    let range = behind(range, after.map(|(tenant, name)| keys.group(tenant, name)));
    let read = |key: &Bytes, value: &Bytes| {
        let (tenant, name) = keys.parse_group(key)?;
        Ok(Group { tenant, name, ..decode("group", value)? })
    };
    reads::list(tx, range, limit, read).await
}

/// The job that a group adds.
#[boxed]
pub async fn callback(
    tx: &Transaction,
    keys: &Keyspace,
    group: &Group,
    on: On,
) -> Result<Option<CallbackJob>> {
    let key = keys.group_callback(&group.tenant, &group.name, on.name());
    reads::value_with(tx, &key, "callback of a group", Isolation::Snapshot).await
}

/// A group that has not ended, or of which a job has just ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Changes whenever something of it ends.
    pub stamp: Bytes,
}

/// Up to `limit` marked groups, after this one if given. Adds no read conflict.
#[boxed]
pub async fn marked(
    tx: &Transaction,
    keys: &Keyspace,
    after: Option<&Marked>,
    limit: usize,
) -> Result<Vec<Marked>> {
    let after = after.map(|after| keys.group_mark(&after.tenant, &after.name));
    let read = |key: &Bytes, value: &Bytes| {
        let (tenant, name) = keys.parse_group(key)?;
        Ok(Marked { tenant, name, stamp: value.clone() })
    };
    reads::list(tx, behind(keys.group_marks(), after), limit, read).await
}

/// What [`settle`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// The jobs that were added, or could not be added.
    pub called: Vec<Called>,
    /// Its end, if it has ended now.
    pub ended: Option<GroupEnd>,
}

/// Looks at a group after a change: ends it if none of its jobs is left, and adds the jobs with which it calls back. Use a transaction of its own.
#[boxed]
pub async fn settle(
    tx: &Transaction,
    keys: &Keyspace,
    tenant: &str,
    name: &str,
    now_us: i64,
) -> Result<Settled> {
    let mut settled = Settled::default();
    let group = get(tx, keys, tenant, name).await?.filter(|group| group.ended.is_none());
    let Some(mut group) = group else {
        // A job was retried after the end.
        let mark = keys.group_mark(tenant, name);
        if tx.get(&mark).await?.is_some() {
            tx.clear(mark)?;
        }
        return Ok(settled);
    };
    // In the snapshot of the row: nothing is added once it is closed, so none that is open comes later.
    let counts = counts(tx, keys, &group).await?;
    let mut due = Vec::new();
    if counts.failures > 0 && !group.called.iter().any(|called| called.on == On::FirstFailure) {
        due.push(On::FirstFailure);
    }
    if !group.open && counts.open == 0 {
        // A job that is retried at the same time is open again, and has marked the group. No other job of it ends any more.
        let _ = tx.get(&keys.group_mark(tenant, name)).await?;
        let end = GroupEnd { at_us: now_us, counts };
        due.push(On::Complete);
        due.extend((end.end() == End::Completed).then_some(On::Success));
        finish(tx, keys, &mut group, &end)?;
        settled.ended = Some(end);
    }
    due.retain(|on| group.callbacks.contains(on));
    if due.is_empty() && settled.ended.is_none() {
        return Ok(settled);
    }
    for on in due {
        let called = call(tx, keys, &group, on, counts, now_us).await?;
        settled.called.extend(called.clone());
        group.called.extend(called);
    }
    save(tx, keys, &group)?;
    Ok(settled)
}

/// Ends a group. Does not write its row.
fn finish(tx: &Transaction, keys: &Keyspace, group: &mut Group, end: &GroupEnd) -> Result<()> {
    let (tenant, name) = (&group.tenant, &group.name);
    let removed_us = end.at_us.saturating_add(group.keep_us);
    tx.clear(keys.group_mark(tenant, name))?;
    tx.set(keys.group_removal(removed_us, tenant, name), Bytes::new())?;
    if let Some(parent) = &group.parent {
        let mut sum = Field::Open.more(-1);
        sum += Field::of_end(end.end()).arrives();
        tx.add(group_counts::key(keys, tenant, &parent.name, parent.id), sum)?;
        group_counts::mark(tx, keys, tenant, &parent.name)?;
    }
    events::group_ended(tx, keys, (tenant, name), end.end().state(), end.at_us)?;
    group.removed_us = Some(removed_us);
    group.ended = Some(end.clone());
    Ok(())
}

/// Adds a job with which a group calls back.
async fn call(
    tx: &Transaction,
    keys: &Keyspace,
    group: &Group,
    on: On,
    counts: GroupCounts,
    now_us: i64,
) -> Result<Option<Called>> {
    let Some(callback) = callback(tx, keys, group, on).await? else { return Ok(None) };
    // No other group has its number, so no other job has this id.
    let id = format!("{}@{:x}.{}", group.name, group.id, on.name());
    let mut job = callback.job(&id);
    job.spec.callback = Some(Callback { group: group.name.clone(), on, counts });
    let refused = match jobs::add_once(tx, keys, &job, now_us).await {
        Ok(Added::KeyTaken(_)) => Some("its unique key is taken".to_owned()),
        Ok(_) => None,
        Err(Error::Invalid { field, problem }) => Some(format!("{field}: {problem}")),
        Err(error) => return Err(error),
    };
    Ok(Some(Called { on, job_type: job.job_type, id, at_us: now_us, refused }))
}

/// What [`remove`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone. Its jobs stay.
    Now,
    /// Some of its jobs have not ended, or were retried; or it is open. Nothing was written.
    NotEnded,
}

/// Removes a group that has ended. Its jobs stay.
///
/// # Errors
/// `NotFound` if it does not exist.
#[boxed]
pub async fn remove(tx: &Transaction, keys: &Keyspace, tenant: &str, name: &str) -> Result<Removed> {
    let group = get(tx, keys, tenant, name).await?.ok_or(Error::NotFound)?;
    // A retry of one of its jobs changes the row.
    if group.ended.is_none() || counts(tx, keys, &group).await?.open > 0 {
        return Ok(Removed::NotEnded);
    }
    if let Some(at_us) = group.removed_us {
        tx.clear(keys.group_removal(at_us, tenant, name))?;
    }
    let counts = group.counts_key(keys);
    let (_, end) = keys.group_counts_behind(tenant, &numbered(name, group.id));
    tx.clear_range((counts, end))?;
    tx.clear_range(keys.group_callbacks(tenant, name))?;
    tx.clear(keys.group_mark(tenant, name))?;
    tx.clear(keys.group(tenant, name))?;
    Ok(Removed::Now)
}

/// When the next group is removed, in µs. Adds no read conflict.
#[boxed]
pub async fn next_removal(tx: &Transaction, keys: &Keyspace) -> Result<Option<i64>> {
    let read = |key: &Bytes, _: &Bytes| Ok(keys.parse_group_removal(key)?.0);
    Ok(reads::list(tx, keys.group_removals(), 1, read).await?.pop())
}

/// Removes groups whose time is over: up to `limit`, or as many as the transaction has room for. Returns how many it has looked at.
#[boxed]
pub async fn prune(tx: &Transaction, keys: &Keyspace, now_us: i64, limit: usize) -> Result<usize> {
    let read = |key: &Bytes, _: &Bytes| Ok(keys.parse_group_removal(key)?);
    let due: Vec<(i64, String, String)> =
        reads::list(tx, keys.group_removals_until(now_us), limit.min(PAGE), read).await?;
    for (n, (at_us, tenant, name)) in due.iter().enumerate() {
        if n > 0 && !(tx.has_room() && tx.has_room_for(REMOVAL_ROWS, 2)) {
            return Ok(n);
        }
        let group = get(tx, keys, tenant, name).await?;
        let Some(group) = group.filter(|group| group.removed_us == Some(*at_us)) else {
            tx.clear(keys.group_removal(*at_us, tenant, name))?;
            continue;
        };
        if remove(tx, keys, tenant, name).await? == Removed::NotEnded {
            tx.clear(keys.group_removal(*at_us, tenant, name))?;
            let later_us = now_us.saturating_add(POSTPONED_US);
            tx.set(keys.group_removal(later_us, tenant, name), Bytes::new())?;
            save(tx, keys, &Group { removed_us: Some(later_us), ..group })?;
        }
    }
    Ok(due.len())
}
