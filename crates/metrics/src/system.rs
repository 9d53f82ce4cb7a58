//! Numbers about this process.

use serde_json::{Value, json};

/// The memory that the process occupies, in bytes; `None` where the system does not say it.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// CouchDB's `_system`, with the fields that mean something here. CouchDB's are about Erlang; the memory is counted as
/// `other`, a process is a task, and the run queue is that of the tasks.
pub(super) fn couchdb(up_us: i64) -> Value {
    let runtime = tokio::runtime::Handle::current();
    let tasks = runtime.metrics();
    json!({
        "uptime": up_us / 1_000_000,
        "memory": { "other": resident_bytes().unwrap_or(0) },
        "run_queue": tasks.global_queue_depth(),
        "process_count": tasks.num_alive_tasks(),
        "internal_replication_jobs": 0,
        "message_queues": {},
        "distribution": {},
        "distribution_events": {},
    })
}
