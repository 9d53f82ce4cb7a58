//! The integration tests of this crate, as one program: it links once.
#![allow(clippy::unwrap_used)]

mod clock;
mod common;
mod concurrency;
mod deadlines;
mod doubt;
mod events;
mod external;
mod fair_share;
mod filters;
mod handlers;
mod locks;
mod lost;
mod metrics;
mod modes;
mod neighbours;
mod nodes;
mod passage;
mod priorities;
mod rates;
mod recording;
mod rotation;
mod schedules;
mod services;
mod worker;
