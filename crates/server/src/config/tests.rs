//! Every key, every refusal.

#![allow(clippy::unwrap_used)]

use super::*;
use std::time::Duration;

fn parse(text: &str) -> (Config, Vec<String>) {
    let (config, ignored) = Config::parse("my.ini", text).unwrap();
    (config, ignored.iter().map(ToString::to_string).collect())
}

fn refused(text: &str) -> String {
    Config::parse("my.ini", text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_gives_the_defaults() {
    assert_eq!(parse(""), (Config::default(), vec![]));
    assert_eq!(parse("\n; nothing\n[replicator]\n"), (Config::default(), vec![]));
}

#[test]
fn every_key_that_has_an_effect_has_it() {
    let (config, ignored) = parse(
        "\u{feff}[couchdb]\r\nuuid = B0000000000000000000000000000025\r\n[replicator]\r\nmax_jobs=7\n max_history = 8 \n\
         health_threshold = 9\nbackoff_base_ms = 10\nbackoff_max_exponent = 11\nworker_processes = 12\n\
         worker_batch_size = 13\nhttp_connections = 14\nconnection_timeout = 15\nretries_per_request = 0\n\
         use_checkpoints = false\ncheckpoint_interval = 17\nuse_bulk_get = false\nvalid_endpoint_protocols = https\n\
         [jobs]\nretention = 3600\nmax_wait = 25\nmax_history = 18\nhealth_threshold = 19\nbackoff_base_ms = 20\nbackoff_max_exponent = 21\n\
         [workers]\nhealth_interval = 0.25\nhealth_timeout = 1.5\n[command]\nenabled = true\nmax_jobs = 22\nmax_output_bytes = 23\nprograms = /bin/sh , ls\n",
    );
    assert_eq!(ignored, Vec::<String>::new());
    let expected = Config {
        uuid: Some("B0000000000000000000000000000025".into()),
        max_jobs: 7,
        max_history: 8,
        backoff: backoff::Rules { health_threshold_us: 9_000_000, base_us: 10_000, max_exponent: 11 },
        replication: Defaults {
            worker_processes: 12,
            worker_batch_size: Some(13),
            http_connections: 14,
            connection_timeout: Duration::from_millis(15),
            retries_per_request: 0,
            use_checkpoints: false,
            checkpoint_interval: Duration::from_millis(17),
            use_bulk_get: false,
            endpoint_schemes: vec!["https".into()],
        },
        jobs: Jobs {
            retention: Duration::from_secs(3_600),
            max_wait: Duration::from_secs(25),
            max_history: 18,
            backoff: backoff::Rules { health_threshold_us: 19_000_000, base_us: 20_000, max_exponent: 21 },
        },
        workers: Workers {
            health_interval: Duration::from_millis(250),
            health_timeout: Duration::from_millis(1_500),
        },
        command: Command {
            enabled: true,
            max_jobs: 22,
            max_output_bytes: 23,
            programs: Some(vec!["/bin/sh".into(), "ls".into()]),
        },
    };
    assert_eq!(config, expected);
}

#[test]
fn what_is_not_used_is_told_with_its_place_and_without_its_value() {
    let (config, ignored) = parse(
        "[admins]\nadmin = secret\n\n[replicator]\nmax_churn = 20\npassword = secret\n\
         [replicator.shares]\nhigh/_replicator = 200\n[log]\nlevel = info\n",
    );
    assert_eq!(config, Config::default());
    let expected = [
        "my.ini:2: [admins] admin is unknown, and ignored",
        "my.ini:5: [replicator] max_churn has no effect yet",
        "my.ini:6: [replicator] password has no effect yet",
        "my.ini:8: [replicator.shares] high/_replicator has no effect yet",
        "my.ini:10: [log] level is unknown, and ignored",
    ];
    assert_eq!(ignored, expected);
}

#[test]
fn the_last_of_two_settings_counts() {
    assert_eq!(parse("[replicator]\nmax_jobs = 1\n[replicator]\nmax_jobs = 2\n").0.max_jobs, 2);
}

#[test]
fn a_bad_value_is_refused_with_file_line_and_what_would_be_right() {
    let cases = [
        ("max_jobs = many", "a whole number from 1 to 100000"),
        ("max_jobs = 0", "a whole number from 1 to 100000"),
        ("max_jobs = -1", "a whole number from 1 to 100000"),
        ("max_history = 1001", "a whole number from 1 to 1000"),
        ("health_threshold = 2m", "a whole number from 0 to 4294967295"),
        ("use_checkpoints = yes", "true or false"),
        ("use_bulk_get = 1", "true or false"),
        ("worker_processes = 0", "a whole number from 1 to 100"),
        ("worker_batch_size = 5e2", "a whole number from 1 to 100000"),
        ("http_connections = 99999999999999999999", "a whole number from 1 to 10000"),
        ("connection_timeout = infinity", "a whole number from 1 to 31536000000"),
        ("retries_per_request = 1.5", "a whole number from 0 to 100"),
        ("checkpoint_interval = 0", "a whole number from 1 to 31536000000"),
        ("valid_endpoint_protocols = http, ftp", "one or more of http, https, separated by commas"),
    ];
    for (line, right) in cases {
        let (key, value) = line.split_once('=').unwrap();
        let expected = format!("my.ini:3: [replicator] {} = {}: expected {right}", key.trim(), value.trim());
        assert_eq!(refused(&format!("; comment\n[replicator]\n{line}\n")), expected);
    }
    for (line, right) in [
        ("health_interval = 0", "seconds from 0.01 to 86400"),
        ("health_interval = 1.2345", "seconds from 0.01 to 86400"),
        ("health_timeout = 1.", "seconds from 0.02 to 86400"),
        ("health_timeout = +1", "seconds from 0.02 to 86400"),
        ("health_timeout = 5m", "seconds from 0.02 to 86400"),
        ("health_timeout = 99999999999999999999", "seconds from 0.02 to 86400"),
    ] {
        let expected = format!("my.ini:2: [workers] {line}: expected {right}");
        assert_eq!(refused(&format!("[workers]\n{line}\n")), expected);
    }
    for (line, right) in [
        ("max_jobs = 0", "a whole number from 1 to 1000"),
        ("max_output_bytes = 12289", "a whole number from 0 to 12288"),
        ("programs = ls,,sh", "up to 100 texts, separated by commas"),
        ("programs = sh, ./run", "names, or absolute paths, separated by commas"),
        ("enabled = maybe", "true or false"),
    ] {
        let expected = format!("my.ini:2: [command] {line}: expected {right}");
        assert_eq!(refused(&format!("[command]\n{line}\n")), expected);
    }
    // An empty list is not the same as none: it must not allow every program.
    let empty = refused("[command]\nenabled = true\nprograms =\n");
    assert!(empty.starts_with("my.ini:3: [command] programs has no value: expected names"), "{empty}");
    let together = refused("[workers]\nhealth_interval = 10\n");
    assert!(
        together.contains("health_interval is 10s: expected at most half of health_timeout, 15s"),
        "{together}"
    );
    let expected = "my.ini:2: [couchdb] uuid = x: expected 32 hexadecimal digits";
    assert_eq!(refused("[couchdb]\nuuid = x"), expected);
}

#[test]
fn a_line_that_is_no_ini_is_refused() {
    assert_eq!(refused("[replicator\n"), "my.ini:1: expected a section's name in brackets, [replicator]");
    let line = "my.ini:3: expected `key = value`, [section], or a comment after `;`";
    assert_eq!(refused("\n\nhunter2\n"), line);
}

#[test]
fn comments_at_the_end_of_lines_and_empty_values_are_ignored_as_in_couchdb() {
    let (config, ignored) =
        parse("[replicator] ; section\nmax_jobs = 7 ; comment\nmax_history = 8\t;x\nuse_bulk_get =\n");
    assert_eq!((config.max_jobs, config.max_history, config.replication.use_bulk_get), (7, 8, true));
    assert_eq!(ignored, ["my.ini:4: [replicator] use_bulk_get has no value, and is ignored"]);
    // Only after a space: `;` may be part of a value.
    assert!(refused("[replicator]\nmax_jobs = 7;8\n").contains("max_jobs = 7;8: expected a whole number"));
}

#[test]
fn a_file_that_is_missing_or_huge_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.ini");
    let error = Config::load(&missing).unwrap_err().to_string();
    assert!(error.contains("missing.ini: "), "{error}");
    let huge = dir.path().join("huge.ini");
    std::fs::write(&huge, ";\n".repeat(1 << 20)).unwrap();
    let error = Config::load(&huge).unwrap_err().to_string();
    assert!(error.contains("at most"), "{error}");
}

#[test]
fn every_setting_is_read_as_it_is_written() {
    let (mut config, _) = parse("");
    for setting in SETTINGS {
        let value = match (setting.section, setting.key) {
            ("couchdb", "uuid") => "b0000000000000000000000000000025",
            (_, "valid_endpoint_protocols") => "https",
            (_, "programs") => "/bin/sh,ls",
            ("workers", _) => "2.25",
            (_, "use_checkpoints" | "use_bulk_get" | "enabled") => match setting.read(&config).as_deref() {
                Some("true") => "false",
                _ => "true",
            },
            _ => "12",
        };
        assert_ne!(setting.read(&config).as_deref(), Some(value), "{}", setting.key);
        setting.write(&mut config, value).unwrap();
        assert_eq!(setting.read(&config).as_deref(), Some(value), "{}", setting.key);
        let before = config.clone();
        assert!(setting.write(&mut config, "not this!/").is_err(), "{}", setting.key);
        assert_eq!(config, before);
    }
}

/// `docs/configuration.md` has a row for each setting, and says whether it can change while servers run.
#[test]
fn the_documentation_tells_every_setting() {
    let text = include_str!("../../../../docs/configuration.md");
    let (_, used) = text.split_once("## Used").unwrap();
    let (used, _) = used.split_once("\n## ").unwrap();
    let mut section = String::new();
    let mut told = Vec::new();
    for row in used
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| section") && !line.starts_with("| ---"))
    {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0].starts_with('`') {
            section = cells[0].trim_matches('`').to_owned();
        }
        for key in cells[1].split(", ") {
            told.push((section.clone(), key.trim_matches('`').to_owned(), cells[3].to_owned()));
        }
    }
    let mut expected: Vec<(String, String, String)> = SETTINGS
        .iter()
        .map(|setting| {
            let changes = if setting.changes == Changes::Live { "yes" } else { "no" };
            (setting.section.to_owned(), setting.key.to_owned(), changes.to_owned())
        })
        .collect();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}
