//! The built binary against real servers: what a user sees, from the outside.
#![allow(clippy::unwrap_used)]

mod acknowledged;
mod command;
mod documents;
mod faults;
mod jobs;
mod kill;
mod python_worker;
mod secrets;
mod server;
mod stop;
mod work;
mod worker_faults;
