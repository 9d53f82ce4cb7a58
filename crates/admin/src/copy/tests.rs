//! A copy stops when another one writes to the same target.
#![allow(clippy::unwrap_used)]

use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Transaction, runtime};

use super::*;

fn store(folder: &tempfile::TempDir) -> Store {
    let options = Options { durable: false, ..Options::default() };
    Store::new(Embedded::open_with(folder.path(), options).unwrap(), Arc::new(runtime::System))
}

#[tokio::test]
async fn of_two_copies_at_once_the_first_one_stops() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, target) = (store(&a), store(&b));
    let keys = &Keyspace::default();
    let write = |tx: Transaction| async move {
        tx.set(keys.format(), Format::current())?;
        tx.set(keys.job("t", "a"), "{}".into())
    };
    source.transact(write).await.unwrap();
    let copy = Copy {
        source,
        from: "embedded:a".into(),
        source_is_shared: false,
        target: target.clone(),
        progress: Arc::default(),
    };
    let first = copy.marker(keys).await.unwrap();
    assert!(!copy.mark(keys, &first).await.unwrap());
    // The same call again, as after a commit of unknown outcome.
    assert!(!copy.mark(keys, &first).await.unwrap());
    let second = copy.marker(keys).await.unwrap();
    assert!(copy.mark(keys, &second).await.unwrap(), "it goes on where the first one is");
    let stopped = copy.make_equal(keys, &first.to_value()).await;
    assert!(matches!(stopped, Err(Error::TakenOver)), "{stopped:?}");
    assert_eq!(copy.make_equal(keys, &second.to_value()).await.unwrap(), 1);
    let format = target.transact(|tx| async move { tx.get(&keys.format()).await }).await.unwrap().unwrap();
    assert_eq!(Format::read(&format), Format::Copying(second), "nobody has released it");
}
