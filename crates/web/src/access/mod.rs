//! Who sends a request, and what they may do.
//!
//! ```text
//!   headers ──▶ authenticate ──▶ Caller ──▶ rights (route × scope) ──▶ the handler: which tenants
//!                    ▲
//!               identities (a cache of rows) and attempts (backoff of wrong passwords)
//! ```
//!
//! A store without identities is *open*: every request may do everything. The first identity ends this, for all nodes.

mod after_request;
mod attempts;
mod audit;
mod authenticate;
mod caller;
mod identities;
pub mod jwt;
mod long_requests;
mod pace;
pub mod rights;

pub use after_request::caller_now;
use attempts::Attempts;
pub use attempts::network;
pub use audit::{Audit, Entry as AuditEntry};
pub use authenticate::{LoggedIn, Peer, authenticate, expired_cookie, login};
pub use caller::{Caller, How, Who, shown_owner};
pub use identities::Identities;
pub use jwt::Jwt;
pub use pace::{Budget, LOOKUPS_PER_SECOND, Pace, REFUSED_WORKERS_PER_SECOND, pings_per_second};
