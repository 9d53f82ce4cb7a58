//! The built binary against real servers: what a user sees, from the outside.
#![allow(clippy::unwrap_used)]

mod clients;
mod command;
mod documents;
mod faults;
mod jobs;
mod kill;
mod secrets;
mod see;
mod server;
mod start;
mod stop;
mod store;
mod work;
