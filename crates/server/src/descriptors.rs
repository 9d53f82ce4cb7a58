//! File descriptors: raises the process's limit, and divides it between connections and all other uses.
//!
//! A process without free descriptors can neither open files nor accept connections, so everything fails at the same
//! time. Only connections grow without bound, so they are limited to a part of the descriptors. The rest is for the
//! store, for name resolution, for the pipes of commands, and for libraries.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Never raises the limit above this number: some programs iterate over every possible descriptor.
const MOST: u64 = 65_536;
/// Maximum number of connections from clients, if there are enough descriptors. More connections wait to be accepted.
const MOST_INCOMING: usize = 10_000;
/// Reserved descriptors: the store has six files, and may open as many again; the rest is for libraries and name resolution.
const KEPT: u64 = 64;
/// Reserved for each command: its pipes and its guard.
const KEPT_PER_COMMAND: u64 = 8;

/// The maximum numbers of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    /// From clients.
    pub incoming: usize,
    /// To the peers of replications.
    pub outgoing: usize,
}

/// Raises this process's limit as far as the system allows, and divides the descriptors. At most `commands` commands
/// run at the same time.
pub(crate) fn raised(commands: usize) -> Connections {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(MOST).min(MOST);
    let mut now = limit.current.unwrap_or(MOST);
    if now < wanted {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }) {
            Ok(()) => now = wanted,
            Err(error) => {
                tracing::warn!(%error, "cannot raise the limit of file descriptors from {now} to {wanted}")
            }
        }
    }
    let connections = divided(now, commands);
    if connections.incoming < MOST_INCOMING {
        let Connections { incoming, outgoing } = connections;
        tracing::debug!(
            limit = now,
            incoming,
            outgoing,
            "connections are bounded by the limit of file descriptors"
        );
    }
    connections
}

fn divided(limit: u64, commands: usize) -> Connections {
    let kept = KEPT + limit / 16 + KEPT_PER_COMMAND.saturating_mul(commands as u64);
    let rest = usize::try_from(limit.saturating_sub(kept.min(limit / 2))).unwrap_or(usize::MAX);
    let incoming = (rest / 2).clamp(1, MOST_INCOMING);
    Connections { incoming, outgoing: rest.saturating_sub(incoming).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        assert_eq!(divided(65_536, 0), Connections { incoming: 10_000, outgoing: 51_376 });
        for (limit, commands) in [(1_024, 0), (1_024, 10), (256, 100), (64, 0), (0, 0)] {
            let Connections { incoming, outgoing } = divided(limit, commands);
            let rest = limit as usize - (incoming + outgoing).min(limit as usize);
            assert!(rest >= (64.min(limit / 2) as usize), "{limit}: {incoming} and {outgoing}");
            assert!(incoming > 0 && outgoing > 0);
        }
    }
}
