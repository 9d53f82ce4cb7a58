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
pub mod planned;
pub mod plot;
mod policy;
pub mod report;
mod results;
mod rng;
pub mod scenario;
mod scheme;
mod world;

use serde::Deserialize;

pub use number::{Int, OneOf, Real};
pub use policy::Policy;
pub use results::{RateResults, Results, ScheduleResults, Series, TenantResults, jain};
pub use scenario::Scenario;
pub use world::{Error, run};

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
        match scenario::read::<Kind>(text)?.cluster {
            None => Scenario::parse(text).map(|scenario| Described::Tenants(Box::new(scenario))),
            Some(_) => locks::Scenario::parse(text).map(|scenario| Described::Locks(Box::new(scenario))),
        }
    }
}
