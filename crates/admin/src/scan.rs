//! All rows of a range in key order, page by page.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use turnwise_store::key::successor;
use turnwise_store::{Error, Isolation, KeyValue, RangeRead, Result, Store};

/// Rows of a page: at most 100 MB if each were as large as a value may be.
pub const PAGE_ROWS: usize = 1_000;
/// Pages that are read ahead.
const PAGES_AHEAD: usize = 2;

/// A range of keys, `[begin, end)`.
pub type KeyRange = (Bytes, Bytes);

/// Every key that a tuple can be.
pub fn everything() -> KeyRange {
    (Bytes::new(), Bytes::from_static(b"\xff"))
}

/// One page of a range: up to `limit` rows, in one snapshot, without a conflict.
///
/// # Errors
/// The store's.
pub async fn page(store: &Store, (begin, end): &KeyRange, limit: usize) -> Result<Vec<KeyValue>> {
    store
        .transact(|tx| async move {
            let read = RangeRead { begin: begin.clone(), end: end.clone(), limit, reverse: false };
            tx.range_with(read, Isolation::Snapshot).await
        })
        .await
}

/// The rows of a range. Each page is of a snapshot of its own, so what is written meanwhile may be seen in part.
pub struct Scan {
    pages: mpsc::Receiver<Result<Vec<KeyValue>>>,
    rows: VecDeque<KeyValue>,
    /// Reads ahead; ends with this value.
    _reader: AbortOnDropHandle<()>,
}

impl Scan {
    /// Begins to read.
    pub fn new(store: &Store, range: KeyRange) -> Self {
        let (sender, pages) = mpsc::channel(PAGES_AHEAD);
        let reader = tokio::spawn(read_pages(store.clone(), range, sender));
        Scan { pages, rows: VecDeque::new(), _reader: AbortOnDropHandle::new(reader) }
    }

    /// The next row, which stays the next one; `None` at the end.
    ///
    /// # Errors
    /// The store's.
    pub async fn peek(&mut self) -> Result<Option<&KeyValue>> {
        if self.rows.is_empty()
            && let Some(page) = self.pages.recv().await
        {
            self.rows = page?.into();
        }
        Ok(self.rows.front())
    }

    /// Takes the next row; `None` at the end.
    ///
    /// # Errors
    /// The store's.
    pub async fn next(&mut self) -> Result<Option<KeyValue>> {
        self.peek().await?;
        Ok(self.rows.pop_front())
    }
}

/// Sends page after page, the last one being the first that is not full; none is empty.
async fn read_pages(store: Store, (begin, end): KeyRange, pages: mpsc::Sender<Result<Vec<KeyValue>, Error>>) {
    let mut rest = (begin, end);
    loop {
        let page = page(&store, &rest, PAGE_ROWS).await;
        let next = match &page {
            Ok(rows) if rows.len() == PAGE_ROWS => rows.last().map(|(key, _)| successor(key)),
            Ok(rows) if rows.is_empty() => return,
            _ => None,
        };
        if pages.send(page).await.is_err() {
            return;
        }
        match next {
            Some(next) => rest.0 = next,
            None => return,
        }
    }
}
