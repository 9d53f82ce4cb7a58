//! Reports the fleet's state to the server, which lists fleets as it lists nodes and workers.

use std::time::Duration;

use tokio::sync::watch;
use turnwise_client::Client;
use turnwise_client::protocol::PutFleet;

/// The time between two reports of a state that has not changed.
const INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two reports.
const SHORTEST: Duration = Duration::from_secs(2);
/// How long a report is valid.
pub(crate) const EXPIRY: Duration = Duration::from_secs(30);
/// The timeout of a report, and of its removal.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reports for ever. A lost report does not matter, because the next one replaces it.
pub(crate) async fn report(client: Client, name: String, mut state: watch::Receiver<PutFleet>) {
    let client = client.retry_for(Duration::ZERO);
    let mut was_accepted = true;
    loop {
        let report = state.borrow_and_update().clone();
        let problem = match tokio::time::timeout(TIMEOUT, client.put_fleet(&name, &report)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {TIMEOUT:?}")),
        };
        if let Some(problem) = problem.as_ref().filter(|_| was_accepted) {
            tracing::warn!("cannot report the state of this fleet to the server: {problem}");
        }
        was_accepted = problem.is_none();
        tokio::time::sleep(SHORTEST).await;
        tokio::select! {
            changed = state.changed(), if was_accepted => if changed.is_err() { return },
            () = tokio::time::sleep(INTERVAL - SHORTEST) => {}
        }
    }
}

/// Removes the report of a fleet that stops. Without it, the report expires.
pub(crate) async fn remove(client: &Client, name: &str) {
    let client = client.clone().retry_for(Duration::ZERO);
    let _ = tokio::time::timeout(TIMEOUT, client.remove_fleet(name)).await;
}
