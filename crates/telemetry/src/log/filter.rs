//! What is logged: a level, or levels by target.

use std::fmt;
use std::str::FromStr;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Maximum number of `target=level` pairs.
const MAX_PAIRS: usize = 100;

/// The valid values.
const EXPECTED: &str =
    "a level (off, error, warn, info, debug, trace), or `target=level` pairs with commas between them";

/// What is logged. A single level is that of turnwise: other crates log from `warn` up.
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

impl LogFilter {
    pub(super) fn targets(&self) -> Targets {
        self.targets.clone()
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for LogFilter {
    type Err = String;

    /// A word without `=` must be a level: `tracing` would read a mistyped level as a target, and nothing would be logged.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if parts.len() > MAX_PAIRS {
            return Err(format!("at most {MAX_PAIRS} `target=level` pairs"));
        }
        let (mut targets, mut default) = (Targets::new(), None);
        for part in &parts {
            match part.split_once('=') {
                None => default = Some(level(part)?),
                Some((target, at)) if is_target(target) => targets = targets.with_target(target, level(at)?),
                Some((target, _)) => return Err(format!("`{target}` is not a target: expected {EXPECTED}")),
            }
        }
        targets = match default {
            Some(level) if parts.len() == 1 => Targets::new()
                .with_default(level.into_level().map_or(Level::WARN, |level| level.min(Level::WARN)))
                .with_target("turnwise", level),
            Some(level) => targets.with_default(level),
            None => targets,
        };
        Ok(LogFilter { text: text.to_owned(), targets })
    }
}

fn level(word: &str) -> Result<LevelFilter, String> {
    let lower = word.to_ascii_lowercase();
    // Some levels of CouchDB have another name here.
    let name = match lower.as_str() {
        "none" => "off",
        "notice" => "info",
        "warning" => "warn",
        "err" | "crit" | "critical" | "alert" | "emerg" | "emergency" => "error",
        name => name,
    };
    // Numbers are levels in `tracing` alone, and an empty word would be a level, too.
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    let level = name.parse().ok().filter(|_| is_word);
    level.ok_or_else(|| format!("`{word}` is not a level: expected {EXPECTED}"))
}

/// Whether the text may be a module's path.
fn is_target(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn enables(filter: &str, target: &str) -> Option<Level> {
        let filter: LogFilter = filter.parse().unwrap();
        let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
        levels.into_iter().find(|level| filter.targets.would_enable(target, level))
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for right in ["info", "off", "DEBUG", "debug,turnwise=trace", "turnwise_worker=debug", "notice"] {
            assert!(right.parse::<LogFilter>().is_ok_and(|filter| filter.to_string() == right), "{right}");
        }
        for wrong in
            ["dbug", "", "turnwise", "turnwise=dbug", "info,dbug", "turnwise=", "=info", "a b=info", "3"]
        {
            let refused = wrong.parse::<LogFilter>();
            assert!(
                refused.as_ref().is_err_and(|problem| problem.contains("expected a level")),
                "{refused:?}"
            );
        }
        let many = ["a=info"; MAX_PAIRS + 1].join(",");
        assert_eq!(many.parse::<LogFilter>(), Err("at most 100 `target=level` pairs".to_owned()));
    }

    #[test]
    fn a_level_alone_is_that_of_turnwise() {
        assert_eq!(enables("debug", "turnwise_worker::run"), Some(Level::DEBUG));
        assert_eq!(enables("debug", "hyper"), Some(Level::WARN));
        assert_eq!(enables("error", "hyper"), Some(Level::ERROR));
        assert_eq!(enables("notice", "turnwise"), Some(Level::INFO));
        assert_eq!(enables("emergency", "turnwise"), Some(Level::ERROR));
        assert_eq!(enables("trace,turnwise_store=warn", "hyper"), Some(Level::TRACE));
        assert_eq!(enables("trace,turnwise_store=warn", "turnwise_store::retry"), Some(Level::WARN));
        assert_eq!(enables("turnwise_store=warn", "turnwise_worker"), None);
    }
}
