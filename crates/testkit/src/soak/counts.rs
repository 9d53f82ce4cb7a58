//! What has happened so far, and a line about it now and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::World;

/// Between two looks at what runs: its memory, and whether it runs.
const LOOK: Duration = Duration::from_secs(1);

/// Numbers of the whole soak.
#[derive(Default)]
pub(super) struct Counts {
    /// Requests that write and were acknowledged; and those that were refused, or got no answer while their
    /// server was down.
    pub written: AtomicU64,
    pub unwritten: AtomicU64,
    /// What was done to requests and processes.
    faults: Mutex<BTreeMap<String, u64>>,
    /// turnwise's memory: when it was started last, and what it had since, once a second, in bytes. Without what its store holds of the
    /// rows in its log until the next checkpoint, which grows from nothing to a known bound again and again.
    memory: Mutex<(Option<u32>, Vec<u64>)>,
}

impl Counts {
    pub fn fault(&self, what: impl Into<String>) {
        *self.faults.lock().expect("no holder of this lock panics").entry(what.into()).or_default() += 1;
    }

    /// All faults so far, in words.
    fn faults(&self) -> String {
        let faults = self.faults.lock().expect("no holder of this lock panics");
        faults.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// turnwise's memory since its last start, once a second.
    pub fn memory(&self) -> Vec<u64> {
        self.memory.lock().expect("no holder of this lock panics").1.clone()
    }

    fn look_at_memory(&self, process: u32, log_bytes: u64) {
        let Some(bytes) = crate::process::memory_bytes(process) else { return };
        let bytes = bytes.saturating_sub(log_bytes);
        let mut memory = self.memory.lock().expect("no holder of this lock panics");
        if memory.0 != Some(process) {
            *memory = (Some(process), Vec::new());
        }
        memory.1.push(bytes);
    }
}

impl World {
    /// How it goes, in a line.
    pub async fn status(&self) -> String {
        let counts = &self.counts;
        let process = self.turnwise.process_id().await;
        let memory = process.and_then(crate::process::memory_bytes).unwrap_or_default();
        format!(
            "{:>5} s: {} writes ({} came to nothing); jobs: {}; memory {} MB; faults: {}",
            self.begun.elapsed().as_secs(),
            counts.written.load(Ordering::Relaxed),
            counts.unwritten.load(Ordering::Relaxed),
            self.turnwise.states().await,
            memory >> 20,
            counts.faults()
        )
    }
}

/// Looks after the processes and prints a line now and then, until the end.
pub(super) async fn watch(world: Arc<World>) {
    let interval = Duration::from_secs(world.options.status_seconds);
    let mut next = Instant::now() + interval;
    while !world.stop.is_cancelled() {
        world.look().await;
        if Instant::now() >= next {
            println!("{}", world.status().await);
            next += interval;
        }
        tokio::select! {
            () = world.stop.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

impl World {
    /// Notes turnwise's memory, and starts servers that ended on their own.
    pub async fn look(&self) {
        if let Some(process) = self.turnwise.process_id().await {
            self.counts.look_at_memory(process, self.turnwise.store_log_bytes());
        }
        for side in &self.sides {
            // It keeps what it saw, and sees a lot.
            side.proxy.clear();
            if side.server.revive().await {
                self.counts.fault(format!("{} ended by itself", side.name));
            }
        }
    }
}
