//! Counts of what has happened so far, and status lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::World;

/// The time between two checks of the processes and their memory.
const LOOK: Duration = Duration::from_secs(1);

/// Counters of the whole test.
#[derive(Default)]
pub(super) struct Counts {
    /// The number of acknowledged writes; and the number of writes that were refused, or got no response while their server
    /// was down.
    pub written: AtomicU64,
    pub unwritten: AtomicU64,
    /// The numbers of faults in requests and processes.
    faults: Mutex<BTreeMap<String, u64>>,
    /// The process id of turnwise, and its memory in bytes since its last start, once per second. Excludes the rows that
    /// its store keeps in memory until the next checkpoint. These repeatedly grow from zero to a known limit.
    memory: Mutex<(Option<u32>, Vec<u64>)>,
}

impl Counts {
    pub fn fault(&self, what: impl Into<String>) {
        *self.faults.lock().expect("no holder of this lock panics").entry(what.into()).or_default() += 1;
    }

    /// All faults so far, as text.
    fn faults(&self) -> String {
        let faults = self.faults.lock().expect("no holder of this lock panics");
        faults.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// turnwise's memory since its last start, once per second, in bytes.
    pub fn memory(&self) -> Vec<u64> {
        self.memory.lock().expect("no holder of this lock panics").1.clone()
    }

    fn look_at_memory(&self, process: u32, log_bytes: u64) {
        let Some(bytes) = turnwise_testkit::process::memory_bytes(process) else { return };
        let bytes = bytes.saturating_sub(log_bytes);
        let mut memory = self.memory.lock().expect("no holder of this lock panics");
        if memory.0 != Some(process) {
            *memory = (Some(process), Vec::new());
        }
        memory.1.push(bytes);
    }
}

impl World {
    /// The status line.
    pub async fn status(&self) -> String {
        let counts = &self.counts;
        let process = self.turnwise.process_id().await;
        let memory = process.and_then(turnwise_testkit::process::memory_bytes).unwrap_or_default();
        let gateways = self
            .sides
            .iter()
            .filter_map(|side| Some(format!("{}: {}", side.name, side.gateway.as_ref()?.text())));
        let gateways = gateways.collect::<Vec<_>>().join(", ");
        format!(
            "{:>5} s: {} writes ({} came to nothing); jobs: {}; memory {} MB; gateways: {gateways}; faults: {}",
            self.begun.elapsed().as_secs(),
            counts.written.load(Ordering::Relaxed),
            counts.unwritten.load(Ordering::Relaxed),
            self.turnwise.states().await,
            memory >> 20,
            counts.faults()
        )
    }
}

/// Checks the processes and prints status lines, until the end.
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
    /// Records turnwise's memory, and restarts servers that ended by themselves.
    pub async fn look(&self) {
        if let Some(process) = self.turnwise.process_id().await {
            self.counts.look_at_memory(process, self.turnwise.store_log_bytes());
        }
        for side in &self.sides {
            // The proxy keeps all requests, and receives many.
            side.proxy.clear();
            if let Some(gateway) = &side.gateway {
                gateway.clear();
            }
            if side.server.revive().await {
                self.counts.fault(format!("{} ended by itself", side.name));
            }
        }
    }
}
