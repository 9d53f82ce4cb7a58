//! What every engine must do, as tests that any engine can be plugged into.
//!
//! An engine passes if every chapter of [`CHAPTERS`] does. Its tests name a [`Subject`] and expand
//! [`conformance_tests!`](crate::conformance_tests), which makes one test of each chapter:
//!
//! ```ignore
//! turnwise_store::conformance_tests!(|| async { Arc::new(MyEngineInAFolder::new()) as Arc<dyn Subject> });
//! ```
//!
//! # Where engines may differ
//!
//! The suite does not test what is left open here, and code above the store must not rely on it.
//!
//! | subject | embedded | etcd | FoundationDB | others may |
//! | --- | --- | --- | --- | --- |
//! | when a snapshot is taken | at the begin of the transaction | at its first read | at the begin | at the begin, at the first read or between |
//! | a conflict key of a transaction that has read nothing | counts from the begin | does not count | counts from the begin | do either |
//! | clearing a key or range in which nothing is stored | conflicts with readers of a cleared key, not with readers of a range | conflicts with neither | conflicts with both | do any of these |
//! | setting a value that is there already | a write like any other | the same | the same | the same |
//! | keys from `0xff` on | are keys like any other | are refused | are keys like any other | refuse them; no case uses them |
//! | a watch resolves without a change | only when the store closes or fails | after a minute, when the connection breaks, on a change that was seen already | when the client loses it | whenever it likes |
//! | a value changes and changes back | resolves, unless both happened in one group of commits | resolves, unless both happened before the watch was there | resolves, or not | resolve, or not |
//! | what makes a transaction too old | its age, on reads and at commit | compaction of its revision, on reads: after a minute or more | the age of its version: 5 s | compaction of its revision |
//! | a read of a transaction that is too old | is refused at once | is refused once it is compacted | is refused; so is its commit if it has read something | answer, and refuse the commit |
//! | `limits()` | [`Limits::DEFAULT`](crate::Limits::DEFAULT) | 120 conflicts, 960 writes and 1.5 MB, if etcd has its own defaults | 5,000 conflicts, 5,000 writes and 3 MB, less behind a long prefix | be smaller; the suite asks |
//! | more conflicts than `limits()` | are counted before the commit | the same; rows that were declared and not read count only in the commit | the same | the same |
//! | versionstamps | dense: group, place in the group | have gaps: those of all users of the cluster are one sequence | have gaps: those of all users of the cluster are one sequence | have gaps; only the order counts |
//! | the value that stands for a versionstamp | none: the ten bytes are stored | 17 bytes that are not UTF-8; refused as a value | none: the ten bytes are stored | reserve one that is not UTF-8 |
//! | a commit that fails for a conflict | writes nothing | may set a key to a versionstamp, if others that are sent with it set that key, too | writes nothing | do either |
//! | an unknown outcome | only after the disk has failed | on any lost connection, change of leader or timeout | on a timeout, a change of the cluster or a lost connection | on any lost connection |
//! | a clock that tests can move | yes | none | none | none: the cases that need one are then left out, see [`Subject::clock`] |

mod durability;
mod isolation;
mod limits;
mod own_writes;
mod random;
mod rows;
mod versionstamps;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;

use crate::runtime::{Manual, System};
use crate::{Engine, RangeRead, Store, Transaction};

/// An engine under examination, with a store of its own.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// Opens the store, which is empty at the first call. Before the next call everything that the engine
    /// has handed out is dropped.
    async fn open(&self) -> Arc<dyn Engine>;

    /// The clock that the engine measures the age of transactions on, if it can be moved.
    fn clock(&self) -> Option<Arc<Manual>>;

    /// Whether a key that a refused transaction would have set to its versionstamp may hold that all the same.
    fn stamps_may_stay(&self) -> bool {
        false
    }
}

/// Part of the suite.
pub struct Chapter {
    /// What it is about.
    pub name: &'static str,
    cases: &'static [Case],
}

type Case = (&'static str, fn(Scene) -> BoxFuture<'static, ()>);

/// The whole suite.
pub const CHAPTERS: &[Chapter] = &[
    Chapter { name: "rows", cases: rows::CASES },
    Chapter { name: "own_writes", cases: own_writes::CASES },
    Chapter { name: "isolation", cases: isolation::CASES },
    Chapter { name: "watches", cases: watches::CASES },
    Chapter { name: "versionstamps", cases: versionstamps::CASES },
    Chapter { name: "limits", cases: limits::CASES },
    Chapter { name: "durability", cases: durability::CASES },
    Chapter { name: "random", cases: random::CASES },
];

/// Lists functions as cases under their own names.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$((stringify!($case), |scene| Box::pin($case(scene)))),*]
    };
}
use cases;

/// Makes one test of each chapter of the suite. The argument is an async function or closure that returns
/// a new [`Subject`](crate::conformance::Subject) in an `Arc`; or in an `Option`, `None` to skip the chapter where
/// something has already said why.
///
/// An engine that needs something that is not on every machine says before it why the tests are skipped here, if they
/// are: `conformance_tests!(skip_if missing(); subject)`, where `missing` returns an `Option<String>`.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::conformance_tests!(skip_if None::<String>; $subject);
    };
    (skip_if $reason:expr; $subject:expr) => {
        $crate::conformance_tests!(@ $reason, $subject;
            rows, own_writes, isolation, watches, versionstamps, limits, durability, random);

        #[test]
        fn no_chapter_is_left_out() {
            $crate::conformance_tests!(@names rows, own_writes, isolation, watches, versionstamps, limits,
                durability, random);
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

/// Says that a test was skipped, past the test harness, which would show it only if the test failed.
pub fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{test}: skipped, {reason}");
}

/// Runs a chapter, each case on a new subject.
///
/// # Panics
/// If a case fails, with the names of all that did.
pub async fn run<F, Fut>(chapter: &str, new_subject: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output: Into<Option<Arc<dyn Subject>>>>,
{
    let chapter = CHAPTERS.iter().find(|known| known.name == chapter).expect("a chapter of the suite");
    let mut failed = Vec::new();
    for (name, case) in chapter.cases {
        // Whoever has none has said so.
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

/// Something hangs that should have happened: long enough for a slow machine.
const CASE_DEADLINE: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(30);

/// A store on a subject.
struct Scene {
    subject: Arc<dyn Subject>,
    store: Store,
}

impl Scene {
    async fn new(subject: Arc<dyn Subject>) -> Self {
        let store = Store::new(subject.open().await, Arc::new(System));
        Scene { subject, store }
    }

    /// Closes the store and opens it again.
    async fn reopened(self) -> Self {
        let Scene { subject, store } = self;
        drop(store);
        Self::new(subject).await
    }

    async fn begin(&self) -> Transaction {
        self.store.begin().await.expect("begins")
    }

    /// Sets rows in one transaction.
    async fn set(&self, rows: &[(&'static str, &'static str)]) {
        let tx = self.begin().await;
        for (name, value) in rows {
            tx.set(key(name), key(value)).expect("sets");
        }
        tx.commit().await.expect("commits");
    }

    /// What a new transaction reads.
    async fn get(&self, name: &'static str) -> Option<Bytes> {
        self.begin().await.get(&key(name)).await.expect("reads")
    }

    /// All rows of the store as a new transaction reads them.
    async fn all(&self) -> Vec<(Bytes, Bytes)> {
        self.begin().await.range(&everything(), usize::MAX).await.expect("reads")
    }
}

fn key(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

fn everything() -> (Bytes, Bytes) {
    (Bytes::new(), Bytes::from_static(b"\xff"))
}

fn span(begin: &'static str, end: &'static str) -> (Bytes, Bytes) {
    (key(begin), key(end))
}

fn forwards(begin: &'static str, end: &'static str, limit: usize) -> RangeRead {
    RangeRead { begin: key(begin), end: key(end), limit, reverse: false }
}

fn backwards(begin: &'static str, end: &'static str, limit: usize) -> RangeRead {
    RangeRead { reverse: true, ..forwards(begin, end, limit) }
}

/// Waits for something that must happen.
async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("{what} has not happened after {PATIENCE:?}"),
    }
}
