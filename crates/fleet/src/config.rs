//! `fleet.toml`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use turnwise_client::protocol::{MAX_FLEET_TYPES, MAX_SLOTS, names};
use turnwise_command::Programs;

use crate::Limits;

/// Most processes of one type.
pub const MAX_WORKERS: usize = 1_000;
/// Longest name of a fleet, in bytes. With a type and a number it is the name of a worker.
const MAX_NAME_BYTES: usize = 40;
/// Largest file, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;
/// The drain targets that the server accepts.
const DRAIN_TARGETS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
/// The shortest interval between two looks at the demand.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// The longest duration that the file may state: a year.
const LONGEST: Duration = Duration::from_secs(31_536_000);

/// What is wrong with `fleet.toml`, with the key and how to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// `fleet.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The URL of the server, or of several ones; `None` for the one of the environment.
    pub server: Option<String>,
    /// The file with the fleet's own token.
    pub token_file: Option<PathBuf>,
    /// The file with the token of the workers; the fleet's own token without it.
    pub worker_token_file: Option<PathBuf>,
    /// The name of the fleet, which begins the names of its workers; `None` for that of the machine.
    pub name: Option<String>,
    /// How often the fleet asks for the demand.
    pub interval: Duration,
    /// By type, what to run.
    pub types: BTreeMap<String, TypeConfig>,
}

/// The workers of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeConfig {
    /// What a process runs.
    pub kind: Kind,
    /// How many processes.
    pub limits: Limits,
    /// The time within which the backlog is to be worked off.
    pub drain_target: Duration,
}

/// What a worker process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// This program, which is a worker.
    Command(Vec<String>),
    /// `turnwise work`, which runs this program per job.
    Exec(Vec<String>),
}

impl Kind {
    /// Its key in the file, and the program with its arguments.
    pub(crate) fn parts(&self) -> (&'static str, &[String]) {
        match self {
            Kind::Command(argv) => ("command", argv),
            Kind::Exec(argv) => ("exec", argv),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Option<String>,
    token_file: Option<PathBuf>,
    worker_token_file: Option<PathBuf>,
    name: Option<String>,
    interval: Option<String>,
    #[serde(default)]
    types: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: Option<Vec<String>>,
    exec: Option<Vec<String>>,
    slots: Option<usize>,
    min: Option<usize>,
    max: usize,
    drain_target: Option<String>,
    idle: Option<String>,
    min_lifetime: Option<String>,
    grace: Option<String>,
}

impl Config {
    /// Reads a file, and checks that its programs exist.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(file: &Path) -> Result<Config, ConfigError> {
        let of_file = |problem: String| ConfigError(format!("{}: {problem}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
        if text.len() > MAX_FILE_BYTES {
            return Err(of_file(format!("has {} bytes; at most {MAX_FILE_BYTES} are read", text.len())));
        }
        let config = Config::parse(&text).map_err(|error| of_file(error.0))?;
        for (name, entry) in &config.types {
            let (key, argv) = entry.kind.parts();
            let found = Programs::All.find(&argv[0], None, None);
            found.map_err(|problem| of_file(format!("types.{name}.{key}: `{}`: {problem}", argv[0])))?;
        }
        Ok(config)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| ConfigError(error.to_string()))?;
        let interval = duration("interval", file.interval.as_deref(), Duration::from_secs(1))?;
        if interval < SHORTEST_INTERVAL {
            return wrong("interval", "must be at least 100ms");
        }
        if let Some(name) = &file.name {
            check_name(name)?;
        }
        if file.types.is_empty() || file.types.len() > MAX_FLEET_TYPES {
            return wrong("types", &format!("expected 1 to {MAX_FLEET_TYPES} tables [types.NAME]"));
        }
        let types = file.types.into_iter().map(|(name, entry)| {
            names::check_type(&name).or_else(|problem| wrong(&format!("types.{name}"), &problem.problem))?;
            let entry = entry.check(&name)?;
            Ok((name, entry))
        });
        Ok(Config {
            server: file.server,
            token_file: file.token_file,
            worker_token_file: file.worker_token_file,
            name: file.name,
            interval,
            types: types.collect::<Result<_, _>>()?,
        })
    }
}

impl Entry {
    fn check(self, name: &str) -> Result<TypeConfig, ConfigError> {
        let key = |key: &str| format!("types.{name}.{key}");
        let kind = match (self.command, self.exec) {
            (Some(argv), None) => Kind::Command(argv),
            (None, Some(argv)) => Kind::Exec(argv),
            _ => {
                return wrong(
                    &format!("types.{name}"),
                    "needs either command (a program that is a worker) or exec (a program per job)",
                );
            }
        };
        let (which, argv) = kind.parts();
        if argv.first().is_none_or(String::is_empty) || argv.iter().any(|word| word.contains('\0')) {
            return wrong(
                &key(which),
                "expected a program and its arguments, like [\"./worker\", \"--fast\"]",
            );
        }
        let (slots, min, max) = (self.slots.unwrap_or(1), self.min.unwrap_or(0), self.max);
        if !(1..=MAX_SLOTS).contains(&slots) {
            return wrong(&key("slots"), &format!("must be from 1 to {MAX_SLOTS}"));
        }
        if !(1..=MAX_WORKERS).contains(&max) {
            return wrong(&key("max"), &format!("must be from 1 to {MAX_WORKERS}"));
        }
        if min > max {
            return wrong(&key("min"), "must not be above max");
        }
        let time = |name: &str, text: Option<String>, default_s: u64| {
            duration(&key(name), text.as_deref(), Duration::from_secs(default_s))
        };
        let drain_target = time("drain_target", self.drain_target, 60)?;
        if !DRAIN_TARGETS.contains(&drain_target) {
            return wrong(&key("drain_target"), "must be from one second to a day");
        }
        let limits = Limits {
            slots,
            min,
            max,
            idle: time("idle", self.idle, 60)?,
            min_lifetime: time("min_lifetime", self.min_lifetime, 30)?,
            grace: time("grace", self.grace, 60)?,
        };
        Ok(TypeConfig { kind, limits, drain_target })
    }
}

/// Checks the name of a fleet.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    match (1..=MAX_NAME_BYTES).contains(&name.len()) && names::is_plain(name) {
        true => Ok(()),
        false => wrong("name", &format!("expected 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`")),
    }
}

fn wrong<T>(key: &str, problem: &str) -> Result<T, ConfigError> {
    Err(ConfigError(format!("{key}: {problem}")))
}

fn duration(key: &str, text: Option<&str>, default: Duration) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    let has_unit = text.ends_with(|char: char| char.is_ascii_alphabetic());
    match parse_duration(text) {
        Some(duration) if has_unit && duration <= LONGEST => Ok(duration),
        _ => wrong(
            key,
            "expected a duration of at most a year, for example \"500ms\", \"90s\", \"15m\" or \"2h\"",
        ),
    }
}

/// Parses `90`, `90s`, `1.5m`, `2h`, `3d` or `500ms`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = r#"
        server = "http://127.0.0.1:7984"
        token_file = "fleet.token"
        worker_token_file = "worker.token"
        name = "host-1"
        interval = "500ms"
        [types.mail]
        exec = ["./send-mail", "--fast"]
        slots = 4
        min = 1
        max = 20
        drain_target = "90s"
        idle = "1.5m"
        min_lifetime = "0s"
        grace = "2h"
        [types.fetch]
        command = ["./worker"]
        max = 2
    "#;

    #[test]
    fn every_key_is_read_and_has_a_default_where_it_may_be_missing() {
        let config = Config::parse(FILE).unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((config.name.as_deref(), config.interval), (Some("host-1"), Duration::from_millis(500)));
        assert_eq!(config.server.as_deref(), Some("http://127.0.0.1:7984"));
        assert_eq!(config.token_file, Some("fleet.token".into()));
        assert_eq!(config.worker_token_file, Some("worker.token".into()));
        let mail = TypeConfig {
            kind: Kind::Exec(vec!["./send-mail".to_owned(), "--fast".to_owned()]),
            limits: Limits {
                slots: 4,
                min: 1,
                max: 20,
                idle: seconds(90),
                min_lifetime: Duration::ZERO,
                grace: seconds(7_200),
            },
            drain_target: seconds(90),
        };
        assert_eq!(config.types["mail"], mail);
        let fetch = TypeConfig {
            kind: Kind::Command(vec!["./worker".to_owned()]),
            limits: Limits {
                slots: 1,
                min: 0,
                max: 2,
                idle: seconds(60),
                min_lifetime: seconds(30),
                grace: seconds(60),
            },
            drain_target: seconds(60),
        };
        assert_eq!(config.types["fetch"], fetch);
    }

    #[test]
    fn the_example_is_valid() {
        let config = Config::parse(include_str!("../../../examples/fleet.toml")).unwrap();
        assert_eq!(config.types.keys().collect::<Vec<_>>(), ["mail", "sums"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        let change = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            Config::parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string()
        };
        for (from, to, said) in [
            ("slots = 4", "slot = 4", "unknown field `slot`"),
            ("name =", "nme =", "unknown field `nme`"),
            ("[types.mail]", "[type.mail]", "unknown field `type`"),
            ("max = 20", "", "missing field `max`"),
            ("max = 20", "max = 0", "types.mail.max: must be from 1 to 1000"),
            ("max = 20", "max = 1001", "types.mail.max: must be from 1 to 1000"),
            ("min = 1", "min = 21", "types.mail.min: must not be above max"),
            ("min = 1", "min = -1", "invalid value"),
            ("slots = 4", "slots = 0", "types.mail.slots: must be from 1 to 1000"),
            ("idle = \"1.5m\"", "idle = \"90\"", "types.mail.idle: expected a duration"),
            ("idle = \"1.5m\"", "idle = 90", "invalid type"),
            (
                "drain_target = \"90s\"",
                "drain_target = \"0s\"",
                "types.mail.drain_target: must be from one second to a day",
            ),
            ("interval = \"500ms\"", "interval = \"1ms\"", "interval: must be at least 100ms"),
            ("grace = \"2h\"", "grace = \"366d\"", "types.mail.grace: expected a duration of at most a year"),
            ("command = [\"./worker\"]", "", "types.fetch: needs either command"),
            ("command = [\"./worker\"]", "command = []", "types.fetch.command: expected a program"),
            ("max = 2\n", "max = 2\nexec = [\"x\"]\n", "types.fetch: needs either command"),
            ("[types.fetch]", "[types.'a b']", "types.a b: may have letters"),
            ("name = \"host-1\"", "name = \"a/b\"", "name: expected 1 to 40 letters"),
        ] {
            let problem = change(from, to);
            assert!(problem.contains(said), "{to}: {problem}");
        }
        assert!(Config::parse("").unwrap_err().to_string().contains("expected 1 to 100 tables [types.NAME]"));
    }

    #[test]
    fn a_program_that_does_not_exist_is_said_when_the_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fleet.toml");
        let problem = Config::read(&file).unwrap_err().to_string();
        assert!(problem.contains("fleet.toml: No such file"), "{problem}");
        std::fs::write(&file, "[types.mail]\ncommand = [\"no-such-program\"]\nmax = 1\n").unwrap();
        let problem = Config::read(&file).unwrap_err().to_string();
        assert!(problem.contains("types.mail.command: `no-such-program`: argv[0]: there is no"), "{problem}");
        std::fs::write(&file, "[types.mail]\ncommand = [\"sh\"]\nmax = 1\n").unwrap();
        assert!(Config::read(&file).is_ok());
    }
}
