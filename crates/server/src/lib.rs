//! The HTTP API, the configuration, and the composition of everything.

pub mod config;

pub use config::Config;
