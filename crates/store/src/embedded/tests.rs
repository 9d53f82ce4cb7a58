//! Tests of the engine beyond the conformance suite.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicI64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::conformance::Subject;
use crate::runtime::Manual;
use crate::{Changes, RangeRead, Step, Store};

/// A store in a temporary folder, on a clock that tests move.
struct InFolder {
    folder: tempfile::TempDir,
    clock: Arc<Manual>,
    segment_bytes: u64,
}

#[async_trait]
impl Subject for InFolder {
    async fn open(&self) -> Arc<dyn Engine> {
        let options = Options {
            durable: false,
            segment_bytes: self.segment_bytes,
            runtime: self.clock.clone(),
            ..Options::default()
        };
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

/// Every few commits fill a segment, so rows are in all tables, and move while they are read.
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
async fn committed_rows_are_there_after_reopening() {
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
    set_mode(folder.path(), 0o700);
    std::fs::write(folder.path().join("FORMAT"), "turnwise store 99\n").unwrap();
    let error = Embedded::open(folder.path()).err().unwrap();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("format 99")), "{error}");
    std::fs::write(folder.path().join("FORMAT"), "garbage").unwrap();
    assert!(matches!(Embedded::open(folder.path()), Err(Error::Corrupt(_))));
}

/// A clock that can also be set back, like a real one.
struct WallClock(AtomicI64);

#[async_trait]
impl Runtime for WallClock {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn elapsed_us(&self) -> i64 {
        self.now_us()
    }

    async fn sleep(&self, _: std::time::Duration) {
        unreachable!("the engine never sleeps")
    }

    fn random(&self) -> u64 {
        unreachable!("the engine throws no rng")
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_snapshot_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(WallClock(AtomicI64::new(100_000_000)));
    let options = Options { durable: false, runtime: clock.clone(), ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let set = async |value: &'static str| {
        let tx = store(&engine).begin().await.unwrap();
        tx.set(key("a"), key(value)).unwrap();
        tx.commit().await.unwrap();
    };
    set("1").await;
    let held = engine.snapshot().await.unwrap();
    // By its own clock the snapshot is not too old for a long time. Its row is dropped sooner.
    clock.0.store(0, Ordering::SeqCst);
    set("2").await;
    assert_eq!(held.get(b"a").await.unwrap(), Some(key("1")));
    clock.0.store(5_100_000, Ordering::SeqCst);
    set("3").await;
    set("4").await;
    let read = held.get(b"a").await;
    assert!(matches!(read, Err(Error::TooOld { .. })), "{read:?}");
    let changes = Changes { puts: vec![(key("b"), None)], ..Changes::default() };
    assert!(matches!(held.commit(changes).await, Err(Error::TooOld { .. })));
}

/// Operations on a queue of rows `0..ROWS`, and scans of it.
#[derive(Debug, Clone)]
enum Event {
    Fill {
        from: u32,
        count: u32,
    },
    /// Clears the first rows, as claims do.
    ClearHead {
        count: usize,
    },
    /// Clears the last rows.
    ClearTail {
        count: usize,
    },
    ClearRange {
        from: u32,
        count: u32,
    },
    Put {
        row: u32,
    },
    Scan {
        from: u32,
        to: u32,
        limit: usize,
        reverse: bool,
    },
    /// Takes a snapshot, to scan it later.
    Hold,
    ScanHeld {
        which: usize,
        from: u32,
        reverse: bool,
    },
}

const ROWS: u32 = 1_000;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let row = || 0..ROWS;
    let event =
        prop_oneof![
            (row(), 1..400_u32).prop_map(|(from, count)| Event::Fill { from, count }),
            (1..300_usize).prop_map(|count| Event::ClearHead { count }),
            (1..300_usize).prop_map(|count| Event::ClearTail { count }),
            (row(), 1..400_u32).prop_map(|(from, count)| Event::ClearRange { from, count }),
            row().prop_map(|row| Event::Put { row }),
            (row(), 0..=ROWS, prop_oneof![1..4_usize, Just(100), Just(usize::MAX)], any::<bool>())
                .prop_map(|(from, to, limit, reverse)| Event::Scan { from, to, limit, reverse }),
            (prop_oneof![1..4_usize, Just(usize::MAX)], any::<bool>())
                .prop_map(|(limit, reverse)| Event::Scan { from: 0, to: ROWS, limit, reverse }),
            Just(Event::Hold),
            (any::<usize>(), row(), any::<bool>()).prop_map(|(which, from, reverse)| Event::ScanHeld {
                which,
                from,
                reverse
            }),
        ];
    proptest::collection::vec(event, 1..60)
}

fn row_key(row: u32) -> Bytes {
    Bytes::copy_from_slice(&row.to_be_bytes())
}

type Rows = std::collections::BTreeSet<Bytes>;

fn scan_of(rows: &Rows, read: &RangeRead) -> Vec<Bytes> {
    if read.begin >= read.end {
        return Vec::new();
    }
    let rows = rows.range::<Bytes, _>(&read.begin..&read.end).cloned();
    if read.reverse { rows.rev().take(read.limit).collect() } else { rows.take(read.limit).collect() }
}

/// The rows of a walk that goes `stride` rows further after each row, at most `limit`.
fn walk_of(rows: &Rows, read: &RangeRead, stride: u32) -> Vec<Bytes> {
    let (mut rest, mut walked) = (RangeRead { limit: 1, ..read.clone() }, Vec::new());
    while walked.len() < read.limit
        && let Some(row) = scan_of(rows, &rest).pop()
    {
        match read.reverse {
            true => rest.end = before(&row, stride),
            false => rest.begin = behind(&row, stride),
        }
        walked.push(row);
    }
    walked
}

fn number_of(row: &[u8]) -> u32 {
    u32::from_be_bytes(row.try_into().unwrap())
}

fn behind(row: &[u8], stride: u32) -> Bytes {
    row_key(number_of(row) + 1 + stride)
}

fn before(row: &[u8], stride: u32) -> Bytes {
    row_key(number_of(row).saturating_sub(stride))
}

fn walk(snapshot: &Arc<dyn Snapshot>, read: &RangeRead, stride: u32) -> Vec<Bytes> {
    let mut walked = Vec::new();
    let mut visit = |key: &[u8], value: &[u8], to: &mut Vec<u8>| {
        assert!(value.is_empty());
        walked.push(Bytes::copy_from_slice(key));
        to.clear();
        to.extend_from_slice(&if read.reverse { before(key, stride) } else { behind(key, stride) });
        Ok(match stride {
            _ if walked.len() == read.limit => Step::End,
            0 => Step::Next,
            _ => Step::Seek,
        })
    };
    let shown = snapshot.walk(read, &mut visit).unwrap().unwrap();
    assert_eq!(shown, walked.len());
    walked
}

async fn scan(snapshot: &Arc<dyn Snapshot>, read: &RangeRead) -> Vec<Bytes> {
    snapshot.range(read).await.unwrap().into_iter().map(|(key, _)| key).collect()
}

async fn run(events: Vec<Event>, segment_bytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durable: false, segment_bytes, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = store(&engine);
    let mut rows = Rows::new();
    let mut held = Vec::new();
    for event in events {
        let tx = store.begin().await.unwrap();
        match event {
            Event::Fill { from, count } => {
                for row in from..(from + count).min(ROWS) {
                    tx.set(row_key(row), Bytes::new()).unwrap();
                    rows.insert(row_key(row));
                }
            }
            Event::ClearHead { count } => {
                for row in rows.iter().take(count).cloned().collect::<Vec<_>>() {
                    tx.clear(row.clone()).unwrap();
                    rows.remove(&row);
                }
            }
            Event::ClearTail { count } => {
                for row in rows.iter().rev().take(count).cloned().collect::<Vec<_>>() {
                    tx.clear(row.clone()).unwrap();
                    rows.remove(&row);
                }
            }
            Event::ClearRange { from, count } => {
                tx.clear_range((row_key(from), row_key(from + count))).unwrap();
                rows.retain(|row| *row < row_key(from) || row_key(from + count) <= *row);
            }
            Event::Put { row } => {
                tx.set(row_key(row), Bytes::new()).unwrap();
                rows.insert(row_key(row));
            }
            Event::Scan { from, to, limit, reverse } => {
                let read = RangeRead { begin: row_key(from), end: row_key(to), limit, reverse };
                let snapshot = engine.snapshot().await.unwrap();
                assert_eq!(scan(&snapshot, &read).await, scan_of(&rows, &read), "{read:?}");
                for stride in [0, 1, 7, 50] {
                    let walked = walk(&snapshot, &read, stride);
                    assert_eq!(walked, walk_of(&rows, &read, stride), "{read:?} with {stride}");
                }
            }
            Event::Hold => held.push((engine.snapshot().await.unwrap(), rows.clone())),
            Event::ScanHeld { which, from, reverse } if !held.is_empty() => {
                let (snapshot, rows) = &held[which % held.len()];
                let read = RangeRead { begin: row_key(from), end: row_key(ROWS), limit: usize::MAX, reverse };
                assert_eq!(scan(snapshot, &read).await, scan_of(rows, &read), "{read:?} of an old snapshot");
                assert_eq!(walk(snapshot, &read, 2), walk_of(rows, &read, 2), "{read:?} of an old snapshot");
            }
            Event::ScanHeld { .. } => {}
        }
        tx.commit().await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Every snapshot scans the rows that it saw, whatever was cleared and wherever the rows are.
    #[test]
    fn prop_scans_see_the_rows_of_their_snapshot(
        events in events(),
        segment_bytes in prop_oneof![Just(1_000), Just(20_000), Just(32 << 20)],
    ) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(events, segment_bytes));
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// All folders and files of a store.
fn everything(folder: &Path) -> (Vec<std::path::PathBuf>, Vec<std::path::PathBuf>) {
    let entries = |folder: &Path| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let log = folder.join("log");
    let files = entries(folder).into_iter().chain(entries(&log)).filter(|path| path.is_file()).collect();
    (vec![folder.to_owned(), log], files)
}

#[tokio::test]
async fn only_its_owner_may_read_a_store() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("new/data");
    let write = async |name: &'static str| {
        let engine =
            Embedded::open_with(&folder, Options { segment_bytes: 2_000, ..Options::default() }).unwrap();
        for _ in 0..20 {
            let tx = store(&engine).begin().await.unwrap();
            tx.set(key(name), Bytes::from(vec![b'x'; 500])).unwrap();
            tx.commit().await.unwrap();
        }
    };
    write("a").await;
    let check = || {
        let (folders, files) = everything(&folder);
        assert!(files.len() >= 4, "{files:?}");
        for path in &folders {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        for path in &files {
            assert_eq!(mode(path), 0o600, "{}", path.display());
        }
        (folders, files)
    };
    let (folders, files) = check();
    // An unpacked backup may have other modes inside.
    set_mode(&folders[1], 0o755);
    files.iter().for_each(|path| set_mode(path, 0o644));
    write("b").await;
    check();

    // One that others may have read or changed is not opened, and not touched.
    for looser in [0o755, 0o750, 0o770, 0o701, 0o704, 0o777] {
        set_mode(&folder, looser);
        let Err(Error::Exposed(text)) = Embedded::open(&folder) else { panic!("{looser:o} is opened") };
        let command = format!("chmod -R go-rwx '{}'", folder.display());
        assert!(text.contains(&format!("mode {looser:o}")) && text.ends_with(&command), "{text}");
        assert_eq!(mode(&folder), looser);
    }
    drop(Embedded::open_to_read(&folder).unwrap());
    set_mode(&folder, 0o700);
    // A folder without a store in it is made private.
    let empty = outer.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    set_mode(&empty, 0o755);
    drop(Embedded::open(&empty).unwrap());
    assert_eq!(mode(&empty), 0o700);
    write("c").await;
    check();
}

/// Deleted data is gone from the log once a checkpoint has written the later rows to the base.
#[tokio::test]
async fn deleted_data_leave_the_log_with_the_next_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 20_000, ..Options::default() };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let write = async |name: &'static str, value: Option<Vec<u8>>| {
        let tx = store(&engine).begin().await.unwrap();
        match value {
            Some(value) => tx.set(key(name), value.into()).unwrap(),
            None => tx.clear(key(name)).unwrap(),
        }
        tx.commit().await.unwrap();
    };
    let found = |what: &[u8]| {
        let (_, files) = everything(folder.path());
        let holds = |path: &Path| {
            std::fs::read(path).is_ok_and(|bytes| bytes.windows(what.len()).any(|part| part == what))
        };
        files.into_iter().filter(|path| holds(path)).collect::<Vec<_>>()
    };
    let mut secret = vec![b'.'; 15_000];
    secret.extend_from_slice(b"hunter2");
    write("job", Some(secret)).await;
    assert_eq!(found(b"hunter2").len(), 1);
    write("job", None).await;
    let before = engine.stats().checkpoints;
    while engine.stats().checkpoints < before + 2 {
        write("other", Some(vec![b'x'; 1_000])).await;
    }
    // By then the file that contained it is in use again, and most of it is still unwritten.
    assert_eq!(found(b"hunter2"), Vec::<std::path::PathBuf>::new());
}
