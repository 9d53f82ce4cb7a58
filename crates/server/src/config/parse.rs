//! From INI lines to typed settings.

use std::ops::RangeInclusive;
use std::time::Duration;

use ini_core::{Item, Parser};

use turnwise_protocol::MAX_WAIT_MS;

use super::{Config, MAX_OUTPUT_BYTES, Problem, Workers};

/// Keys of `[replicator]` that CouchDB knows and turnwise accepts without an effect, until it has one.
const WITHOUT_EFFECT: &[&str] = &[
    "auth_plugins",
    "cert_file",
    "cluster_quiet_period",
    "cluster_start_period",
    "connect_to",
    "connection_close_interval",
    "interval",
    "key_file",
    "max_churn",
    "max_document_id_length",
    "missing_doc_retry_msec",
    "password",
    "priority_coeff",
    "request_timeout",
    "session_refresh_interval_sec",
    "socket_options",
    "ssl_certificate_max_depth",
    "ssl_trusted_certificates_file",
    "startup_jitter",
    "usage_coeff",
    "valid_proxy_protocols",
    "verify_ssl_certificates",
];

const MAX_MS: u64 = 365 * 24 * 3_600_000;
/// Commands that can run at the same time at most: each has processes and pipes.
const MAX_COMMANDS: usize = 1_000;
/// Texts in a list at most.
const MAX_LIST: usize = 100;
/// Longest time that a worker may be silent: a day.
const MAX_HEALTH_MS: u64 = 24 * 3_600_000;

pub(super) fn parse(file: &str, text: &str) -> Result<(Config, Vec<Problem>), Problem> {
    let mut config = Config::default();
    let mut ignored = Vec::new();
    let mut section = String::new();
    let mut line = 0;
    // An editor's byte order mark is no part of the first section's name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.lines().map(without_comment).collect::<Vec<_>>().join("\n");
    for item in Parser::new(&text).auto_trim(true) {
        // Each item is one line, except the end of a section, which is none.
        if !matches!(item, Item::SectionEnd) {
            line += 1;
        }
        let problem = |text: String| Problem { file: file.to_owned(), line, text };
        match item {
            Item::SectionEnd | Item::Blank | Item::Comment(_) => {}
            Item::Section(name) => name.trim().clone_into(&mut section),
            // What such a line holds is not repeated: it may be half of a password.
            Item::Error(_) => {
                return Err(problem("expected a section's name in brackets, [replicator]".into()));
            }
            Item::Property(_, None) => {
                let expected = "expected `key = value`, [section], or a comment after `;`";
                return Err(problem(expected.into()));
            }
            // Not as if the line were missing: that would allow every program.
            Item::Property("programs", Some("")) if section == "command" => {
                let expected = "expected names, or absolute paths; leave the line out to allow every program";
                return Err(problem(format!("[command] programs has no value: {expected}")));
            }
            Item::Property(key, Some("")) => {
                ignored.push(problem(format!("[{section}] {key} has no value, and is ignored")))
            }
            Item::Property(key, Some(value)) => {
                let setting = Setting { section: &section, key, value };
                match setting.apply(&mut config) {
                    Ok(true) => {}
                    Ok(false) => ignored.push(problem(setting.why_ignored())),
                    Err(right) => {
                        let text = format!("[{section}] {key} = {value}: expected {right}");
                        return Err(problem(text));
                    }
                }
            }
        }
    }
    let Workers { health_interval, health_timeout } = config.workers;
    if health_interval * 2 > health_timeout {
        let text = format!(
            "[workers] health_interval is {health_interval:?}: expected at most half of health_timeout, \
             {health_timeout:?}, so that one lost ping is not a lost worker"
        );
        return Err(Problem { file: file.to_owned(), line: 0, text });
    }
    Ok((config, ignored))
}

/// A line without the comment at its end: CouchDB begins one at a `;` after a space or a tab.
fn without_comment(line: &str) -> &str {
    let ends = [line.find(" ;"), line.find("\t;")];
    match ends.into_iter().flatten().min() {
        Some(end) => &line[..end],
        None => line,
    }
}

struct Setting<'a> {
    section: &'a str,
    key: &'a str,
    value: &'a str,
}

/// What would be right.
type Right = String;

impl Setting<'_> {
    /// Applies the setting; false if turnwise does not use it.
    fn apply(&self, config: &mut Config) -> Result<bool, Right> {
        let defaults = &mut config.replication;
        match (self.section, self.key) {
            ("couchdb", "uuid") => config.uuid = Some(self.uuid()?),
            ("replicator", "max_jobs") => config.max_jobs = self.number(1..=100_000)?,
            ("replicator", "max_history") => config.max_history = self.number(1..=1_000)?,
            ("replicator", "health_threshold") => {
                config.backoff.health_threshold_us = self.threshold_us()?;
            }
            ("replicator", "backoff_base_ms") => {
                config.backoff.base_us = self.base_us()?;
            }
            ("replicator", "backoff_max_exponent") => config.backoff.max_exponent = self.number(0..=30)?,
            ("replicator", "worker_processes") => defaults.worker_processes = self.number(1..=100)?,
            ("replicator", "worker_batch_size") => {
                defaults.worker_batch_size = Some(self.number(1..=100_000)?);
            }
            ("replicator", "http_connections") => defaults.http_connections = self.number(1..=10_000)?,
            ("replicator", "connection_timeout") => {
                defaults.connection_timeout = Duration::from_millis(self.number(1..=MAX_MS)?);
            }
            ("replicator", "retries_per_request") => defaults.retries_per_request = self.number(0..=100)?,
            ("replicator", "use_checkpoints") => defaults.use_checkpoints = self.boolean()?,
            ("replicator", "checkpoint_interval") => {
                defaults.checkpoint_interval = Duration::from_millis(self.number(1..=MAX_MS)?);
            }
            ("replicator", "use_bulk_get") => defaults.use_bulk_get = self.boolean()?,
            ("replicator", "valid_endpoint_protocols") => {
                defaults.endpoint_schemes = self.choices(&["http", "https"])?;
            }
            ("jobs", "retention") => config.jobs.retention = self.seconds(0..=MAX_MS)?,
            ("jobs", "max_wait") => config.jobs.max_wait = self.seconds(0..=MAX_WAIT_MS)?,
            ("jobs", "max_history") => config.jobs.max_history = self.number(1..=1_000)?,
            ("jobs", "health_threshold") => config.jobs.backoff.health_threshold_us = self.threshold_us()?,
            ("jobs", "backoff_base_ms") => config.jobs.backoff.base_us = self.base_us()?,
            ("jobs", "backoff_max_exponent") => config.jobs.backoff.max_exponent = self.number(0..=30)?,
            ("workers", "health_interval") => {
                config.workers.health_interval = self.seconds(10..=MAX_HEALTH_MS)?
            }
            ("workers", "health_timeout") => {
                config.workers.health_timeout = self.seconds(20..=MAX_HEALTH_MS)?
            }
            ("command", "enabled") => config.command.enabled = self.boolean()?,
            ("command", "max_jobs") => config.command.max_jobs = self.number(1..=MAX_COMMANDS)?,
            ("command", "max_output_bytes") => {
                config.command.max_output_bytes = self.number(0..=MAX_OUTPUT_BYTES)?;
            }
            ("command", "programs") => config.command.programs = Some(self.programs()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn why_ignored(&self) -> String {
        let Setting { section, key, .. } = self;
        match *section {
            "replicator" if WITHOUT_EFFECT.contains(key) => format!("[replicator] {key} has no effect yet"),
            "replicator.shares" => format!("[replicator.shares] {key} has no effect yet"),
            _ => format!("[{section}] {key} is unknown, and ignored"),
        }
    }

    fn number<T>(&self, allowed: RangeInclusive<T>) -> Result<T, Right>
    where
        T: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let number = self.value.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| format!("a whole number from {} to {}", allowed.start(), allowed.end()))
    }

    fn threshold_us(&self) -> Result<i64, Right> {
        Ok(self.number::<i64>(0..=i64::from(u32::MAX))? * 1_000_000)
    }

    fn base_us(&self) -> Result<i64, Right> {
        Ok(self.number::<i64>(1..=i64::from(u32::MAX))? * 1_000)
    }

    /// A length in seconds, with up to three decimals, whose bounds are in ms.
    fn seconds(&self, allowed_ms: RangeInclusive<u64>) -> Result<Duration, Right> {
        let (whole, decimals) = self.value.split_once('.').unwrap_or((self.value, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let ms = match (digits(whole), digits(decimals) && decimals.len() <= 3) {
            (true, true) => format!("{whole}{decimals:0<3}").parse().ok(),
            _ => None,
        };
        let ms = ms.filter(|ms| allowed_ms.contains(ms)).ok_or_else(|| {
            let seconds = |ms: &u64| Duration::from_millis(*ms).as_secs_f64();
            format!("seconds from {} to {}", seconds(allowed_ms.start()), seconds(allowed_ms.end()))
        })?;
        Ok(Duration::from_millis(ms))
    }

    fn boolean(&self) -> Result<bool, Right> {
        match self.value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("true or false".to_owned()),
        }
    }

    /// One or more of a few words, separated by commas.
    fn choices(&self, allowed: &[&str]) -> Result<Vec<String>, Right> {
        let chosen: Vec<String> =
            self.value.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
        if chosen.iter().all(|word| allowed.contains(&word.as_str())) {
            Ok(chosen)
        } else {
            Err(format!("one or more of {}, separated by commas", allowed.join(", ")))
        }
    }

    /// One or more texts, separated by commas.
    fn list(&self) -> Result<Vec<String>, Right> {
        let list: Vec<String> = self.value.split(',').map(|text| text.trim().to_owned()).collect();
        let right = list.len() <= MAX_LIST && list.iter().all(|text| !text.is_empty());
        if right { Ok(list) } else { Err(format!("up to {MAX_LIST} texts, separated by commas")) }
    }

    /// Programs: a path that is relative would mean another one in every folder.
    fn programs(&self) -> Result<Vec<String>, Right> {
        let list = self.list()?;
        let right = list.iter().all(|text| text.starts_with('/') || !text.contains('/'));
        if right { Ok(list) } else { Err("names, or absolute paths, separated by commas".to_owned()) }
    }

    fn uuid(&self) -> Result<String, Right> {
        let is_hex = self.value.len() == 32 && self.value.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex { Ok(self.value.to_owned()) } else { Err("32 hexadecimal digits".to_owned()) }
    }
}
