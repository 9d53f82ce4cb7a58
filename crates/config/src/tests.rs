//! Tests of every key and every rejected value.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use turnwise_identity::Patterns;
use turnwise_outbound::{AuthPlugin, Egress, MinimumProgress, PeerSettings, Secret, SocketOptions, Tls};
use turnwise_telemetry::log::LogFormat;

use super::*;

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
         health_threshold = 9\nbackoff_base_ms = 10\nbackoff_max_exponent = 11\non_lost = count\nworker_processes = 12\n\
         worker_batch_size = 13\nhttp_connections = 14\nconnection_timeout = 15\nretries_per_request = 0\n\
         use_checkpoints = false\ncheckpoint_interval = 17\nuse_bulk_get = false\nvalid_endpoint_protocols = https\n\
         auth_plugins = couch_replicator_auth_session, couch_replicator_auth_noop\nsession_refresh_interval_sec = 31\n\
         max_document_id_length = 240\nmissing_doc_retry_msec = 0\n\
         valid_proxy_protocols = socks5\n\
         request_timeout = 28\nminimum_progress = 280\nmax_document_size = 281\nprogress_interval = 2800\nsocket_options = [{nodelay, false}, {sndbuf, 29}]\nconnection_close_interval = 130\n\
         connect_to = *.example.com:443:10.0.0.7:8443\nverify_ssl_certificates = false\n\
         ssl_trusted_certificates_file = /ca.pem\nssl_certificate_max_depth = 1\ncert_file = /c.pem\nkey_file = /k.pem\n\
         fairness = rfc\nusage_coeff = 0.25\npriority_coeff = .75\nusage_interval = 1001\npriority_interval = 1002\n\
         charge_interval = 1003\ninterval = 1004\nmax_churn = 26\nstartup_jitter = 0\nidle_turn = 1005\nmultiplex = off\n\
         [replicator.shares]\na b/_replicator = 1000 ; most\n_replicator=1\n[shares]\nDefault = 27\n\
         [jobs]\nretention = 3600\nmax_wait = 25\nmax_history = 18\nmax_errors = 6\nmax_result_bytes = 181\ntenant_log_bytes = 1048577\nhealth_threshold = 19\nbackoff_base_ms = 20\nbackoff_max_exponent = 21\non_lost = requeue\nmax_attempts = 22\n[timeouts]\nmail = 90\ncommand = 0.5\n[heartbeat_timeouts]\nmail = 2.5\n\
         [queue]\nwindow = 29\ntick = 0.5\naging_ticks = 31\nbase_weight = 1.25\nwaiting_uses_slot = true\ncatalogue = /catalogue.toml\n[events]\nkeep = 296.5\nmax = 297\n[egress]\nallow = 10.0.0.7:5984\ndeny = *.test\ninternal_tenants = ops/*\n[workers]\nhealth_interval = 0.25\nhealth_timeout = 1.5\ndrain_target = 29.5\n[listener]\nnames = Jobs.Example. , turnwise\ncertificate = /tls/cert.pem\nkey = /tls/key.pem\nclient_ca = /tls/ca.pem\n[limits]\nrequests_per_second = 290\nwaiting_jobs = 292\nworkers = 293\nschedules = 303\n[chttpd]\nenable_cors = true\n[cors]\norigins = https://App.example, capacitor://localhost\ncredentials = true\nheaders = Accept, X-A\nmethods = GET, PUT\nmax_age = 291\n[audit]\nfile = /audit\n[log]\nlevel = warning, turnwise_store=debug\nformat = json\n[otel]\nendpoint = http://collector:4317\nheaders = api-key=hunter2\nservice_name = jobs\nsample_ratio = 0.25\ntrace_url = https://traces.example/{trace_id}\n[prometheus]\nadditional_port = true\nbind_address = ::1\nport = 294\ntenants = 295\n[jwt_auth]\nkeys = /jwks.json\naudience = turnwise\nroles_claim_path = a.b\n[command]\nenabled = true\nmax_jobs = 2..22\nmax_output_bytes = 23\nprograms = /bin/sh , ls\nenv = A_1, LC_*\nuser = jobs\nallow_root = true\nmax_memory_bytes = 1048576\nmax_open_files = 32\nmax_processes = 33\nmax_file_bytes = infinity\n\
         [replicator]\ncluster_start_period = 0.5\ncluster_quiet_period = 28\n[upstream]\nurl = http://u:hunter2@couch:5984\n\
         [indexing]\nservers = http://u:hunter2@couch:5984, http://other:5984\ndatabases = a*,b\nexclude = ab*\ntenant = {database}\n\
         builds = 302\nmax_p95_ms = 299\nmin_delay = 0.3\nmax_delay = 301\n",
    );
    let without_effect =
        ["checkpoint_interval", "ssl_trusted_certificates_file", "ssl_certificate_max_depth"];
    assert_eq!(ignored.len(), without_effect.len(), "{ignored:?}");
    for (problem, key) in ignored.iter().zip(without_effect) {
        assert!(problem.contains(&format!("[replicator] {key} has no effect: ")), "{problem}");
    }
    let expected = Config {
        uuid: Some("B0000000000000000000000000000025".into()),
        max_jobs: Slots::from(7),
        max_history: 8,
        backoff: backoff::Rules { health_threshold_us: 9_000_000, base_us: 10_000, max_exponent: 11 },
        on_lost: OnLost::Count,
        fair_share: FairShare {
            fairness: Fairness::Rfc,
            rfc: Rfc {
                usage_coeff: 0.25,
                priority_coeff: 0.75,
                usage_interval_us: Some(1_001_000),
                priority_interval_us: Some(1_002_000),
                charge_interval_us: Some(1_003_000),
            },
            rotation: RotationRules {
                interval: Duration::from_millis(1_004),
                max_churn: 26,
                startup_jitter: Duration::ZERO,
                idle_turn: Duration::from_millis(1_005),
                ..RotationRules::default()
            },
            shares: Arc::new(
                [("a b/_replicator".to_owned(), 1_000), ("_replicator".to_owned(), 1)].into_iter().collect(),
            ),
        },
        replication: replication(),
        connections: connections(),
        multiplex: Mode::Off,
        jobs: jobs(),
        events: EventRules { keep: Duration::from_millis(296_500), most: 297 },
        queue: Queue {
            window: 29,
            tick: Duration::from_millis(500),
            aging_ticks: 31,
            base_weight: Weight::thousandths(1_250),
            waiting_uses_slot: true,
            catalogue: Some("/catalogue.toml".into()),
        },
        workers: Workers {
            health_interval: Duration::from_millis(250),
            health_timeout: Duration::from_millis(1_500),
            drain_target: Duration::from_millis(29_500),
        },
        listener_names: vec!["jobs.example".into(), "turnwise".into()],
        tls: TlsFiles {
            certificate: Some("/tls/cert.pem".into()),
            key: Some("/tls/key.pem".into()),
            client_ca: Some("/tls/ca.pem".into()),
        },
        audit_file: Some("/audit".into()),
        log: LogSettings {
            level: Some("warning, turnwise_store=debug".parse().unwrap()),
            format: Some(LogFormat::Json),
        },
        otel: OtelSettings {
            endpoint: Some("http://collector:4317".into()),
            headers: Some(Secret::new("api-key=hunter2")),
            service_name: Some("jobs".into()),
            trace_url: Some("https://traces.example/{trace_id}".into()),
            sample_ratio: 0.25,
        },
        cors: Cors {
            enabled: true,
            origins: vec!["https://app.example".into(), "capacitor://localhost".into()],
            credentials: true,
            headers: vec!["accept".into(), "x-a".into()],
            methods: vec!["GET".into(), "PUT".into()],
            max_age_s: 291,
        },
        jwt: JwtFiles {
            keys: Some("/jwks.json".into()),
            audience: Some("turnwise".into()),
            roles_claim_path: Some("a.b".into()),
        },
        prometheus: Prometheus {
            additional_port: true,
            bind_address: "::1".parse().unwrap(),
            port: 294,
            tenants: 295,
        },
        limits: Limits { requests_per_second: 290, waiting_jobs: 292, workers: 293, schedules: 303 },
        command: command(),
        upstream: Some(Address::parse("http://u:hunter2@couch:5984/").unwrap()),
        indexing: indexing(),
        periods: Periods { start: Duration::from_millis(500), quiet: Duration::from_secs(28) },
    };
    assert_eq!(config, expected);
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(Entry::all(&config).all(|(_, value)| !value.contains("hunter2")));
}

/// The defaults of replications in it.
fn replication() -> Defaults {
    Defaults {
        worker_processes: 12,
        worker_batch_size: Some(13),
        use_checkpoints: false,
        checkpoint_interval: Duration::from_millis(17),
        use_bulk_get: false,
        max_document_id_length: Some(240),
        missing_doc_retry: Duration::ZERO,
        endpoint_schemes: vec!["https".into()],
        proxy_schemes: vec!["socks5".into()],
        peers: PeerSettings {
            http_connections: 14,
            connection_timeout: Duration::from_millis(15),
            retries_per_request: 0,
            auth_plugins: vec![AuthPlugin::Session, AuthPlugin::Basic],
            session_refresh_interval: Duration::from_secs(31),
            request_timeout: Some(Duration::from_millis(28)),
            minimum_progress: MinimumProgress { bytes: 280, interval: Duration::from_millis(2_800) },
            max_document_bytes: 281,
            socket_options: SocketOptions { nodelay: false, sndbuf: Some(29), ..SocketOptions::default() },
            tenant: None,
        },
    }
}

/// Its connections.
fn connections() -> Connections {
    Connections {
        close_interval: Duration::from_millis(130),
        connect_to: "*.example.com:443:10.0.0.7:8443".parse().unwrap(),
        tls: Tls {
            verify: false,
            trusted_certificates_file: Some("/ca.pem".into()),
            max_depth: 1,
            cert_file: Some("/c.pem".into()),
            key_file: Some("/k.pem".into()),
        },
        egress: Egress {
            allow: "10.0.0.7:5984".parse().unwrap(),
            deny: "*.test".parse().unwrap(),
            internal_tenants: Patterns::parse("ops/*").unwrap(),
        },
        ..Connections::default()
    }
}

/// The `[jobs]` of [`every_key_that_has_an_effect_has_it`], with the times and shares of types.
fn jobs() -> Jobs {
    Jobs {
        retention: Duration::from_secs(3_600),
        max_wait: Duration::from_secs(25),
        max_history: 18,
        max_errors: 6,
        max_result_bytes: 181,
        tenant_log_bytes: 1_048_577,
        backoff: backoff::Rules { health_threshold_us: 19_000_000, base_us: 20_000, max_exponent: 21 },
        on_lost: OnLost::Requeue,
        max_attempts: 22,
        timeouts: Arc::new(
            [("mail", 90_000), ("command", 500)]
                .map(|(job_type, ms)| (job_type.to_owned(), Duration::from_millis(ms)))
                .into(),
        ),
        heartbeat_timeouts: Arc::new([("mail".to_owned(), Duration::from_millis(2_500))].into()),
        shares: Arc::new([("Default".to_owned(), 27)].into_iter().collect()),
    }
}

/// Its `[command]`.
fn command() -> Command {
    Command {
        enabled: true,
        max_jobs: Slots { least: 2, most: 22 },
        max_output_bytes: 23,
        programs: Some(vec!["/bin/sh".into(), "ls".into()]),
        env: Some(vec!["A_1".into(), "LC_*".into()]),
        user: Some("jobs".into()),
        allow_root: true,
        limits: turnwise_command::Limits {
            memory_bytes: Some(1 << 20),
            open_files: Some(32),
            processes: Some(33),
            file_bytes: None,
        },
    }
}

/// Its `[indexing]`.
fn indexing() -> turnwise_indexer::jobs::Settings {
    turnwise_indexer::jobs::Settings {
        servers: vec![
            Address::parse("http://u:hunter2@couch:5984/").unwrap(),
            Address::parse("http://other:5984/").unwrap(),
        ],
        databases: Patterns::parse("a*,b").unwrap(),
        exclude: Some(Patterns::parse("ab*").unwrap()),
        tenant: "{database}".parse().unwrap(),
        builds: 302,
        max_p95: Duration::from_millis(299),
        min_delay: Duration::from_millis(300),
        max_delay: Duration::from_secs(301),
    }
}

#[test]
fn the_upstreams_password_is_shown_nowhere() {
    let (config, _) = parse("[upstream]\nurl = http://u:hunter2@couch:5984/");
    let url = Entry::find("upstream", "url").unwrap().read(&config);
    assert_eq!(url.as_deref(), Some("http://u:*****@couch:5984/"));
    assert!(!format!("{config:?}").contains("hunter2"));
    for wrong in ["http://u:hunter2@couch:x/", "couch:hunter2", "http://u:hunter2@couch/?a"] {
        let refused = refused(&format!("[upstream]\nurl = {wrong}"));
        assert!(
            refused.starts_with("my.ini:2: [upstream] url = *****: expected a server's URL"),
            "{refused}"
        );
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn ignored_entries_are_reported_with_their_place_and_without_their_value() {
    let (config, ignored) = parse(
        "[admins]\nadmin = secret\n\n[replicator]\nibrowse_options = 5\npasswort = secret\n\
         [log]\nwriter = stderr\n",
    );
    assert_eq!(config, Config::default());
    let expected = [
        "my.ini:2: [admins] admin is unknown, and ignored",
        "my.ini:5: [replicator] ibrowse_options is unknown, and ignored",
        "my.ini:6: [replicator] passwort is unknown, and ignored",
        "my.ini:8: [log] writer is unknown, and ignored",
    ];
    assert_eq!(ignored, expected);
}

#[test]
fn the_last_of_two_settings_counts() {
    assert_eq!(parse("[replicator]\nmax_jobs = 1\n[replicator]\nmax_jobs = 2\n").0.max_jobs, Slots::from(2));
}

#[test]
fn an_invalid_value_is_refused_with_file_line_and_valid_values() {
    let cases = [
        (
            "max_jobs = many",
            "a whole number from 1 to 100000, or two of them with .. between them, as in 4..64",
        ),
        ("max_jobs = 0", "a whole number from 1 to 100000, or two of them with .. between them, as in 4..64"),
        (
            "max_jobs = -1",
            "a whole number from 1 to 100000, or two of them with .. between them, as in 4..64",
        ),
        ("max_history = 1001", "a whole number from 1 to 1000"),
        ("health_threshold = 2m", "a whole number from 0 to 4294967295"),
        ("use_checkpoints = yes", "true or false"),
        ("use_bulk_get = 1", "true or false"),
        ("worker_processes = 0", "a whole number from 1 to 100"),
        ("worker_batch_size = 5e2", "a whole number from 1 to 100000"),
        ("http_connections = 99999999999999999999", "a whole number from 1 to 10000"),
        ("connection_timeout = infinity", "a whole number from 1 to 31536000000"),
        ("retries_per_request = 1.5", "a whole number from 0 to 100"),
        ("request_timeout = 0", "a whole number from 1 to 31536000000, or infinity"),
        ("connection_close_interval = 99", "a whole number from 100 to 86400000"),
        ("ssl_certificate_max_depth = 7", "a whole number from 0 to 6"),
        ("cert_file = cert.pem", "an absolute path"),
        ("valid_proxy_protocols = socks4", "one or more of http, https, socks5, separated by commas"),
        ("socket_options = [{nodelay}]", "a list like [{keepalive, true}, {nodelay, true}, {sndbuf, 65536}]"),
        ("socket_options = [{priority, 9}]", "{priority, N} with a whole number of at most 6"),
        (
            "connect_to = a:b",
            "pattern:port:target:port, like `*.example.com:443:10.0.0.7:8443`; where the second host or a port is left \
             out, it stays as it is",
        ),
        ("checkpoint_interval = 0", "a whole number from 1 to 31536000000"),
        ("interval = 99", "a whole number from 100 to 86400000"),
        ("max_churn = -1", "a whole number from 0 to 10000"),
        ("startup_jitter = 600001", "a whole number from 0 to 600000"),
        ("idle_turn = 10 s", "a whole number from 100 to 31536000000"),
        ("fairness = fair", "virtual_time or rfc"),
        ("multiplex = on", "auto or off"),
        ("usage_coeff = 1", "a number from 0 to 0.999"),
        ("usage_coeff = NaN", "a number from 0 to 0.999"),
        ("priority_coeff = 1e-1", "a number from 0.001 to 1"),
        ("usage_interval = 0", "a whole number from 1000 to 86400000"),
        ("valid_endpoint_protocols = http, ftp", "one or more of http, https, separated by commas"),
    ];
    for (line, right) in cases {
        let (key, value) = line.split_once('=').unwrap();
        let expected = format!("my.ini:3: [replicator] {} = {}: expected {right}", key.trim(), value.trim());
        assert_eq!(refused(&format!("; comment\n[replicator]\n{line}\n")), expected);
    }
}

#[test]
fn an_invalid_value_of_another_section_is_refused_likewise() {
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
        ("a/_replicator = 0", "a whole number from 1 to 1000"),
        ("a/_replicator = 1001", "a whole number from 1 to 1000"),
        ("a/_replicator = 1.5", "a whole number from 1 to 1000"),
        ("a/_replicator = many", "a whole number from 1 to 1000"),
        ("a\u{7}b = 1", "a tenant's name as key: must not have control characters"),
    ] {
        for section in ["replicator.shares", "shares"] {
            let expected = format!("my.ini:2: [{section}] {line}: expected {right}");
            assert_eq!(refused(&format!("[{section}]\n{line}\n")), expected);
        }
    }
    for (line, right) in [
        (
            "max_jobs = 8..4",
            "a whole number from 1 to 1000, or two of them with .. between them, as in 4..64",
        ),
        ("max_output_bytes = 12289", "a whole number from 0 to 12288"),
        ("programs = ls,,sh", "up to 100 texts, separated by commas"),
        ("programs = sh, ./run", "names, or absolute paths, separated by commas"),
        ("env = A, *", "names of letters, digits and _, or their beginnings and *, separated by commas"),
        ("enabled = maybe", "true or false"),
        ("user = a b", "up to 200 bytes without white space"),
        ("allow_root = yes", "true or false"),
        ("max_memory_bytes = 4G", "a whole number from 1048576 to 9223372036854775807, or infinity"),
        ("max_open_files = 7", "a whole number from 8 to 1048576, or infinity"),
        ("max_processes = 0", "a whole number from 1 to 4194304, or infinity"),
        ("max_file_bytes = -1", "a whole number from 0 to 9223372036854775807, or infinity"),
    ] {
        let expected = format!("my.ini:2: [command] {line}: expected {right}");
        assert_eq!(refused(&format!("[command]\n{line}\n")), expected);
    }
    let collector = "a collector's URL for OTLP over gRPC, like http://127.0.0.1:4317";
    for (key, value, right) in [
        ("endpoint", "http://u:hunter2@collector:4317", collector),
        (
            "headers",
            "hunter2",
            "up to 20 headers as name=value, separated by commas, with %XX for special characters",
        ),
    ] {
        let expected = format!("my.ini:2: [otel] {key} = *****: expected {right}");
        assert_eq!(refused(&format!("[otel]\n{key} = {value}\n")), expected);
    }
    const LEVEL: &str =
        "a level (off, error, warn, info, debug, trace), or `target=level` pairs with commas between them";
    for (line, right) in [
        ("level = dbug", format!("`dbug` is not a level: expected {LEVEL}")),
        ("level = turnwise=dbug", format!("`dbug` is not a level: expected {LEVEL}")),
        ("level = turnwise,info", format!("`turnwise` is not a level: expected {LEVEL}")),
        ("format = xml", "text or json".to_owned()),
    ] {
        let expected = format!("my.ini:2: [log] {line}: expected {right}");
        assert_eq!(refused(&format!("[log]\n{line}\n")), expected);
    }
    for (line, right) in [
        (
            "origins = app.example",
            "up to 100 origins like https://app.example:8443, separated by commas, or *",
        ),
        (
            "origins = https://app.example/",
            "up to 100 origins like https://app.example:8443, separated by commas, or *",
        ),
        ("origins = null", "up to 100 origins like https://app.example:8443, separated by commas, or *"),
        (
            "origins = https://*.example",
            "up to 100 origins like https://app.example:8443, separated by commas, or *",
        ),
        ("headers = a b", "up to 100 names of headers, separated by commas"),
        ("methods = GET,,PUT", "up to 100 methods of HTTP, separated by commas"),
        ("max_age = 86401", "a whole number from 0 to 86400"),
    ] {
        let expected = format!("my.ini:2: [cors] {line}: expected {right}");
        assert_eq!(refused(&format!("[cors]\n{line}\n")), expected);
    }
    // An empty list differs from a missing one: it must not allow every program.
    let empty = refused("[command]\nenabled = true\nprograms =\n");
    assert!(empty.starts_with("my.ini:3: [command] programs has no value: expected names"), "{empty}");
    // Nor must commands run as another user than the one that was meant.
    let empty = refused("[command]\nenabled = true\nuser =\n");
    assert!(empty.starts_with("my.ini:3: [command] user has no value: expected a user"), "{empty}");
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
    assert_eq!((config.max_jobs, config.max_history), (Slots::from(7), 8));
    assert!(config.replication.use_bulk_get);
    assert_eq!(ignored, ["my.ini:4: [replicator] use_bulk_get has no value, and is ignored"]);
    // A comment needs a space before it: `;` may be part of a value.
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
fn tenants_are_named_as_they_are_written_and_up_to_a_bound() {
    let (config, ignored) = parse(
        "[replicator.shares]\nA/_replicator = 1\na/_replicator = 2\n a b = 3\nempty =\n\u{e9}/_replicator = 5\n\
         a/_replicator = 6\n",
    );
    assert_eq!(ignored, ["my.ini:5: [replicator.shares] empty has no value, and is ignored"]);
    let shares: Vec<_> = config.fair_share.shares.iter().map(|(tenant, n)| (tenant.to_owned(), n)).collect();
    let expected = [("A/_replicator", 1), ("a b", 3), ("a/_replicator", 6), ("\u{e9}/_replicator", 5)];
    assert_eq!(shares, expected.map(|(tenant, n)| (tenant.to_owned(), n)));
    let tenants =
        |n: usize| (0..n).fold("[shares]\n".to_owned(), |text, tenant| text + &format!("{tenant} = 7\n"));
    assert_eq!(parse(&tenants(10_000)).0.jobs.shares.iter().count(), 10_000);
    assert_eq!(refused(&tenants(10_001)), "my.ini: [shares] names 10001 tenants: expected at most 10000");
    // A key ends at the first `=`, so this tenant can only be configured over HTTP.
    let expected = "my.ini:2: [shares] a = b = 4: expected a whole number from 1 to 1000";
    assert_eq!(refused("[shares]\na=b = 4\n"), expected);
    let long = "x".repeat(513);
    assert!(refused(&format!("[shares]\n{long} = 7\n")).contains("a tenant's name as key"));
}

#[test]
fn the_intervals_of_rfc_default_to_the_cycle() {
    let rfc = |text: &str| parse(&format!("[replicator]\n{text}")).0.fair_share.rfc();
    assert_eq!(rfc(""), rfc::Rules::default());
    let expected = rfc::Rules {
        usage_interval_us: 5_000_000,
        priority_interval_us: 5_000_000,
        charge_interval_us: 7_000_000,
        ..rfc::Rules::default()
    };
    assert_eq!(rfc("charge_interval = 7000\ninterval = 5000\n"), expected);
    // A cycle may be shorter than the lower bound of the intervals of the fairness `rfc`.
    assert_eq!(rfc("interval = 100\n").usage_interval_us, 1_000_000);
}

#[test]
fn every_setting_is_read_as_it_is_written() {
    let (mut config, _) = parse("");
    for setting in SETTINGS {
        let value = match (setting.section, setting.key) {
            ("couchdb", "uuid") => "b0000000000000000000000000000025",
            (_, "valid_endpoint_protocols") => "https",
            (_, "auth_plugins") => "basic",
            (_, "valid_proxy_protocols") => "socks5",
            (_, "socket_options") => "[{keepalive, false}, {nodelay, true}, {recbuf, 1}]",
            (_, "connection_close_interval") => "1234",
            (_, "connect_to") => "*.example.com:443:10.0.0.7:8443,a::b:",
            (_, "ssl_trusted_certificates_file" | "cert_file" | "key_file") => "/some.pem",
            (_, "catalogue") => "/catalogue.toml",
            (_, "ssl_certificate_max_depth") => "4",
            (_, "programs") => "/bin/sh,ls",
            (_, "env") => "A,LC_*",
            (_, "max_memory_bytes") => "2097152",
            (_, "names") => "jobs.example,turnwise",
            (_, "origins") => "https://app.example:8443,capacitor://localhost",
            // Neither is a header of the exports.
            ("otel", "headers") => continue,
            (_, "headers") => "accept,x-a",
            (_, "methods") => "GET,PUT",
            ("listener" | "audit", _) | (_, "keys") => "/tls/file.pem",
            ("egress", "internal_tenants") => "ops/*",
            ("egress", _) => "10.0.0.0/8,*.test:80",
            ("workers", _) => "2.25",
            (_, "max_jobs") => "3..12",
            (_, "fairness") => "rfc",
            (_, "on_lost") => match setting.read(&config).as_deref() {
                Some("count") => "requeue",
                _ => "count",
            },
            ("prometheus", "bind_address") => "10.0.0.7",
            (_, "multiplex") => "off",
            (_, "usage_coeff" | "priority_coeff") => "0.75",
            (_, "interval" | "idle_turn" | "progress_interval") => "1234",
            (_, "usage_interval" | "priority_interval" | "charge_interval") => "2345",
            ("upstream", "url") => "http://couch:5984/",
            ("indexing", "servers") => "http://couch:5984/,https://other/below/",
            ("indexing", "databases" | "exclude") => "acme/*,orders",
            ("indexing", "tenant") => "indexes of {prefix}",
            (
                _,
                "use_checkpoints"
                | "use_bulk_get"
                | "verify_ssl_certificates"
                | "enabled"
                | "enable_cors"
                | "credentials"
                | "waiting_uses_slot"
                | "allow_root"
                | "additional_port",
            ) => match setting.read(&config).as_deref() {
                Some("true") => "false",
                _ => "true",
            },
            ("events", "max") => "297",
            ("jobs", "backoff_max_exponent") => "13",
            ("log", "level") => "warn,turnwise=debug",
            ("log", "format") => "json",
            ("jobs", "tenant_log_bytes") => "2097152",
            ("otel", "endpoint") => "http://collector:4317",
            ("otel", "sample_ratio") => "0.25",
            ("otel", "trace_url") => "https://traces.example/{trace_id}",
            _ => "12",
        };
        assert_ne!(setting.read(&config).as_deref(), Some(value), "{}", setting.key);
        setting.write(&mut config, value).unwrap();
        assert_eq!(setting.read(&config).as_deref(), Some(value), "{}", setting.key);
        let before = config.clone();
        // Names have few rules.
        let wrong = match setting.key {
            "internal_tenants" | "databases" | "exclude" => "a,,b",
            "tenant" => "{tenant}",
            _ => "not this!/",
        };
        assert!(setting.write(&mut config, wrong).is_err(), "{}", setting.key);
        assert_eq!(config, before);
    }
}

/// `docs/configuration.md` has a row for each setting, which states whether it can change while servers run.
#[test]
fn the_documentation_has_every_setting() {
    let text = include_str!("../../../docs/configuration.md");
    let (_, used) = text.split_once("## Settings").unwrap();
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
        .chain(
            TENANT_SHARES
                .iter()
                .map(|shares| (shares.section.to_owned(), "*tenant*".to_owned(), "yes".to_owned())),
        )
        .chain(
            TYPE_TIMEOUTS
                .iter()
                .map(|timeouts| (timeouts.section.to_owned(), "*type*".to_owned(), "yes".to_owned())),
        )
        .collect();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}

#[test]
fn a_setting_without_an_effect_is_warned_about() {
    let (config, problems) = parse("[replicator]\nusage_coeff = 0.5\n\npriority_interval = 5000\n");
    let expected = "has no effect: fairness is virtual_time, and only rfc uses it";
    assert_eq!(
        problems,
        [
            format!("my.ini:2: [replicator] usage_coeff {expected}"),
            format!("my.ini:4: [replicator] priority_interval {expected}")
        ]
    );
    // The value is accepted nevertheless, because the other setting may change at run time.
    assert_eq!(config.fair_share.rfc.priority_interval_us, Some(5_000_000));
    for text in ["usage_coeff = 0.5\nfairness = rfc", "fairness = rfc\nusage_coeff = 0.5", "max_jobs = 3"] {
        assert_eq!(parse(&format!("[replicator]\n{text}\n")).1, Vec::<String>::new(), "{text}");
    }
    for text in [
        "[replicator]\nuse_checkpoints = false\ncheckpoint_interval = 5000\n",
        "[replicator]\nauth_plugins = basic\nsession_refresh_interval_sec = 60\n",
        "[replicator]\nverify_ssl_certificates = false\nssl_certificate_max_depth = 3\n",
        "[command]\nmax_jobs = 3\n",
        "[cors]\norigins = *\n",
        "[chttpd]\nenable_cors = true\n[cors]\norigins = *\ncredentials = true\n",
    ] {
        assert!(parse(text).1[0].contains("has no effect"), "{text}");
    }
}

#[test]
fn a_reloaded_file_changes_only_live_settings() {
    let (file, _) = parse(
        "[couchdb]\nuuid = b0000000000000000000000000000025\n[replicator]\nmax_jobs = 7\nfairness = rfc\nidle_turn = 1005\n\
         connection_close_interval = 130\nconnect_to = a:1:b:2\nverify_ssl_certificates = false\ncluster_quiet_period = 28\n\
         [jobs]\nretention = 3600\n[queue]\nwindow = 29\ncatalogue = /c.toml\n[workers]\nhealth_interval = 1\n\
         [command]\nenabled = true\nmax_jobs = 22\nmax_output_bytes = 23\nprograms = ls\nuser = jobs\nallow_root = true\nmax_memory_bytes = 1048576\n[upstream]\nurl = http://couch:5984/\n",
    );
    let running = Config::default();
    let reloaded = running.reloaded(&file);
    for setting in SETTINGS {
        let from = match setting.changes {
            Changes::Live => &file,
            Changes::InFile(_) => &running,
        };
        assert_eq!(setting.read(&reloaded), setting.read(from), "[{}] {}", setting.section, setting.key);
    }
}
