//! The conformance suite: tests of what every engine must do, for any engine.
//!
//! An engine passes if every chapter of [`CHAPTERS`] does. Its tests name a [`Subject`] and expand
//! [`conformance_tests!`](crate::conformance_tests), which generates one test per chapter:
//!
//! ```ignore
//! turnwise_store::conformance_tests!(|| async { Arc::new(MyEngineInAFolder::new()) as Arc<dyn Subject> });
//! ```
//!
//! # Where engines may differ
//!
//! The suite does not test these points, and code above the store must not rely on them. For each point, "another engine" states
//! what a new engine may do.
//!
//! - **When a snapshot is taken**. Embedded, FoundationDB: at the start of the transaction. etcd: at its first read.
//!   Another engine: at either or in between.
//! - **A conflict key of a transaction that has read nothing**. Embedded, FoundationDB: counts from the start. etcd: does
//!   not count. Another engine: either.
//! - **Clearing a key or range that stores nothing**. Embedded: conflicts with readers of a cleared key, not with readers
//!   of a range. etcd: conflicts with neither. FoundationDB: conflicts with both. Another engine: any of these.
//! - **Setting a value that is already there**. All engines: a write like any other.
//! - **Keys from `0xff` on**. Embedded, FoundationDB: keys like any other. etcd: refused. Another engine: may refuse them;
//!   no case uses them.
//! - **A watch that resolves without a change**. Embedded: only when the store closes or fails. etcd: after a minute, when
//!   the connection breaks, or on a change that was already seen. FoundationDB: when the client loses it. Another engine:
//!   at any time.
//! - **A value that changes and changes back**. Embedded: resolves, unless both happened in one group of commits. etcd: resolves,
//!   unless both happened before the watch existed. FoundationDB and another engine: may resolve or not.
//! - **What makes a transaction too old**. Embedded: its age, on reads and at commit. etcd: compaction of its revision, on reads,
//!   after twenty seconds or more. FoundationDB: the age of its version, 5 s. Another engine: compaction of its revision.
//! - **A read of a transaction that is too old**. Embedded: refused immediately. etcd: refused once its revision is compacted.
//!   FoundationDB: refused, and so is its commit if it has read something. Another engine: may answer, and refuse the commit.
//! - **`limits()`**. Embedded: [`Limits::DEFAULT`](crate::Limits::DEFAULT). etcd: 120 conflicts, 960 writes and 1.5 MB with
//!   etcd's default configuration. FoundationDB: 5,000 conflicts, 5,000 writes and 3 MB, less with a long prefix. Another
//!   engine: may be smaller; the suite reads them.
//! - **More conflicts than `limits()`**. All engines: counted before the commit. On etcd, rows that were declared and not
//!   read count only at the commit.
//! - **Versionstamps**. Embedded: dense, the group and the place in the group. etcd, FoundationDB: with gaps, because all
//!   users of the cluster share one sequence. Another engine: with gaps; only the order counts.
//! - **The stored value that stands for a versionstamp**. Embedded, FoundationDB: none, the ten bytes are stored. etcd: 17
//!   bytes that are not UTF-8, refused as a value. Another engine: may reserve one that is not UTF-8.
//! - **The rows of a sum**. Embedded, FoundationDB: one, that of its key. etcd: one per commit, behind its key. Another engine:
//!   either.
//! - **A commit that fails because of a conflict**. Embedded, FoundationDB: writes nothing. etcd: may set a key to a
//!   versionstamp, if another commit that is sent with it also sets that key. Another engine: either.
//! - **An unknown outcome**. Embedded: only after the disk has failed. etcd: on any lost connection, change of leader or timeout.
//!   FoundationDB: on a timeout, a change of the cluster or a lost connection. Another engine: on any lost connection.
//! - **A clock that tests can move**. Embedded: yes. All others: none; the suite skips the cases that need one, see
//!   [`Subject::clock`].

mod clock;
mod durability;
mod isolation;
mod limits;
mod logs;
mod own_writes;
mod random;
mod rows;
mod scene;
mod sums;
mod versionstamps;
mod watches;

use std::sync::Arc;
use std::time::Duration;

pub use clock::Manual;
pub use scene::Subject;
use scene::{Case, Scene};

/// A chapter of the suite.
pub struct Chapter {
    /// What it tests.
    pub name: &'static str,
    cases: &'static [Case],
}

/// The whole suite.
pub const CHAPTERS: &[Chapter] = &[
    Chapter { name: "rows", cases: rows::CASES },
    Chapter { name: "own_writes", cases: own_writes::CASES },
    Chapter { name: "isolation", cases: isolation::CASES },
    Chapter { name: "watches", cases: watches::CASES },
    Chapter { name: "versionstamps", cases: versionstamps::CASES },
    Chapter { name: "sums", cases: sums::CASES },
    Chapter { name: "logs", cases: logs::CASES },
    Chapter { name: "limits", cases: limits::CASES },
    Chapter { name: "durability", cases: durability::CASES },
    Chapter { name: "random", cases: random::CASES },
];

/// Generates one test per chapter of the suite. The argument is an async function or closure that returns a new
/// [`Subject`] in an `Arc`, or an `Option` of it. `None` skips the chapter; the closure has then
/// already reported the reason.
///
/// An engine that is not available on every machine states before the subject why its tests are skipped. Write
/// `conformance_tests!(skip_if missing(); subject)`, where `missing` returns an `Option<String>`.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::conformance_tests!(skip_if None::<String>; $subject);
    };
    (skip_if $reason:expr; $subject:expr) => {
        $crate::conformance_tests!(@ $reason, $subject;
            rows, own_writes, isolation, watches, versionstamps, sums, logs, limits, durability, random);

        #[test]
        fn no_chapter_is_left_out() {
            $crate::conformance_tests!(@names rows, own_writes, isolation, watches, versionstamps, sums,
                logs, limits, durability, random);
        }
    };
    (@ $reason:expr, $subject:expr; $($chapter:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $chapter() {
                if let Some(reason) = $reason {
                    $crate::conformance::skipped(stringify!($chapter), &reason);
                    return;
                }
                $crate::conformance::run(stringify!($chapter), $subject).await;
            }
        )*
    };
    (@names $($chapter:ident),*) => {
        let tested = [$(stringify!($chapter)),*];
        let known: Vec<_> = $crate::conformance::CHAPTERS.iter().map(|chapter| chapter.name).collect();
        assert_eq!(known, tested);
    };
}

/// Reports a skipped test on the real standard error. The test harness would show captured output only for a failure.
pub fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{test}: skipped, {reason}");
}

/// Runs a chapter, each case on a new subject.
///
/// # Panics
/// If a case fails, with the names of all failed cases.
pub async fn run<F, Fut>(chapter: &str, new_subject: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output: Into<Option<Arc<dyn Subject>>>>,
{
    let chapter = CHAPTERS.iter().find(|known| known.name == chapter).expect("a chapter of the suite");
    let mut failed = Vec::new();
    for (name, case) in chapter.cases {
        // The caller has already reported why there is no subject.
        let Some(subject) = new_subject().await.into() else { return };
        let scene = Scene::new(subject).await;
        let mut running = tokio::spawn(case(scene));
        match tokio::time::timeout(CASE_DEADLINE, &mut running).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => failed.push(format!("{name}: {panic}")),
            Err(_) => {
                running.abort();
                failed.push(format!("{name}: not done after {CASE_DEADLINE:?}"));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases failed:\n{}",
        failed.len(),
        chapter.cases.len(),
        failed.join("\n")
    );
}

/// A case that takes longer than this hangs. The limit is long enough for a slow machine.
const CASE_DEADLINE: Duration = Duration::from_secs(120);
