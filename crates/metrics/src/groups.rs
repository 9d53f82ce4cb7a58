//! How many groups have not ended, and how long the oldest one waits for its end.
//!
//! A group is due when it is closed and none of its jobs is left: the server that sees this ends it. No row says since when, so this remembers from one look to the
//! next which groups were due. As for the servers that end groups, only one whose mark has changed is read.

use std::collections::HashMap;

use turnwise_queue::groups::{self, Marked};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Store;

/// Number of marks that one read returns.
const PAGE: usize = 1_000;
/// The most groups that are counted.
const MAX_GROUPS: usize = 100_000;
/// The most groups that are read in a look. The rest follows in the next ones.
const MAX_LOOKS: usize = 2_000;

/// The groups of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupTally {
    /// Those that have not ended.
    pub open: usize,
    /// Since when the oldest one is due, in µs.
    pub due_us: Option<i64>,
}

/// What was seen of groups that have not ended.
#[derive(Default)]
pub struct Groups(HashMap<(String, String), Seen>);

struct Seen {
    mark: Marked,
    /// Since when it is due, in µs.
    due_us: Option<i64>,
}

impl Groups {
    /// Looks at the groups.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn look(&mut self, store: &Store, keys: &Keyspace, now_us: i64) -> Result<GroupTally> {
        let (mut now, mut tally, mut looks) = (HashMap::new(), GroupTally::default(), 0);
        let mut last: Option<Marked> = None;
        while tally.open < MAX_GROUPS {
            let tx = store.begin().await?;
            let marked = groups::marked(&tx, keys, last.as_ref(), PAGE).await?;
            let is_last = marked.len() < PAGE;
            last = marked.last().cloned();
            tally.open += marked.len();
            for mark in marked {
                let of = (mark.tenant.clone(), mark.name.clone());
                let before = self.0.remove(&of);
                let seen = match before {
                    Some(seen) if seen.mark == mark => seen,
                    _ if looks == MAX_LOOKS => continue,
                    before => {
                        looks += 1;
                        let since_us = before.and_then(|seen| seen.due_us).unwrap_or(now_us);
                        let is_due = match groups::get(&tx, keys, &mark.tenant, &mark.name).await? {
                            Some(group) if !group.open && group.ended.is_none() => {
                                groups::counts(&tx, keys, &group).await?.open == 0
                            }
                            _ => false,
                        };
                        Seen { mark, due_us: is_due.then_some(since_us) }
                    }
                };
                tally.due_us = [tally.due_us, seen.due_us].into_iter().flatten().min();
                now.insert(of, seen);
            }
            if is_last {
                break;
            }
        }
        self.0 = now;
        Ok(tally)
    }
}
