//! The client's network thread: one per process, from the first store to the end of the process.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
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

/// The client's thread must have ended before the process does: it would go on working on what the C++ library tears
/// down at its exit. Returning from `main` and `std::process::exit` both run what is registered with `atexit`, latest
/// first, so before the library's own, which has registered itself when it was loaded.
///
/// By then the thread that exits has destroyed its thread-local data, and the library's are among them: `fdb_stop_network`
/// crashes there. So a thread waits from the beginning to call it.
#[allow(unsafe_code)]
fn start() -> Result<()> {
    let network = cannot_start(FdbApiBuilder::default().build())?;
    // SAFETY: what is asked is that the network is dropped before the process exits. `stop` sees to it.
    let network = cannot_start(unsafe { network.boot() })?;
    let stopper = std::thread::Builder::new()
        .name("foundationdb-stop".to_owned())
        .spawn(|| wait_and_drop(network))
        .map_err(|error| Error::Unavailable(format!("no thread for FoundationDB's client: {error}")))?;
    *STOPPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(stopper);
    // SAFETY: `stop` is a function of this program that neither unwinds nor touches what may be gone by then.
    if unsafe { libc::atexit(stop) } != 0 {
        tracing::warn!(
            "FoundationDB's client is not stopped at the end of this process, which may crash it then"
        );
    }
    Ok(())
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
