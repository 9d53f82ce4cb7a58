//! Adds the jobs of webhooks that want new events.
//!
//! The node that numbers events does this ([`turnwise_worker::Recorder`]): it has them first, and one node is enough. It remembers up
//! to which event it has looked. A node that begins does not know, and adds the job of every webhook that is behind; a run that
//! finds nothing costs little. If the node that numbered the latest events is gone, and no new ones come, all other nodes look.

use std::collections::HashSet;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use turnwise_api::sight::{caller_before, decoded};
use turnwise_queue::events::{self, Page};
use turnwise_queue::webhooks::{self, Progress, Webhook};
use turnwise_queue::{Result, nodes};
use turnwise_store::{Isolation, Transaction};
use turnwise_web::access::Caller;
use turnwise_worker::EventRules;

use super::Webhooks;

/// How long a node waits before it looks again whether it shall look at events.
const OTHERS: Duration = Duration::from_secs(2);
/// The time between two looks for webhooks that rest far behind, because they want little of what happens.
const REST: Duration = Duration::from_secs(10);
/// Rows of events per read.
const ROWS: usize = 20;

/// Webhooks whose jobs are added at the same time.
const AT_ONCE: usize = 32;

/// What a node remembers.
#[derive(Default)]
pub(super) struct Woken {
    /// The number of the last event that it has looked at; `None` before it has begun.
    through: Option<u64>,
    /// When it has looked for resting webhooks last, in µs of the elapsed time.
    rested_us: Option<i64>,
}

impl Webhooks {
    /// Adds the jobs of webhooks as events come. Returns after an error.
    pub(super) async fn wake(&self, enabled: &[Webhook], woken: &mut Woken) -> Result<()> {
        let (store, keys) = (&self.store, &self.keys);
        let wanting: Vec<(&Webhook, Caller)> =
            enabled.iter().map(|webhook| (webhook, caller_before(webhook))).collect();
        loop {
            let tx = store.begin().await?;
            let seen = tx.get_with(&keys.event_head(), Isolation::Snapshot).await?;
            let head = events::head(&tx, keys).await?;
            if !self.looks(&tx, &head).await? {
                woken.through = None;
                drop(tx);
                store.runtime().sleep(OTHERS).await;
                continue;
            }
            let last = head.next - 1;
            let Some(through) = woken.through else {
                drop(tx);
                self.wake_behind(head.next, |_| true).await?;
                woken.through = Some(last);
                continue;
            };
            if through < last {
                let page = events::page(&tx, keys, through, ROWS).await?;
                drop(tx);
                woken.through = self.wake_for(&wanting, page).await?;
                continue;
            }
            drop(tx);
            self.wake_resting(head.next, woken).await?;
            let changed = store.watch(keys.event_head(), seen).await?;
            tokio::select! {
                () = changed => {}
                () = store.runtime().sleep(REST) => {}
            }
        }
    }

    /// Whether this node looks at events.
    async fn looks(&self, tx: &Transaction, head: &events::Head) -> Result<bool> {
        Ok(head.node == self.node
            || !nodes::list(tx, &self.keys).await?.iter().any(|node| node.node == head.node))
    }

    /// Adds the jobs of the webhooks that want an event of a page. Returns the number of the last event, or `None` if some are
    /// missing.
    async fn wake_for(&self, wanting: &[(&Webhook, Caller)], page: Page) -> Result<Option<u64>> {
        let Page::Events(rows) = page else { return Ok(None) };
        let mut through = None;
        let mut found: HashSet<&str> = HashSet::new();
        for row in &rows {
            through = Some(row.first + row.events.len() as u64 - 1);
            for json in &row.events {
                if found.len() == wanting.len() {
                    break;
                }
                let event = decoded(json)?;
                let wants = wanting.iter().filter(|(webhook, before)| {
                    !found.contains(webhook.id.as_str())
                        && webhook.wants(&event)
                        && before.reads(&event.tenant)
                });
                let wants: Vec<&str> = wants.map(|(webhook, _)| webhook.id.as_str()).collect();
                found.extend(wants);
            }
        }
        self.wake_all(found.into_iter().map(str::to_owned).collect()).await?;
        Ok(through)
    }

    /// Adds the jobs of webhooks that have not moved for long, although events have come: before the events at their position are
    /// removed, which would look as if they had missed some. Also those of webhooks with a delivery that failed or has not begun: a client may
    /// have cancelled or removed the job.
    async fn wake_resting(&self, next: u64, woken: &mut Woken) -> Result<()> {
        let runtime = self.store.runtime();
        let (elapsed_us, now_us) = (runtime.elapsed_us(), runtime.now_us());
        if woken.rested_us.is_some_and(|at_us| elapsed_us < at_us.saturating_add(us(REST))) {
            return Ok(());
        }
        woken.rested_us = Some(elapsed_us);
        let EventRules { keep, most } = self.rules.get();
        let (old_us, far) = (now_us.saturating_sub(us(keep / 4)), most / 4);
        self.wake_behind(next, |progress| {
            progress.repeat_until.is_some()
                || progress.woken_us.is_some()
                || progress.moved_us < old_us
                || next.saturating_sub(progress.position) > far
        })
        .await
    }

    /// Adds the jobs of enabled webhooks that are behind, and whose progress meets a condition.
    async fn wake_behind(&self, next: u64, meets: impl Fn(&Progress) -> bool + Send) -> Result<()> {
        let all = webhooks::list(&self.store.begin().await?, &self.keys).await?;
        let is_behind = |(webhook, progress): &(Webhook, Progress)| {
            webhook.enabled && progress.position + 1 < next && meets(progress)
        };
        self.wake_all(all.into_iter().filter(is_behind).map(|(webhook, _)| webhook.id).collect()).await
    }

    /// Adds the jobs of webhooks, several at a time: on a cluster, each waits for several answers.
    async fn wake_all(&self, ids: Vec<String>) -> Result<()> {
        let wakes: Vec<_> = ids.into_iter().map(|id| self.wake_one(id)).collect();
        futures::stream::iter(wakes).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn wake_one(&self, id: String) -> Result<()> {
        let (keys, id, now_us) = (&self.keys, &id, self.store.runtime().now_us());
        self.store.transact(|tx| async move { webhooks::wake(&tx, keys, id, now_us).await }).await.map(drop)
    }
}

fn us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
