//! One process's view of the world: its own clock and random numbers, and its connection to the store with all faults.
//!
//! A paused process hangs in everything that it waits for, while its clock continues and the store still handles what it
//! has sent. A crashed process hangs forever: no task gets further until it is dropped.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep, sleep_until};
use turnwise_store::{Clock, Error, Result, Runtime};

use crate::core::{Core, lock};
use crate::ledger::Op;
use crate::rng::SeededRng;
use crate::trace::Site;

/// The rates of faults on the way to the store while faults happen, each in permille of the operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// An operation takes some milliseconds instead of none.
    pub latency: u64,
    /// The longest such latency, in ms.
    pub latency_ms: u64,
    /// An operation takes up to [`SLOW_MS`].
    pub slow: u64,
    /// A commit is refused although nothing conflicts.
    pub conflict: u64,
    /// The response to a commit is lost.
    pub unknown: u64,
    /// Of these, a commit that takes effect after its process has received the error.
    pub late: u64,
    /// A watch resolves although nothing changed.
    pub early_watch: u64,
}

/// If messages take up to this long without faults, too, the store is slow: work with a deadline may not be done in time.
pub const SLOW_STORE_MS: u64 = 100;
/// The longest time of a slow operation, in ms: longer than a transaction lives.
pub const SLOW_MS: u64 = 7_000;
/// The longest time until an operation is refused, in ms.
const REFUSAL_MS: u64 = 300;
/// The longest time until a watch resolves early, in ms.
pub const EARLY_WATCH_MS: u64 = 20_000;
/// The longest time until an unanswered commit takes effect, if it still can, in ms.
pub const LATE_MS: u64 = 5_000;

/// The longest time until a process gives up on a response, in ms.
pub const TIMEOUT_MS: u64 = 5_000;

/// A process's view of the world.
pub struct Link {
    /// The world.
    pub core: Arc<Core>,
    /// The site of the process.
    pub site: Site,
    /// The rates of faults.
    pub rates: Rates,
    /// Random numbers for faults.
    pub rng: SeededRng,
    /// Random numbers for the code that runs here.
    inner_rng: SeededRng,
    skew_us: AtomicI64,
    drift_ppm: i64,
    /// The clock that the code here uses.
    clock: Mutex<Option<Arc<Clock>>>,
    paused_until: Mutex<Option<Instant>>,
    unavailable_until: Mutex<Option<Instant>>,
    dead: AtomicBool,
    /// The current operation of a client. Its commits carry it.
    op: Mutex<Option<Op>>,
}

impl Link {
    /// A new process's view.
    pub fn new(core: &Arc<Core>, site: Site, rates: Rates, skew_us: i64, drift_ppm: i64) -> Arc<Self> {
        Arc::new(Link {
            core: core.clone(),
            site,
            rates,
            rng: core.rng.fork(1),
            inner_rng: core.rng.fork(2),
            skew_us: AtomicI64::new(skew_us),
            drift_ppm,
            clock: Mutex::default(),
            paused_until: Mutex::default(),
            unavailable_until: Mutex::default(),
            dead: AtomicBool::new(false),
            op: Mutex::default(),
        })
    }

    /// Hangs while the process is paused, and forever once it is dead.
    pub async fn gate(&self) {
        loop {
            if self.is_dead() {
                pending::<()>().await;
            }
            let Some(until) = *lock(&self.paused_until) else { return };
            if until <= Instant::now() {
                *lock(&self.paused_until) = None;
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Stops the process for a while.
    pub fn pause(&self, duration: Duration) {
        *lock(&self.paused_until) = Some(Instant::now() + duration);
    }

    /// Whether it is paused now. This includes the moment at which the pause ends, when no task has continued yet.
    pub fn is_paused(&self) -> bool {
        lock(&self.paused_until).is_some_and(|until| until >= Instant::now())
    }

    /// Cuts the connection to the store for a while.
    pub fn cut(&self, duration: Duration) {
        *lock(&self.unavailable_until) = Some(Instant::now() + duration);
    }

    /// Ends the process immediately.
    pub fn kill(&self) {
        self.dead.store(true, Relaxed);
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Sets the clock forward or back.
    pub fn shift_clock(&self, by_us: i64) {
        self.skew_us.fetch_add(by_us, Relaxed);
    }

    /// Sets the clock that the code here uses.
    pub fn set_clock(&self, clock: &Arc<Clock>) {
        *lock(&self.clock) = Some(clock.clone());
    }

    /// The time of that clock, in µs since the epoch.
    pub fn clock_us(&self) -> i64 {
        lock(&self.clock).as_ref().map_or(i64::MIN, |clock| clock.now_us())
    }

    /// Sets the operation that its next commits carry.
    pub fn set_op(&self, op: Option<Op>) {
        *lock(&self.op) = op;
    }

    /// The operation that its commits carry.
    pub fn op(&self) -> Option<Op> {
        lock(&self.op).clone()
    }

    /// Fails while the connection is cut.
    pub async fn check_connection(&self) -> Result<()> {
        let until = *lock(&self.unavailable_until);
        if until.is_none_or(|until| until <= Instant::now()) {
            return Ok(());
        }
        sleep(self.rng.ms(0, REFUSAL_MS)).await;
        self.gate().await;
        self.core.count(|stats| stats.unavailable += 1);
        Err(Error::Unavailable("no connection to the store".into()))
    }

    /// How long the next message takes; `None` if it arrives immediately.
    pub fn latency(&self) -> Option<Duration> {
        let Rates { latency, latency_ms, slow, .. } = self.rates;
        if self.core.is_chaos() && self.rng.chance(slow) {
            return Some(self.rng.ms(0, SLOW_MS));
        }
        self.rng.chance(latency).then(|| self.rng.ms(0, latency_ms))
    }

    /// Waits for the latency of a message.
    pub async fn travel(&self) {
        if let Some(latency) = self.latency() {
            sleep(latency).await;
        }
    }

    /// Whether a fault with this rate happens now.
    pub fn goes_wrong(&self, permille: u64) -> bool {
        self.core.is_chaos() && self.rng.chance(permille)
    }
}

/// The runtime of a process: the world's clock, seen through its own.
pub struct SimRuntime(pub Arc<Link>);

#[async_trait]
impl Runtime for SimRuntime {
    fn now_us(&self) -> i64 {
        let link = &self.0;
        let elapsed_us = link.core.elapsed_us();
        link.core.now_us()
            + link.skew_us.load(Relaxed)
            + elapsed_us.saturating_mul(link.drift_ppm) / 1_000_000
    }

    fn elapsed_us(&self) -> i64 {
        let elapsed_us = self.0.core.elapsed_us();
        elapsed_us + elapsed_us.saturating_mul(self.0.drift_ppm) / 1_000_000
    }

    async fn sleep(&self, duration: Duration) {
        // A clock that runs fast makes sleeps shorter.
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let rate = u64::try_from(1_000_000 + self.0.drift_ppm).expect("no clock runs backwards");
        sleep(Duration::from_micros((u128::from(us) * 1_000_000).div_ceil(u128::from(rate)) as u64)).await;
        self.0.gate().await;
    }

    fn random(&self) -> u64 {
        self.0.inner_rng.bits()
    }
}
