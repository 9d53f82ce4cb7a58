//! An operator who quiets, drains and resumes workers during chaos.

use std::sync::Arc;

use turnwise_queue::{Keyspace, Mode, modes};
use turnwise_store::Store;

use crate::check::CheckerState;
use crate::core::lock;
use crate::engine::SimEngine;
use crate::ledger::JobKey;
use crate::link::{Link, Rates, SimRuntime};
use crate::model::{self, WorkerRow};
use crate::node::Setting;
use crate::rng::SeededRng;
use crate::trace::Site;

impl CheckerState {
    /// The mode of a worker, as its row has it.
    pub fn mode(&self, worker: &JobKey) -> Mode {
        let row = self.workers.get(worker).and_then(|rows| rows.get(&WorkerRow::Member));
        row.and_then(|row| model::worker(worker, row).ok()).map_or(Mode::Active, |row| row.mode)
    }

    /// All members, each with its mode.
    fn modes(&self) -> Vec<(JobKey, Mode)> {
        let members = self.workers.iter().filter(|(_, rows)| rows.contains_key(&WorkerRow::Member));
        members.map(|(worker, _)| (worker.clone(), self.mode(worker))).collect()
    }
}

/// The operator's number among the clients.
const NUMBER: u32 = 1_000;

/// The operator. Its connection has no faults: a commit of unknown outcome could quiet a worker in the calm.
pub struct Operator {
    setting: Arc<Setting>,
    store: Store,
    keys: Keyspace,
    rng: SeededRng,
}

impl Operator {
    /// An operator.
    pub fn new(setting: &Arc<Setting>) -> Self {
        let rates = Rates { slow: 0, conflict: 0, unknown: 0, late: 0, early_watch: 0, ..setting.plan.rates };
        let link = Link::new(&setting.core, Site::Client(NUMBER), rates, 0, 0);
        let engine = SimEngine::new(setting.store.clone(), Some(link.clone()));
        let store = Store::new(engine, Arc::new(SimRuntime(link.clone())));
        link.set_clock(store.clock());
        lock(&setting.meters).push(store.meter().clone());
        let rng = setting.core.rng.fork(4);
        Operator { setting: setting.clone(), store, keys: Keyspace::default(), rng }
    }

    /// The members, each with its mode.
    fn members(&self) -> Vec<(JobKey, Mode)> {
        let members = self.setting.checker.known(|known| known.modes());
        members.into_iter().filter(|((job_type, _), _)| !job_type.starts_with('@')).collect()
    }

    /// Changes the mode of some worker.
    pub async fn change(&self) {
        let members = self.members();
        if members.is_empty() {
            return;
        }
        let (worker, _) = self.rng.choose(&members).clone();
        let mode = *self.rng.choose(&[Mode::Quiet, Mode::Drain, Mode::Active]);
        self.set(&worker, mode).await;
    }

    /// Resumes all workers.
    pub async fn resume_all(&self) {
        for (worker, mode) in self.members() {
            if mode.is_quiet() {
                self.set(&worker, Mode::Active).await;
            }
        }
    }

    async fn set(&self, (job_type, worker): &JobKey, mode: Mode) {
        self.setting.core.note(Site::Client(NUMBER), "sets a mode", format!("{worker} {mode:?}"));
        let keys = &self.keys;
        let set = self
            .store
            .transact(|tx| async move { modes::set(&tx, keys, job_type, worker, mode).await })
            .await;
        if let Err(error) = set {
            self.setting.core.violated("the simulation itself works", format!("a mode is not set: {error}"));
        }
    }
}
