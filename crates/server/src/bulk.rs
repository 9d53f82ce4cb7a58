//! The steps of bulk operations (`docs/design/lists-and-bulk.md`).
//!
//! Each node makes the steps of the operations that name it, one operation after the other, with a pause after each step. It
//! takes an operation over when its steps have stopped. The steps are fenced by the operation's row ([`bulk::step`]), so a
//! node that was believed dead does no harm.

use std::collections::HashMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use turnwise_api::CallerGate;
use turnwise_queue::bulk::{self, MAX_KEPT, Operation, Standing, Step, Stepped};
use turnwise_queue::selection::Selection;
use turnwise_queue::{Error, Keyspace, Result};
use turnwise_store::{Error as StoreError, Isolation, Store, Transaction};
use turnwise_web::access::{Caller, Identities, caller_now};

/// The most counts of jobs at the same time, and those of one identity.
pub(crate) const COUNTS: u32 = 2;
pub(crate) const COUNTS_OF_ONE: u32 = 1;

/// The time between two looks at the operations, while some run.
const LOOK: Duration = Duration::from_secs(2);
/// The same while none runs. A new one is noticed immediately.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// An operation without a step for this time, in µs, is taken over. Its node makes several steps a second.
const SILENCE_US: i64 = 6_000_000;
/// How long an ended operation is kept: a week.
const KEPT_US: i64 = 7 * 24 * 60 * 60 * 1_000_000;
/// The most jobs that one step looks at.
const MOST_LOOKS: usize = 1_000;
/// The same, per job that it may change. A step that changes few is short, so that it conflicts rarely.
const LOOKS_PER_CHANGE: usize = 4;
/// The most and the fewest jobs that one step changes. Fewer while steps conflict with other transactions, or are too large.
const MOST_CHANGES: usize = 250;
const FEWEST_CHANGES: usize = 1;
/// How long a step should take at most, in µs. After a longer one the next step looks at half as many jobs.
const LONGEST_STEP_US: i64 = 250_000;
/// The fewest jobs that a step may look at, unless patterns cost much or it conflicts. On a busy cluster a commit alone takes that long, and
/// fewer looks would not make the step shorter.
const FEWEST_LOOKS: usize = 64;
/// The most jobs per second that all operations of a node look at.
const LOOKS_PER_SECOND: usize = 20_000;
/// The pause after a step is as long as the step, within these bounds: at least half of the time belongs to other transactions. A step
/// that was longer than the longest pause is followed by shorter ones.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The pause after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(2);

/// Makes the steps of bulk operations.
#[derive(Clone)]
pub(crate) struct BulkOperations {
    pub store: Store,
    pub keys: Keyspace,
    pub identities: Identities,
    /// This node's name.
    pub node: String,
}

/// What a node knows about operations.
#[derive(Default)]
struct Known {
    /// The operations whose steps this node makes.
    own: Vec<Own>,
    /// The steps of other nodes' operations, and when they were first seen, in µs.
    foreign: HashMap<String, (u64, i64)>,
}

struct Own {
    id: String,
    selection: Selection,
    /// How many jobs the next step changes.
    changes: usize,
    /// How many jobs the next step looks at: fewer while looking takes long.
    looks: usize,
}

impl Own {
    /// The most jobs that the next step looks at.
    fn looks(&self) -> usize {
        (self.changes * LOOKS_PER_CHANGE).min(self.looks).min(self.selection.most_looks(MOST_LOOKS))
    }

    /// Adapts the number of looks to the time that a step took. Returns the pause after it.
    fn after(&mut self, took_us: i64) -> Duration {
        let looks = self.looks();
        self.looks = match took_us > LONGEST_STEP_US {
            true => (looks / 2).max(FEWEST_LOOKS),
            false => (self.looks * 2).min(MOST_LOOKS),
        };
        let took = Duration::from_micros(u64::try_from(took_us).unwrap_or(0));
        let paced = Duration::from_micros((looks * 1_000_000 / LOOKS_PER_SECOND) as u64);
        took.max(paced.saturating_sub(took)).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}

impl BulkOperations {
    /// Makes steps until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            let mut known = Known::default();
            loop {
                if let Err(error) = self.work(&mut known).await {
                    tracing::error!(%error, "cannot make bulk operations: tries again soon");
                    self.store.runtime().sleep(ERROR_PAUSE).await;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Looks at the operations, and makes steps until the next look.
    async fn work(&self, known: &mut Known) -> Result<()> {
        let wake = self.keys.bulk_wake();
        let seen = self.store.begin().await?.get_with(&wake, Isolation::Snapshot).await?;
        let is_idle = !self.look(known).await?;
        let watch = self.store.watch(wake, seen).await?;
        let pause = self.store.runtime().sleep(if is_idle { IDLE_LOOK } else { LOOK });
        let over = async {
            tokio::select! {
                () = watch => {}
                () = pause => {}
            }
        };
        tokio::pin!(over);
        // Steps are not cancelled by a look that is due.
        while !known.own.is_empty() {
            for own in std::mem::take(&mut known.own) {
                if let Some(own) = self.step(own).await? {
                    known.own.push(own);
                }
            }
            if futures::poll!(&mut over).is_ready() {
                return Ok(());
            }
        }
        over.await;
        Ok(())
    }

    /// Reads the operations, takes over those whose node is silent, and removes old ones. Returns whether any runs.
    async fn look(&self, known: &mut Known) -> Result<bool> {
        let (store, keys) = (&self.store, &self.keys);
        let now_us = store.runtime().now_us();
        let all = bulk::list(&store.begin().await?, keys, None, MAX_KEPT).await?;
        let before_us = now_us.saturating_sub(KEPT_US);
        if all.iter().any(|operation| operation.ended_us.is_some_and(|ended_us| ended_us < before_us)) {
            store.transact(|tx| async move { bulk::prune(&tx, keys, before_us).await }).await?;
        }
        let running: Vec<Operation> =
            all.into_iter().filter(|operation| operation.standing == Standing::Running).collect();
        let is_foreign = |id: &String| running.iter().any(|one| one.id == *id && one.node != self.node);
        known.foreign.retain(|id, _| is_foreign(id));
        let any = !running.is_empty();
        for operation in running {
            let is_own = operation.node == self.node || self.takes(&operation, known, now_us).await?;
            if !is_own || known.own.iter().any(|own| own.id == operation.id) {
                continue;
            }
            match Selection::parse(&operation.condition, operation.begun_us) {
                Ok(selection) => {
                    let tx = store.begin().await?;
                    // The first step finds out if its identity is gone.
                    let caller = self.caller(&tx, &operation).await?;
                    let sees = |tenant: &str| caller.as_ref().is_some_and(|caller| caller.reads(tenant));
                    let selection = selection.narrowed(&tx, keys, &sees).await?;
                    let Operation { id, .. } = operation;
                    known.own.push(Own { id, selection, changes: MOST_CHANGES, looks: MOST_LOOKS });
                }
                // Another release accepted it.
                Err(mistake) => self.fail(&operation.id, format!("where: {mistake}")).await?,
            }
        }
        Ok(any)
    }

    /// Whether this node takes the operation of another one over.
    async fn takes(&self, operation: &Operation, known: &mut Known, now_us: i64) -> Result<bool> {
        let seen = known.foreign.entry(operation.id.clone()).or_insert((operation.steps, now_us));
        if seen.0 != operation.steps {
            *seen = (operation.steps, now_us);
        }
        if now_us.saturating_sub(seen.1) < SILENCE_US {
            return Ok(false);
        }
        let (keys, id, steps, node) = (&self.keys, &operation.id, operation.steps, &self.node);
        let taken =
            self.store.transact(|tx| async move { bulk::take(&tx, keys, id, steps, node).await }).await?;
        if taken {
            tracing::info!(bulk = %id, from = %operation.node, "takes over a bulk operation without steps");
        }
        Ok(taken)
    }

    /// Makes one step and a pause. Returns the operation unless it is over.
    async fn step(&self, mut own: Own) -> Result<Option<Own>> {
        let runtime = self.store.runtime();
        let begun_us = runtime.elapsed_us();
        let pause = match self.try_step(&own).await {
            Ok(false) => return Ok(None),
            Ok(true) => {
                own.changes = (own.changes * 2).min(MOST_CHANGES);
                own.after(runtime.elapsed_us().saturating_sub(begun_us))
            }
            Err(Error::Store(StoreError::Conflict)) => {
                own.changes = (own.changes / 2).max(FEWEST_CHANGES);
                SHORTEST_PAUSE
            }
            Err(Error::Store(StoreError::TooLarge { .. } | StoreError::TooMany { .. }))
                if own.changes > FEWEST_CHANGES =>
            {
                own.changes = (own.changes / 4).max(FEWEST_CHANGES);
                SHORTEST_PAUSE
            }
            Err(error) => {
                let is_passing = matches!(&error, Error::Store(error) if error.is_retryable());
                if !is_passing {
                    tracing::error!(bulk = %own.id, %error, "a bulk operation cannot continue");
                    self.fail(&own.id, "a job cannot be changed: the server's log has the reason".to_owned())
                        .await?;
                    return Ok(None);
                }
                tracing::warn!(bulk = %own.id, %error, "a step of a bulk operation failed: tries again");
                ERROR_PAUSE
            }
        };
        runtime.sleep(pause).await;
        Ok(Some(own))
    }

    /// Makes one step. Returns whether another one follows.
    async fn try_step(&self, own: &Own) -> Result<bool> {
        let tx = self.store.begin().await?;
        let Some(operation) = bulk::get(&tx, &self.keys, &own.id).await? else { return Ok(false) };
        let Some(caller) = self.caller(&tx, &operation).await? else {
            self.fail(&own.id, "its identity is gone, or has expired".to_owned()).await?;
            return Ok(false);
        };
        let gate = CallerGate(caller);
        let step = Step {
            id: &own.id,
            node: &self.node,
            selection: &own.selection,
            gate: &gate,
            looks: own.looks(),
            changes: own.changes,
        };
        let stepped = bulk::step(&tx, &self.keys, &step, self.store.runtime().now_us()).await?;
        let Stepped::Made(operation) = stepped else { return Ok(false) };
        tx.commit().await?;
        if operation.standing == Standing::Running {
            return Ok(true);
        }
        let Operation { id, looked_at, matched, changed, .. } = *operation;
        tracing::info!(bulk = %id, looked_at, matched, changed, "a bulk operation is done");
        Ok(false)
    }

    /// The identity that asked for an operation, with what it may do now. `None` if it is gone.
    async fn caller(&self, tx: &Transaction, operation: &Operation) -> Result<Option<Caller>> {
        caller_now(&self.identities, tx, &self.keys, operation.by.as_deref(), &operation.scopes).await
    }

    async fn fail(&self, id: &str, reason: String) -> Result<()> {
        let (keys, now_us) = (&self.keys, self.store.runtime().now_us());
        let how = &Standing::Failed(reason);
        self.store
            .transact(|tx| async move { bulk::end(&tx, keys, id, how.clone(), now_us).await })
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_slow_search_makes_shorter_steps_and_leaves_half_of_the_time() {
        let selection = Selection::parse("options.to = x", 0).unwrap();
        let mut own = Own { id: "op".to_owned(), selection, changes: MOST_CHANGES, looks: MOST_LOOKS };
        let each_us = 3_000;
        for _ in 0..20 {
            let took_us = each_us * i64::try_from(own.looks()).unwrap();
            let pause = own.after(took_us);
            let took = Duration::from_micros(u64::try_from(took_us).unwrap());
            assert!(pause >= took.min(LONGEST_PAUSE), "{pause:?} after {took:?}");
        }
        let took_us = each_us * i64::try_from(own.looks()).unwrap();
        assert!(took_us <= 2 * LONGEST_STEP_US, "{} looks", own.looks());
        for _ in 0..20 {
            own.after(1);
        }
        assert_eq!(own.looks(), MOST_LOOKS, "a fast one makes long steps again");
        assert!(own.after(1) >= Duration::from_millis(49), "at most 20,000 looks a second");
        for _ in 0..20 {
            own.after(i64::MAX);
        }
        assert_eq!(own.looks(), FEWEST_LOOKS);
        assert!(own.looks() > 0 && own.after(i64::MAX) == LONGEST_PAUSE);
    }
}
