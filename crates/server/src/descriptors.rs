//! File descriptors: as many as the system allows, and how many of them connections may have.
//!
//! A process that has none left can neither open a file nor take a connection, and everything that goes wrong then goes wrong
//! at once. So connections, which are what there is without end, are bounded to a part of them; the rest is for the store,
//! for name look-ups, for the pipes of commands, and for whatever a library opens.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More are not asked for: some programs look at every descriptor that they might have.
const MOST: u64 = 65_536;
/// Connections from clients at once, where there are descriptors enough. More wait to be taken.
const MOST_INCOMING: usize = 10_000;
/// Kept back: the store has six files, and may open as many again; the rest is for libraries and look-ups.
const KEPT: u64 = 64;
/// Each command has pipes to and from it, and its guard.
const KEPT_PER_COMMAND: u64 = 8;

/// How many connections there may be at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    /// From clients.
    pub incoming: usize,
    /// To the peers of replications.
    pub outgoing: usize,
}

/// Raises the limit of this process as far as the system allows, and divides what there is. `commands` run at once.
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
