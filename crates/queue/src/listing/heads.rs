//! The first job of each of many ranges, found in one walk: the queues of all tenants, and the partitions of ended jobs. Most of these ranges
//! have no job on a page. So only the time of their first job is read, and a range is opened when the list has come to this time.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use turnwise_store::Step;
use turnwise_store::key::successor;

use super::open::MAX_STREAMS;
use super::{GROWTH, Kind, Listing, Mark, Order, Ranked, Run, Stream};
use crate::Result;
use crate::ended::Cover;
use crate::keyspace::KeyRange;
use crate::keyspace::elements::{Elements, FLOAT, not_of_its_index};

/// What is appended to the beginning of a group's keys: a key before all of them, and one behind them.
const BEFORE: u8 = 0x00;
const BEHIND: u8 = 0xff;

/// A range of which only the first row was read, by its time: ranges with equal times are opened together.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unopened {
    at_us: Ranked<i64>,
    pub kind: Kind,
    job_type: Arc<str>,
    key: Bytes,
    /// Whether its job is in the list.
    is_job: bool,
}

/// Where the rows of a group end that a list has passed: what follows the beginning of the group's keys.
struct Tail {
    bound: Option<Bytes>,
    is_reverse: bool,
}

impl Tail {
    fn of(listing: &Listing<'_>, job_type: &Arc<str>, run: &Run) -> Tail {
        let (begin, _) = run.range(listing.keys, job_type);
        let bound = listing.bound(job_type, run).map(|bound| bound.slice(begin.len() - 1..));
        Tail { bound, is_reverse: listing.wanted.order == Order::Newest }
    }

    /// Whether a row of a group, whose keys begin with the first `group` bytes, comes after the position. If not, goes there.
    fn is_ahead(&self, key: &[u8], group: usize, to: &mut Vec<u8>) -> bool {
        let Some(bound) = &self.bound else { return true };
        let is_ahead = if self.is_reverse { &key[group..] < bound } else { &key[group..] >= bound };
        if !is_ahead {
            put(to, &key[..group], bound);
        }
        is_ahead
    }

    /// Goes behind a group.
    fn leave(&self, group: &[u8], to: &mut Vec<u8>) -> Step {
        put(to, group, &[if self.is_reverse { BEFORE } else { BEHIND }]);
        Step::Seek
    }
}

fn put(to: &mut Vec<u8>, begin: &[u8], end: &[u8]) {
    to.clear();
    to.extend_from_slice(begin);
    to.extend_from_slice(end);
}

impl Listing<'_> {
    /// Finds the queues of the tenants and priorities in a range of the queues of a type.
    pub(super) async fn open_queues_in(&mut self, job_type: &Arc<str>, range: KeyRange) -> Result<bool> {
        let (order, is_remote, room) = (self.wanted.order, self.tx.is_remote(), self.room());
        let tail = Tail::of(self, job_type, &Run::Queue(Arc::from(""), 0));
        let tenants_at = self.keys.pending(job_type).0.len() - 1;
        let (sees, wanted) = (self.sees, self.wanted);
        let (mut heads, mut keyed, mut behind, mut groups) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut visit = |key: &[u8], _: &[u8], to: &mut Vec<u8>| {
            let mut elements = Elements::at(key, tenants_at);
            let tenant = elements.text().ok_or_else(not_of_its_index)?;
            let is_wanted = sees(&tenant) && wanted.has_tenant(&tenant);
            if elements.peek() == Some(FLOAT) {
                if is_wanted {
                    keyed.push(tenant.into_owned());
                }
                let end = if order == Order::Newest { FLOAT } else { BEHIND };
                put(to, &key[..elements.place()], &[end]);
                return Ok(Step::Seek);
            }
            let priority = elements.int().ok_or_else(not_of_its_index)?;
            let group = elements.place();
            let at_us = elements.int().ok_or_else(not_of_its_index)?;
            if is_wanted && !tail.is_ahead(key, group, to) {
                if !is_remote {
                    return Ok(Step::Seek);
                }
                // These are read at the same time.
                let priority = i8::try_from(priority).map_err(|_| not_of_its_index())?;
                behind.push(Run::Queue(Arc::from(&*tenant), priority));
            } else if is_wanted {
                let (kind, job_type, key) = (Kind::Pending, job_type.clone(), Bytes::copy_from_slice(key));
                let at_us = Ranked::new(order, at_us);
                heads.push(Unopened { at_us, kind, job_type, key, is_job: true });
            }
            groups += 1;
            if groups > MAX_STREAMS || heads.len() + behind.len() > room {
                return Ok(Step::End);
            }
            Ok(tail.leave(&key[..group], to))
        };
        self.tx.walk(range, order == Order::Newest, 1, &mut visit).await?;
        if groups > MAX_STREAMS || heads.len() + behind.len() > room {
            return Ok(false);
        }
        self.unopened.extend(heads);
        for run in behind {
            if !self.open_run(Kind::Pending, job_type, run) {
                return Ok(false);
            }
        }
        for tenant in keyed {
            let range = self.keys.keyed_of(job_type, &tenant);
            let Some(rows) = self.rows_to_sort(range).await? else { return Ok(false) };
            let marks = rows.iter().map(|(key, _)| {
                let (place, id) = self.keys.parse_pending(key)?;
                Ok(Mark { at_us: place.order_us, job_type: job_type.clone(), id })
            });
            let marks = marks.collect::<Result<_>>()?;
            self.open_sorted(Kind::Pending, marks);
        }
        Ok(true)
    }

    /// Finds the partitions of ended jobs that have some.
    pub(super) async fn open_partitions(
        &mut self,
        job_type: &Arc<str>,
        partitions: &RangeInclusive<u16>,
    ) -> Result<bool> {
        let (order, room) = (self.wanted.order, self.room());
        let tail = Tail::of(self, job_type, &Run::Ended(*partitions.start()));
        let range = self.keys.ended_in(job_type, partitions);
        let partition_at = self.keys.ended(job_type).0.len() - 1;
        let (sees, wanted) = (self.sees, self.wanted);
        let (mut heads, mut looked_at) = (Vec::new(), 0);
        let mut visit = |key: &[u8], value: &[u8], to: &mut Vec<u8>| {
            let mut elements = Elements::at(key, partition_at);
            elements.int().ok_or_else(not_of_its_index)?;
            let group = elements.place();
            if !tail.is_ahead(key, group, to) {
                return Ok(Step::Seek);
            }
            let at_us = elements.int().ok_or_else(not_of_its_index)?;
            let foreign = Cover::read(value).filter(|cover| !wanted.covers(cover) || !sees(&cover.tenant));
            looked_at += foreign.as_ref().map_or(0, |cover| u64::from(sees(&cover.tenant)));
            let (kind, job_type, key) = (Kind::Ended, job_type.clone(), Bytes::copy_from_slice(key));
            let is_job = foreign.is_none();
            let step = tail.leave(&key[..group], to);
            heads.push(Unopened { at_us: Ranked::new(order, at_us), kind, job_type, key, is_job });
            Ok(if heads.len() > room { Step::End } else { step })
        };
        self.tx.walk(range, order == Order::Newest, 1, &mut visit).await?;
        self.looked_at += looked_at;
        if heads.len() > room {
            return Ok(false);
        }
        self.unopened.extend(heads);
        Ok(true)
    }

    /// Opens the ranges whose first job may be the next one of the list.
    pub(super) fn open_due(&mut self) -> Result<()> {
        while let Some(range) = self.unopened.peek() {
            let next = self.heap.peek().map(|head| head.mark.map(|mark| mark.at_us));
            if next.is_some_and(|next| range.at_us < next) {
                return Ok(());
            }
            if let Some(range) = self.unopened.pop() {
                self.open_one(range)?;
            }
        }
        Ok(())
    }

    fn open_one(&mut self, Unopened { at_us, kind, job_type, key, is_job }: Unopened) -> Result<()> {
        let (run, id) = match kind {
            Kind::Pending => {
                let (place, id) = self.keys.parse_pending(&key)?;
                (Run::Queue(Arc::from(place.tenant), place.priority), id)
            }
            _ => {
                let ended = self.keys.parse_ended(&key)?;
                (Run::Ended(ended.partition), ended.id)
            }
        };
        let mut rest = run.range(self.keys, &job_type);
        match at_us {
            Ranked::Newest(_) => rest.1 = key,
            Ranked::Oldest(_) => rest.0 = successor(&key),
        }
        let mark = Mark { at_us: at_us.place(), job_type: job_type.clone(), id };
        let (chunk, last) = (self.first_chunk() * GROWTH, Some(mark.clone()));
        let found = is_job.then_some(mark).into_iter().collect();
        self.streams.push(Stream { kind, job_type, run, rest, more: true, chunk, found, last });
        self.advance(self.streams.len() - 1);
        Ok(())
    }
}
