//! The client's network thread: one per process, from the first store to the end of the process.

use std::sync::{Condvar, Once, OnceLock};
use std::thread::JoinHandle;

use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};

use super::errors::cannot_start;
use crate::sync::Mutex;
use crate::{Error, Result};

static STARTED: OnceLock<Result<()>> = OnceLock::new();
/// The thread that waits to stop the network, and whether it should.
static STOPPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static STOPPING: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Starts the client unless it already runs. A process can start it only once.
pub(super) fn boot() -> Result<()> {
    STARTED.get_or_init(start).clone()
}

#[allow(unsafe_code)]
fn start() -> Result<()> {
    let network = cannot_start(FdbApiBuilder::default().build())?;
    // SAFETY: the network must be dropped before the process exits. `stop_at_exit` ensures that.
    let network = cannot_start(unsafe { network.boot() })?;
    let stopper = std::thread::Builder::new()
        .name("foundationdb-stop".to_owned())
        .spawn(|| wait_and_drop(network))
        .map_err(|error| Error::Unavailable(format!("no thread for FoundationDB's client: {error}")))?;
    *STOPPER.lock() = Some(stopper);
    stop_at_exit();
    Ok(())
}

/// Call this when the cluster has answered. The first call registers the exit handler again.
pub(super) fn answered() {
    static AGAIN: Once = Once::new();
    AGAIN.call_once(stop_at_exit);
}

/// Ends the client's thread before the process ends. Otherwise the thread would keep working on data that the C++ library
/// destroys at exit.
///
/// Returning from `main` and `std::process::exit` both run the handlers registered with `atexit`, latest first. The library
/// registers the destructors of its static data when it first uses the data: some when it is loaded, some at the first
/// connection. So the caller registers this handler when the client has started, and again when a cluster has answered.
///
/// At that point the exiting thread has already destroyed its thread-local data, including the library's, so `fdb_stop_network`
/// would crash there. So a separate thread, started with the client, makes that call.
#[allow(unsafe_code)]
fn stop_at_exit() {
    // SAFETY: `stop` is a function of this program. It does not unwind, and touches nothing that may already be destroyed.
    if unsafe { libc::atexit(stop) } != 0 {
        tracing::warn!(
            "FoundationDB's client is not stopped at the end of this process, which may crash it then"
        );
    }
}

fn wait_and_drop(network: NetworkAutoStop) {
    let (stopping, changed) = &STOPPING;
    let waited = changed.wait_while(stopping.lock(), |stops| !*stops);
    drop(waited);
    drop(network);
}

extern "C" fn stop() {
    let (stopping, changed) = &STOPPING;
    *stopping.lock() = true;
    changed.notify_all();
    let stopper = STOPPER.lock().take();
    // The thread always ends. If it ends by a panic, the process ends anyway.
    let _ = stopper.map(JoinHandle::join);
}
