//! Charges: the run time of this worker's jobs is charged to their tenants while they run.

use std::collections::BTreeSet;
use std::sync::Arc;

use turnwise_queue::Result;

use super::{Incarnation, Running};
use crate::fair_share::CHARGE_INTERVAL;
use crate::times::duration_us;

impl Incarnation {
    /// Reads the charges of other workers, if a read is due. A failed read only makes the shares less exact.
    pub(super) async fn sync(&self) {
        if let Err(error) = self.fair.sync_if_due().await {
            tracing::debug!(%error, "cannot read what other workers have charged to tenants");
        }
    }

    /// Charges running jobs between cycles. If other workers' cycles depend on the charges, this happens with each
    /// ping; if there are no cycles, at intervals.
    pub(super) fn charge_between_cycles(&mut self) {
        if self.rotation_rules().is_some() {
            if self.contenders.names.len() > 1 {
                self.charge_all();
            }
        } else if self.since_cycle_us() >= duration_us(CHARGE_INTERVAL) {
            self.cycle_begins();
            self.charge_all();
        }
    }

    pub(super) fn charge_all(&mut self) {
        for running in self.running.values_mut() {
            self.fair.charge(&mut running.charges);
        }
        self.fair.charged();
    }

    /// Increases the keys of running jobs, if keys decide the order.
    pub(super) async fn grow_keys(&mut self) -> Result<()> {
        self.fair.agree().await?;
        if self.fair.by_keys() {
            let running: BTreeSet<Arc<str>> =
                self.running.values().map(|running| running.charges.tenant.clone()).collect();
            let tx = self.shared.store.begin().await?;
            self.fair.count(&tx, running).await?;
        }
        for Running { controls, charges, grown_us, .. } in self.running.values_mut() {
            let mut key = controls.key();
            self.fair.grow_key(charges, &mut key, grown_us);
            controls.set_key(key);
        }
        Ok(())
    }
}
