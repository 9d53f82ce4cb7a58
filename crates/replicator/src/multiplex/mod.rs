//! Jobs that have nothing to do are parked, and one feed per server says when they have.
//!
//! *Model.* A continuous replication that is caught up has nothing to do until its source changes. It asks whether its source's server
//! tells about all of its databases ([`Prospect`]), and if so it ends its run as *parked* ([`turnwise_queue::parking`]): rows, and no task, slot or
//! connection. Parked jobs are in *groups*: the databases of one server, as one user sees them. One node of those that share the store owns a
//! group ([`crate::ownership`]); it follows the server's `_db_updates` and wakes the jobs whose database is named ([`feed`]).
//!
//! *Forces.* An open `_changes` per database is what makes 10,000 idle replications expensive, here and on the source: with CouchDB's own, 500 cost the
//! servers a third of a core. Against that stands latency: an event comes half a second late (CouchDB collects them), and a run begins with
//! half a dozen requests. So a job parks only after it has been quiet for a while.
//!
//! *Nothing is lost*, by one rule: a parked job is watched once its database is listened for and its token was compared with the
//! source *after* that. A job that has just parked is unwatched; all of a group are when its feed broke, or began on another node. What is
//! compared is the source's `update_seq`, for a hundred databases with one request; where it differs, the source is asked what has
//! changed since, because the copies of a cluster's shards number their changes differently.
//!
//! Where a server has no `_db_updates` for this user, jobs keep their own feeds, and the question is put again after some
//! minutes.

mod feed;
mod group;
mod server;
mod service;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use turnwise_queue::Parked;
use turnwise_queue::parking::MAX_TOKEN_BYTES;
use turnwise_worker::Live;

use crate::seq::Seq;
use crate::{Client, Replication};
pub use service::Service;

/// A server that tells about its databases is taken to do so for this long, before it is asked again.
const OPEN_FOR: Duration = Duration::from_secs(300);
/// One that does not, or may not, for this long.
const CLOSED_FOR: Duration = Duration::from_secs(600);
/// One that did not answer.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);
/// Groups that are watched at once, at most: each is a connection.
const MAX_GROUPS: usize = 256;
/// Groups whose state is remembered, at most.
const MAX_KNOWN: usize = 4 * MAX_GROUPS;

/// Runs in a row of a job that copy nothing and park at once; the next ones stay, for this long at first, and twice as long with each.
const FREE_IN_VAIN: u32 = 3;
/// See [`FREE_IN_VAIN`].
const FIRST_QUIET: Duration = Duration::from_secs(10);
/// See [`FREE_IN_VAIN`].
const LONGEST_QUIET: Duration = Duration::from_secs(600);
/// A job that was not woken in vain for this long begins anew.
const IN_VAIN_FOR: Duration = Duration::from_secs(1_800);
/// Jobs of which that is remembered, at most.
const MAX_IN_VAIN: usize = 4_096;

/// Whether idle jobs are parked: `[replicator] multiplex`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Where the source's server tells about its databases.
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

/// What runs and the service that watches for them know together. Cheap to clone; clones are the same one.
#[derive(Clone)]
pub struct Multiplex(Arc<Inner>);

struct Inner {
    client: Client,
    mode: Live<Mode>,
    groups: Mutex<HashMap<String, Arc<Group>>>,
    /// Jobs that have parked without having copied anything, by their ids.
    in_vain: Mutex<HashMap<String, InVain>>,
}

/// A group, as runs know it.
struct Group {
    known: Mutex<Known>,
    /// Held by who asks the server: whoever comes meanwhile waits for the same answer.
    asking: tokio::sync::Mutex<()>,
}

/// Runs of a job in a row that have copied nothing.
#[derive(Debug, Clone, Copy)]
struct InVain {
    times: u32,
    last: Instant,
}

/// What is known of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Open { until: Instant },
    Closed { until: Instant },
}

impl Known {
    /// Whether the server tells, if that is known and holds still.
    fn answer(self) -> Option<bool> {
        let now = Instant::now();
        match self {
            Known::Open { until } => (until > now).then_some(true),
            Known::Closed { until } => (until > now).then_some(false),
            Known::Nothing => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    fn answer(&self) -> Option<bool> {
        lock(&self.known).answer()
    }
}

impl Multiplex {
    /// With nothing known yet.
    pub fn new(client: Client, mode: Live<Mode>) -> Self {
        Multiplex(Arc::new(Inner { client, mode, groups: Mutex::default(), in_vain: Mutex::default() }))
    }

    /// Where a run of the job `id` could park; `None` if it is none that does.
    pub fn prospect(&self, id: &str, replication: &Replication) -> Option<Prospect> {
        // Without checkpoints the next run would begin at the beginning.
        if !replication.continuous || !replication.use_checkpoints || self.mode() == Mode::Off {
            return None;
        }
        let at = Parked { group: group::of(replication)?, key: replication.source.database() };
        Some(Prospect { multiplex: self.clone(), id: id.to_owned(), replication: replication.clone(), at })
    }

    fn mode(&self) -> Mode {
        self.0.mode.get()
    }

    /// What is known of a group; `None` if there are too many.
    fn group(&self, group: &str) -> Option<Arc<Group>> {
        let mut groups = lock(&self.0.groups);
        if !groups.contains_key(group) && groups.len() >= MAX_KNOWN {
            // Whoever is asking right now is left alone.
            groups.retain(|_, group| group.asking.try_lock().is_err() || group.answer().is_some());
            if groups.len() >= MAX_KNOWN {
                return None;
            }
        }
        let unknown = || Group { known: Mutex::new(Known::Nothing), asking: tokio::sync::Mutex::default() };
        Some(groups.entry(group.to_owned()).or_insert_with(|| Arc::new(unknown())).clone())
    }

    /// Groups that are taken to be open.
    fn open_groups(&self) -> usize {
        lock(&self.0.groups).values().filter(|group| group.answer() == Some(true)).count()
    }

    /// Remembers that a group's server does not tell, or cannot be watched here.
    fn close(&self, group: &str) {
        if let Some(group) = self.group(group) {
            *lock(&group.known) = Known::Closed { until: Instant::now() + CLOSED_FOR };
        }
    }

    fn is_closed(&self, group: &str) -> bool {
        self.group(group).is_none_or(|group| group.answer() == Some(false))
    }
}

/// Where a run parks when it has nothing to do, if the server tells about its databases.
#[derive(Clone)]
pub struct Prospect {
    multiplex: Multiplex,
    id: String,
    replication: Replication,
    at: Parked,
}

impl fmt::Debug for Prospect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prospect").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Prospect {
    /// What would wake the job.
    pub fn at(&self) -> &Parked {
        &self.at
    }

    /// What a source that says `seq` of itself is remembered as; `None` if that is too long.
    pub(crate) fn token(seq: &Seq) -> Option<String> {
        let token = seq.to_string();
        (token.len() <= MAX_TOKEN_BYTES).then_some(token)
    }

    /// Whether jobs of this server can be watched. Asks the server, unless somebody has, lately.
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
        // Somebody else has asked meanwhile.
        if let Some(answer) = group.answer() {
            return answer;
        }
        let server = server::Server::of(&self.replication, &self.multiplex.0.client);
        let (answer, lasts) = match server.now().await {
            Ok(_) => (true, OPEN_FOR),
            Err(error) if server::is_refusal(&error) => {
                tracing::info!(%error, "idle replications from this server keep their own feeds");
                (false, CLOSED_FOR)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot ask whether the server tells about its databases");
                (false, UNKNOWN_FOR)
            }
        };
        let until = Instant::now() + lasts;
        let mut known = lock(&group.known);
        // Whoever watches it has found out meanwhile that it cannot be.
        if known.answer() == Some(false) {
            return false;
        }
        *known = if answer { Known::Open { until } } else { Known::Closed { until } };
        answer
    }

    /// How long a run that has copied nothing stays. Not at all, as a rule; but one that is woken in vain again and again (whoever
    /// watches for it cannot, or its filter passes nothing of what is written) keeps its own feed meanwhile.
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

    /// The run ends as parked, having copied something or not.
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
    async fn who_is_woken_in_vain_again_and_again_stays_longer_each_time() {
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
