//! Tests of the limiter's numbers, by example and as properties.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const OK: StatusCode = StatusCode::OK;
const THROTTLED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn url(text: &str) -> Arc<str> {
    Arc::from(text)
}

/// A limiter and the one URL of the requests.
struct Asked {
    limiter: RateLimiter,
    url: Arc<str>,
}

impl Asked {
    fn new() -> Self {
        Self { limiter: RateLimiter::default(), url: url("http://h/db/") }
    }

    fn answered(&self, status: StatusCode, now_ms: u64) -> u64 {
        self.limiter.answered(&Method::GET, &self.url, status, None, now_ms);
        self.wait_ms(now_ms)
    }

    fn wait_ms(&self, now_ms: u64) -> u64 {
        self.limiter.wait_ms(&Method::GET, &self.url, now_ms, 0)
    }
}

#[test]
fn nothing_is_kept_while_nothing_fails() {
    let asked = Asked::new();
    for now_ms in 0..1_000 {
        assert_eq!(asked.answered(OK, now_ms), 0);
    }
    asked.answered(StatusCode::NOT_FOUND, 2_000);
    asked.answered(StatusCode::INTERNAL_SERVER_ERROR, 3_000);
    asked.answered(StatusCode::SERVICE_UNAVAILABLE, 4_000);
    assert_eq!(asked.limiter.throttled(), 0);
}

#[test]
fn each_failure_multiplies_by_one_and_a_fifth() {
    let asked = Asked::new();
    let intervals: Vec<u64> = (1..=8).map(|nth| asked.answered(THROTTLED, nth * 100)).collect();
    assert_eq!(intervals, [24, 29, 35, 42, 50, 60, 72, 86]);
}

#[test]
fn it_grows_up_to_25_seconds_in_40_failures_and_two_and_a_half_minutes() {
    let asked = Asked::new();
    let (mut now_ms, mut failures) = (1_000, 0);
    while asked.wait_ms(now_ms) < 25_000 {
        now_ms += asked.wait_ms(now_ms).max(81);
        asked.answered(THROTTLED, now_ms);
        failures += 1;
    }
    assert_eq!(failures, 40);
    assert!((120_000..180_000).contains(&now_ms), "{now_ms}");
    assert_eq!(asked.answered(THROTTLED, now_ms + 25_000), 25_000);
}

#[test]
fn each_success_takes_20_ms_off_until_the_entry_is_gone() {
    let asked = Asked::new();
    for nth in 1..=8 {
        asked.answered(THROTTLED, nth * 100);
    }
    let intervals: Vec<u64> = (9..=13).map(|nth| asked.answered(OK, nth * 100)).collect();
    assert_eq!(intervals, [66, 46, 26, 6, 0]);
    assert_eq!(asked.limiter.throttled(), 0);
}

#[test]
fn an_answer_like_404_is_a_success_too() {
    let asked = Asked::new();
    asked.answered(THROTTLED, 0);
    assert_eq!(asked.answered(StatusCode::INTERNAL_SERVER_ERROR, 100), 24);
    assert_eq!(asked.answered(StatusCode::NOT_FOUND, 100), 4);
}

#[test]
fn responses_within_80_ms_are_ignored() {
    let asked = Asked::new();
    assert_eq!(asked.answered(THROTTLED, 1_000), 24);
    assert_eq!(asked.answered(THROTTLED, 1_080), 24);
    assert_eq!(asked.answered(OK, 1_080), 24);
    assert_eq!(asked.answered(THROTTLED, 1_081), 29);
    assert_eq!(asked.answered(OK, 1_161), 29);
    assert_eq!(asked.answered(OK, 1_162), 9);
}

#[test]
fn an_idle_estimate_halves_each_second() {
    let known = Estimate { interval_ms: 16_000, updated_ms: 5_000, not_before_ms: 0 };
    let intervals = [6_000, 6_001, 6_999, 7_000, 8_500, 10_000, 70_000];
    assert_eq!(
        intervals.map(|now_ms| known.interval_ms(now_ms)),
        [16_000, 8_000, 8_000, 4_000, 2_000, 500, 0]
    );
    assert_eq!(after_success(known, 7_000).unwrap().interval_ms, 3_980);
    assert_eq!(after_failure(Some(known), 7_000, 0).interval_ms, 19_200);
}

#[test]
fn each_method_and_url_has_an_interval_of_its_own() {
    let limiter = RateLimiter::default();
    let (a, b) = (url("http://h/a/"), url("http://h/b/"));
    limiter.answered(&Method::POST, &a, THROTTLED, None, 1_000);
    let waits = [(&Method::POST, &a), (&Method::GET, &a), (&Method::POST, &b)]
        .map(|(method, url)| limiter.wait_ms(method, url, 1_000, 0));
    assert_eq!(waits, [24, 0, 0]);
}

#[test]
fn retry_after_takes_precedence() {
    let asked = Asked::new();
    let said = |status, seconds, now_ms| {
        let after = Some(Duration::from_secs(seconds));
        asked.limiter.answered(&Method::GET, &asked.url, status, after, now_ms);
        asked.wait_ms(now_ms)
    };
    assert_eq!(said(THROTTLED, 3, 1_000), 3_000);
    // Even where the failure itself is ignored, and for a 503.
    assert_eq!(said(THROTTLED, 5, 1_010), 5_000);
    assert_eq!(said(StatusCode::SERVICE_UNAVAILABLE, 7, 1_020), 7_000);
    assert_eq!(said(THROTTLED, 86_400, 1_030), 30_000);
    // A success of an earlier request does not end the wait.
    assert_eq!(asked.answered(OK, 1_200), 29_830);
    assert_eq!(asked.limiter.wait_ms(&Method::GET, &asked.url, 1_200, 7), 29_837);
    assert_eq!(asked.answered(OK, 31_031), 0);
    assert_eq!(asked.limiter.throttled(), 0);
}

#[test]
fn an_unused_estimate_is_removed() {
    let limiter = RateLimiter::default();
    for nth in 0..1_000 {
        limiter.answered(&Method::GET, &url(&format!("http://h/{nth}/")), THROTTLED, None, 1_000);
    }
    assert_eq!(limiter.throttled(), 1_000);
    // A request to any URL removes old entries, from time to time.
    assert_eq!(limiter.wait_ms(&Method::PUT, &url("http://other/"), 51_001, 0), 0);
    assert_eq!(limiter.throttled(), 0);
}

#[test]
fn a_failure_after_a_long_time_starts_anew() {
    let known = Estimate { interval_ms: 20_000, updated_ms: 1_000, not_before_ms: 0 };
    assert_eq!(after_failure(Some(known), 51_001, 0).interval_ms, 24);
}

#[tokio::test]
async fn a_request_waits_its_interval() {
    let limiter = RateLimiter::default();
    let url = url("http://h/db/");
    limiter.answered(&Method::GET, &url, THROTTLED, None, limiter.now_ms());
    let before = Instant::now();
    limiter.wait(&Method::GET, &url).await;
    assert!(before.elapsed() >= Duration::from_millis(24));
}

/// A server that accepts one request per `capacity_ms`, and one client that waits as the limiter requires. Returns how
/// many requests were rejected, and how long it took until `wanted` of them succeeded.
fn with_capacity(capacity_ms: u64, wanted: u64) -> (u64, u64) {
    let asked = Asked::new();
    let (mut now_ms, mut free_ms, mut served, mut refused) = (1_000, 0, 0, 0);
    while served < wanted {
        now_ms += asked.wait_ms(now_ms) + 1;
        if now_ms >= free_ms {
            served += 1;
            free_ms = now_ms + capacity_ms;
            asked.answered(OK, now_ms);
        } else {
            refused += 1;
            asked.answered(THROTTLED, now_ms);
        }
    }
    (refused, now_ms - 1_000)
}

proptest! {
    #[test]
    fn prop_the_interval_stays_in_its_bounds(answers in prop::collection::vec((any::<bool>(), 0..3_000u64), 1..200)) {
        let asked = Asked::new();
        let mut now_ms = 1_000;
        for (fails, pause_ms) in answers {
            now_ms += pause_ms;
            let before_ms = asked.wait_ms(now_ms);
            let after_ms = asked.answered(if fails { THROTTLED } else { OK }, now_ms);
            prop_assert!(after_ms <= LONGEST_INTERVAL_MS);
            let (less, more) = if fails { (before_ms, after_ms) } else { (after_ms, before_ms) };
            prop_assert!(less <= more, "{less} {more}");
            prop_assert!(asked.limiter.throttled() <= 1);
        }
    }

    #[test]
    fn prop_successes_alone_leave_nothing_behind(failures in 1..60u64, pause_ms in 81..2_000u64) {
        let asked = Asked::new();
        let mut now_ms = 1_000;
        for _ in 0..failures {
            now_ms += pause_ms;
            asked.answered(THROTTLED, now_ms);
        }
        let mut successes = 0;
        while asked.limiter.throttled() > 0 {
            now_ms += pause_ms;
            asked.answered(OK, now_ms);
            successes += 1;
        }
        prop_assert!(successes <= LONGEST_INTERVAL_MS / BASE_STEP_MS);
    }

    #[test]
    fn prop_it_finds_what_the_server_can_take(capacity_ms in 100..900u64) {
        let (refused, took_ms) = with_capacity(capacity_ms, 200);
        // The server is not left idle for long.
        prop_assert!(took_ms < 200 * capacity_ms * 2, "{took_ms}");
        // Usually, fewer requests are rejected than succeed. A client may be in step with its server (near 90, 120 and
        // 360 ms). Most updates then come within the 80 ms, and up to 20 are rejected per success.
        prop_assert!(refused < 200 * 25, "{refused}");
    }
}
