//! The client's network thread: one per process, from the first store to the end of the process.

use std::sync::{Condvar, Mutex, Once, OnceLock, PoisonError};
use std::thread::JoinHandle;

use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};

use super::errors::cannot_start;
use crate::{Error, Result};

static STARTED: OnceLock<Result<()>> = OnceLock::new();
/// Who waits to stop the network, and whether it shall.
static STOPPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static STOPPING: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Starts the client, unless it runs already. It can be started once in a process.
pub(super) fn boot() -> Result<()> {
    STARTED.get_or_init(start).clone()
}

#[allow(unsafe_code)]
fn start() -> Result<()> {
    let network = cannot_start(FdbApiBuilder::default().build())?;
    // SAFETY: what is asked is that the network is dropped before the process exits. `stop_at_exit` sees to it.
    let network = cannot_start(unsafe { network.boot() })?;
    let stopper = std::thread::Builder::new()
        .name("foundationdb-stop".to_owned())
        .spawn(|| wait_and_drop(network))
        .map_err(|error| Error::Unavailable(format!("no thread for FoundationDB's client: {error}")))?;
    *STOPPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(stopper);
    stop_at_exit();
    Ok(())
}

/// The cluster has answered.
pub(super) fn answered() {
    static AGAIN: Once = Once::new();
    AGAIN.call_once(stop_at_exit);
}

/// The client's thread must have ended before the process does: it would go on working on what the C++ library tears
/// down at its exit. Returning from `main` and `std::process::exit` both run what is registered with `atexit`, latest
/// first. The library registers the destructors of its static data as it comes to use them: some when it is loaded, some
/// with the first connection. So this is called when the client has started, and again when a cluster has answered.
///
/// By then the thread that exits has destroyed its thread-local data, and the library's are among them: `fdb_stop_network`
/// crashes there. So a thread waits from the beginning to call it.
#[allow(unsafe_code)]
fn stop_at_exit() {
    // SAFETY: `stop` is a function of this program that neither unwinds nor touches what may be gone by then.
    if unsafe { libc::atexit(stop) } != 0 {
        tracing::warn!(
            "FoundationDB's client is not stopped at the end of this process, which may crash it then"
        );
    }
}

fn wait_and_drop(network: NetworkAutoStop) {
    let (stopping, changed) = &STOPPING;
    let waited = changed.wait_while(stopping.lock().unwrap_or_else(PoisonError::into_inner), |stops| !*stops);
    drop(waited);
    drop(network);
}

extern "C" fn stop() {
    let (stopping, changed) = &STOPPING;
    *stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
    changed.notify_all();
    let stopper = STOPPER.lock().unwrap_or_else(PoisonError::into_inner).take();
    // It ends in any case; if by a panic, the process ends anyway.
    let _ = stopper.map(JoinHandle::join);
}
