//! Disks that fail, are full, or lose data that was not synced; damaged stores, and stores in the previous format.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::{RangeRead, Store};

const NO_SPACE: i32 = 28;
const IO: i32 = 5;
const NO_DESCRIPTORS: i32 = 24;
/// So small that a checkpoint follows every few commits.
const SMALL: u64 = 6_000;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

fn options(faults: Faults) -> Options {
    // No cache, so that every read of the base reads the disk.
    Options { segment_bytes: SMALL, cache_bytes: 0, faults, ..Options::default() }
}

fn open(path: &Path, faults: Faults) -> Result<(Arc<Embedded>, Store)> {
    let engine = Embedded::open_with(path, options(faults))?;
    Ok((engine.clone(), Store::new(engine, Arc::new(runtime::System))))
}

fn row_key(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn value_of(n: u64) -> Bytes {
    Bytes::from(vec![n as u8; 700])
}

/// Commits row `n`, with retries until it succeeds.
async fn commit(store: &Store, n: u64) {
    let set = |tx: crate::Transaction| async move { tx.set(row_key(n), value_of(n)) };
    store.transact::<_, Error, _, _>(set).await.unwrap();
}

async fn try_commit(store: &Store, n: u64) -> Result<()> {
    let tx = store.begin().await?;
    tx.set(row_key(n), value_of(n))?;
    tx.commit().await.map(drop)
}

/// All rows, or the error of the read.
async fn rows(engine: &Arc<Embedded>) -> Result<Vec<u64>> {
    let read = RangeRead {
        begin: Bytes::new(),
        end: Bytes::from_static(&[0xff]),
        limit: usize::MAX,
        reverse: false,
    };
    let rows = engine.snapshot().await?.range(&read).await?;
    for (key, value) in &rows {
        let n = u64::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(*value, value_of(n), "row {n}");
    }
    Ok(rows.into_iter().map(|(key, _)| u64::from_be_bytes(key[..].try_into().unwrap())).collect())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false => drop(fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The content that is certainly on the disk: of each file, as of its last sync.
#[derive(Default)]
struct Durable(Mutex<HashMap<u64, Vec<u8>>>);

impl Durable {
    fn by_inode(&self) -> MutexGuard<'_, HashMap<u64, Vec<u8>>> {
        self.0.lock().unwrap()
    }

    fn synced(&self, path: &Path) {
        if path.is_file() {
            self.by_inode().insert(fs::metadata(path).unwrap().ino(), fs::read(path).unwrap());
        }
    }

    /// Drops the writes since the last sync, as the page cache may after a failed sync.
    fn forget(&self, path: &Path) {
        if path.is_file() {
            let saved = self.by_inode().get(&fs::metadata(path).unwrap().ino()).cloned().unwrap_or_default();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(saved.len() as u64).unwrap();
            file.write_all_at(&saved, 0).unwrap();
        }
    }

    /// A copy of the store as it may be after a power loss now: each sector that was not synced may be old or new.
    fn after_power_loss(&self, folder: &Path, image: &Path, mut rng: u64) {
        let mut coin = || {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            rng >> 63 == 0
        };
        for path in files(folder) {
            // A file that is being renamed is no longer used under this name, and not yet under the other.
            let (Ok(now), Ok(metadata)) = (fs::read(&path), fs::metadata(&path)) else { continue };
            let old = self.by_inode().get(&metadata.ino()).cloned();
            // The folder's code syncs the small files that only it writes.
            let old = old.unwrap_or_else(|| {
                match path.extension().is_none() && !path.starts_with(folder.join("log")) {
                    true => now.clone(),
                    false => Vec::new(),
                }
            });
            let mut mixed = if coin() { now.clone() } else { old.clone() };
            for sector in (0..mixed.len()).step_by(512) {
                let end = mixed.len().min(sector + 512);
                let source = if coin() { &now } else { &old };
                mixed[sector..end].fill(0);
                if let Some(bytes) = source.get(sector..end.min(source.len())) {
                    mixed[sector..sector + bytes.len()].copy_from_slice(bytes);
                }
            }
            let to = image.join(path.strip_prefix(folder).unwrap());
            fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(to.parent().unwrap()).unwrap();
            fs::write(to, mixed).unwrap();
        }
    }
}

/// One call in the life of a store fails, at any position. A failing sync drops the writes, and later ones succeed.
#[tokio::test]
async fn any_call_may_fail_once_and_nothing_acknowledged_is_lost() {
    for (failing, code) in (1..).step_by(7).take(40).zip([NO_SPACE, IO].into_iter().cycle()) {
        let folder = tempfile::tempdir().unwrap();
        let (durable, calls) = (Arc::new(Durable::default()), Arc::new(AtomicUsize::new(0)));
        let path = folder.path().join("store");
        let faults = Faults::new({
            let (durable, calls) = (durable.clone(), calls.clone());
            move |call, path| {
                if calls.fetch_add(1, Ordering::SeqCst) + 1 == failing {
                    if matches!(call, DiskCall::Sync | DiskCall::WriteOut) {
                        durable.forget(path);
                    }
                    return Err(error(code));
                }
                if call == DiskCall::Sync {
                    durable.synced(path);
                }
                Ok(())
            }
        });
        // A failing open reports its error, and the next open works.
        let (engine, store) = match open(&path, faults.clone()) {
            Ok(opened) => opened,
            Err(Error::Unavailable(_) | Error::NoRoom { .. }) => open(&path, faults).unwrap(),
            Err(error) => panic!("call {failing}: {error}"),
        };
        for n in 0..40 {
            commit(&store, n).await;
        }
        assert!(calls.load(Ordering::SeqCst) > failing, "only {} calls", calls.load(Ordering::SeqCst));
        let all: Vec<u64> = (0..40).collect();
        assert_eq!(retried(&engine).await, all, "call {failing} failed");
        drop((engine, store));
        let (engine, _store) = open(&path, Faults::default()).unwrap();
        assert_eq!(rows(&engine).await.unwrap(), all, "call {failing} failed");
    }
}

/// All rows, once the base is open again.
async fn retried(engine: &Arc<Embedded>) -> Vec<u64> {
    loop {
        match rows(engine).await {
            Ok(rows) => return rows,
            Err(Error::Unavailable(_) | Error::NoRoom { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The machine stops at any call, and any unsynced sectors may be lost. The store then opens with all acknowledged writes.
#[tokio::test]
async fn acknowledged_writes_survive_a_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let (durable, calls) = (Arc::new(Durable::default()), AtomicU64::new(0));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let images: Arc<Mutex<Vec<(tempfile::TempDir, u64)>>> = Arc::default();
    let faults = Faults::new({
        let (durable, acknowledged, images, folder) =
            (durable.clone(), acknowledged.clone(), images.clone(), path.clone());
        let one_at_a_time = Mutex::new(());
        move |call, path| {
            // During a copy, the other thread ends its current call and starts no other.
            let _turn = one_at_a_time.lock().unwrap();
            let n = calls.fetch_add(1, Ordering::SeqCst);
            // By now the store is complete, with its first version.
            if n > 60 && n.is_multiple_of(5) {
                let image = tempfile::tempdir().unwrap();
                let acknowledged = acknowledged.load(Ordering::SeqCst);
                durable.after_power_loss(&folder, &image.path().join("store"), n);
                images.lock().unwrap().push((image, acknowledged));
            }
            if call == DiskCall::Sync {
                durable.synced(path);
            }
            Ok(())
        }
    });
    let (engine, store) = open(&path, faults).unwrap();
    for n in 0..60 {
        commit(&store, n).await;
        acknowledged.store(n + 1, Ordering::SeqCst);
    }
    drop((engine, store));
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 30, "{} images", images.len());
    for (image, acknowledged) in images {
        let (engine, store) = open(&image.path().join("store"), Faults::default()).unwrap();
        let found = rows(&engine).await.unwrap();
        let expected = |count: u64| (0..count).collect::<Vec<_>>();
        assert!(
            found == expected(acknowledged) || found == expected(acknowledged + 1),
            "{found:?}, and {acknowledged} were acknowledged"
        );
        commit(&store, 1_000).await;
    }
}

/// Disk calls that fail while a switch is on.
fn switched(code: i32, calls: &'static [DiskCall]) -> (Arc<AtomicBool>, Faults) {
    let on = Arc::new(AtomicBool::new(false));
    let switch = on.clone();
    let faults = Faults::new(move |call, _| match switch.load(Ordering::SeqCst) && calls.contains(&call) {
        true => Err(error(code)),
        false => Ok(()),
    });
    (on, faults)
}

#[tokio::test]
async fn a_full_disk_is_read_and_written_again_once_there_is_room() {
    for calls in [
        &[DiskCall::Write][..],
        &[DiskCall::WriteOut],
        &[DiskCall::Sync],
        &[DiskCall::Open, DiskCall::Write, DiskCall::Sync],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (full, faults) = switched(NO_SPACE, calls);
        let (engine, store) = open(folder.path(), faults).unwrap();
        for n in 0..30 {
            commit(&store, n).await;
        }
        full.store(true, Ordering::SeqCst);
        let refused = loop {
            match try_commit(&store, 30).await {
                // The log may have had room for some commits.
                Ok(()) => {}
                Err(Error::UnknownOutcome(_)) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("the store has no room: the disk is full"), "{refused}");
        for _ in 0..20 {
            let found = retried(&engine).await;
            assert!(found.len() >= 30, "{found:?}");
        }
        full.store(false, Ordering::SeqCst);
        for n in 30..60 {
            commit(&store, n).await;
        }
        let all: Vec<u64> = (0..60).collect();
        assert_eq!(retried(&engine).await, all);
        drop((engine, store));
        let (engine, _store) = open(folder.path(), Faults::default()).unwrap();
        assert_eq!(rows(&engine).await.unwrap(), all);
    }
}

#[tokio::test]
async fn a_store_that_runs_needs_no_more_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let (none_left, faults) = switched(NO_DESCRIPTORS, &[]);
    let opens = Arc::new(AtomicUsize::new(0));
    drop(faults);
    let faults = Faults::new({
        let (none_left, opens, folder) = (none_left.clone(), opens.clone(), folder.path().to_owned());
        move |call, path| {
            // A rename needs no descriptor.
            let opened = call == DiskCall::Open
                && !(path.starts_with(folder.join("log")) && path != folder.join("log"));
            if none_left.load(Ordering::SeqCst) && opened {
                opens.fetch_add(1, Ordering::SeqCst);
                return Err(error(NO_DESCRIPTORS));
            }
            Ok(())
        }
    });
    let (engine, store) = open(folder.path(), faults).unwrap();
    for n in 0..100 {
        commit(&store, n).await;
    }
    none_left.store(true, Ordering::SeqCst);
    for n in 100..200 {
        commit(&store, n).await;
    }
    assert!(engine.stats().checkpoints > 10);
    assert_eq!(opens.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_disk_that_fails_for_good_ends_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let (failing, faults) = switched(IO, &[DiskCall::Sync]);
    let options = Options { disk_patience: Duration::ZERO, ..options(faults) };
    let engine = Embedded::open_with(folder.path(), options).unwrap();
    let store = Store::new(engine.clone(), Arc::new(runtime::System));
    commit(&store, 1).await;
    failing.store(true, Ordering::SeqCst);
    // Either this commit gets the failure, or the checkpoint thread got it before.
    let refused = try_commit(&store, 2).await;
    assert!(matches!(refused, Err(Error::UnknownOutcome(_) | Error::Unavailable(_))), "{refused:?}");
    let reason = engine.ended().await;
    let thread = ["cannot write its log", "cannot write a checkpoint"].iter().any(|it| reason.contains(it));
    assert!(thread && reason.contains("os error 5"), "{reason}");
    assert!(matches!(try_commit(&store, 2).await, Err(Error::Unavailable(_))));
    assert_eq!(rows(&engine).await.unwrap(), [1]);
}

/// A store with its first rows in the base and its last in the log.
async fn stored(path: &Path) -> Vec<u64> {
    let (_, store) = open(path, Faults::default()).unwrap();
    for n in 0..50 {
        commit(&store, n).await;
    }
    (0..50).collect()
}

fn flip(path: &Path, byte: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut one = [0];
    file.read_exact_at(&mut one, byte).unwrap();
    file.write_all_at(&[one[0] ^ 0x10], byte).unwrap();
}

/// A bit flips in a page of the base, a record of the log, or a checksum. That gives an error that names the file, or has
/// no effect. It never changes the rows.
#[tokio::test]
async fn a_changed_bit_is_found_at_any_position() {
    let folder = tempfile::tempdir().unwrap();
    let all = stored(folder.path()).await;
    let mut found = BTreeMap::<String, usize>::new();
    for path in files(folder.path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name == "LOCK" || name == "FORMAT" {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        // Each byte of the storage crate's header. For other files and pages, some bytes of each block that is not empty. The
        // records of the log are short, because they are compressed.
        let step = if name.starts_with("rows") { 256 } else { 16 };
        let held = |at: &usize| bytes[*at..bytes.len().min(at + step)].iter().any(|byte| *byte != 0);
        let header = if name == "rows.redb" { 0..320 } else { 0..0 };
        for byte in header.chain((0..bytes.len()).step_by(step).filter(held).map(|at| at + step / 2)) {
            let Some(byte) = Some(byte as u64).filter(|byte| *byte < bytes.len() as u64) else { continue };
            flip(&path, byte);
            let rows = match Embedded::open_to_read(folder.path()) {
                Ok(engine) => rows(&engine).await,
                Err(error) => Err(error),
            };
            match rows {
                Ok(rows) => assert_eq!(rows, all, "byte {byte} of {name}"),
                Err(Error::Corrupt(line)) => {
                    assert!(line.contains("rows.") || line.contains("/log/"), "{line}");
                    *found
                        .entry(if name.starts_with("rows") { name.clone() } else { "log".into() })
                        .or_default() += 1;
                }
                Err(error) => panic!("byte {byte} of {name}: {error}"),
            }
            flip(&path, byte);
        }
    }
    assert!(found["rows.redb"] > 50 && found["log"] > 5, "{found:?}");
    assert_eq!(rows(&Embedded::open_to_read(folder.path()).unwrap()).await.unwrap(), all);
}

/// Commits 40 rows, repeatedly until there are two checkpoints.
async fn fill(engine: &Arc<Embedded>, store: &Store) {
    while engine.stats().checkpoints < 2 {
        for n in 0..40 {
            commit(store, n).await;
        }
    }
}

/// The content of a file once the store no longer writes it. After a checkpoint the store still prepares its log.
async fn at_rest(path: &Path) -> Vec<u8> {
    let mut before = fs::read(path).unwrap();
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let bytes = fs::read(path).unwrap();
        if bytes == before {
            return bytes;
        }
        before = bytes;
    }
}

/// Reads a row once the base is readable.
async fn read(engine: &Arc<Embedded>, n: u64) -> Result<Option<Bytes>> {
    loop {
        match engine.snapshot().await.unwrap().get(&row_key(n)).await {
            // The base is being reopened.
            Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn damage_stops_all_writes_but_only_the_reads_that_meet_it() {
    for round in 0..10 {
        let (folder, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut engine, mut store) = open(folder.path(), Faults::default()).unwrap();
        fill(&engine, &store).await;
        let folder = if round % 2 == 0 {
            folder
        } else {
            // A copy of a store that was not closed, as after a crash.
            at_rest(&folder.path().join("rows.redb")).await;
            copy(folder.path(), killed.path());
            (engine, store) = open(killed.path(), Faults::default()).unwrap();
            fill(&engine, &store).await;
            killed
        };
        let base = folder.path().join("rows.redb");
        let (bytes, value) = (at_rest(&base).await, value_of(1));
        // There may be older copies of the row.
        for at in (0..bytes.len() - value.len()).filter(|at| bytes[*at..].starts_with(&value)) {
            flip(&base, at as u64);
        }
        // The page has other rows, and other pages are intact: both before the base is reopened, and after.
        let error = read(&engine, 1).await.unwrap_err().to_string();
        assert!(error.contains("corrupt") && error.contains("rows.redb: the page at byte"), "{error}");
        for _ in 0..3 {
            assert_eq!(read(&engine, 20).await.unwrap(), Some(value_of(20)));
        }
        assert_eq!(read(&engine, 1).await.unwrap_err().to_string(), error);
        let refused = try_commit(&store, 1_000).await.unwrap_err();
        assert!(matches!(&refused, Error::Corrupt(line) if line.contains("rows.redb")), "{refused}");
        let condition = store.condition();
        assert!(
            matches!(condition, crate::Condition::Failing { reason, .. } if reason.contains("is damaged"))
        );
    }
}

#[tokio::test]
async fn a_log_that_is_missing_or_cut_is_no_smaller_store() {
    let sound = tempfile::tempdir().unwrap();
    let all = stored(sound.path()).await;
    let segments = |folder: &Path| {
        let mut segments = files(&folder.join("log"));
        segments.sort();
        segments
    };
    let count = segments(sound.path()).len();
    for damage in 0..count + 3 {
        let folder = tempfile::tempdir().unwrap();
        copy(sound.path(), folder.path());
        match damage.checked_sub(count) {
            None => fs::remove_file(&segments(folder.path())[damage]).unwrap(),
            Some(0) => fs::remove_dir_all(folder.path().join("log")).unwrap(),
            Some(1) => fs::remove_file(folder.path().join("rows.sums")).unwrap(),
            Some(_) => fs::remove_file(folder.path().join("rows.redb")).unwrap(),
        }
        // One after the other: a store that opens is in use.
        for n in 0..2 {
            match if n == 0 { Embedded::open(folder.path()) } else { Embedded::open_to_read(folder.path()) } {
                // A file that was no longer used, or not yet.
                Ok(engine) => assert_eq!(rows(&engine).await.unwrap(), all, "damage {damage}, open {n}"),
                Err(error) => {
                    assert!(matches!(&error, Error::Corrupt(line) if line.contains("is missing")), "{error}");
                }
            }
        }
        assert!(damage < count || Embedded::open(folder.path()).is_err(), "damage {damage}");
    }
    // The newest segment with records.
    let folder = tempfile::tempdir().unwrap();
    copy(sound.path(), folder.path());
    let newest = segments(folder.path())
        .into_iter()
        .rfind(|path| fs::read(path).unwrap().iter().skip(4_096).any(|byte| *byte != 0))
        .unwrap();
    let bytes = fs::read(&newest).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    for len in [end, end - 300, 4_500, 4_096, 100, 0] {
        fs::write(&newest, &bytes[..len]).unwrap();
        let error = Embedded::open(folder.path()).err().unwrap();
        assert!(matches!(&error, Error::Corrupt(line) if line.contains("/log/")), "{error}");
    }
    fs::write(&newest, &bytes).unwrap();
    assert_eq!(rows(&Embedded::open(folder.path()).unwrap()).await.unwrap(), all);
}

#[tokio::test]
async fn a_store_is_read_by_many_or_used_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let error = Embedded::open_to_read(folder.path()).err().unwrap();
    assert!(matches!(error, Error::Misuse(_)), "{error}");
    let all = stored(folder.path()).await;
    let one = Embedded::open_to_read(folder.path()).unwrap();
    let other = Embedded::open_to_read(folder.path()).unwrap();
    assert_eq!((rows(&one).await.unwrap(), rows(&other).await.unwrap()), (all.clone(), all));
    let store = Store::new(one.clone(), Arc::new(runtime::System));
    assert!(matches!(try_commit(&store, 1).await, Err(Error::Misuse(_))));
    assert!(Embedded::open(folder.path()).is_err());
    drop((one, other, store));
    let _used = Embedded::open(folder.path()).unwrap();
    let error = Embedded::open_to_read(folder.path()).err().unwrap().to_string();
    assert!(error.contains("in use by another process"), "{error}");
}
