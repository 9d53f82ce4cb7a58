//! Multiplexing: idle jobs park, and one feed per server reports when their sources change.
//!
//! *Model.* A continuous replication that is caught up has nothing to do until its source changes. It checks whether
//! its source's server reports changes of all its databases ([`Prospect`]). If so, its run ends as *parked*
//! ([`turnwise_queue::parking`]): the job consists of rows, without a task, slot or connection. Parked jobs form
//! *groups*: the databases of one server, for one user. One of the nodes on a store owns a group
//! ([`crate::ownership`]). It follows the server's `_db_updates` and wakes the jobs whose database has changed
//! ([`feed`]).
//!
//! *Forces.* An open `_changes` per database makes 10,000 idle replications expensive, here and at the source. With
//! CouchDB's replicator, 500 of them cost the servers a third of a core. The price of parking is latency: CouchDB
//! collects events for half a second, and a run begins with half a dozen requests. A job therefore parks only after it
//! has been quiet for a while.
//!
//! *No change is lost*, by one rule. A parked job counts as watched only if its database was watched first, and its
//! token was compared with the source *after* that. A job that has just parked is unwatched. All jobs of a group are
//! unwatched when its feed breaks, or begins on another node. The token is compared with the source's `update_seq`, for
//! a hundred databases in one request. Where they differ, the source is asked for its changes since the token, because
//! the shard copies of a cluster number their changes differently.
//!
//! *The target* is looked at as well ([`target`]): every 30 s if few jobs are parked, and at a bounded rate per server.
//!
//! If a server offers no `_db_updates` to this user, jobs keep their own feeds, and the check is repeated after some minutes.

mod feed;
mod group;
mod service;
mod target;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use turnwise_outbound::Client;
use turnwise_queue::Parked;
use turnwise_queue::parking::MAX_TOKEN_BYTES;
use turnwise_worker::Live;

use crate::seq::Seq;
use crate::{Remote, Replication};
pub use service::Service;

/// How long a server that offers `_db_updates` is not checked again.
const OPEN_FOR: Duration = Duration::from_secs(300);
/// How long a server that does not offer it, or not to this user, is not checked again.
const CLOSED_FOR: Duration = Duration::from_secs(600);
/// How long a server that did not respond is not checked again.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);
/// The most groups that are watched at the same time; each has a connection.
const MAX_GROUPS: usize = 256;
/// The most groups whose state is kept.
const MAX_KNOWN: usize = 4 * MAX_GROUPS;

/// A job may copy nothing and park immediately in this many consecutive runs. Its next runs stay for [`FIRST_QUIET`]
/// first, and then twice as long each time, up to [`LONGEST_QUIET`].
const FREE_IN_VAIN: u32 = 3;
/// See [`FREE_IN_VAIN`].
const FIRST_QUIET: Duration = Duration::from_secs(10);
/// See [`FREE_IN_VAIN`].
const LONGEST_QUIET: Duration = Duration::from_secs(600);
/// After this long without a needless wake-up, the count of a job is reset.
const IN_VAIN_FOR: Duration = Duration::from_secs(1_800);
/// The most jobs with such a count.
const MAX_IN_VAIN: usize = 4_096;

/// Whether idle jobs park: `[replicator] multiplex`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Where the source's server offers `_db_updates`.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Off => "off",
        })
    }
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Mode::Auto, Mode::Off].into_iter().find(|mode| mode.to_string() == text).ok_or(())
    }
}

/// The state that runs and the watching service share. Clones are cheap and share the same state.
#[derive(Clone)]
pub struct Multiplex(Arc<Inner>);

struct Inner {
    client: Client,
    mode: Live<Mode>,
    groups: Mutex<HashMap<String, Arc<Group>>>,
    /// Jobs that have parked without having copied anything, by id.
    in_vain: Mutex<HashMap<String, InVain>>,
    /// The servers of parked jobs' targets.
    targets: target::Servers,
}

/// A group, as runs use it.
#[derive(Default)]
struct Group {
    /// Whether its server offers `_db_updates`, and how long that is valid; `None` before the first check.
    last_check: Mutex<Option<(bool, Instant)>>,
    /// Held during a check of the server; concurrent runs wait for the same result.
    asking: tokio::sync::Mutex<()>,
}

/// Consecutive runs of a job that copied nothing.
#[derive(Debug, Clone, Copy)]
struct InVain {
    times: u32,
    last: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a check, if there was one and it is still valid.
fn valid(check: Option<(bool, Instant)>) -> Option<bool> {
    check.filter(|(_, until)| *until > Instant::now()).map(|(is_open, _)| is_open)
}

impl Group {
    fn answer(&self) -> Option<bool> {
        valid(*lock(&self.last_check))
    }
}

impl Multiplex {
    /// Starts without any check.
    pub fn new(client: Client, mode: Live<Mode>) -> Self {
        Multiplex(Arc::new(Inner {
            client,
            mode,
            groups: Mutex::default(),
            in_vain: Mutex::default(),
            targets: target::Servers::default(),
        }))
    }

    /// Where a run of the job `id` could park; `None` if it cannot.
    pub fn prospect(&self, id: &str, replication: &Replication) -> Option<Prospect> {
        // Without checkpoints, the next run would start from the beginning.
        if !replication.continuous || !replication.settings.use_checkpoints || self.mode() == Mode::Off {
            return None;
        }
        let at = Parked { group: group::of(replication)?, key: replication.source.database() };
        Some(Prospect { multiplex: self.clone(), id: id.to_owned(), replication: replication.clone(), at })
    }

    fn mode(&self) -> Mode {
        self.0.mode.get()
    }

    /// The state of a group; `None` if there are too many.
    fn group(&self, group: &str) -> Option<Arc<Group>> {
        let mut groups = lock(&self.0.groups);
        if !groups.contains_key(group) && groups.len() >= MAX_KNOWN {
            // Keeps groups whose check is in progress.
            groups.retain(|_, group| group.asking.try_lock().is_err() || group.answer().is_some());
            if groups.len() >= MAX_KNOWN {
                return None;
            }
        }
        Some(groups.entry(group.to_owned()).or_default().clone())
    }

    /// The number of groups that are considered open.
    fn open_groups(&self) -> usize {
        lock(&self.0.groups).values().filter(|group| group.answer() == Some(true)).count()
    }

    /// Records that a group's server does not offer `_db_updates`, or cannot be watched here.
    fn close(&self, group: &str) {
        if let Some(group) = self.group(group) {
            *lock(&group.last_check) = Some((false, Instant::now() + CLOSED_FOR));
        }
    }

    fn is_closed(&self, group: &str) -> bool {
        self.group(group).is_none_or(|group| group.answer() == Some(false))
    }
}

/// Where an idle run parks, if the server offers `_db_updates`.
#[derive(Clone)]
pub struct Prospect {
    multiplex: Multiplex,
    id: String,
    replication: Replication,
    at: Parked,
}

impl Prospect {
    /// The group and the database that wake the job.
    pub fn at(&self) -> &Parked {
        &self.at
    }

    /// The token for a source with the sequence `seq`; `None` if it is too long.
    pub(crate) fn token(seq: &Seq) -> Option<String> {
        let token = seq.to_string();
        (token.len() <= MAX_TOKEN_BYTES).then_some(token)
    }

    /// Whether jobs of this server can be watched. Asks the server, unless there is a recent result.
    pub(crate) async fn is_open(&self) -> bool {
        let Parked { group, .. } = &self.at;
        if self.multiplex.mode() == Mode::Off {
            return false;
        }
        let Some(group) = self.multiplex.group(group) else { return false };
        if let Some(answer) = group.answer() {
            return answer;
        }
        if self.multiplex.open_groups() >= MAX_GROUPS {
            return false;
        }
        let _asking = group.asking.lock().await;
        // Another run has completed the check meanwhile.
        if let Some(answer) = group.answer() {
            return answer;
        }
        let server = Remote(self.replication.source_server(&self.multiplex.0.client));
        let (answer, lasts) = match server.position().await {
            Ok(_) => (true, OPEN_FOR),
            Err(error) if error.is_refusal() => {
                tracing::info!(%error, "idle replications from this server keep their own feeds");
                (false, CLOSED_FOR)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot find out whether the server offers `_db_updates`");
                (false, UNKNOWN_FOR)
            }
        };
        let mut last_check = lock(&group.last_check);
        // The service has found meanwhile that the group cannot be watched.
        if valid(*last_check) == Some(false) {
            return false;
        }
        *last_check = Some((answer, Instant::now() + lasts));
        answer
    }

    /// How long a run that has copied nothing stays. Usually it parks immediately. A job that is woken needlessly
    /// several times keeps its own feed for a while: its group cannot be watched, or its filter passes nothing.
    pub(crate) fn quiet_in_vain(&self) -> Duration {
        let in_vain = lock(&self.multiplex.0.in_vain).get(&self.id).copied();
        match in_vain {
            Some(InVain { times, last }) if times >= FREE_IN_VAIN && last.elapsed() < IN_VAIN_FOR => {
                let doubled = 1 << (times - FREE_IN_VAIN).min(10);
                FIRST_QUIET.saturating_mul(doubled).min(LONGEST_QUIET)
            }
            _ => Duration::ZERO,
        }
    }

    /// Records that the run ends as parked, and whether it has copied anything.
    pub(crate) fn parks(&self, has_worked: bool) {
        let mut all = lock(&self.multiplex.0.in_vain);
        if has_worked {
            all.remove(&self.id);
            return;
        }
        if !all.contains_key(&self.id) && all.len() >= MAX_IN_VAIN {
            all.retain(|_, in_vain| in_vain.last.elapsed() < IN_VAIN_FOR);
            if all.len() >= MAX_IN_VAIN {
                return;
            }
        }
        let now = Instant::now();
        let in_vain = all.entry(self.id.clone()).or_insert(InVain { times: 0, last: now });
        if in_vain.last.elapsed() >= IN_VAIN_FOR {
            in_vain.times = 0;
        }
        *in_vain = InVain { times: in_vain.times.saturating_add(1), last: now };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::Defaults;

    #[tokio::test]
    async fn a_job_that_is_woken_in_vain_stays_longer_each_time() {
        let multiplex = Multiplex::new(Client::new().unwrap(), Mode::Auto.into());
        let body = json!({ "source": "http://s/x", "target": "http://t/x", "continuous": true });
        let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
        let one = multiplex.prospect("a", &replication).unwrap();
        let mut stays = Vec::new();
        for _ in 0..12 {
            stays.push(one.quiet_in_vain().as_secs());
            one.parks(false);
        }
        assert_eq!(stays, [0, 0, 0, 10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(multiplex.prospect("b", &replication).unwrap().quiet_in_vain(), Duration::ZERO);
        one.parks(true);
        assert_eq!(one.quiet_in_vain(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_verdict_is_known_while_the_server_is_being_asked() {
        let multiplex = Multiplex::new(Client::new().unwrap(), Mode::Auto.into());
        let group = multiplex.group("g").unwrap();
        let _asking = group.asking.lock().await;
        assert!(!multiplex.is_closed("g"));
        multiplex.close("g");
        assert!(multiplex.is_closed("g"));
    }
}
