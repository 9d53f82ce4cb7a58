//! Requests to this server, by the pattern of their route, their method, and the class of their status.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use turnwise_store::metrics::{Counter, Histogram};
use turnwise_web::access::rights;

use super::text::{Kind, Text};
use crate::Metrics;

/// Upper bounds of the buckets, in µs: from 1 ms to a minute, which is longer than most waits.
const BOUNDS_US: &[u64] = &[
    1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];
/// The methods that are counted each by itself; others are `other`.
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "other"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// The first code of a response.
const FIRST_CODE: u16 = 100;
/// The number of codes.
const CODES: usize = 500;

/// The pattern of requests that no route fits.
pub const UNKNOWN: &str = "unknown";

/// The routes of an API whose paths are not matched by a router.
#[derive(Debug, Clone, Copy)]
pub struct Patterns {
    /// All patterns.
    pub all: &'static [&'static str],
    /// The pattern of a path.
    pub of: fn(&str) -> &'static str,
}

/// The requests to a server. The routes are those that exist, so no request makes this grow.
pub struct Requests {
    patterns: Patterns,
    routes: BTreeMap<&'static str, [OnceLock<Box<Handled>>; METHODS.len()]>,
    codes: Box<[Counter]>,
}

/// The requests of one route and method.
struct Handled {
    classes: [Counter; CLASSES.len()],
    took: Histogram,
}

impl Default for Handled {
    fn default() -> Self {
        Handled { classes: Default::default(), took: Histogram::new(BOUNDS_US) }
    }
}

impl Requests {
    /// None yet. The routes are those of `/v1`, and these.
    pub fn new(patterns: Patterns) -> Self {
        let v1 = rights::V1.iter().map(|(_, path, _)| *path);
        let routes = v1.chain(patterns.all.iter().copied()).map(|route| (route, Default::default()));
        let codes = (0..CODES).map(|_| Counter::default()).collect();
        Requests { patterns, routes: routes.collect(), codes }
    }
}

/// Counts a request, and how long it takes until the head of its response.
pub async fn measured(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = place_of(request.method());
    let handled = match request.extensions().get::<MatchedPath>() {
        Some(matched) => metrics.requests.of(matched.as_str(), method),
        None => metrics.requests.of((metrics.requests.patterns.of)(request.uri().path()), method),
    };
    let response = next.run(request).await;
    metrics.requests.answered(handled, response.status(), begun);
    response
}

fn place_of(method: &Method) -> usize {
    METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1)
}

impl Requests {
    fn of(&self, route: &str, method: usize) -> Option<&Handled> {
        let route = self.routes.get(route).or_else(|| self.routes.get(UNKNOWN))?;
        Some(&**route[method].get_or_init(Box::default))
    }

    fn answered(&self, handled: Option<&Handled>, status: StatusCode, begun: Instant) {
        let code = usize::from(status.as_u16().saturating_sub(FIRST_CODE));
        if let Some(counter) = self.codes.get(code) {
            counter.add(1);
        }
        let Some(handled) = handled else { return };
        if let Some(counter) = handled.classes.get(code / 100) {
            counter.add(1);
        }
        handled.took.observe_us(i64::try_from(begun.elapsed().as_micros()).unwrap_or(i64::MAX));
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &Handled)> {
        self.routes.iter().flat_map(|(route, methods)| {
            let used = methods.iter().zip(METHODS);
            used.filter_map(|(handled, method)| Some((*route, method, &**handled.get()?)))
        })
    }

    /// The requests of each method.
    pub fn by_method(&self) -> BTreeMap<&'static str, u64> {
        let mut by_method = BTreeMap::new();
        for (_, method, handled) in self.all() {
            let requests: u64 = handled.classes.iter().map(Counter::get).sum();
            *by_method.entry(method).or_default() += requests;
        }
        by_method
    }

    /// The responses of each code, if there are any.
    pub fn by_code(&self) -> BTreeMap<u16, u64> {
        let codes = (FIRST_CODE..).zip(self.codes.iter().map(Counter::get));
        codes.filter(|(_, responses)| *responses > 0).collect()
    }

    /// Writes the families of requests.
    pub fn write(&self, text: &mut Text) {
        let help = "Requests to this node, by the pattern of the route and the class of the status.";
        let mut family = text.family("turnwise_http_requests", Kind::Counter, help);
        for (route, method, handled) in self.all() {
            for (class, counter) in CLASSES.iter().zip(&handled.classes).filter(|(_, count)| count.get() > 0)
            {
                let labels = [("route", route), ("method", method), ("status", class)];
                family.value(&labels, counter.get());
            }
        }
        let help =
            "Time until the head of the response. It includes the waits of requests that wait for a job.";
        let mut family = text.family("turnwise_http_request_duration_seconds", Kind::Histogram, help);
        for (route, method, handled) in self.all() {
            family.times(&[("route", route), ("method", method)], &handled.took.read());
        }
    }
}
