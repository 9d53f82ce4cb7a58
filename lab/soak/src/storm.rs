//! The faults of a soak test, and their times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::World;
use turnwise_testkit::{Fault, Random, Rule};

/// The faults that a proxy can cause. Each one occurs once before any occurs again.
const KINDS: [Kind; 11] = [
    Kind::ResetAtOnce,
    Kind::ResetWithin,
    Kind::Truncated,
    Kind::Nonsense,
    Kind::Status(429),
    Kind::Status(500),
    Kind::Status(503),
    Kind::TooLarge,
    Kind::Slow,
    Kind::Hang,
    Kind::Down,
];

/// A larger `_bulk_docs` gets the status 413. The limit exceeds any single document of the workload, including its inline
/// attachments in base64. turnwise skips a document that the target considers too large, as CouchDB does, and the two sides
/// would then rightly differ.
const TOO_LARGE_BYTES: u64 = 64 << 10;

/// The largest number of bytes before a response breaks off.
const CUT_MAX_BYTES: u64 = 64 << 10;

/// The pace of slow responses.
const SLOW_BYTES_PER_SECOND: u64 = 30_000;

/// The shortest and the longest time of a fault, in a test of `SCALE` or more.
const FAULT_MS: (u64, u64) = (500, 6_000);
/// The shortest and the longest time between two faults.
const FAIR_MS: (u64, u64) = (500, 8_000);
/// The shortest and the longest time until a killed process is restarted.
const AWAY_MS: (u64, u64) = (100, 4_000);
/// The shortest and the longest time between two kills.
const LIFE_MS: (u64, u64) = (10_000, 40_000);
/// The shortest and the longest time in which a disk is full, and in which it has room.
const FULL_MS: (u64, u64) = (2_000, 12_000);
const ROOM_MS: (u64, u64) = (15_000, 60_000);
/// A shorter test has proportionally shorter faults.
const SCALE: Duration = Duration::from_secs(200);

/// turnwise is killed only in this part of the time. In the rest, its memory is measured.
const KILL_PART: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ResetAtOnce,
    ResetWithin,
    Truncated,
    Nonsense,
    Status(u16),
    TooLarge,
    Slow,
    Hang,
    Down,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::ResetAtOnce => "reset".to_owned(),
            Kind::ResetWithin => "reset within".to_owned(),
            Kind::Truncated => "truncated".to_owned(),
            Kind::Nonsense => "nonsense".to_owned(),
            Kind::Status(status) => status.to_string(),
            Kind::TooLarge => "413".to_owned(),
            Kind::Slow => "slow".to_owned(),
            Kind::Hang => "hang".to_owned(),
            Kind::Down => "port closed".to_owned(),
        }
    }

    fn fault(self, random: &mut Random) -> Fault {
        let after = 1 + random.below(CUT_MAX_BYTES);
        match self {
            Kind::ResetAtOnce => Fault::Reset { after: 0 },
            Kind::ResetWithin => Fault::Reset { after },
            Kind::Truncated => Fault::Truncated { after },
            Kind::Nonsense => Fault::InvalidJson,
            Kind::Status(status) => Fault::Status(status),
            Kind::TooLarge => Fault::Status(413),
            Kind::Slow => Fault::Slow { bytes_per_second: SLOW_BYTES_PER_SECOND },
            Kind::Hang => Fault::HangMidBody { after },
            Kind::Down => Fault::Down,
        }
    }
}

/// Starts the faults in requests on both sides, and in processes.
pub(super) fn start(world: &Arc<World>) -> Vec<JoinHandle<()>> {
    let mut seeds = Random::new(world.options.seed ^ 0x5708);
    let mut tasks: Vec<JoinHandle<()>> = (0..2)
        .map(|side| tokio::spawn(requests(Arc::clone(world), side, Random::new(seeds.bits()))))
        .collect();
    tasks.push(tokio::spawn(processes(Arc::clone(world), Random::new(seeds.bits()))));
    tasks.extend((0..2).map(|side| tokio::spawn(disks(Arc::clone(world), side, Random::new(seeds.bits())))));
    tasks
}

/// Returns each of `all` once in random order, repeatedly.
struct Turns<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Turns<T> {
    fn new(all: &[T]) -> Self {
        Self { all: all.to_vec(), left: Vec::new() }
    }

    fn next(&mut self, random: &mut Random) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        let index = usize::try_from(random.below(self.left.len() as u64)).expect("an index");
        self.left.swap_remove(index)
    }
}

impl World {
    /// A random time between two numbers of milliseconds, shorter in a short test.
    fn time(&self, random: &mut Random, (least, most): (u64, u64)) -> Duration {
        let scale = (self.options.seconds as f64 / SCALE.as_secs_f64()).min(1.0);
        Duration::from_millis(least + random.below(most - least)).mul_f64(scale)
    }

    /// Waits for `time`, or until the test ends. Returns whether the test continues.
    async fn goes_on(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = sleep_until(Instant::now() + time) => true,
        }
    }
}

async fn requests(world: Arc<World>, side: usize, mut random: Random) {
    let mut kinds = Turns::new(&KINDS);
    let proxy = &world.sides[side].proxy;
    while world.goes_on(world.time(&mut random, FAIR_MS)).await {
        let kind = kinds.next(&mut random);
        let hits = Arc::new(AtomicU64::new(0));
        proxy.set(rule(kind, &mut random, &hits)).await;
        let _ = world.goes_on(world.time(&mut random, FAULT_MS)).await;
        proxy.set(Fault::None).await;
        let hits = if kind == Kind::Down { 1 } else { hits.load(Ordering::Relaxed) };
        for _ in 0..hits {
            world.counts.fault(kind.name());
        }
    }
}

/// A rule that applies the fault to some of the requests that it fits. `hits` counts these.
fn rule(kind: Kind, random: &mut Random, hits: &Arc<AtomicU64>) -> Rule {
    let fault = kind.fault(random);
    if kind == Kind::Down {
        return fault.into();
    }
    // One of every one, two, three or four requests.
    let one_in = 1 + random.below(4);
    let (rng, hits) = (Mutex::new(Random::new(random.bits())), Arc::clone(hits));
    fault.when(move |request| {
        let length = request.header("content-length").and_then(|length| length.parse::<u64>().ok());
        let fits = match kind {
            Kind::TooLarge => {
                request.path.contains("/_bulk_docs") && length.is_some_and(|length| length > TOO_LARGE_BYTES)
            }
            // No server reports that it has written something when it has not. So only reads get invalid JSON.
            Kind::Nonsense => {
                request.method == "GET"
                    || ["/_revs_diff", "/_bulk_get", "/_changes"]
                        .iter()
                        .any(|path| request.path.contains(path))
            }
            _ => true,
        };
        let hit = fits && (kind == Kind::TooLarge || rng.lock().is_ok_and(|mut rng| rng.below(one_in) == 0));
        hits.fetch_add(u64::from(hit), Ordering::Relaxed);
        hit
    })
}

/// Kills turnwise and the servers, one after the other, and restarts them.
async fn processes(world: Arc<World>, mut random: Random) {
    #[derive(Clone, Copy, PartialEq)]
    enum Victim {
        Turnwise,
        Server(usize),
    }
    let mut victims = vec![Victim::Turnwise];
    victims.extend((0..2).filter(|side| world.sides[*side].server.can_be_killed()).map(Victim::Server));
    let mut victims = Turns::new(&victims);
    let end_of_kills = world.begun + Duration::from_secs(world.options.seconds).mul_f64(KILL_PART);
    while world.goes_on(world.time(&mut random, LIFE_MS)).await {
        let victim = victims.next(&mut random);
        let away = world.time(&mut random, AWAY_MS);
        match victim {
            Victim::Turnwise if Instant::now() < end_of_kills => {
                world.turnwise.kill().await;
                let _ = world.goes_on(away).await;
                world.turnwise.restart().await;
                world.counts.fault("kill turnwise");
            }
            Victim::Turnwise => {}
            Victim::Server(side) => {
                let side = &world.sides[side];
                let _outage = side.outage.lock().await;
                side.server.kill().await;
                let _ = world.goes_on(away).await;
                side.server.restart().await;
                world.counts.fault(format!("kill {}", side.name));
            }
        }
    }
}

/// Fills the disk of a server, and makes room again. A server does not start on a full disk, so it is not killed meanwhile.
async fn disks(world: Arc<World>, side: usize, mut random: Random) {
    let side = &world.sides[side];
    let Some(disk) = side.server.disk() else { return };
    while world.goes_on(world.time(&mut random, ROOM_MS)).await {
        let _outage = side.outage.lock().await;
        disk.fill().await;
        let _ = world.goes_on(world.time(&mut random, FULL_MS)).await;
        disk.free().await;
        world.counts.fault(format!("{}'s disk full", side.name));
    }
}
