//! The request rate to a throttled peer: additive increase, multiplicative decrease.
//!
//! **Model.** For every method and URL (of a database) that has returned 429, the limiter estimates the interval that
//! the server requires between two requests. A 429 multiplies the interval by 1.2, and a success subtracts 20 ms. The
//! replications of a process know neither each other nor the server's capacity, but their requests thus oscillate
//! around this capacity. Each request waits for the interval before it is sent.
//!
//! **Forces.** Responses come in bursts. Those to concurrent requests carry the same information, which counts once per
//! 80 ms. An estimate without updates becomes stale: each second without a response halves it. It stays below 25 s,
//! because a request that waits longer holds a place without use. A system without throttling must not pay for this: an
//! interval of zero is removed, and a limiter without entries takes no lock.
//!
//! **Formula.** After a 429: `i' = max(i, 20) · 1.2`, at most 25,000. After a success that comes `s` whole seconds
//! after the last update: `i' = i / 2^s − 20`, and the entry is removed at 0. The decay applies only after more than
//! one second. CouchDB's replicator has the same numbers. It decays by 2 ms per ms, and subtracts larger steps from
//! large intervals, which the halving replaces here.
//!
//! `Retry-After` takes precedence: until then nothing is sent, whatever the estimate is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

/// A success subtracts this from the interval, and the first failure starts with it.
const BASE_STEP_MS: u64 = 20;
/// The interval's factor after a failure, in tenths.
const FACTOR_TENTHS: u64 = 12;
/// The longest interval. It takes 40 consecutive failures to reach it, in two and a half minutes.
const LONGEST_INTERVAL_MS: u64 = 25_000;
/// An estimate decays when it is older than this.
const DECAYS_AFTER_MS: u64 = 1_000;
/// A decaying estimate is halved once per this time.
const HALF_LIFE_MS: u64 = 1_000;
/// Updates this soon after the last one carry no new information.
const DEAF_MS: u64 = 80;
/// The upper limit of `Retry-After`. Beyond it, the job's backoff is the better place to wait.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);
/// The requests that wait for the end of a `Retry-After` are spread over this time.
const SPREAD_MS: u64 = 500;
/// An estimate is removed after this long without use: twice the longest interval, so that a request that waits for its
/// interval still finds it.
const FORGOTTEN_AFTER_MS: u64 = 2 * LONGEST_INTERVAL_MS;

/// The estimate for one method and URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Estimate {
    interval_ms: u64,
    /// When the interval was last changed.
    updated_ms: u64,
    /// No request is sent before this time; 0 if the server has not set one.
    not_before_ms: u64,
}

impl Estimate {
    /// The interval at `now_ms`, halved for every second without a response.
    fn interval_ms(&self, now_ms: u64) -> u64 {
        let idle_ms = now_ms.saturating_sub(self.updated_ms);
        if idle_ms <= DECAYS_AFTER_MS {
            return self.interval_ms;
        }
        let halvings = u32::try_from(idle_ms / HALF_LIFE_MS).unwrap_or(u32::MAX);
        self.interval_ms.checked_shr(halvings).unwrap_or(0)
    }

    /// How long a request that is ready at `now_ms` waits. Adds `spread_ms` if it waits for a `Retry-After`.
    fn wait_ms(&self, now_ms: u64, spread_ms: u64) -> u64 {
        let until_ms = self.not_before_ms.saturating_sub(now_ms);
        self.interval_ms(now_ms).max(if until_ms == 0 { 0 } else { until_ms + spread_ms })
    }

    fn is_forgotten(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.updated_ms.max(self.not_before_ms)) > FORGOTTEN_AFTER_MS
    }
}

/// The estimate after a 429 at `now_ms`. It does not decay first. A request that waited for its interval and is
/// rejected shows that the interval was too short, not that it was stale.
fn after_failure(known: Option<Estimate>, now_ms: u64, retry_after_ms: u64) -> Estimate {
    let not_before_ms = if retry_after_ms == 0 { 0 } else { now_ms + retry_after_ms };
    match known.filter(|known| !known.is_forgotten(now_ms)) {
        Some(known) if now_ms.saturating_sub(known.updated_ms) <= DEAF_MS => {
            Estimate { not_before_ms: known.not_before_ms.max(not_before_ms), ..known }
        }
        known => {
            let interval_ms = known.map_or(0, |known| known.interval_ms).max(BASE_STEP_MS);
            let interval_ms = ((interval_ms * FACTOR_TENTHS + 5) / 10).min(LONGEST_INTERVAL_MS);
            let not_before_ms = known.map_or(0, |known| known.not_before_ms).max(not_before_ms);
            Estimate { interval_ms, updated_ms: now_ms, not_before_ms }
        }
    }
}

/// The estimate after a success at `now_ms`; `None` if the interval is zero.
fn after_success(known: Estimate, now_ms: u64) -> Option<Estimate> {
    if now_ms.saturating_sub(known.updated_ms) <= DEAF_MS {
        return Some(known);
    }
    let interval_ms = known.interval_ms(now_ms).saturating_sub(BASE_STEP_MS);
    let waits = known.not_before_ms > now_ms;
    (interval_ms > 0 || waits).then_some(Estimate { interval_ms, updated_ms: now_ms, ..known })
}

/// A method, and the URL of a database or another resource, without credentials.
type Key = (Method, Arc<str>);

/// The intervals of a process, shared by all its replications.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    table: Mutex<Table>,
    /// The estimates in the table; without any, no request takes the lock.
    entries: AtomicUsize,
    started: Instant,
}

#[derive(Debug, Default)]
struct Table {
    estimates: HashMap<Key, Estimate>,
    /// When old ones were last removed.
    swept_ms: u64,
}

impl Default for RateLimiter {
    fn default() -> Self {
        Self { table: Mutex::default(), entries: AtomicUsize::new(0), started: Instant::now() }
    }
}

impl RateLimiter {
    /// Waits before a request of `method` to `url`, as long as the limiter requires.
    pub async fn wait(&self, method: &Method, url: &Arc<str>) {
        if self.throttled() == 0 {
            return;
        }
        let wait_ms = self.wait_ms(method, url, self.now_ms(), rand::random_range(0..=SPREAD_MS));
        if wait_ms > 0 {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    /// How many methods and URLs are throttled.
    pub fn throttled(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// The time of the limiter's estimates.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wait_ms(&self, method: &Method, url: &Arc<str>, now_ms: u64, spread_ms: u64) -> u64 {
        let mut table = self.table();
        if now_ms.saturating_sub(table.swept_ms) >= FORGOTTEN_AFTER_MS {
            // Estimates without recent use, such as for the databases of jobs that were removed.
            table.estimates.retain(|_, known| !known.is_forgotten(now_ms));
            table.swept_ms = now_ms;
            self.entries.store(table.estimates.len(), Ordering::Relaxed);
        }
        let known = table.estimates.get(&(method.clone(), Arc::clone(url)));
        known.map_or(0, |known| known.wait_ms(now_ms, spread_ms))
    }

    /// Learns from a response that came at `now_ms`. `retry_after` is the value of its header.
    pub fn answered(
        &self,
        method: &Method,
        url: &Arc<str>,
        status: StatusCode,
        retry_after: Option<Duration>,
        now_ms: u64,
    ) {
        let retry_after_ms = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER).as_millis() as u64;
        match status {
            StatusCode::TOO_MANY_REQUESTS => {
                self.update(method, url, |known| Some(after_failure(known, now_ms, retry_after_ms)))
            }
            // Carries no information about the interval, but a time for the next request.
            StatusCode::SERVICE_UNAVAILABLE if retry_after_ms > 0 => self.update(method, url, |known| {
                let known =
                    known.unwrap_or(Estimate { interval_ms: 0, updated_ms: now_ms, not_before_ms: 0 });
                Some(Estimate { not_before_ms: known.not_before_ms.max(now_ms + retry_after_ms), ..known })
            }),
            StatusCode::REQUEST_TIMEOUT => {}
            status if status.is_server_error() || self.throttled() == 0 => {}
            _ => self.update(method, url, |known| known.and_then(|known| after_success(known, now_ms))),
        }
    }

    fn update(
        &self,
        method: &Method,
        url: &Arc<str>,
        change: impl FnOnce(Option<Estimate>) -> Option<Estimate>,
    ) {
        let (mut table, key) = (self.table(), (method.clone(), Arc::clone(url)));
        match change(table.estimates.get(&key).copied()) {
            Some(estimate) => {
                table.estimates.insert(key, estimate);
            }
            None => {
                table.estimates.remove(&key);
            }
        }
        self.entries.store(table.estimates.len(), Ordering::Relaxed);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no thread panics while it holds this lock")
    }
}

#[cfg(test)]
#[path = "rate_limiter_tests.rs"]
mod tests;
