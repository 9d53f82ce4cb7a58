//! All settings: section and key, valid values, and whether a setting can change while servers run. The file, the API (`/_node/{name}/_config`) and
//! the test of `docs/configuration.md` use this table. No other code contains a setting's name.

use std::ops::RangeInclusive;

use turnwise_outbound::{MAX_CERTIFICATE_DEPTH, MAX_DOCUMENT_BYTES};
use turnwise_policy::fair_share::rfc;
use turnwise_policy::predictive_queue::window;
use turnwise_protocol::MAX_WAIT_MS;
use turnwise_queue::output::MAX_RESULT_BYTES;

use super::value::{Right, Value};
use super::{Config, MAX_OUTPUT_BYTES, text};

/// Values of `max_document_size`, in bytes.
const MAX_DOCUMENT_SIZE: RangeInclusive<usize> = 1..=MAX_DOCUMENT_BYTES;
/// Upper bound of `minimum_progress`, in bytes.
const MAX_MINIMUM_PROGRESS: u64 = 1 << 30;
/// Values of `tenant_log_bytes`. Four jobs have 1 MB of log at most.
const TENANT_LOG_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;
const MAX_MS: u64 = 365 * 24 * 3_600_000;
/// Longest first backoff: 49 days.
const MAX_BACKOFF_BASE_MS: i64 = u32::MAX as i64;
/// The interval between two preemption cycles. Each cycle reads rows, and stopping and starting a job has a cost, so the interval has a lower bound.
const INTERVAL_MS: RangeInclusive<u64> = 100..=24 * 3_600_000;
/// Maximum number of jobs that one cycle preempts. The cycle reads as many rows from the store for each waiting tenant.
const MAX_CHURN: usize = 10_000;
/// The intervals t1, t2 and t3 of the fairness `rfc`.
const RFC_INTERVAL_MS: RangeInclusive<i64> =
    *rfc::Rules::INTERVAL_US.start() / 1_000..=*rfc::Rules::INTERVAL_US.end() / 1_000;
/// The longest period over which jobs that start together are spread. Each of them occupies its slot meanwhile.
const MAX_JITTER_MS: u64 = 600_000;
/// How long idle connections are kept. The lower bound is the interval at which the pool looks for expired ones.
const CLOSE_INTERVAL_MS: RangeInclusive<u64> = 100..=24 * 3_600_000;
/// Highest numeric `max_document_id_length`.
const MAX_DOCUMENT_ID_LENGTH: usize = 1 << 20;
/// Longest wait for a revision that the source does not have. It delays the whole batch.
const MAX_MISSING_MS: u64 = 600_000;
/// Maximum number of commands that run at the same time: each needs processes and pipes.
const MAX_COMMANDS: usize = 1_000;
/// The least memory of a command: with less, many programs do not even start.
const MIN_MEMORY_BYTES: usize = 1 << 20;
/// The open files of a command. With fewer, the system's loader cannot open the libraries of a program.
const OPEN_FILES: RangeInclusive<usize> = 8..=1 << 20;
/// As many processes as Linux can have.
const MAX_PROCESSES: usize = 4 << 20;
/// How many events are kept. Each takes about 200 bytes.
const MAX_EVENTS: RangeInclusive<u64> = 100..=100_000_000;
/// Longest time that the set of nodes must be unchanged before the nodes divide the work: an hour.
const MAX_PERIOD_MS: u64 = 3_600_000;
/// Longest time that a worker may miss its heartbeats: a day.
const MAX_HEALTH_MS: u64 = 24 * 3_600_000;
/// Within which time what could run shall have started.
const DRAIN_TARGET_MS: RangeInclusive<u64> = 1_000..=24 * 3_600_000;
/// The length of a tick. With a tick of a few ms, every job would be older in each pass.
const TICK_MS: RangeInclusive<u64> = 100..=3_600_000;
/// Longest time for which a browser may remember a preflight: a day, which is more than any browser does.
const MAX_CORS_AGE_S: u32 = 24 * 3_600;
/// Maximum number of tenants with metrics of their own: with four metrics per type each, a scrape has no more than some MB.
const MAX_TENANTS: usize = 1_000;
/// Maximum number of ticks until a job is aged out.
const MAX_AGING_TICKS: u32 = 100_000;

/// Maximum number of builds that a server is asked for at once: each occupies processes of the server.
const MAX_BUILDS: u32 = 1_000;
/// Longest time that a small request may take beside builds.
const MAX_P95_MS: u64 = 600_000;
/// Longest delay of a build: a day.
const MAX_DELAY_MS: u64 = 24 * 3_600_000;

/// Settings whose values may hold secrets.
const WITH_SECRETS: &[(&str, &str)] =
    &[("upstream", "url"), ("indexing", "servers"), ("otel", "endpoint"), ("otel", "headers")];

/// A setting.
pub struct Setting {
    /// Its section, without brackets.
    pub section: &'static str,
    /// Its key in the section.
    pub key: &'static str,
    /// Whether it can change while servers run.
    pub changes: Changes,
    /// Returns the value as in the file; `None` if the server chooses it.
    read: fn(&Config) -> Option<String>,
    write: fn(&mut Config, Value<'_>) -> Result<(), Right>,
    /// Sets the value of the second configuration to that of the first one.
    pub(super) copy: fn(&Config, &mut Config),
    /// Whether both have the same value, with what the text leaves out: passwords.
    pub(super) is_same: fn(&Config, &Config) -> bool,
}

/// Whether a setting can change while servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// For all servers on a store, through any of them.
    Live,
    /// Only in each server's file, at its next start. The text is the reason, as a complete sentence.
    InFile(&'static str),
}

use Changes::{InFile, Live};

const AT_START: &str = "It is read when a server starts";
const ABOUT_CONNECTIONS: &str = "Where connections go, and whom they trust, is said on each machine alone";
const ABOUT_A_MACHINE_REACHED: &str = "How a machine is reached is said on that machine alone";
const ABOUT_A_MACHINE: &str = "What may run on a machine is said on that machine alone";

/// Makes a [`Setting`] of each row: the key, whether the setting can change, its field in [`Config`], and the kind of its value with the valid values.
/// [`Value::ms`] parses values of the kind `ms`, and [`text::ms`] formats them. If a field is `None`, the value after `or` applies.
macro_rules! settings {
    ($([$section:ident] $(
        $key:ident: $changes:expr, $($field:ident).+ = $kind:ident($($valid:expr)?) $(or $default:expr)?;
    )+)+) => {
        &[$($(Setting {
            section: stringify!($section),
            key: stringify!($key),
            changes: $changes,
            read: |config| {
                let text = text::$kind(&config.$($field).+);
                $(let text = text.or_else(|| {
                    let default: fn(&Config) -> _ = $default;
                    text::$kind(&Some(default(config)))
                });)?
                text
            },
            write: |config, value| {
                config.$($field).+ = value.$kind($($valid)?)?;
                Ok(())
            },
            copy: |from, to| to.$($field).+ = from.$($field).+.clone(),
            is_same: |one, other| one.$($field).+ == other.$($field).+,
        }),+),+]
    };
}

/// All settings, by section.
pub const SETTINGS: &[Setting] = settings! {
    [couchdb]
    uuid: InFile("It is a part of every replication's id"), uuid = uuid();

    [replicator]
    max_jobs: Live, max_jobs = slots(1..=100_000);
    interval: Live, fair_share.rotation.interval = ms(INTERVAL_MS);
    max_churn: Live, fair_share.rotation.max_churn = number(0..=MAX_CHURN);
    startup_jitter: Live, fair_share.rotation.startup_jitter = ms(0..=MAX_JITTER_MS);
    idle_turn: Live, fair_share.rotation.idle_turn = ms(100..=MAX_MS);
    multiplex: Live, multiplex = parsed_as("auto or off");
    fairness: Live, fair_share.fairness = parsed_as("virtual_time or rfc");
    usage_coeff: Live, fair_share.rfc.usage_coeff = decimal(rfc::Rules::USAGE_COEFF);
    priority_coeff: Live, fair_share.rfc.priority_coeff = decimal(rfc::Rules::PRIORITY_COEFF);
    usage_interval: Live, fair_share.rfc.usage_interval_us = optional_ms_us(RFC_INTERVAL_MS)
        or |config| config.fair_share.rfc().usage_interval_us;
    priority_interval: Live, fair_share.rfc.priority_interval_us = optional_ms_us(RFC_INTERVAL_MS)
        or |config| config.fair_share.rfc().priority_interval_us;
    charge_interval: Live, fair_share.rfc.charge_interval_us = optional_ms_us(RFC_INTERVAL_MS)
        or |config| config.fair_share.rfc().charge_interval_us;
    max_history: Live, max_history = number(1..=1_000);
    health_threshold: Live, backoff.health_threshold_us = seconds_us();
    backoff_base_ms: Live, backoff.base_us = ms_us(1..=MAX_BACKOFF_BASE_MS);
    backoff_max_exponent: Live, backoff.max_exponent = number(0..=30);
    on_lost: Live, on_lost = on_lost();
    worker_processes: Live, replication.worker_processes = number(1..=100);
    worker_batch_size: Live, replication.worker_batch_size = optional_number(1..=100_000);
    http_connections: Live, replication.peers.http_connections = number(1..=10_000);
    connection_timeout: Live, replication.peers.connection_timeout = ms(1..=MAX_MS);
    retries_per_request: Live, replication.peers.retries_per_request = number(0..=100);
    use_checkpoints: Live, replication.use_checkpoints = boolean();
    checkpoint_interval: Live, replication.checkpoint_interval = ms(1..=MAX_MS);
    use_bulk_get: Live, replication.use_bulk_get = boolean();
    auth_plugins: Live, replication.peers.auth_plugins = auth_plugins();
    session_refresh_interval_sec: Live, replication.peers.session_refresh_interval = seconds(10_000..=MAX_HEALTH_MS);
    max_document_id_length: Live, replication.max_document_id_length = number_or_infinity(1..=MAX_DOCUMENT_ID_LENGTH);
    missing_doc_retry_msec: Live, replication.missing_doc_retry = ms(0..=MAX_MISSING_MS);
    valid_endpoint_protocols: Live, replication.endpoint_schemes = choices(&["http", "https"]);
    valid_proxy_protocols: Live, replication.proxy_schemes = choices(&["http", "https", "socks5"]);
    request_timeout: Live, replication.peers.request_timeout = ms_or_infinity(1..=MAX_MS);
    minimum_progress: Live, replication.peers.minimum_progress.bytes = number(0..=MAX_MINIMUM_PROGRESS);
    max_document_size: Live, replication.peers.max_document_bytes = number(MAX_DOCUMENT_SIZE);
    progress_interval: Live, replication.peers.minimum_progress.interval = ms(1_000..=MAX_MS);
    socket_options: Live, replication.peers.socket_options = socket_options();
    connection_close_interval: Live, connections.close_interval = ms(CLOSE_INTERVAL_MS);
    connect_to: InFile(ABOUT_CONNECTIONS), connections.connect_to = parsed();
    verify_ssl_certificates: InFile(ABOUT_CONNECTIONS), connections.tls.verify = boolean();
    ssl_trusted_certificates_file: InFile(ABOUT_CONNECTIONS), connections.tls.trusted_certificates_file = file();
    ssl_certificate_max_depth: InFile(ABOUT_CONNECTIONS), connections.tls.max_depth = number(0..=MAX_CERTIFICATE_DEPTH);
    cert_file: InFile(ABOUT_CONNECTIONS), connections.tls.cert_file = file();
    key_file: InFile(ABOUT_CONNECTIONS), connections.tls.key_file = file();
    cluster_start_period: InFile(AT_START), periods.start = seconds(0..=MAX_PERIOD_MS);
    cluster_quiet_period: InFile(AT_START), periods.quiet = seconds(0..=MAX_PERIOD_MS);

    [upstream]
    // The text omits the password.
    url: InFile(AT_START), upstream = server();

    [indexing]
    // As above.
    servers: InFile(AT_START), indexing.servers = servers();
    databases: InFile(AT_START), indexing.databases = patterns();
    exclude: InFile(AT_START), indexing.exclude = optional_patterns();
    tenant: InFile(AT_START), indexing.tenant = parsed();
    builds: InFile(AT_START), indexing.builds = number(1..=MAX_BUILDS);
    max_p95_ms: InFile(AT_START), indexing.max_p95 = ms(0..=MAX_P95_MS);
    min_delay: InFile(AT_START), indexing.min_delay = seconds(0..=MAX_DELAY_MS);
    max_delay: InFile(AT_START), indexing.max_delay = seconds(0..=MAX_DELAY_MS);

    [jobs]
    retention: Live, jobs.retention = seconds(0..=MAX_MS);
    max_history: Live, jobs.max_history = number(1..=1_000);
    max_errors: Live, jobs.max_errors = number(1..=100);
    max_result_bytes: Live, jobs.max_result_bytes = number(1..=MAX_RESULT_BYTES);
    tenant_log_bytes: Live, jobs.tenant_log_bytes = number(TENANT_LOG_BYTES);
    max_wait: Live, jobs.max_wait = seconds(0..=MAX_WAIT_MS);
    health_threshold: Live, jobs.backoff.health_threshold_us = seconds_us();
    backoff_base_ms: Live, jobs.backoff.base_us = ms_us(1..=MAX_BACKOFF_BASE_MS);
    backoff_max_exponent: Live, jobs.backoff.max_exponent = number(0..=30);
    on_lost: Live, jobs.on_lost = on_lost();
    max_attempts: Live, jobs.max_attempts = number(0..=turnwise_protocol::MAX_ATTEMPTS);

    [events]
    keep: Live, events.keep = seconds(1_000..=MAX_MS);
    max: Live, events.most = number(MAX_EVENTS);

    [egress]
    allow: InFile(ABOUT_CONNECTIONS), connections.egress.allow = egress_rules();
    deny: InFile(ABOUT_CONNECTIONS), connections.egress.deny = egress_rules();
    internal_tenants: InFile(ABOUT_CONNECTIONS), connections.egress.internal_tenants = patterns();

    [queue]
    window: Live, queue.window = number(1..=window::MAX);
    tick: Live, queue.tick = seconds(TICK_MS);
    aging_ticks: Live, queue.aging_ticks = number(0..=MAX_AGING_TICKS);
    base_weight: Live, queue.base_weight = weight();
    waiting_uses_slot: Live, queue.waiting_uses_slot = boolean();
    catalogue: InFile(AT_START), queue.catalogue = file();

    [workers]
    health_interval: InFile(AT_START), workers.health_interval = seconds(10..=MAX_HEALTH_MS);
    health_timeout: InFile(AT_START), workers.health_timeout = seconds(20..=MAX_HEALTH_MS);
    drain_target: Live, workers.drain_target = seconds(DRAIN_TARGET_MS);

    [listener]
    names: InFile(ABOUT_A_MACHINE_REACHED), listener_names = host_names();
    certificate: InFile(ABOUT_A_MACHINE_REACHED), tls.certificate = file();
    key: InFile(ABOUT_A_MACHINE_REACHED), tls.key = file();
    client_ca: InFile(ABOUT_A_MACHINE_REACHED), tls.client_ca = file();

    [limits]
    requests_per_second: Live, limits.requests_per_second = number(0..=1_000_000);
    waiting_jobs: Live, limits.waiting_jobs = number(0..=1_000_000);
    workers: Live, limits.workers = number(0..=100_000);
    schedules: Live, limits.schedules = number(0..=20_000);

    [chttpd]
    enable_cors: Live, cors.enabled = boolean();

    [cors]
    origins: Live, cors.origins = origins();
    credentials: Live, cors.credentials = boolean();
    headers: Live, cors.headers = header_names();
    methods: Live, cors.methods = methods();
    max_age: Live, cors.max_age_s = number(0..=MAX_CORS_AGE_S);

    [prometheus]
    additional_port: InFile(ABOUT_A_MACHINE_REACHED), prometheus.additional_port = boolean();
    bind_address: InFile(ABOUT_A_MACHINE_REACHED), prometheus.bind_address = parsed_as("an IP address such as 127.0.0.1");
    port: InFile(ABOUT_A_MACHINE_REACHED), prometheus.port = number(1..=u16::MAX);
    tenants: Live, prometheus.tenants = number(0..=MAX_TENANTS);

    [jwt_auth]
    keys: InFile(ABOUT_A_MACHINE_REACHED), jwt.keys = file();
    audience: InFile(ABOUT_A_MACHINE_REACHED), jwt.audience = word();
    roles_claim_path: InFile(ABOUT_A_MACHINE_REACHED), jwt.roles_claim_path = word();

    [audit]
    file: InFile(ABOUT_A_MACHINE), audit_file = file();

    [log]
    level: Live, log.level = optional_parsed();
    format: InFile(AT_START), log.format = optional_parsed();

    [otel]
    endpoint: InFile(AT_START), otel.endpoint = otel_endpoint();
    // Readers may see that there are headers, but not which.
    headers: InFile(AT_START), otel.headers = otel_headers();
    service_name: InFile(AT_START), otel.service_name = word();
    sample_ratio: Live, otel.sample_ratio = decimal(0.0..=1.0);
    trace_url: Live, otel.trace_url = trace_url();

    [command]
    enabled: InFile(ABOUT_A_MACHINE), command.enabled = boolean();
    max_jobs: Live, command.max_jobs = slots(1..=MAX_COMMANDS);
    max_output_bytes: InFile(AT_START), command.max_output_bytes = number(0..=MAX_OUTPUT_BYTES);
    programs: InFile(ABOUT_A_MACHINE), command.programs = programs();
    env: InFile(ABOUT_A_MACHINE), command.env = variables();
    user: InFile(ABOUT_A_MACHINE), command.user = word();
    allow_root: InFile(ABOUT_A_MACHINE), command.allow_root = boolean();
    max_memory_bytes: InFile(ABOUT_A_MACHINE), command.limits.memory_bytes = number_or_infinity(MIN_MEMORY_BYTES..=usize::MAX >> 1);
    max_open_files: InFile(ABOUT_A_MACHINE), command.limits.open_files = number_or_infinity(OPEN_FILES);
    max_processes: InFile(ABOUT_A_MACHINE), command.limits.processes = number_or_infinity(1..=MAX_PROCESSES);
    max_file_bytes: InFile(ABOUT_A_MACHINE), command.limits.file_bytes = number_or_infinity(0..=usize::MAX >> 1);
};

impl Setting {
    /// The setting of this name.
    pub fn find(section: &str, key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.section == section && setting.key == key)
    }

    /// Whether the value may hold a secret. Error messages do not contain such values.
    pub fn holds_secret(&self) -> bool {
        WITH_SECRETS.contains(&(self.section, self.key))
    }

    /// The setting's value as in the file, but without secrets. `None` if the server chooses it.
    pub fn read(&self, config: &Config) -> Option<String> {
        (self.read)(config)
    }

    /// Sets the setting's value.
    ///
    /// # Errors
    /// A description of the valid values. In that case nothing is changed.
    pub fn write(&self, config: &mut Config, value: &str) -> Result<(), String> {
        (self.write)(config, Value(value))
    }
}
