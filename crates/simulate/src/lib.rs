//! Simulates the scheduling policy over a described population, at full speed.
//!
//! A [`Scenario`] describes slots, tenants and their jobs. [`run`] lets a [`Policy`] decide, and measures what each
//! tenant got and what it was entitled to. The product's policies are those that the workers call, in the same order;
//! the others are there for comparison.
//!
//! Jobs that lock have a simulation of their own, without tenants: [`locks`]. [`Described`] reads a file of either
//! kind.
//!
//! The simulation leaves out: further workers (there is one), jobs that crash or are idle, claims that fail, and the
//! time that a start and an end take. `turnwise-sim` covers those.
//!
//! ```
//! use turnwise_simulate::{Policy, Scenario, run};
//!
//! let scenario = Scenario::parse(
//!     "name = 'two to one'\nslots = 30\nchurn = 5\ncycles = 200\n\
//!      [[tenants]]\nname = 'a'\nshares = 200\njobs = 100\n\
//!      [[tenants]]\nname = 'b'\nshares = 100\njobs = 100\n",
//! )?;
//! let outcome = run(&scenario, Policy::VirtualTime)?;
//! assert!(outcome.largest_deviation() < 0.02);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entitlement;
pub mod locks;
mod number;
pub mod plot;
pub mod report;
mod results;
mod rng;
pub mod scenario;
mod scheme;
mod world;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use number::{Int, OneOf, Real};
pub use results::{Results, Series, TenantResults, jain};
pub use scenario::Scenario;

/// A job's number.
type JobId = u32;

/// A scenario of either kind.
#[derive(Debug, Clone)]
pub enum Described {
    /// Tenants that share slots.
    Tenants(Box<Scenario>),
    /// Jobs that lock the parts of a cluster.
    Locks(Box<locks::Scenario>),
}

impl Described {
    /// Reads a scenario's file. A file with a `[cluster]` is about locks.
    ///
    /// # Errors
    /// The file is neither. The text names the line, or the part, and what is possible there.
    pub fn parse(text: &str) -> Result<Described, scenario::Error> {
        #[derive(Deserialize)]
        struct Kind {
            cluster: Option<serde::de::IgnoredAny>,
        }
        if text.len() > scenario::MAX_FILE_BYTES {
            return Scenario::parse(text).map(|scenario| Described::Tenants(Box::new(scenario)));
        }
        match toml::from_str::<Kind>(text)?.cluster {
            None => Scenario::parse(text).map(|scenario| Described::Tenants(Box::new(scenario))),
            Some(_) => locks::Scenario::parse(text).map(|scenario| Described::Locks(Box::new(scenario))),
        }
    }
}

/// The policy that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Run time divided by shares, per tenant: the default of `[replicator] fairness`.
    #[default]
    VirtualTime,
    /// CouchDB's fair-share scheduling (RFC 017) in exact arithmetic: the other choice.
    Rfc,
    /// CouchDB's fair-share scheduling with integers, as in CouchDB.
    RfcWhole,
    /// First in, first out; continuous jobs keep their slots.
    Fifo,
    /// CouchDB's older rotation: the longest running jobs stop for the longest waiting ones, whatever their tenants
    /// are.
    RoundRobin,
}

impl Policy {
    /// All policies, the default first.
    pub const ALL: [Policy; 5] =
        [Policy::VirtualTime, Policy::Rfc, Policy::RfcWhole, Policy::RoundRobin, Policy::Fifo];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::VirtualTime => "virtual_time",
            Policy::Rfc => "rfc",
            Policy::RfcWhole => "rfc_whole",
            Policy::Fifo => "fifo",
            Policy::RoundRobin => "round_robin",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            let names = Policy::ALL.map(Policy::name).join(", ");
            format!("there is no policy `{text}`; there are {names}")
        })
    }
}

/// Why a scenario cannot be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More jobs arrived than the simulation can hold.
    #[error(
        "more than {most} jobs had arrived after {} s: simulate fewer cycles, or a lower rate",
        at_us / 1_000_000
    )]
    TooManyJobs {
        /// The most jobs.
        most: u64,
        /// The time of that arrival, in µs since the start.
        at_us: i64,
    },
}

/// Simulates a scenario to its end.
///
/// # Errors
/// More jobs arrive than [`scenario::MAX_JOBS`].
pub fn run(scenario: &Scenario, policy: Policy) -> Result<Results, Error> {
    world::run(scenario, policy)
}
