//! Which tenant is served next, where several tenants want the same slots. Tenants are charged for the real run time
//! of their jobs.
//!
//! Two schemes, behind one setting:
//!
//! - [`virtual_time`] (the default): run time divided by shares, kept per tenant. One mechanism for jobs that rotate
//!   and for jobs that run to their end.
//! - [`rfc`]: decayed usage per tenant and a priority per job, as in CouchDB's RFC 017 ("Fair Share Job Scheduling
//!   for CouchDB 3.x Replicator"), after Kay and Lauder.
//!
//! Model, bounds and the evidence for the default: `docs/design/fair-share.md`.

pub mod rfc;
mod shares;
pub mod virtual_time;

use std::fmt;
use std::str::FromStr;

pub use shares::Shares;

/// A fairness scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fairness {
    /// Run time divided by shares, per tenant.
    #[default]
    VirtualTime,
    /// Decayed usage, and a priority per job.
    Rfc,
}

impl Fairness {
    /// Both of them.
    pub const ALL: [Fairness; 2] = [Fairness::VirtualTime, Fairness::Rfc];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Fairness::VirtualTime => "virtual_time",
            Fairness::Rfc => "rfc",
        }
    }
}

impl FromStr for Fairness {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Fairness::ALL.into_iter().find(|known| known.name() == text).ok_or(())
    }
}

impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
