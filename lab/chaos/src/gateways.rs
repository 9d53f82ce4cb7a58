//! The gateways between clients or workers and the nodes: they cut, lose, refuse and compress answers, and lose their patience.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use super::World;
use turnwise_testkit::{Fault, FaultProxy, Random, Rule};

/// The shortest and the longest time of a fault, and of the time between two, in ms.
const FAULT_MS: (u64, u64) = (300, 3_000);
const FAIR_MS: (u64, u64) = (500, 3_000);
/// The largest number of bytes before an answer breaks off.
const CUT_MAX_BYTES: u64 = 2_000;
/// How long a gateway waits for an answer. It is shorter than workers wait for jobs.
const PATIENCE_MS: u64 = 1_000;
/// One in 2 to this many requests meets the fault.
const RAREST: u64 = 5;
const SLOW_BYTES_PER_SECOND: u64 = 20_000;

/// One gateway in front of each node.
pub(super) struct Gateways(Vec<FaultProxy>);

impl Gateways {
    pub async fn before(urls: &[String]) -> Self {
        let mut proxies = Vec::new();
        for url in urls {
            proxies.push(FaultProxy::before(url).await);
        }
        Gateways(proxies)
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(|proxy| proxy.url().to_owned()).collect()
    }

    /// Forgets the requests so far, which the gateways keep.
    pub fn forget(&self) {
        self.0.iter().for_each(FaultProxy::clear);
    }
}

/// The next fault, and its name.
fn fault(random: &mut Random) -> (&'static str, Fault) {
    let after = random.below(CUT_MAX_BYTES);
    match random.below(12) {
        0 => ("truncated", Fault::Truncated { after }),
        1 => ("reset", Fault::Reset { after: 0 }),
        2 => ("reset within", Fault::Reset { after: 1 + after }),
        3 => ("hangs within", Fault::HangMidBody { after }),
        4 => ("408", Fault::Page(408)),
        5 => ("502", Fault::Page(502)),
        6 => ("503", Fault::Page(503)),
        7 => ("502 for a lost answer", Fault::Lost { status: 502 }),
        8 => ("504 for a lost answer", Fault::Lost { status: 504 }),
        9 => ("408 for a lost answer", Fault::Lost { status: 408 }),
        10 => ("slow", Fault::Slow { bytes_per_second: SLOW_BYTES_PER_SECOND }),
        _ => ("impatient", Fault::Impatient { after_ms: PATIENCE_MS }),
    }
}

/// Causes faults in one gateway until the end.
async fn faults(world: Arc<World>, number: usize, mut random: Random) {
    let Some(gateways) = &world.gateways else { return };
    let proxy = &gateways.0[number];
    let pause = |random: &mut Random, (least, most): (u64, u64)| {
        tokio::time::sleep(Duration::from_millis(least + random.below(most - least)))
    };
    while !world.stop.is_cancelled() {
        // Between two faults, a gateway compresses.
        proxy.set(Fault::Gzip).await;
        pause(&mut random, FAIR_MS).await;
        let (name, fault) = fault(&mut random);
        let one_in = 2 + random.below(RAREST - 1);
        let own = Mutex::new(Random::new(random.bits()));
        let rule: Rule = fault.when(move |_| own.lock().is_ok_and(|mut random| random.below(one_in) == 0));
        world.counts.add(&format!("gateways: {name}"), 1);
        proxy.set(rule).await;
        pause(&mut random, FAULT_MS).await;
    }
    proxy.set(Fault::Gzip).await;
}

/// Causes faults in all gateways until the end.
pub(super) async fn run(world: Arc<World>) {
    let mut seeds = Random::new(world.options.seed ^ 0x6a7e);
    let each =
        (0..world.nodes.len()).map(|number| faults(Arc::clone(&world), number, Random::new(seeds.bits())));
    futures::future::join_all(each).await;
}
