//! The deterministic world: simulated nodes run the real queue and worker code, with faults, from one seed.
//!
//! One seed is one tokio runtime of a single thread on a paused clock: time passes only when nothing else can happen, and then jumps
//! to the next moment at which something does. Nothing in it does I/O or draws other random numbers than its own, so two runs of a
//! seed are the same, event by event.
//!
//! - [`plan`], [`script`]: what the seed decides before the world begins; what jobs do.
//! - [`rows`], [`store`], [`engine`]: the store, without faults; and how a process reaches it, with them.
//! - [`link`]: a process's clock, random numbers and connection. [`node`], [`client`], [`external`]: who lives there.
//! - [`locking`]: what jobs lock, in worlds where they do. [`locks`]: the invariants of that.
//! - [`eligibility`]: which jobs may run, in worlds where not all may. [`dependencies`], [`filters`]: the invariants of that.
//! - [`model`], [`check`], [`liveness`], [`ledger`]: the invariants, and what is known to check them.
//! - [`turns`]: what takes many cycles to be seen: turns by shares, and running jobs spread over workers.
//! - [`mutants`], [`mutate`]: mistakes that must be caught, and the command that makes them.
//! - [`world`]: one world from its beginning to its end. [`trace`], [`show`]: what it tells of itself.

pub mod check;
pub mod client;
mod clocks;
pub mod core;
pub mod dependencies;
pub mod eligibility;
pub mod engine;
pub mod external;
pub mod filters;
pub mod ledger;
pub mod link;
pub mod liveness;
pub mod load;
pub mod locking;
pub mod locks;
pub mod model;
pub mod mutants;
pub mod mutate;
pub mod node;
pub mod plan;
pub mod rng;
pub mod rows;
pub mod script;
pub mod show;
pub mod store;
pub mod tenants;
pub mod trace;
pub mod turns;
pub mod world;
