//! The deterministic world: simulated nodes run the real queue and worker code, with faults, from one seed.
//!
//! One seed is one tokio runtime of a single thread on a paused clock: time passes only when nothing else can happen, and
//! then jumps to the next event. The world does no I/O and draws random numbers only from its own generator. So two runs of
//! a seed are equal, event by event.
//!
//! - [`plan`], [`script`]: what the seed decides before the world begins, and what jobs do.
//! - [`rows`], [`store`], [`engine`]: the store without faults, and a process's faulty access to it.
//! - [`link`]: a process's clock, random numbers and connection. [`node`], [`client`], [`external`]: the processes.
//! - [`locking`]: what jobs lock, in worlds with locks. [`locks`]: the invariants of locks.
//! - [`eligibility`]: which jobs may start, in worlds where not all may. [`dependencies`], [`filters`]: the invariants of
//!   eligibility.
//! - [`model`], [`check`], [`liveness`], [`ledger`]: the other invariants, and the state to check them.
//! - [`unique`]: unique keys, and the options that runs get. [`inputs`]: results that are handed on.
//! - [`groups`]: groups, and with what they call back, in the same worlds.
//! - [`schedules`]: schedules, and what they fire, in worlds of their own.
//! - [`modes`]: an operator who quiets, drains and resumes workers, in worlds of their own.
//! - [`turns`]: checks over many cycles: turns by shares, and running jobs spread over workers.
//! - [`mutants`], [`mutate`]: mistakes that the simulation must catch, and the command that makes them.
//! - [`world`]: one world from its beginning to its end. [`trace`], [`show`]: its output.

mod broken;
pub mod check;
pub mod client;
mod clocks;
pub mod core;
pub mod dependencies;
pub mod eligibility;
pub mod engine;
pub mod external;
pub mod filters;
pub mod groups;
pub mod inputs;
pub mod ledger;
pub mod link;
pub mod liveness;
pub mod load;
pub mod locking;
pub mod locks;
pub mod model;
pub mod modes;
pub mod mutants;
pub mod mutate;
pub mod node;
pub mod plan;
pub mod rng;
pub mod rows;
pub mod schedules;
pub mod script;
pub mod show;
pub mod store;
pub mod tenants;
pub mod trace;
pub mod turns;
pub mod unique;
pub mod world;
