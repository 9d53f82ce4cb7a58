//! All rows of a range in key order, page by page.
//!
//! A page has a limit in rows, and memory has a limit in bytes. So the limit grows where rows are small, and is reset at
//! each family of rows, because some families hold pieces of 90 kB. On etcd, a read with a limit visits every key up to the
//! end of its range, to count them. So few large pages, and ranges that end with a family, save much work there.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use turnwise_store::key::successor;
use turnwise_store::tuple::pack;
use turnwise_store::{Error, Isolation, KeyValue, RangeRead, Result, Store};

/// Rows of a family's first page, and of a page that is read alone: at most 100 MB if each row had the largest value.
pub const PAGE_ROWS: usize = 1_000;
/// The limit in rows for pages of small rows.
const LARGEST_PAGE_ROWS: usize = 8_000;
/// A page of more bytes halves the limit in rows for the next one; a page of less than half doubles it.
const PAGE_BYTES: usize = 4 << 20;
/// The families of rows, where parts begin. A family that is missing here is read with the family before it.
const FAMILIES: &str = "active bodies changes delayed documents ended jobs local logs options output parked pending replications \
                        sequence tags usage waiting";
const PAGES_AHEAD: usize = 2;

/// A range of keys, `[begin, end)`.
pub type KeyRange = (Bytes, Bytes);

/// The range of all keys that encode a tuple.
pub fn everything() -> KeyRange {
    (Bytes::new(), Bytes::from_static(b"\xff"))
}

/// One page of a range: up to `limit` rows, in one snapshot, with a read that cannot conflict.
///
/// # Errors
/// As the store.
pub async fn page(store: &Store, (begin, end): &KeyRange, limit: usize) -> Result<Vec<KeyValue>> {
    store
        .transact(|tx| async move {
            let read = RangeRead { begin: begin.clone(), end: end.clone(), limit, reverse: false };
            tx.range_with(read, Isolation::Snapshot).await
        })
        .await
}

/// The rows of a range. Each page has its own snapshot, so a write during the scan may be visible in part.
pub struct Scan {
    pages: mpsc::Receiver<Result<Vec<KeyValue>>>,
    rows: VecDeque<KeyValue>,
    /// The task that reads ahead; it ends when this value is dropped.
    _reader: AbortOnDropHandle<()>,
}

impl Scan {
    /// Starts to read.
    pub fn new(store: &Store, range: KeyRange) -> Self {
        let (sender, pages) = mpsc::channel(PAGES_AHEAD);
        let reader = tokio::spawn(read_pages(store.clone(), range, sender));
        Scan { pages, rows: VecDeque::new(), _reader: AbortOnDropHandle::new(reader) }
    }

    /// The next row, without consuming it; `None` at the end.
    ///
    /// # Errors
    /// As the store.
    pub async fn peek(&mut self) -> Result<Option<&KeyValue>> {
        if self.rows.is_empty()
            && let Some(page) = self.pages.recv().await
        {
            self.rows = page?.into();
        }
        Ok(self.rows.front())
    }

    /// Consumes the next row; `None` at the end.
    ///
    /// # Errors
    /// As the store.
    pub async fn next(&mut self) -> Result<Option<KeyValue>> {
        self.peek().await?;
        Ok(self.rows.pop_front())
    }
}

/// Divides a range into parts, at the beginnings of families.
fn parts((begin, end): &KeyRange) -> Vec<KeyRange> {
    let cuts = FAMILIES.split(' ').map(|family| Bytes::from(pack(&("turnwise", family))));
    let mut bounds = vec![begin.clone()];
    bounds.extend(cuts.filter(|cut| begin < cut && cut < end));
    bounds.push(end.clone());
    bounds.windows(2).map(|part| (part[0].clone(), part[1].clone())).collect()
}

/// Reads the pages of a range in order and sends them, except empty ones.
async fn read_pages(store: Store, range: KeyRange, pages: mpsc::Sender<Result<Vec<KeyValue>, Error>>) {
    for mut rest in parts(&range) {
        let mut limit = PAGE_ROWS;
        loop {
            let page = page(&store, &rest, limit).await;
            let (mut next, mut is_empty) = (None, false);
            if let Ok(rows) = &page {
                is_empty = rows.is_empty();
                next = rows.last().filter(|_| rows.len() == limit).map(|(key, _)| successor(key));
                let bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
                if bytes > PAGE_BYTES {
                    limit = (limit / 2).max(PAGE_ROWS / 10);
                } else if bytes < PAGE_BYTES / 2 {
                    limit = (limit * 2).min(LARGEST_PAGE_ROWS);
                }
            }
            let has_failed = page.is_err();
            if !is_empty && pages.send(page).await.is_err() || has_failed {
                return;
            }
            match next {
                Some(next) => rest.0 = next,
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! The parts cover the range, and a scan returns every row once, whatever the sizes of its pages.
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use turnwise_queue::Keyspace;
    use turnwise_queue::keyspace::QueuePlace;
    use turnwise_store::embedded::{Embedded, Options};
    use turnwise_store::runtime;

    use super::*;

    #[test]
    fn parts_are_the_whole_range_in_order() {
        let keys = Keyspace::default();
        for range in [everything(), keys.jobs("t"), (keys.jobs("t").0, keys.pending("t").1)] {
            let parts = parts(&range);
            assert_eq!((&parts[0].0, &parts[parts.len() - 1].1), (&range.0, &range.1));
            assert!(parts.windows(2).all(|two| two[0].1 == two[1].0 && two[0].0 < two[0].1));
        }
        assert_eq!(parts(&keys.jobs("t")).len(), 1);
        assert_eq!(parts(&everything()).len(), FAMILIES.split(' ').count() + 1);
    }

    #[tokio::test]
    async fn every_row_comes_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durable: false, ..Options::default() };
        let store =
            Store::new(Embedded::open_with(folder.path(), options).unwrap(), Arc::new(runtime::System));
        let keys = &Keyspace::default();
        let mut expected = 0;
        // Small rows, then large ones, in two families and an unknown one.
        for begin in (0..6_000).step_by(250) {
            let bytes = if begin < 4_000 { 10 } else { 8_000 };
            let write = |tx: turnwise_store::Transaction| async move {
                for n in begin..begin + 250 {
                    let id = format!("{n:05}");
                    for key in [
                        keys.job("t", &id),
                        keys.pending_entry("t", &QueuePlace::by_time("u", n), &id),
                        Bytes::from(pack(&("x", n))),
                    ] {
                        tx.set(key, Bytes::from(vec![b'1'; bytes]))?;
                    }
                }
                Ok::<_, Error>(())
            };
            store.transact(write).await.unwrap();
            expected += 750;
        }
        let mut scan = Scan::new(&store, everything());
        let (mut last, mut rows) = (Bytes::new(), 0);
        while let Some((key, _)) = scan.next().await.unwrap() {
            assert!(last < key);
            (last, rows) = (key, rows + 1);
        }
        assert_eq!(rows, expected);
    }
}
