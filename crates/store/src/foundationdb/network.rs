//! The client's network thread: one per process, from the first store to the end of the process.

use std::sync::{Mutex, OnceLock, PoisonError};

use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};

use super::errors::cannot_start;
use crate::Result;

static STARTED: OnceLock<Result<()>> = OnceLock::new();
static NETWORK: Mutex<Option<NetworkAutoStop>> = Mutex::new(None);

/// Starts the client, unless it runs already. It can be started once in a process.
pub(super) fn boot() -> Result<()> {
    STARTED.get_or_init(start).clone()
}

/// The client's thread must have ended before the process does: it would go on working on what the C++ library tears
/// down at its exit. Returning from `main` and `std::process::exit` both run what is registered with `atexit`, latest
/// first, so before the library's own, which has registered itself when it was loaded.
#[allow(unsafe_code)]
fn start() -> Result<()> {
    let network = cannot_start(FdbApiBuilder::default().build())?;
    // SAFETY: what is asked is that the network is dropped before the process exits. `stop` sees to it.
    let network = cannot_start(unsafe { network.boot() })?;
    *NETWORK.lock().unwrap_or_else(PoisonError::into_inner) = Some(network);
    // SAFETY: `stop` is a function of this program that neither unwinds nor touches what may be gone by then.
    if unsafe { libc::atexit(stop) } != 0 {
        tracing::warn!(
            "the FoundationDB client is not stopped at the end of this process, which may crash it then"
        );
    }
    Ok(())
}

extern "C" fn stop() {
    drop(NETWORK.lock().unwrap_or_else(PoisonError::into_inner).take());
}
