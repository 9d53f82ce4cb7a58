#![allow(clippy::unwrap_used)]

use super::*;
use crate::{RangeRead, Store};

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
