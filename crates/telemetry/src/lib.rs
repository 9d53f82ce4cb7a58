//! What a process tells about itself while it runs: the log ([`log`]), and spans of traced jobs ([`otel`]).

pub mod log;
pub mod otel;
mod throttled_log;

pub use throttled_log::ThrottledLog;
