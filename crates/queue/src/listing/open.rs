//! How a list begins: the streams of its merge.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use turnwise_store::RangeRead;
use turnwise_store::key::successor;

use super::{FIRST_CHUNK, Kind, Listing, MAX_NAMES, MAX_RECORDS, Mark, Order, Run, Stream};
use crate::encoding::decode;
use crate::ended::partitions;
use crate::jobs::{PREFETCHED, peek, prefetch, types_after};
use crate::keyspace::KeyRange;
use crate::place::End;
use crate::{Result, reads};

/// The most ranges that a request merges. Each costs a row of a walk: about 1 µs on the embedded store.
pub(super) const MAX_STREAMS: usize = 20_000;
/// The same where each read waits for another machine.
const MAX_REMOTE_STREAMS: usize = 2_000;
/// The most tenants whose queues are merged there: each needs two reads, one after the other.
const MAX_REMOTE_QUEUES: usize = 200;
/// The most types that a list merges.
const MAX_TYPES: usize = 1_000;
/// The most ranges of tags that a list reads.
const MAX_TAG_RANGES: usize = MAX_TYPES;
/// Rows of the first read of a range where each read waits for another machine.
const FIRST_REMOTE_CHUNK: usize = 16;

impl Listing<'_> {
    pub(super) async fn open_streams(&mut self) -> Result<()> {
        let types = match &self.wanted.types {
            Some(types) => types.clone(),
            None => types_after(self.tx, self.keys, None, MAX_TYPES + 1).await?,
        };
        if types.len() > MAX_TYPES {
            self.cursor.defer(self.wanted.kinds());
            return Ok(());
        }
        self.types = types.into_iter().map(Arc::from).collect();
        if self.wanted.ids.as_ref().is_some_and(|ids| ids.len() <= MAX_NAMES) {
            self.open_ids().await?;
        } else if !self.open_tagged().await? {
            for kind in Kind::ALL {
                let is_wanted = self.wanted.kinds() & !self.cursor.deferred & kind.bit() != 0;
                if is_wanted && !self.open_kind(kind).await? {
                    self.streams.retain(|stream| stream.kind != kind);
                    self.unopened.retain(|range| range.kind != kind);
                    self.cursor.defer(kind.bit());
                }
            }
        }
        let is_unread = |stream: &&Stream| stream.more && stream.found.is_empty();
        let reads: Vec<RangeRead> =
            self.streams.iter().filter(is_unread).map(|stream| self.read_of(stream)).collect();
        self.tx.prefetch_ranges(reads).await?;
        for number in 0..self.streams.len() {
            match is_unread(&&self.streams[number]) {
                true => drop(self.fill(number).await?),
                false => self.advance(number),
            }
        }
        Ok(())
    }

    /// Opens the streams of a kind. Returns whether they are within the bounds.
    async fn open_kind(&mut self, kind: Kind) -> Result<bool> {
        // No other job has a reason of a class.
        if self.wanted.class.is_some() && !matches!(kind, Kind::Delayed | Kind::Ended) {
            return Ok(true);
        }
        if kind == Kind::Limited {
            return self.open_limited().await;
        }
        for job_type in self.types.clone() {
            let is_open = match kind {
                Kind::Pending => self.open_queues(&job_type).await?,
                Kind::Active => self.open_active(&job_type).await?,
                Kind::Blocked => self.open_blocked(&job_type).await?,
                Kind::Delayed => self.open_run(kind, &job_type, Run::Delayed),
                Kind::Paused => self.open_run(kind, &job_type, Run::Paused),
                Kind::Ended => self.open_ended(&job_type).await?,
                Kind::Limited => true,
            };
            if !is_open {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many more ranges may be merged.
    pub(super) fn room(&self) -> usize {
        let most = if self.tx.is_remote() { MAX_REMOTE_STREAMS } else { MAX_STREAMS };
        most.saturating_sub(self.streams.len() + self.unopened.len())
    }

    /// Whether a job comes after the position.
    fn is_ahead(&self, mark: &Mark) -> bool {
        self.cursor.after.as_ref().is_none_or(|after| self.wanted.order.is_after(mark, after))
    }

    /// Opens a sorted range from the position on. Returns whether there is room.
    pub(super) fn open_run(&mut self, kind: Kind, job_type: &Arc<str>, run: Run) -> bool {
        if !self.has_room() {
            return false;
        }
        let (mut begin, mut end) = run.range(self.keys, job_type);
        match (self.bound(job_type, &run), self.wanted.order) {
            (None, _) => {}
            (Some(bound), Order::Newest) => end = end.min(bound),
            (Some(bound), Order::Oldest) => begin = begin.max(bound),
        }
        let chunk = self.first_chunk();
        let (job_type, found) = (job_type.clone(), VecDeque::new());
        self.streams.push(Stream {
            kind,
            job_type,
            run,
            rest: (begin, end),
            more: true,
            chunk,
            found,
            last: None,
        });
        true
    }

    /// Where a sorted range continues from the position on: its first key, or where the newest come first, the key behind its last one.
    pub(super) fn bound(&self, job_type: &Arc<str>, run: &Run) -> Option<Bytes> {
        let after = self.cursor.after.as_ref()?;
        let key = |at_us, id: &str| run.key(self.keys, job_type, at_us, id);
        // Of jobs with the same time, those of lower types come first where the oldest do, and last where the newest do.
        Some(match (self.wanted.order, (**job_type).cmp(&*after.job_type)) {
            (_, Ordering::Less) => key(after.at_us.saturating_add(1), ""),
            (_, Ordering::Greater) => key(after.at_us, ""),
            (Order::Newest, Ordering::Equal) => key(after.at_us, &after.id),
            (Order::Oldest, Ordering::Equal) => successor(&key(after.at_us, &after.id)),
        })
    }

    /// The rows of the first read of a range.
    pub(super) fn first_chunk(&self) -> usize {
        if self.tx.is_remote() { FIRST_REMOTE_CHUNK } else { FIRST_CHUNK }
    }

    /// Adds jobs in any order.
    pub(super) fn open_sorted(&mut self, kind: Kind, mut marks: Vec<Mark>) {
        marks.retain(|mark| self.is_ahead(mark));
        marks.sort_unstable();
        if self.wanted.order == Order::Newest {
            marks.reverse();
        }
        let Some(first) = marks.first() else { return };
        let job_type = first.job_type.clone();
        self.streams.push(Stream {
            kind,
            job_type,
            run: Run::Sorted,
            rest: (Bytes::new(), Bytes::new()),
            more: false,
            chunk: FIRST_CHUNK,
            found: marks.into(),
            last: None,
        });
    }

    /// Counts a row of another tenant. Returns whether the row is wanted.
    fn wants(&mut self, tenant: &str) -> bool {
        let sees = (self.sees)(tenant);
        let wants = sees && self.wanted.has_tenant(tenant);
        self.looked_at += u64::from(sees && !wants);
        wants
    }

    /// The rows of a range that must be sorted; `None` if there are too many.
    pub(super) async fn rows_to_sort(&mut self, range: KeyRange) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        let rows = reads::rows(self.tx, range, self.sorts_left + 1).await?;
        if rows.len() > self.sorts_left {
            return Ok(None);
        }
        self.sorts_left -= rows.len();
        Ok(Some(rows))
    }

    async fn open_ended(&mut self, job_type: &Arc<str>) -> Result<bool> {
        for (state, end) in
            [("completed", End::Completed), ("cancelled", End::Cancelled), ("failed", End::Failed)]
        {
            // A job without an error has no reason.
            if !self.wanted.has_state(state) || (end == End::Completed && self.wanted.class.is_some()) {
                continue;
            }
            for range in partitions(end, self.wanted.few_tenants(), self.wanted.class) {
                let is_open = match self.tx.is_remote() {
                    // These are read at the same time.
                    true => range
                        .into_iter()
                        .all(|partition| self.open_run(Kind::Ended, job_type, Run::Ended(partition))),
                    false => self.open_partitions(job_type, &range).await?,
                };
                if !is_open {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn open_queues(&mut self, job_type: &Arc<str>) -> Result<bool> {
        let tenants = match self.wanted.few_tenants() {
            Some(tenants) => tenants.to_vec(),
            None if self.tx.is_remote() => {
                let read = |key: &Bytes, _: &Bytes| Ok(self.keys.parse_waiting(key)?);
                let waiting = self.keys.waiting(job_type);
                let tenants = reads::list(self.tx, waiting, MAX_REMOTE_QUEUES + 1, read).await?;
                if tenants.len() > MAX_REMOTE_QUEUES {
                    return Ok(false);
                }
                tenants
            }
            None => return self.open_queues_in(job_type, self.keys.pending(job_type)).await,
        };
        for tenant in tenants {
            if !self.open_queues_in(job_type, self.keys.pending_of(job_type, &tenant)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn open_active(&mut self, job_type: &Arc<str>) -> Result<bool> {
        #[derive(Deserialize)]
        struct Active {
            tenant: String,
            started_us: i64,
        }
        let keys = self.keys;
        let read = |key: &Bytes, value: &Bytes| {
            let Active { tenant, started_us: at_us } = decode("active row", value)?;
            Ok(Some((tenant, Mark { at_us, job_type: job_type.clone(), id: keys.parse_active(key)?.1 })))
        };
        self.open_unsorted(Kind::Active, keys.active(job_type), read).await
    }

    async fn open_blocked(&mut self, job_type: &Arc<str>) -> Result<bool> {
        let keys = self.keys;
        let read = |key: &Bytes, value: &Bytes| {
            let (tenant, at_us) = decode("blocked row", value)?;
            Ok(Some((tenant, Mark { at_us, job_type: job_type.clone(), id: keys.parse_blocked(key)? })))
        };
        self.open_unsorted(Kind::Blocked, keys.blocked(job_type), read).await
    }

    async fn open_limited(&mut self) -> Result<bool> {
        let (keys, types) = (self.keys, self.types.clone());
        let read = |key: &Bytes, _: &Bytes| {
            let (job_type, place, id) = keys.parse_limited(key)?;
            let job_type = types.iter().find(|of| ***of == *job_type).cloned();
            Ok(job_type.map(|job_type| (place.tenant, Mark { at_us: place.order_us, job_type, id })))
        };
        self.open_unsorted(Kind::Limited, keys.limited(), read).await
    }

    /// Opens a range in another order than that of lists. `read` returns the tenant and the place of a row's job, if it is of a wanted type.
    async fn open_unsorted(
        &mut self,
        kind: Kind,
        range: KeyRange,
        read: impl Fn(&Bytes, &Bytes) -> Result<Option<(String, Mark)>>,
    ) -> Result<bool> {
        let Some(rows) = self.rows_to_sort(range).await? else { return Ok(false) };
        let mut marks = Vec::new();
        for (key, value) in &rows {
            if let Some((tenant, mark)) = read(key, value)?
                && self.wants(&tenant)
            {
                marks.push(mark);
            }
        }
        self.open_sorted(kind, marks);
        Ok(true)
    }

    /// Opens the jobs with the wanted tags. Returns whether that are all jobs of the list: not if they are too many to be sorted.
    async fn open_tagged(&mut self) -> Result<bool> {
        let Some(ranges) = self.ranges_of_tags() else { return Ok(false) };
        let (mut rows_left, mut tagged) = (MAX_RECORDS, BTreeSet::new());
        for (job_type, range) in ranges {
            let rows = reads::rows(self.tx, range, rows_left + 1).await?;
            let Some(left) = rows_left.checked_sub(rows.len()) else { return Ok(false) };
            rows_left = left;
            for (key, _) in rows {
                let (tenant, id) = self.keys.parse_tagged(&key)?;
                if self.wants(&tenant) {
                    tagged.insert((job_type.clone(), id));
                }
            }
        }
        let tagged: Vec<(Arc<str>, String)> = tagged.into_iter().collect();
        for of_type in tagged.chunk_by(|(one, _), (other, _)| one == other) {
            let mut marks = Vec::new();
            for chunk in of_type.chunks(PREFETCHED) {
                let ids = chunk.iter().map(|(job_type, id)| (&**job_type, id.as_str()));
                prefetch(self.tx, self.keys, ids.clone()).await?;
                for (job_type, id) in ids {
                    let Some(job) = peek(self.tx, self.keys, job_type, id).await? else { continue };
                    // Those of a kind that was deferred on an earlier page follow after all others.
                    let is_deferred = self.cursor.deferred & Kind::of_job(&job).bit() != 0;
                    if self.wanted.holds(&job) && !is_deferred {
                        marks.push(Mark::of(&job));
                    }
                }
            }
            self.open_sorted(Kind::Ended, marks);
        }
        Ok(true)
    }

    /// The rows of the wanted tags: of the wanted tenants if these are few. `None` without tags, or with too many.
    fn ranges_of_tags(&self) -> Option<Vec<(Arc<str>, KeyRange)>> {
        let tags = self.wanted.tags.as_ref()?;
        let pairs = self.types.len() * tags.len();
        let tenants = self.wanted.few_tenants().filter(|of| pairs * of.len() <= MAX_TAG_RANGES);
        if pairs > MAX_TAG_RANGES {
            return None;
        }
        let mut ranges = Vec::new();
        for job_type in &self.types {
            for tag in tags {
                match tenants {
                    Some(tenants) => ranges.extend(
                        tenants.iter().map(|of| (job_type.clone(), self.keys.tagged_of(job_type, tag, of))),
                    ),
                    None => ranges.push((job_type.clone(), self.keys.tagged(job_type, tag))),
                }
            }
        }
        Some(ranges)
    }

    /// Opens the jobs with the wanted ids.
    async fn open_ids(&mut self) -> Result<()> {
        let wanted = self.wanted;
        for job_type in self.types.clone() {
            let mut marks = Vec::new();
            for id in wanted.ids.iter().flatten() {
                if let Some(job) = peek(self.tx, self.keys, &job_type, id).await? {
                    marks.push(Mark::of(&job));
                }
            }
            self.open_sorted(Kind::Ended, marks);
        }
        Ok(())
    }
}
