//! Acknowledged writes survive the death of the process, and a disk that refuses to write.
//!
//! Each test starts this test program again as a child, which writes to a store and prints a line for every acknowledged commit.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::tuple::Subspace;
use turnwise_store::{Error, Result, Store, Transaction, key, runtime};

/// Environment variables for a child: the folder of the store, and the size of its log segments.
const FOLDER: &str = "TURNWISE_TEST_STORE";
const SEGMENT: &str = "TURNWISE_TEST_SEGMENT_BYTES";
const TASKS: u64 = 8;
/// Each task keeps its last rows and clears the earlier ones.
const ROWS_LEFT: u64 = 100;
/// So small that checkpoints happen all the time.
const SMALL: u64 = 20_000;
const LARGE: u64 = 32 << 20;

fn open(folder: &Path, segment_bytes: u64) -> Store {
    let options = Options { segment_bytes, ..Options::default() };
    Store::new(Embedded::open_with(folder, options).unwrap(), Arc::new(runtime::System))
}

fn space() -> Subspace {
    Subspace::from_bytes(b"test")
}

fn count_key(task: u64) -> Bytes {
    key::pack(&space(), &("count", task))
}

fn row_key(task: u64, row: u64) -> Bytes {
    key::pack(&space(), &("row", task, row))
}

async fn count(tx: &Transaction, task: u64) -> Result<u64> {
    let count = tx.get(&count_key(task)).await?;
    Ok(count.map_or(0, |count| std::str::from_utf8(&count).unwrap().parse().unwrap()))
}

/// Adds one row to the rows of a task. A later check must find all of this or nothing.
async fn add_row(store: &Store, task: u64) -> Result<u64> {
    let tx = store.begin().await?;
    let row = count(&tx, task).await?;
    tx.set(count_key(task), Bytes::from((row + 1).to_string()))?;
    tx.set(row_key(task, row), Bytes::from(vec![b'.'; 3_000]))?;
    if let Some(old) = row.checked_sub(ROWS_LEFT) {
        tx.clear(row_key(task, old))?;
    }
    tx.commit().await?;
    Ok(row)
}

/// The child. It adds rows until it is killed or the disk refuses a write. Then it waits until the disk accepts writes again, and
/// continues.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let segment_bytes = std::env::var(SEGMENT).unwrap().parse().unwrap();
        let store = open(Path::new(&folder), segment_bytes);
        loop {
            let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(add_rows(store.clone(), task))).collect();
            for task in tasks {
                match task.await.unwrap() {
                    Error::UnknownOutcome(_) => say("unknown"),
                    Error::NoRoom { .. } => say("no room"),
                    error => say(&format!("unexpected {error}")),
                }
            }
            // Still readable, but not writable.
            let read = store.transact::<_, Error, _, _>(|tx| async move { count(&tx, 0).await }).await;
            say(if read.is_ok() { "readable" } else { "unreadable" });
            let touch = || async {
                let tx = store.begin().await?;
                // Larger than the rows for which there was no room.
                tx.set(key::pack(&space(), &"touched"), Bytes::from(vec![b'.'; 90_000]))?;
                tx.commit().await
            };
            say(match touch().await {
                Err(Error::NoRoom { .. } | Error::UnknownOutcome(_)) => "refused",
                _ => "not refused",
            });
            while touch().await.is_err() {}
            say("goes on");
        }
    });
}

async fn add_rows(store: Store, task: u64) -> Error {
    loop {
        match add_row(&store, task).await {
            // One write, so that no line is torn.
            Ok(row) => say(&format!("done {task} {row}")),
            Err(Error::Conflict) => {}
            Err(error) => return error,
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nchild: {line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Starts a child that writes to `folder`. If `command` is given, it gets the program and its arguments as further arguments.
fn start(
    command: Option<Command>,
    folder: &Path,
    segment_bytes: u64,
) -> (std::process::Child, impl Iterator<Item = String>) {
    let program = std::env::current_exe().unwrap();
    let mut command = match command {
        Some(mut command) => {
            command.arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--exact", "child", "--nocapture"]);
    command.env(FOLDER, folder).env(SEGMENT, segment_bytes.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = |line: std::io::Result<String>| line.unwrap().strip_prefix("child: ").map(str::to_owned);
    (child, lines.filter_map(said))
}

/// Records the last acknowledged row of each task.
fn note(acknowledged: &mut BTreeMap<u64, u64>, line: &str) -> bool {
    let mut words = line.split(' ');
    if words.next() != Some("done") {
        return false;
    }
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (task, row) = (number(), number());
    acknowledged.insert(task, row);
    true
}

/// Reopens the store and checks that it has all acknowledged rows, and no partial transaction.
async fn check(folder: &Path, acknowledged: &BTreeMap<u64, u64>) {
    let store = open(folder, SMALL);
    let tx = store.begin().await.unwrap();
    for task in 0..TASKS {
        let count = count(&tx, task).await.unwrap();
        if let Some(last) = acknowledged.get(&task) {
            assert!(count > *last, "task {task} has {count} rows, and {last} was acknowledged");
            assert!(count <= last + 2, "task {task} has {count} rows after {last}");
        }
        let rows = tx.range(&key::children(&space(), &("row", task)), 1_000).await.unwrap();
        let names: Vec<_> = rows.into_iter().map(|(name, _)| name).collect();
        let expected: Vec<_> =
            (count.saturating_sub(ROWS_LEFT)..count).map(|row| row_key(task, row)).collect();
        assert_eq!(names, expected, "task {task}");
    }
}

#[tokio::test]
async fn everything_acknowledged_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..12 {
        let segment_bytes = if round % 3 == 0 { LARGE } else { SMALL };
        let (mut child, mut lines) = start(None, folder.path(), segment_bytes);
        let enough = 20 + round * 67;
        for line in lines.by_ref().take(enough) {
            assert!(note(&mut acknowledged, &line), "{line}");
        }
        child.kill().unwrap();
        // The lines that it printed before it was killed count, too.
        for line in lines {
            assert!(note(&mut acknowledged, &line), "{line}");
        }
        child.wait().unwrap();
        check(folder.path(), &acknowledged).await;
    }
    assert_eq!(acknowledged.len() as u64, TASKS);
}

/// Runs a child whose files cannot exceed `blocks` of `ulimit`, until a write is refused. Then raises the limit, and the child
/// must continue by itself. Then kills it.
#[cfg(target_os = "linux")]
async fn refused_and_going_on(folder: &Path, segment_bytes: u64, blocks: u32) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit -S -f {blocks}; exec \"$0\" \"$@\"")]);
    let (mut child, mut lines) = start(Some(command), folder, segment_bytes);
    let mut acknowledged = BTreeMap::new();
    let mut until = |wanted: &str| {
        let mut said = Vec::new();
        for line in lines.by_ref() {
            if line == wanted {
                return said;
            }
            if !note(&mut acknowledged, &line) {
                said.push(line);
            }
        }
        panic!("the child ended after {said:?}");
    };
    let said = until("refused");
    let (tasks, after) = said.split_at(TASKS as usize);
    assert!(tasks.iter().all(|line| line == "unknown" || line == "no room"), "{tasks:?}");
    assert_eq!(after, ["readable"]);
    let pid = child.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status().unwrap();
    assert!(raised.success());
    until("goes on");
    for line in lines.by_ref().take(300) {
        assert!(note(&mut acknowledged, &line), "{line}");
    }
    assert_eq!(acknowledged.len() as u64, TASKS);
    child.kill().unwrap();
    for line in lines {
        assert!(note(&mut acknowledged, &line), "{line}");
    }
    child.wait().unwrap();
    check(folder, &acknowledged).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_log_that_cannot_grow_refuses_and_goes_on_once_it_can() {
    let folder = tempfile::tempdir().unwrap();
    // The first MB has room. No segment is ever full, so there is no checkpoint.
    refused_and_going_on(folder.path(), LARGE, 2_100).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_checkpoint_that_cannot_be_written_is_written_once_it_can() {
    let folder = tempfile::tempdir().unwrap();
    refused_and_going_on(folder.path(), SMALL, 3_000).await;
}
