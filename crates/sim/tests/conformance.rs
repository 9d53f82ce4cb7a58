//! The simulated store, without faults, passes the conformance suite of all stores.

use std::sync::Arc;

use async_trait::async_trait;
use turnwise_sim::engine::{SimEngine, Writer};
use turnwise_sim::store::SimStore;
use turnwise_store::conformance::Subject;
use turnwise_store::runtime::Manual;
use turnwise_store::{Engine, Limits, Runtime};

struct InMemory {
    store: Arc<SimStore<Writer>>,
    clock: Arc<Manual>,
}

#[async_trait]
impl Subject for InMemory {
    async fn open(&self) -> Arc<dyn Engine> {
        SimEngine::new(self.store.clone(), None)
    }

    fn clock(&self) -> Option<Arc<Manual>> {
        Some(self.clock.clone())
    }
}

fn in_memory() -> Arc<dyn Subject> {
    let clock = Manual::new(0, 0);
    let told = clock.clone();
    let store = SimStore::new(Limits::DEFAULT, Box::new(move || told.now_us()), None);
    Arc::new(InMemory { store, clock })
}

turnwise_store::conformance_tests!(async || in_memory());
