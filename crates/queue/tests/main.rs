//! The integration tests of this crate as one program, which links once.
#![allow(clippy::unwrap_used)]

mod bulk;
mod common;
mod concurrency;
mod dependencies;
mod edit;
mod filters;
mod groups;
mod inputs;
mod invariants;
mod lifecycle;
mod lifetimes;
mod limits;
mod listing;
mod lock_model;
mod locks;
mod membership;
mod output;
mod parking;
mod priorities;
mod rates;
mod schedules;
mod state_machine;
mod tags;
mod tasks;
mod tenants;
mod unique;
