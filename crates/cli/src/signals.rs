//! Signals that stop a command.

/// SIGTERM and SIGINT, from the creation of this value on. A signal that arrives before a call of [`next`](Self::next) is kept, and does not
/// end the process.
pub struct StopSignals(Option<[tokio::signal::unix::Signal; 2]>);

impl StopSignals {
    /// Begins to listen.
    pub fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(terminate), Ok(interrupt)) => Self(Some([terminate, interrupt])),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "cannot listen for signals: stop with SIGKILL");
                Self(None)
            }
        }
    }

    /// Waits for the next of these signals.
    pub async fn next(&mut self) {
        let Some([terminate, interrupt]) = &mut self.0 else { return std::future::pending().await };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
