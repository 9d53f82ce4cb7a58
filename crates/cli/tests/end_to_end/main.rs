//! The built binary against real servers, as a user sees it.
#![allow(clippy::unwrap_used)]

mod bulk;
mod clients;
mod command;
mod disk;
mod documents;
mod events;
mod faults;
mod fleet;
mod fleet_burst;
mod gateways;
mod groups;
mod identities;
mod jobs;
mod kill;
mod leaks;
mod log;
mod memory;
mod reload;
mod sandbox;
mod schedules;
mod sealing;
mod secrets;
mod see;
mod server;
mod simulate;
mod smuggling;
mod start;
mod stop;
mod store;
mod test_server;
mod tls;
mod webhooks;
mod work;
