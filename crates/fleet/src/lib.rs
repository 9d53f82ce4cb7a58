//! A supervisor of worker processes: it keeps as many as the backlog needs, from zero up and back.
//!
//! ```text
//! fleet.toml ─▶ config ─┐
//! server ─▶ demand ─────┼─▶ scaler: how many, and which one stops ─▶ supervisor ─▶ process ─▶ launch ─▶ the worker
//!                       └── state: what runs, on disk ◀────────────────┘   └─▶ report ─▶ server
//! ```
//!
//! - [`Scaler`] decides, from values to actions, without a clock or a process.
//! - [`Config`] is `fleet.toml`.
//! - [`run`] supervises. Each worker process starts as a [`launch`](launch_main): it executes the command only after its process id is
//!   in the state file, so that a supervisor that is killed leaves no worker that its next start does not find.

mod config;
mod demand;
mod launch;
mod process;
mod report;
mod scaler;
mod state;
mod supervisor;
#[cfg(target_os = "linux")]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "without_linux.rs"]
mod system;

pub use config::{Config, ConfigError, Kind, MAX_WORKERS, TypeConfig, parse_duration};
pub use launch::{NOT_EXECUTED, launch_main};
pub use scaler::{Action, Limits, MAX_STARTS, SETTLED, STEADY, Scaler, Worker, backoff};
pub use supervisor::{Error, Options, run};
