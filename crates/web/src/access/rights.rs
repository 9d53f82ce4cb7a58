//! What each route needs: the table of route × scope of `/v1`. CouchDB's API has one of targets, and each page states its right.
//!
//! A route of `/v1` without a row is for administrators alone, and fails a test of `turnwise-api`. Handlers then check the tenant: a job, a database or a lock of another tenant does not exist.

use axum::http::Method;
use turnwise_identity::Scopes;

use super::{Caller, Who};
use crate::v1_error::V1Error;

/// What a request needs to be handled at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Nothing, not even credentials.
    Anyone,
    /// An identity.
    Identity,
    /// Reading the jobs of some tenant.
    Read,
    /// Changing the jobs of some tenant.
    Write,
    /// Running jobs of some type.
    Work,
    /// Settings, nodes, filters, and what concerns all tenants.
    Operate,
    /// The metrics, which name tenants, but show nothing of their jobs.
    Metrics,
    /// Users and tokens.
    Administer,
}

use Right::{Administer, Anyone, Identity, Metrics, Operate, Read, Work, Write};

/// The routes of `/v1`: method, path, right. `HEAD` needs the right of `GET`.
pub const V1: &[(&str, &str, Right)] = &[
    ("GET", "/v1/openapi.json", Anyone),
    ("GET", "/v1/me", Identity),
    ("GET", "/v1/jobs", Read),
    ("POST", "/v1/jobs", Write),
    ("POST", "/v1/jobs/{type}", Write),
    ("GET", "/v1/jobs/{type}/{id}", Read),
    ("PATCH", "/v1/jobs/{type}/{id}", Write),
    ("DELETE", "/v1/jobs/{type}/{id}", Write),
    ("GET", "/v1/jobs/{type}/{id}/wait", Read),
    ("GET", "/v1/jobs/{type}/{id}/events", Read),
    ("GET", "/v1/jobs/{type}/{id}/logs", Read),
    ("GET", "/v1/jobs/{type}/{id}/options", Write),
    ("GET", "/v1/jobs/{type}/{id}/result", Read),
    ("GET", "/v1/jobs/{type}/{id}/why", Read),
    ("GET", "/v1/events", Read),
    // A webhook goes on without its identity, so reading is not enough.
    ("GET", "/v1/webhooks", Write),
    ("GET", "/v1/webhooks/{webhook}", Write),
    ("PUT", "/v1/webhooks/{webhook}", Write),
    ("DELETE", "/v1/webhooks/{webhook}", Write),
    ("GET", "/v1/groups", Read),
    ("POST", "/v1/groups", Write),
    ("GET", "/v1/groups/{tenant}/{group}", Read),
    ("DELETE", "/v1/groups/{tenant}/{group}", Write),
    ("POST", "/v1/groups/{tenant}/{group}/close", Write),
    ("GET", "/v1/groups/{tenant}/{group}/why", Read),
    ("GET", "/v1/schedules", Read),
    ("GET", "/v1/schedules/{schedule}", Read),
    ("PUT", "/v1/schedules/{schedule}", Write),
    ("DELETE", "/v1/schedules/{schedule}", Write),
    ("GET", "/v1/schedules/{schedule}/preview", Read),
    ("POST", "/v1/schedules/{schedule}/pause", Write),
    ("POST", "/v1/schedules/{schedule}/resume", Write),
    ("POST", "/v1/schedules/{schedule}/fire", Write),
    ("POST", "/v1/schedules/{schedule}/backfill", Write),
    ("POST", "/v1/schedule_preview", Read),
    ("POST", "/v1/jobs/{type}/{id}/cancel", Write),
    ("POST", "/v1/jobs/{type}/{id}/retry", Write),
    ("POST", "/v1/jobs/{type}/{id}/hold", Write),
    ("POST", "/v1/jobs/{type}/{id}/release", Write),
    ("PUT", "/v1/jobs/{type}/{id}/priority", Write),
    ("GET", "/v1/matching", Read),
    ("GET", "/v1/bulk", Read),
    ("GET", "/v1/bulk/{bulk}", Read),
    ("PUT", "/v1/bulk/{bulk}", Write),
    ("DELETE", "/v1/bulk/{bulk}", Write),
    ("GET", "/v1/documents/{db}/{id}/why", Read),
    ("GET", "/v1/counts", Read),
    ("GET", "/v1/failures", Read),
    ("GET", "/v1/history", Read),
    ("GET", "/v1/tenants", Read),
    ("GET", "/v1/queue", Read),
    ("GET", "/v1/locks", Read),
    ("GET", "/v1/indexes", Read),
    ("GET", "/v1/types", Operate),
    ("GET", "/v1/type_terms", Operate),
    ("GET", "/v1/types/{type}", Operate),
    ("PUT", "/v1/types/{type}", Operate),
    ("DELETE", "/v1/types/{type}", Operate),
    ("GET", "/v1/types/{type}/demand", Operate),
    ("GET", "/v1/filters", Operate),
    ("GET", "/v1/filters/{filter}", Operate),
    ("PUT", "/v1/filters/{filter}", Operate),
    ("DELETE", "/v1/filters/{filter}", Operate),
    ("POST", "/v1/filters/{filter}/pause", Operate),
    ("GET", "/v1/workers", Operate),
    ("PUT", "/v1/workers/{type}/{worker}", Operate),
    ("GET", "/v1/nodes", Operate),
    ("PUT", "/v1/nodes/{node}", Operate),
    ("GET", "/v1/store", Operate),
    ("GET", "/v1/fleets", Operate),
    ("PUT", "/v1/fleets/{name}", Operate),
    ("DELETE", "/v1/fleets/{name}", Operate),
    ("POST", "/v1/workers/{type}", Work),
    ("POST", "/v1/workers/{type}/{worker}/ping", Work),
    ("POST", "/v1/workers/{type}/{worker}/accept", Work),
    ("POST", "/v1/workers/{type}/{worker}/end", Work),
    ("POST", "/v1/workers/{type}/{worker}/leave", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/update", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/finish", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/fail", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/snooze", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/release", Work),
    ("GET", "/v1/workers/{type}/{worker}/jobs/{id}/inputs/{input}", Work),
    ("POST", "/v1/workers/{type}/{worker}/jobs/{id}/locks", Work),
    ("DELETE", "/v1/workers/{type}/{worker}/jobs/{id}/locks", Work),
    ("GET", "/v1/users", Administer),
    ("POST", "/v1/users", Administer),
    ("DELETE", "/v1/users/{name}", Administer),
    ("PUT", "/v1/users/{name}/password", Administer),
    ("PUT", "/v1/users/{name}/scopes", Administer),
    ("GET", "/v1/tokens", Administer),
    ("POST", "/v1/tokens", Administer),
    ("DELETE", "/v1/tokens/{id}", Administer),
    ("POST", "/v1/tokens/{id}/rotate", Administer),
];

/// Whether a request to a route of `/v1` is one of a worker that has registered: heartbeats, and what concerns its runs.
pub fn is_of_worker(method: &Method, path: &str) -> bool {
    path.starts_with("/v1/workers/{type}/{worker}/") && v1(method, path) == Work
}

/// What a request to a route of `/v1` needs.
pub fn v1(method: &Method, path: &str) -> Right {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let row = V1.iter().find(|(of, route, _)| *of == method && *route == path);
    match row {
        Some((.., right)) => *right,
        // Nothing is there, and everyone may know.
        None if matches!(path, "/v1" | "/v1/" | "/v1/{*rest}") => Anyone,
        // Pages check their right themselves: who has it not sees a page that says so, or the login.
        None if matches!(path.split('/').nth(1), Some("ui" | "_utils")) => Anyone,
        None => Administer,
    }
}

impl Right {
    fn is_of(self, scopes: &Scopes) -> bool {
        match self {
            Anyone | Identity => true,
            Read => scopes.read_some(),
            Write => scopes.write_some(),
            Work => scopes.work_some(),
            Operate => scopes.operate(),
            Metrics => scopes.metrics(),
            Administer => scopes.administer(),
        }
    }

    fn needed(self) -> &'static str {
        match self {
            Anyone | Identity => "no scope",
            Read => "a scope client:TENANTS or read:TENANTS",
            Write => "a scope client:TENANTS",
            Work => "a scope worker:TYPES",
            Operate => "the scope operator or admin",
            Metrics => "the scope metrics, operator or admin",
            Administer => "the scope admin",
        }
    }

    /// Refuses a caller without this right.
    pub fn check(self, caller: &Caller) -> Result<(), V1Error> {
        match caller.who() {
            _ if self == Anyone => Ok(()),
            Who::Nobody => Err(V1Error::unauthorized(
                "this request needs credentials, and has none",
                "send Authorization: Bearer with a token, or Basic with a name and a password",
            )),
            _ if self.is_of(caller.scopes()) => Ok(()),
            _ => Err(V1Error::forbidden(
                format!("this identity may not do this: it needs {}", self.needed()),
                "use another identity, or ask an administrator for the scope",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unknown_route_is_for_administrators() {
        assert_eq!(v1(&Method::PATCH, "/v1/jobs"), Administer);
        assert_eq!(v1(&Method::HEAD, "/v1/jobs"), Read);
        assert_eq!(v1(&Method::GET, "/v1/{*rest}"), Anyone);
    }
}
