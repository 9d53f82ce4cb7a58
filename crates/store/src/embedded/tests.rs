#![allow(clippy::unwrap_used)]

use super::*;
use crate::conformance::Subject;
use crate::runtime::Manual;
use crate::{RangeRead, Store};

/// A store in a temporary folder, on a clock that tests move.
struct InFolder {
    folder: tempfile::TempDir,
    clock: Arc<Manual>,
    segment_bytes: u64,
}

#[async_trait]
impl Subject for InFolder {
    async fn open(&self) -> Arc<dyn Engine> {
        let options =
            Options { durable: false, segment_bytes: self.segment_bytes, runtime: self.clock.clone() };
        Embedded::open_with(self.folder.path(), options).unwrap()
    }

    fn clock(&self) -> Option<Arc<Manual>> {
        Some(self.clock.clone())
    }
}

fn in_folder(segment_bytes: u64) -> Arc<dyn Subject> {
    Arc::new(InFolder { folder: tempfile::tempdir().unwrap(), clock: Manual::new(0, 0), segment_bytes })
}

mod conformance {
    crate::conformance_tests!(async || super::in_folder(32 << 20));
}

/// Every few commits are a segment: rows are found in all tables, and move while they are read.
mod conformance_with_small_segments {
    crate::conformance_tests!(async || super::in_folder(2_000));
}

fn store(engine: &Arc<Embedded>) -> Store {
    Store::new(engine.clone(), Arc::new(runtime::System))
}

fn key(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

#[tokio::test]
async fn what_was_committed_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Embedded::open(folder.path()).unwrap();
    let tx = store(&engine).begin().await.unwrap();
    tx.set(key("a"), key("1")).unwrap();
    let first = tx.commit().await.unwrap();
    drop((tx, engine));

    let engine = Embedded::open(folder.path()).unwrap();
    let tx = store(&engine).begin().await.unwrap();
    assert_eq!(tx.get(&key("a")).await.unwrap(), Some(key("1")));
    tx.clear_range((key("a"), key("b"))).unwrap();
    assert!(tx.commit().await.unwrap() > first);
    let read = RangeRead { begin: key("a"), end: key("z"), limit: 10, reverse: false };
    assert_eq!(engine.snapshot().await.unwrap().range(&read).await.unwrap(), []);
}

#[test]
fn a_folder_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let _first = Embedded::open(folder.path()).unwrap();
    let error = Embedded::open(folder.path()).err().unwrap();
    assert!(error.to_string().contains("already in use by another process"), "{error}");
}

#[test]
fn a_missing_folder_is_created() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Embedded::open(folder.path().join("a/b")).is_ok());
}

#[test]
fn a_strange_folder_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let error = Embedded::open(folder.path()).err().unwrap();
    assert!(matches!(&error, Error::Misuse(text) if text.contains("letter.txt")), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn an_unknown_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("FORMAT"), "turnwise store 99\n").unwrap();
    let error = Embedded::open(folder.path()).err().unwrap();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("format 99")), "{error}");
    std::fs::write(folder.path().join("FORMAT"), "garbage").unwrap();
    assert!(matches!(Embedded::open(folder.path()), Err(Error::Corrupt(_))));
}
