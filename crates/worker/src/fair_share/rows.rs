//! The rows of fair share: writes the charges of this charger, and reads those of others.
//!
//! *Model.* A row holds the total of its charger's charges to a tenant, so the difference between two reads is what is
//! new. Changed rows are written in batches, within a second, each time with all changes so far.
//!
//! *Forces.* The rows of other chargers are read at most once a second, and less often the more rows there are: each
//! costs some µs. The rows of a charger that is gone stay in the store. They count until they have decayed completely.
//! The next charger that reads them then clears them. Each charger also clears its own rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Once};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use tokio_util::task::AbortOnDropHandle;
use turnwise_policy::fair_share::rfc;
use turnwise_queue::usage::{self, Charged, RunTimes};
use turnwise_queue::{Error, Result, tenants};

use super::{FairShare, Inner, OwnCharges, State, TenantCharges};
use crate::fairness::usage_of;
use crate::sync::lock;

/// The time between a change and its write.
const WRITE_PAUSE: Duration = Duration::from_millis(900);
/// The maximum number of rows that one transaction writes; fewer if it has no more room.
const WRITE_BATCH: usize = 200;
/// The maximum number of tenants whose waiting rows one transaction clears.
const CLEAR_BATCH: usize = 20;
/// How long a queue must be empty before its tenant's waiting row is removed, in µs. A queue that often fills and
/// empties thus keeps its row.
const EMPTY_FOR_US: i64 = 5_000_000;
/// The maximum number of rows per read. All reads of a sync are in one snapshot.
const READ_BATCH: usize = 1_000;
/// The maximum number of rows that a sync reads.
const MAX_ROWS: usize = 200_000;
/// The minimum time between two reads of other chargers' rows, in µs.
const SHORTEST_PAUSE_US: i64 = 1_000_000;
/// The additional time for each of these rows, in µs: reading them then takes a hundredth of a worker's time.
const PAUSE_US_PER_ROW: i64 = 1_000;
/// Run times of a task that differ by no more than this part are the same.
const SAME: f64 = 0.1;
/// The time between two reads of a worker without contenders, in µs: it still clears the rows of dead chargers.
const ALONE_PAUSE_US: i64 = 60_000_000;

/// The state of reading and writing the rows.
#[derive(Debug, Default)]
pub(super) struct RowState {
    /// Whether a task writes. It continues until there is nothing to write.
    writing: bool,
    /// When the rows were last read, in µs.
    read_us: Option<i64>,
    /// The number of rows at the last read.
    count: usize,
    /// Whether to check which own rows have decayed.
    review: bool,
    /// How long the jobs of tasks run, as the type's row has it.
    run_times: RunTimes,
    /// Whether that row has to be written: an average differs by more than [`SAME`].
    run_times_differ: bool,
    /// Rows of other chargers that have decayed.
    pub decayed: BTreeSet<(String, String)>,
}

impl RowState {
    /// Whether the rows were ever read.
    fn is_read(&self) -> bool {
        self.read_us.is_some()
    }
}

/// A row to write.
pub(super) struct RowWrite {
    pub tenant: String,
    pub charger: String,
    version: u64,
    /// `None` removes the row.
    pub charged: Option<Charged>,
}

impl FairShare {
    /// Reads the charges of other chargers, if a read is due and no other task is reading.
    pub async fn sync_if_due(&self) -> Result<()> {
        if self.inner.sync_if_due().await? {
            self.write_soon();
        }
        Ok(())
    }

    /// Starts a task that writes the rows soon, if there is something to write.
    pub(super) fn write_soon(&self) {
        {
            let mut state = self.state();
            if state.rows.writing || !state.has_writes() {
                return;
            }
            state.rows.writing = true;
        }
        let inner = self.inner.clone();
        let writer = AbortOnDropHandle::new(tokio::spawn(async move { inner.write_until_done().await }));
        // The previous task has ended: it has reset `writing`.
        *lock(&self.writer) = Some(writer);
    }

    /// Writes everything now: for a charger that is about to leave.
    #[boxed]
    pub async fn close(&self) {
        // A task that is writing would overwrite newer rows with older ones.
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            writer.abort();
            let _ = writer.await;
        }
        if let Err(error) = self.inner.write_all().await {
            tracing::warn!(%error, "what was charged to tenants last could not be written");
        }
    }
}

impl Inner {
    async fn sync_if_due(&self) -> Result<bool> {
        // Of two concurrent reads, one could apply older rows after newer ones.
        let Ok(_reading) = self.reading.try_lock() else { return Ok(false) };
        let is_due = self.state().is_sync_due(self.store.runtime().now_us());
        if is_due {
            self.sync().await?;
        }
        Ok(is_due)
    }

    async fn sync(&self) -> Result<()> {
        let Inner { store, keys, job_type, .. } = self;
        let tx = store.begin().await?;
        let mut rows = Vec::new();
        let each = |tenant, charger, charged| rows.push((tenant, charger, charged));
        if usage::each_of_type(&tx, keys, job_type, None, (READ_BATCH, MAX_ROWS), each).await?.is_some() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(job_type, "there are more than {MAX_ROWS} charges: what other nodes have charged to the last tenants by name does not count");
            });
        }
        let run_times = usage::run_times(&tx, keys, job_type).await?;
        let now_us = store.runtime().now_us();
        let mut state = self.state();
        state.learn_rows(rows, &self.charger, now_us);
        state.learn_run_times(run_times);
        Ok(())
    }

    async fn write_until_done(&self) {
        loop {
            self.store.runtime().sleep(WRITE_PAUSE).await;
            if let Err(error) = self.write_all().await {
                tracing::debug!(%error, "what was charged to tenants could not be written: tried again");
            }
            let mut state = self.state();
            if !state.has_writes() {
                state.rows.writing = false;
                return;
            }
        }
    }

    async fn write_all(&self) -> Result<()> {
        if !self.state().rows.is_read() {
            self.sync_if_due().await?;
        }
        let now_us = self.store.runtime().now_us();
        let writes = self.state().rows_to_write(&self.charger, now_us);
        let mut rest = &writes[..];
        while !rest.is_empty() {
            let written = self.write(&rest[..rest.len().min(WRITE_BATCH)]).await?;
            self.state().written(&rest[..written], &self.charger);
            rest = &rest[written..];
        }
        self.write_run_times().await?;
        self.remove_keys().await?;
        let since_us = now_us.saturating_sub(EMPTY_FOR_US);
        let empty = self.state().waiting.empty_since(since_us, WRITE_BATCH);
        for tenants in empty.chunks(CLEAR_BATCH) {
            let are_empty = self.clear(tenants).await?;
            let mut state = self.state();
            for (tenant, is_empty) in tenants.iter().zip(are_empty) {
                match is_empty {
                    true => state.waiting.cleared(tenant),
                    // The next pass finds the job that has arrived: the row's stamp has changed.
                    false => state.waiting.filled(tenant, now_us),
                }
            }
        }
        Ok(())
    }

    async fn write_run_times(&self) -> Result<()> {
        let Some(learnt) = self.state().run_times_to_write() else { return Ok(()) };
        let (keys, job_type, learnt) = (&self.keys, &self.job_type, &learnt);
        let write = |tx| async move { usage::write_run_times(&tx, keys, job_type, learnt).await };
        let written = self.store.transact(write).await;
        if written.is_err() {
            self.state().rows.run_times_differ = true;
        }
        written
    }

    /// Clears the waiting rows of these tenants if their queues are still empty, as many rows as fit into one
    /// transaction. Returns, for each tenant that it has checked, whether its queue is empty.
    async fn clear(&self, empty: &[Arc<str>]) -> Result<Vec<bool>> {
        let (keys, job_type) = (&self.keys, &self.job_type);
        self.store
            .transact(|tx| async move {
                let mut cleared = Vec::with_capacity(empty.len());
                for tenant in empty {
                    if !cleared.is_empty() && !tx.has_room() {
                        break;
                    }
                    cleared.push(tenants::no_longer_waiting(&tx, keys, job_type, tenant).await?);
                }
                Ok::<_, Error>(cleared)
            })
            .await
    }

    /// Writes rows in one transaction: at least the first, and as many as fit. Returns how many.
    async fn write(&self, writes: &[RowWrite]) -> Result<usize> {
        let (keys, job_type) = (&self.keys, &self.job_type);
        self.store
            .transact(|tx| async move {
                let mut written = 0;
                for RowWrite { tenant, charger, charged, .. } in writes {
                    if written > 0 && !tx.has_room() {
                        break;
                    }
                    match charged {
                        Some(charged) => usage::write(&tx, keys, job_type, tenant, charger, charged).await?,
                        None if *charger == self.charger => {
                            usage::forget(&tx, keys, job_type, tenant, charger).await?;
                        }
                        None => drop(usage::forget_gone(&tx, keys, job_type, tenant, charger).await?),
                    }
                    written += 1;
                }
                Ok::<_, Error>(written)
            })
            .await
    }
}

impl State {
    fn is_sync_due(&self, now_us: i64) -> bool {
        let Some(read_us) = self.rows.read_us else { return true };
        let alone = self.members.as_ref().is_some_and(|members| members.len() <= 1);
        let rows = i64::try_from(self.rows.count).unwrap_or(i64::MAX);
        let pause_us = match alone {
            true => ALONE_PAUSE_US,
            false => SHORTEST_PAUSE_US.max(rows.saturating_mul(PAUSE_US_PER_ROW)),
        };
        now_us.saturating_sub(read_us) >= pause_us
    }

    /// Whether there is something to write, now or soon.
    fn has_writes(&self) -> bool {
        self.own.values().any(|own| own.written != own.version)
            || self.rows.review
            || self.rows.run_times_differ
            || !self.keys.to_search.is_empty()
            || !self.rows.decayed.is_empty()
            || self.waiting.has_empty()
    }

    /// The rows to write.
    pub(super) fn rows_to_write(&mut self, charger: &str, now_us: i64) -> Vec<RowWrite> {
        if !self.rows.is_read() {
            // A row that this charger wrote before a restart may exist: its total must be added first.
            return Vec::new();
        }
        self.rows.review = false;
        let mut writes = Vec::new();
        let mut forgotten = Vec::new();
        let certain_now = self.ledger.certain_now();
        for (tenant, own) in &self.own {
            let version = own.version;
            let write =
                |charged| RowWrite { tenant: tenant.clone(), charger: charger.to_owned(), version, charged };
            if self.is_over(tenant, own, now_us) {
                match own.has_row {
                    true => writes.push(write(None)),
                    false => forgotten.push(tenant.clone()),
                }
            } else if own.written != own.version {
                writes.push(write(Some(self.charged(tenant, own, certain_now, now_us))));
            }
        }
        for tenant in forgotten {
            self.forget(&tenant);
        }
        for (tenant, charger) in &self.rows.decayed {
            writes.push(RowWrite {
                tenant: tenant.clone(),
                charger: charger.clone(),
                version: 0,
                charged: None,
            });
        }
        writes
    }

    /// Whether this charger's state of a tenant has no effect any more.
    fn is_over(&self, tenant: &str, own: &OwnCharges, now_us: i64) -> bool {
        own.running == 0
            && !self.waiting.has(tenant)
            && own.usage.is_forgotten(now_us, &self.rules.rfc)
            && self.ledger.is_forgettable(tenant)
    }

    fn charged(&self, tenant: &str, own: &OwnCharges, certain_now: f64, now_us: i64) -> Charged {
        let rfc::Usage { usage_us, accumulated_us, period } = own.usage;
        let (shares, now) = (self.shares(tenant), self.ledger.now());
        let tag = self.ledger.tag(tenant, shares);
        let certain_tag = self.ledger.certain_tag(tenant, shares, certain_now).max(0.0);
        Charged {
            service_us: own.service_us as u64,
            virtual_us: own.virtual_us,
            tag,
            now,
            certain_tag: (certain_tag < tag).then_some(certain_tag),
            certain_now: (certain_now < now).then_some(certain_now),
            in_flight_us: self.ledger.in_flight_here_us(tenant),
            running: own.running,
            expected_us: self.expectation.known_us(tenant),
            usage_us,
            accumulated_us,
            period,
            at_us: now_us,
        }
    }

    pub(super) fn written(&mut self, writes: &[RowWrite], charger: &str) {
        for write in writes {
            if write.charger != charger {
                self.rows.decayed.remove(&(write.tenant.clone(), write.charger.clone()));
                continue;
            }
            let Some(own) = self.own.get_mut(&write.tenant) else { continue };
            own.has_row = write.charged.is_some();
            own.written = write.version;
            if write.charged.is_none() {
                match own.version == write.version {
                    true => self.forget(&write.tenant),
                    // The tenant was charged again meanwhile: its row is written again.
                    false => own.changed(),
                }
            }
        }
    }

    fn forget(&mut self, tenant: &str) {
        self.own.remove(tenant);
        if !self.others.contains_key(tenant) {
            self.ledger.forget(tenant);
            self.expectation.forget(tenant);
            self.keys.pending.remove(tenant);
        }
    }

    /// Applies all rows of the type, read at `now_us`.
    pub(super) fn learn_rows(&mut self, rows: Vec<(String, String, Charged)>, me: &str, now_us: i64) {
        let first = self.rows.read_us.is_none();
        (self.rows.read_us, self.rows.count) = (Some(now_us), rows.len());
        self.rows.decayed.clear();
        self.rows.review = true;
        let mut before = std::mem::take(&mut self.others);
        let mut others: BTreeMap<String, BTreeMap<String, Charged>> = BTreeMap::new();
        for (tenant, charger, charged) in rows {
            if charger == me {
                if first {
                    self.ledger.advance_to(charged.certain_now());
                    self.take_over(&tenant, &charged);
                }
                // Later, its own row has nothing new, but may state a virtual time that has fallen since.
                continue;
            }
            self.ledger.advance_to(charged.certain_now());
            let known = before.get_mut(&tenant).and_then(|chargers| chargers.remove(&charger));
            let known_us = known.map_or(0.0, |known| known.virtual_us);
            // A row that was cleared and written again has begun at zero.
            let since = if charged.virtual_us < known_us { 0.0 } else { known_us };
            if !first {
                self.ledger.charge_elsewhere(&tenant, charged.virtual_us - since);
            }
            if let (None, Some(expected_us)) = (self.expectation.known_us(&tenant), charged.expected_us) {
                self.expectation.load(&tenant, expected_us);
            }
            others.entry(tenant).or_default().insert(charger, charged);
        }
        // The tenants of which less runs elsewhere now.
        let mut ended = Vec::new();
        for (tenant, chargers) in &others {
            let mut charges = TenantCharges::default();
            for (charger, charged) in chargers {
                charges.add(charged, charged.certain_tag(), self.is_member(charger));
            }
            // Only after all new charges were added: a tag may already include what another charger's row reports.
            if charges.load(&mut self.ledger, tenant) {
                ended.push(tenant.as_str());
            }
        }
        let gone: Vec<String> = before.into_keys().filter(|tenant| !others.contains_key(tenant)).collect();
        for tenant in &gone {
            if self.ledger.in_flight_elsewhere(tenant, 0.0) {
                ended.push(tenant);
            }
        }
        self.ledger.settle(ended);
        for (tenant, chargers) in &others {
            for (charger, charged) in chargers {
                // Also for a tenant that always has jobs: otherwise the row of each dead worker would stay for ever.
                let is_obsolete = charged.tag <= self.ledger.now() && self.is_decayed(charged, now_us);
                if is_obsolete && !self.is_member(charger) {
                    self.rows.decayed.insert((tenant.clone(), charger.clone()));
                }
            }
        }
        self.others = others;
        self.forget_unused_tenants();
        self.reorder();
    }

    /// A job of a task has run to its end.
    pub(super) fn learn_task(&mut self, task: &str, ran_us: f64) {
        self.expectation.learn_task(task, ran_us);
        let Some(us) = self.expectation.of_task(task) else { return };
        let told = self.rows.run_times.get(task);
        self.rows.run_times_differ |= told.is_none_or(|told| (us - told).abs() > told * SAME);
    }

    /// Learns what others have written about tasks that this charger does not know.
    pub(super) fn learn_run_times(&mut self, row: RunTimes) {
        for (task, us) in &row {
            if self.expectation.of_task(task).is_none() {
                self.expectation.load_task(task, *us);
            }
        }
        self.rows.run_times = row;
    }

    /// What the row about tasks shall have, if it has to be written.
    pub(super) fn run_times_to_write(&mut self) -> Option<RunTimes> {
        if !std::mem::take(&mut self.rows.run_times_differ) {
            return None;
        }
        let learnt: RunTimes = self.expectation.tasks().map(|(task, us)| (task.to_owned(), us)).collect();
        self.rows.run_times.extend(learnt.clone());
        Some(learnt)
    }

    /// Forgets tenants without rows, running jobs and waiting jobs: they had jobs, but no run here.
    fn forget_unused_tenants(&mut self) {
        let is_unused = |tenant: &str| {
            !self.own.contains_key(tenant)
                && !self.others.contains_key(tenant)
                && !self.waiting.has(tenant)
                && self.ledger.is_forgettable(tenant)
        };
        let unused = self.ledger.tenants().filter(|tenant| is_unused(tenant));
        let unused: Vec<String> = unused.map(str::to_owned).collect();
        for tenant in unused {
            self.forget(&tenant);
        }
    }

    /// Takes over a row that this charger wrote before a restart. The jobs that ran then no longer run here.
    fn take_over(&mut self, tenant: &str, charged: &Charged) {
        let Charged { usage_us, accumulated_us, period, .. } = *charged;
        self.ledger.load(tenant, charged.certain_tag());
        if let Some(expected_us) = charged.expected_us {
            self.expectation.load(tenant, expected_us);
        }
        let own = self.own.entry(tenant.to_owned()).or_default();
        own.service_us += charged.service_us as f64;
        own.virtual_us += charged.virtual_us;
        own.usage =
            rfc::Usage { usage_us, accumulated_us: accumulated_us + own.usage.accumulated_us, period };
        own.has_row = true;
        own.changed();
    }

    fn is_decayed(&self, charged: &Charged, now_us: i64) -> bool {
        usage_of(charged).is_forgotten(now_us, &self.rules.rfc)
    }

    /// Whether a charger is a member, as far as is known.
    pub(super) fn is_member(&self, charger: &str) -> bool {
        self.members.as_ref().is_none_or(|members| members.contains(charger))
    }
}
