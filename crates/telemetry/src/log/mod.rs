//! The log: lines on stderr, as text or as JSON, whose level can change while the process runs.
//!
//! The log belongs to the process. [`start`] sets it up once. A server then applies its settings `[log] level` and `[log] format`; in a
//! process that did not call `start`, which is a test, they have no effect.

mod filter;
mod json;
mod lines;

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{fmt, io};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

pub use self::filter::LogFilter;
use self::lines::Lines;

/// The form of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, with the fields of the event and of the spans around it as members.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("text or json".to_owned()),
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogSettings {
    /// `level`: what is logged. By default what the process was started with.
    pub level: Option<LogFilter>,
    /// `format`: the form of lines. By default what the process was started with.
    pub format: Option<LogFormat>,
}

type Filtered = Layered<Lines, Registry>;

/// The log of this process.
struct Log {
    level: reload::Handle<Targets, Filtered>,
    /// What is logged where the settings state nothing.
    default: LogFilter,
}

static LOG: OnceLock<Log> = OnceLock::new();
/// Whether lines are JSON. Spans keep their fields in the form of their time, so it changes only before the first one.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Sets up the log of this process. A second call changes nothing.
pub fn start(filter: LogFilter, format: LogFormat) {
    set_format(format);
    let (level, handle) = reload::Layer::new(filter.targets());
    let lines = Lines::new(io::stderr().is_terminal());
    if tracing_subscriber::registry().with(lines).with(level).try_init().is_ok() {
        let _ = LOG.set(Log { level: handle, default: filter });
    }
}

/// Applies the settings of the file, before the server starts.
pub fn configure(settings: &LogSettings) {
    if let Some(format) = settings.format {
        set_format(format);
    }
    set_level(settings);
}

/// Applies `[log] level`.
pub fn set_level(settings: &LogSettings) {
    let Some(log) = LOG.get() else { return };
    let filter = settings.level.as_ref().unwrap_or(&log.default);
    // It fails only if the subscriber is gone, and with it the log.
    let _ = log.level.reload(filter.targets());
}

fn set_format(format: LogFormat) {
    IS_JSON.store(format == LogFormat::Json, Relaxed);
}
