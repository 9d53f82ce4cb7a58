//! The conformance suite and FoundationDB's own tests, on the cluster that `FDB_CLUSTER_FILE` names. Each test has its own
//! prefix, and removes its rows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foundationdb::FdbResult;

use super::*;
use crate::conformance::{Subject, skipped};
use crate::runtime::{Manual, System};
use crate::{Changes, RangeRead, Store, conformance_tests};

const CLUSTER_FILE: &str = "FDB_CLUSTER_FILE";

fn cluster_file() -> Option<PathBuf> {
    std::env::var_os(CLUSTER_FILE).map(PathBuf::from)
}

/// The reason why these tests are skipped.
fn missing() -> Option<String> {
    cluster_file().is_none().then(|| format!("{CLUSTER_FILE} names no cluster"))
}

/// Returns from a test if there is no cluster.
macro_rules! need_cluster {
    ($test:literal) => {
        if let Some(reason) = missing() {
            return skipped($test, &reason);
        }
    };
}

/// A part of the cluster. Dropping it clears its rows.
struct Part {
    prefix: String,
}

impl Part {
    fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Part { prefix: format!("turnwise-test/{}/{next}", std::process::id()) })
    }

    async fn open_at(&self, prefix: &str) -> Arc<Foundationdb> {
        let cluster_file = cluster_file().expect("a cluster");
        Foundationdb::open(&cluster_file, prefix).await.expect("the cluster answers")
    }

    async fn open_engine(&self) -> Arc<Foundationdb> {
        self.open_at(&self.prefix).await
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let begin = pack(&(&self.prefix,));
        // Also clears longer prefixes that begin with this one.
        let end = [&begin[..begin.len() - 1], &[0xff]].concat();
        let path = cluster_file().map(|path| path.to_string_lossy().into_owned());
        let clear = async move {
            let transaction = Database::new(path.as_deref())?.create_trx()?;
            transaction.set_option(TransactionOption::Timeout(COMMIT_TIMEOUT_MS))?;
            transaction.clear_range(&begin, &end);
            FdbResult::Ok(transaction.commit().await.map(drop)?)
        };
        let cleared = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.expect("a runtime").block_on(clear)
        });
        match cleared.join() {
            Ok(Ok(())) => {}
            other => eprintln!("{} was left behind: {other:?}", self.prefix),
        }
    }
}

#[async_trait]
impl Subject for Part {
    async fn open(&self) -> Arc<dyn Engine> {
        self.open_engine().await
    }

    fn clock(&self) -> Option<Arc<Manual>> {
        None
    }
}

conformance_tests!(skip_if missing(); || async { Part::new() as Arc<dyn Subject> });

fn store(engine: Arc<Foundationdb>) -> Store {
    Store::new(engine, Arc::new(System))
}

async fn set(store: &Store, name: &'static [u8]) {
    let tx = store.begin().await.expect("begins");
    tx.set(Bytes::from_static(name), Bytes::from_static(b"1")).expect("sets");
    tx.commit().await.expect("commits");
}

async fn names(store: &Store) -> Vec<Bytes> {
    let everything = (Bytes::new(), Bytes::from_static(b"\xff"));
    let rows = store.begin().await.expect("begins").range(&everything, 100).await.expect("reads");
    rows.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test]
async fn stores_of_other_prefixes_are_not_seen() {
    need_cluster!("stores_of_other_prefixes_are_not_seen");
    let part = Part::new();
    let mut stores = Vec::new();
    for ending in ["", "/", "a", "a/b", "b", "\0", "é"] {
        stores.push(store(part.open_at(&format!("{}{ending}", part.prefix)).await));
    }
    for row in [&b"a"[..], b"\0", b"\xfe"] {
        for store in &stores {
            set(store, row).await;
        }
    }
    for store in &stores {
        assert_eq!(names(store).await, [&b"\0"[..], b"a", b"\xfe"]);
    }
    let tx = stores[0].begin().await.expect("begins");
    tx.clear_range((Bytes::new(), Bytes::from_static(b"\xff"))).expect("clears");
    tx.commit().await.expect("commits");
    assert!(names(&stores[0]).await.is_empty());
    for store in &stores[1..] {
        assert_eq!(names(store).await.len(), 3);
    }
}

/// Any client of FoundationDB finds the rows with the tuple layer.
#[tokio::test]
async fn a_row_is_a_tuple_behind_the_prefix() {
    need_cluster!("a_row_is_a_tuple_behind_the_prefix");
    let part = Part::new();
    let engine = part.open_engine().await;
    let tx = store(engine.clone()).begin().await.expect("begins");
    tx.set(Bytes::from(pack(&("jobs", "noop", 7))), Bytes::from_static(b"{}")).expect("sets");
    tx.commit().await.expect("commits");
    let client = engine.shared.database.create_trx().expect("a transaction");
    let key = pack(&(part.prefix.as_str(), "jobs", "noop", 7));
    let value = client.get(&key, false).await.expect("reads").expect("a row");
    assert_eq!(&value[..], b"{}");
}

/// The cluster accepts the largest transaction that the limits allow, whatever the prefix's length and whatever the bytes are
/// used for.
#[tokio::test]
async fn a_transaction_within_the_limits_is_accepted() {
    need_cluster!("a_transaction_within_the_limits_is_accepted");
    let part = Part::new();
    for padding in [0, 200] {
        let engine = part.open_at(&format!("{}{}", part.prefix, "p".repeat(padding))).await;
        let limits = engine.limits();
        let name = |row: usize, bytes: usize| Bytes::from(format!("{row:0bytes$}"));
        for share in [0, 1, 2] {
            // The share of bytes for written keys: none, half, all. The rest is for conflicts.
            let written = limits.transaction_bytes / 2 * share / MAX_ROWS;
            let read = limits.transaction_bytes / MAX_ROWS - written;
            let changes = Changes {
                read_keys: (0..MAX_ROWS).map(|row| name(row, read)).collect(),
                puts: (0..MAX_ROWS).map(|row| (name(row, written), Some(Bytes::new()))).collect(),
                ..Changes::default()
            };
            let snapshot = engine.snapshot().await.expect("a snapshot");
            snapshot.commit(changes).await.unwrap_or_else(|error| panic!("{padding} {share}: {error}"));
        }
        let longest = Bytes::from(vec![b'k'; limits.key_bytes]);
        let changes = Changes {
            read_keys: vec![longest.clone()],
            clear_ranges: vec![(longest.clone(), crate::key::successor(&longest))],
            versionstamped: vec![longest],
            ..Changes::default()
        };
        engine.snapshot().await.expect("a snapshot").commit(changes).await.expect("commits");
    }
}

/// The cluster keeps five seconds of history, in its own versions: a million per second.
#[tokio::test]
async fn an_old_transaction_is_reported_as_too_old() {
    need_cluster!("an_old_transaction_is_reported_as_too_old");
    let part = Part::new();
    let engine = part.open_engine().await;
    let now = FoundationdbSnapshot::take(engine.shared.clone()).await.expect("a snapshot");
    let old =
        FoundationdbSnapshot::at(engine.shared.clone(), now.version() - 20_000_000).expect("a snapshot");
    let read = old.get(b"a").await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let all = RangeRead { begin: Bytes::new(), end: Bytes::from_static(b"\xff"), limit: 1, reverse: false };
    let read = old.range(&all).await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let changes = Changes {
        read_keys: vec![Bytes::from_static(b"a")],
        puts: vec![(Bytes::from_static(b"b"), Some(Bytes::new()))],
        ..Changes::default()
    };
    let committed = old.commit(changes).await;
    assert!(matches!(committed, Err(Error::TooOld { .. })), "{committed:?}");
}

/// The message of the error, which must come within some seconds.
async fn refusal(cluster_file: &Path) -> String {
    let begun = Instant::now();
    let refused = Foundationdb::open(cluster_file, "turnwise").await.err().expect("there is no such cluster");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    match refused {
        Error::Unavailable(line) => line,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_missing_cluster_is_reported_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fdb.cluster");
    let line = refusal(&file).await;
    assert!(line.contains("cannot read the cluster file"), "{line}");
    for (content, expected) in [
        ("", "is no cluster file"),
        ("what is this\n", "is no cluster file"),
        ("a@b", "is no cluster file"),
        ("# mine\nturnwise:test@127.0.0.1:1\n", "does not answer"),
    ] {
        std::fs::write(&file, content).expect("a file");
        let line = refusal(&file).await;
        assert!(line.contains(expected) && line.contains("fdb.cluster"), "{content:?}: {line}");
        assert!(!line.contains('\n'), "{line}");
    }
}
