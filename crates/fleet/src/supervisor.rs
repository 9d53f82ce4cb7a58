//! The loop of the fleet: it sees what has ended, asks the [`Scaler`] of each type, starts, stops, and keeps the state on disk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwise_client::Client;
use turnwise_client::protocol::{FleetType, MAX_FLEET_TEXT_BYTES, PutFleet};
use turnwise_command::Own;

use crate::config::{ConfigError, TypeConfig, check_name};
use crate::demand::{self, Observation};
use crate::launch::Spec;
use crate::process::Process;
use crate::report;
use crate::scaler::kills;
use crate::state::{Record, Saved, State, StateError};
use crate::{Action, Config, Kind, Scaler, Worker, system};

/// The longest time between two steps.
const STEP: Duration = Duration::from_millis(500);
/// The same while processes stop, and not all of them are children of this process, so that no signal reports their end.
const SHORT_STEP: Duration = Duration::from_millis(100);
/// How long processes that were killed are waited for, after a second request to stop.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Observations that wait for the supervisor; further ones wait at their senders.
const WAITING_OBSERVATIONS: usize = 16;
/// Variables of this process that no worker inherits: they hold secrets, or are set for the worker.
const NOT_INHERITED: [&str; 5] =
    ["TURNWISE_TOKEN", "TURNWISE_TOKEN_FILE", "TURNWISE_PASSWORD", "TURNWISE_SERVER", "TURNWISE_STORE"];

/// A fleet to run.
pub struct Options {
    /// What to run.
    pub config: Config,
    /// The client of the server, with the fleet's own token.
    pub client: Client,
    /// `TURNWISE_SERVER` of the workers.
    pub server: String,
    /// `TURNWISE_TOKEN` of the workers.
    pub worker_token: Option<String>,
    /// The folder of the state.
    pub state: PathBuf,
    /// Whether the workers run on when the fleet stops.
    pub keep: bool,
    /// This executable with the arguments that lead to [`launch_main`](crate::launch_main).
    pub launcher: Own,
}

/// Why a fleet cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state cannot be used, or another fleet uses it.
    #[error("{0}")]
    State(String),
    /// A call of the system has failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Error {
        Error::State(error.to_string())
    }
}

/// Keeps the workers of the configuration until `stop` is cancelled. It then stops them, or leaves them running, if `keep` is set. When `now` is cancelled,
/// too, it kills what is left.
///
/// # Errors
/// The fleet cannot start. While it runs, it retries.
pub async fn run(options: Options, stop: CancellationToken, now: CancellationToken) -> Result<(), Error> {
    let mut children =
        signal(SignalKind::child()).map_err(|error| Error::System("cannot listen for signals", error))?;
    let mut fleet = Fleet::open(options)?;
    let (sender, mut observations) = mpsc::channel(WAITING_OBSERVATIONS);
    let (state, states) = watch::channel(fleet.report());
    let mut tasks = JoinSet::new();
    let Config { interval, types, .. } = &fleet.options.config;
    for (job_type, TypeConfig { drain_target, .. }) in types {
        let client = fleet.options.client.clone();
        tasks.spawn(demand::watch(client, job_type.clone(), *drain_target, *interval, sender.clone()));
    }
    tasks.spawn(report::report(fleet.options.client.clone(), fleet.name.clone(), states));
    loop {
        fleet.step();
        let report = fleet.report();
        state.send_if_modified(|known| {
            let is_new = *known != report;
            *known = report;
            is_new
        });
        if fleet.closing && fleet.processes.is_empty() {
            break;
        }
        let pause = if fleet.processes.values().any(|process| process.record.stopping_ms.is_some()) {
            SHORT_STEP
        } else {
            STEP
        };
        tokio::select! {
            biased;
            () = stop.cancelled(), if !fleet.closing => {
                if fleet.options.keep {
                    tracing::info!("stops; {} workers run on, and the next start finds them", fleet.processes.len());
                    break;
                }
                tracing::info!("stopping: {} workers drain; a second signal kills them", fleet.processes.len());
                fleet.closing = true;
            }
            () = now.cancelled(), if fleet.closing => {
                fleet.kill_all();
                break;
            }
            Some(observation) = observations.recv() => fleet.observe(observation),
            _ = children.recv() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    tasks.shutdown().await;
    report::remove(&fleet.options.client, &fleet.name).await;
    Ok(())
}

/// The time since the Unix epoch, as it was at the start of this process. A clock that is set later changes no age.
struct Clock {
    start: Duration,
    since: Instant,
}

impl Clock {
    fn start() -> Clock {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start, since: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.start.saturating_add(self.since.elapsed())
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Fleet {
    options: Options,
    name: String,
    host: String,
    clock: Clock,
    state: State,
    place: String,
    next: u64,
    /// By number.
    processes: BTreeMap<u64, Process>,
    scalers: BTreeMap<String, Scaler>,
    /// By type and name of a worker: the jobs that it ran when the server was asked last.
    running: BTreeMap<String, BTreeMap<String, usize>>,
    /// The types whose demand is unknown.
    unknown: BTreeMap<String, String>,
    closing: bool,
    /// Whether the state on disk is older than this one.
    is_unsaved: bool,
    /// Whether the last attempt to write it has failed.
    cannot_save: bool,
}

impl Fleet {
    fn open(options: Options) -> Result<Fleet, Error> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = match &options.config.name {
            Some(name) => name.clone(),
            None => default_name(&host),
        };
        check_name(&name)?;
        let place = system::place().map_err(|error| Error::System("cannot identify processes", error))?;
        let (state, saved) = State::open(&options.state)?;
        let clock = Clock::start();
        // Of another boot, or of another container, none can run here.
        let records = if saved.place == place { saved.processes } else { Vec::new() };
        let known = records.len();
        let adopted = records.into_iter().filter_map(Process::adopt);
        let processes: BTreeMap<u64, Process> =
            adopted.map(|process| (process.record.number, process)).collect();
        if known > 0 {
            tracing::info!("{} of {known} workers of an earlier start run on", processes.len());
        }
        let types = options.config.types.iter().map(|(job_type, config)| {
            let of_type = |process: &&Process| {
                process.record.job_type == *job_type && process.record.stopping_ms.is_none()
            };
            let running = processes.values().filter(of_type).count();
            (job_type.clone(), Scaler::new(config.limits, running))
        });
        let scalers = types.collect();
        Ok(Fleet {
            options,
            name,
            host,
            clock,
            state,
            place,
            next: saved.next,
            processes,
            scalers,
            running: BTreeMap::new(),
            unknown: BTreeMap::new(),
            closing: false,
            is_unsaved: true,
            cannot_save: false,
        })
    }

    /// Takes the answer to a question, and says so when the server stops or starts to answer.
    fn observe(&mut self, Observation { job_type, seen }: Observation) {
        let now = self.clock.now();
        let Some(scaler) = self.scalers.get_mut(&job_type) else { return };
        let demand = match seen {
            Ok((demand, running)) => {
                self.running.insert(job_type.clone(), running);
                if self.unknown.remove(&job_type).is_some() && self.unknown.is_empty() {
                    tracing::info!("the server answers again");
                }
                Some(demand)
            }
            Err(problem) => {
                if self.unknown.is_empty() {
                    tracing::warn!("the demand is unknown, so what runs stays: {problem}");
                }
                self.unknown.insert(job_type.clone(), problem);
                None
            }
        };
        let before = scaler.target();
        if scaler.observe(now, demand) {
            tracing::info!(
                "{job_type}: wants {} workers instead of {before}: {}",
                scaler.target(),
                scaler.why(now)
            );
        }
    }

    /// Sees what has ended, and does what the scalers say.
    fn step(&mut self) {
        self.reap();
        let now = self.clock.now();
        let mut started = Vec::new();
        for (job_type, actions) in self.plans(now) {
            for action in actions {
                match action {
                    Action::Start => started.extend(self.launch(&job_type, now)),
                    Action::Stop(number) => self.stop(number, now),
                    Action::Kill(number) => self.kill(number),
                }
            }
        }
        if self.is_unsaved {
            let mut saved = Saved {
                version: 0,
                place: self.place.clone(),
                next: self.next,
                processes: self.processes.values().map(|process| process.record.clone()).collect(),
            };
            match self.state.save(&mut saved) {
                Ok(()) => (self.is_unsaved, self.cannot_save) = (false, false),
                Err(error) => {
                    // A process that is not in the file must not run: the launchers end, and count as failures, so that there is a pause.
                    if !std::mem::replace(&mut self.cannot_save, true) {
                        let folder = self.options.state.display();
                        tracing::error!("{folder}: cannot write the state, so no worker starts: {error}");
                    }
                    for number in started.drain(..) {
                        self.kill(number);
                    }
                }
            }
        }
        for number in started {
            self.release(number);
        }
    }

    /// What to do, by type.
    fn plans(&mut self, now: Duration) -> Vec<(String, Vec<Action>)> {
        let mut workers: BTreeMap<String, Vec<Worker>> =
            self.scalers.keys().map(|job_type| (job_type.clone(), Vec::new())).collect();
        for process in self.processes.values() {
            let Record { number, name, job_type, runs, started_ms, stopping_ms, .. } = &process.record;
            let config = self.options.config.types.get(job_type);
            workers.entry(job_type.clone()).or_default().push(Worker {
                number: *number,
                started: Duration::from_millis(*started_ms),
                stopping: stopping_ms.map(Duration::from_millis),
                is_outdated: config.is_none_or(|config| self.words(job_type, config) != *runs),
                running: self.running.get(job_type).and_then(|of_type| of_type.get(name)).copied(),
            });
        }
        let plan = |(job_type, workers): (String, Vec<Worker>)| {
            let actions = match self.scalers.get_mut(&job_type) {
                Some(scaler) if !self.closing => scaler.plan(now, &workers),
                scaler => {
                    // The fleet stops, or no longer has this type.
                    let stops = workers.iter().filter(|worker| worker.stopping.is_none());
                    let mut actions: Vec<Action> = stops.map(|worker| Action::Stop(worker.number)).collect();
                    let grace = scaler.map_or(FOREIGN_GRACE, |scaler| scaler.limits().grace);
                    actions.extend(kills(now, &workers, grace));
                    actions
                }
            };
            (job_type, actions)
        };
        workers.into_iter().map(plan).collect()
    }

    /// What a process of a type runs, as words that differ where the configuration does.
    fn words(&self, job_type: &str, config: &TypeConfig) -> Vec<String> {
        let (kind, argv) = config.kind.parts();
        let head = [kind, job_type, self.options.server.as_str()].map(str::to_owned);
        head.into_iter().chain([config.limits.slots.to_string()]).chain(argv.iter().cloned()).collect()
    }

    /// Starts a launcher. Returns the number of its process.
    fn launch(&mut self, job_type: &str, now: Duration) -> Option<u64> {
        let config = self.options.config.types.get(job_type)?;
        let record = Record {
            number: self.next,
            name: format!("{}-{job_type}-{}", self.name, self.next),
            job_type: job_type.to_owned(),
            runs: self.words(job_type, config),
            pid: 0,
            started_ticks: 0,
            started_ms: ms(now),
            stopping_ms: None,
        };
        match Process::start(&self.options.launcher, record) {
            Ok(process) => {
                let number = process.record.number;
                self.next += 1;
                self.is_unsaved = true;
                self.processes.insert(number, process);
                Some(number)
            }
            Err(error) => {
                tracing::error!("{job_type}: cannot start a worker: {error}");
                if let Some(scaler) = self.scalers.get_mut(job_type) {
                    scaler.died(now, now);
                }
                None
            }
        }
    }

    /// Lets the launcher with this number run its command.
    fn release(&mut self, number: u64) {
        let Some(process) = self.processes.get(&number) else { return };
        let Record { name, job_type, pid, .. } = process.record.clone();
        let Some(config) = self.options.config.types.get(&job_type) else { return };
        let spec = self.spec(&name, &job_type, config);
        let released = self.processes.get_mut(&number).map_or(Ok(()), |process| process.release(&spec));
        match released {
            Ok(()) => tracing::info!("{job_type}: started {name} (process {pid})"),
            // It has ended; the next step sees that.
            Err(error) => tracing::warn!("{job_type}: {name} does not start: {error}"),
        }
    }

    fn spec(&self, name: &str, job_type: &str, config: &TypeConfig) -> Spec {
        let slots = config.limits.slots.to_string();
        let inherited = std::env::vars_os().filter(|(name, _)| NOT_INHERITED.iter().all(|not| name != not));
        let own = [
            ("TURNWISE_SERVER", self.options.server.as_str()),
            ("TURNWISE_FLEET_WORKER", name),
            ("TURNWISE_JOB_TYPE", job_type),
            ("TURNWISE_SLOTS", slots.as_str()),
        ];
        let own = own
            .into_iter()
            .chain(self.options.worker_token.as_deref().map(|token| ("TURNWISE_TOKEN", token)));
        let env = inherited.chain(own.map(|(name, value)| (name.into(), value.into()))).collect();
        match &config.kind {
            Kind::Command(argv) => Spec {
                program: argv[0].as_str().into(),
                argv: argv.iter().map(OsString::from).collect(),
                env,
            },
            Kind::Exec(exec) => {
                let (drain, grace) = drain_times(config.limits.grace);
                let [drain, grace] = [drain, grace].map(|time| format!("{}ms", time.as_millis()));
                let options = ["turnwise", "work", "--type", job_type, "--slots", &slots, "--name", name];
                let times = ["--drain", &drain, "--grace", &grace, "--exec"];
                let argv = options.into_iter().chain(times).chain(exec.iter().map(String::as_str));
                Spec {
                    program: self.options.launcher.program.clone(),
                    argv: argv.map(OsString::from).collect(),
                    env,
                }
            }
        }
    }

    fn stop(&mut self, number: u64, now: Duration) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let Record { name, job_type, pid, .. } = &process.record;
        let why = match self.scalers.get(job_type) {
            _ if self.closing => "the fleet stops".to_owned(),
            None => "its type is not in the configuration".to_owned(),
            Some(scaler) => scaler.why(now),
        };
        tracing::info!("{job_type}: stops {name} (process {pid}): {why}");
        process.stop(ms(now));
        self.is_unsaved = true;
    }

    fn kill(&mut self, number: u64) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if !process.is_killed {
            let Record { name, job_type, pid, .. } = &process.record;
            tracing::warn!("{job_type}: kills {name} (process {pid})");
        }
        process.kill();
    }

    /// Kills everything, and waits for its end for a while.
    fn kill_all(&mut self) {
        for number in self.processes.keys().copied().collect::<Vec<u64>>() {
            self.kill(number);
        }
        let killed = Instant::now();
        while !self.processes.is_empty() && killed.elapsed() < KILL_PATIENCE {
            self.reap();
            std::thread::sleep(Duration::from_millis(10));
        }
        self.step();
    }

    /// Removes what has ended.
    fn reap(&mut self) {
        let now = self.clock.now();
        let mut ended = Vec::new();
        self.processes.retain(|_, process| {
            let how = process.ended();
            let runs = how.is_none();
            ended.extend(how.map(|how| (process.record.clone(), how)));
            runs
        });
        for (Record { name, job_type, pid, started_ms, stopping_ms, .. }, how) in ended {
            self.is_unsaved = true;
            if stopping_ms.is_some() || self.closing {
                tracing::info!("{job_type}: stopped {name} (process {pid}): {how}");
                continue;
            }
            let started = Duration::from_millis(started_ms);
            let lived = now.saturating_sub(started).as_secs_f64();
            let Some(scaler) = self.scalers.get_mut(&job_type) else { continue };
            match scaler.died(now, started) {
                true => tracing::warn!(
                    "{job_type}: {name} (process {pid}) has ended after {lived:.1} s: {how}; failure {} in a row, next start after {:?}",
                    scaler.failures(),
                    crate::backoff(scaler.failures())
                ),
                false => {
                    tracing::warn!("{job_type}: {name} (process {pid}) has ended after {lived:.0} s: {how}")
                }
            }
        }
    }

    fn report(&self) -> PutFleet {
        let now = self.clock.now();
        let types = self.scalers.iter().map(|(job_type, scaler)| {
            let of_type = self.processes.values().filter(|process| process.record.job_type == *job_type);
            let (stopping, running): (Vec<_>, Vec<_>) =
                of_type.partition(|process| process.record.stopping_ms.is_some());
            let limits = scaler.limits();
            let mut why = match self.unknown.get(job_type) {
                Some(problem) => format!("{}: {problem}", scaler.why(now)),
                None => scaler.why(now),
            };
            why = why.replace(char::is_control, " ");
            why.truncate(why.floor_char_boundary(MAX_FLEET_TEXT_BYTES));
            FleetType {
                job_type: job_type.clone(),
                slots: limits.slots as u64,
                min: limits.min as u64,
                max: limits.max as u64,
                target: if self.closing { 0 } else { scaler.target() as u64 },
                running: running.len() as u64,
                stopping: stopping.len() as u64,
                failures: scaler.failures().into(),
                why,
            }
        });
        PutFleet {
            host: self.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_us: i64::try_from(self.clock.start.as_micros()).unwrap_or(i64::MAX),
            expires_ms: ms(report::EXPIRY),
            types: types.collect(),
        }
    }
}

/// The time between SIGTERM and SIGKILL for processes of types that the configuration no longer has.
const FOREIGN_GRACE: Duration = Duration::from_secs(60);

/// How long `turnwise work` drains, and then the grace period of its commands, so that both fit into that of the process.
fn drain_times(grace: Duration) -> (Duration, Duration) {
    let command = (grace / 6).min(Duration::from_secs(10));
    (grace.saturating_sub(command * 2), command)
}

/// A fleet's name from that of the machine.
fn default_name(host: &str) -> String {
    let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
    let name: String =
        host.chars().take_while(|char| *char != '.').filter(|char| allowed(*char)).take(40).collect();
    if name.is_empty() { "fleet".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_ended_before_the_grace_period_of_its_process_is_over() {
        for grace_s in [0, 1, 6, 60, 3_600] {
            let grace = Duration::from_secs(grace_s);
            let (drain, command) = drain_times(grace);
            assert!(drain + command <= grace, "{grace:?}");
        }
        assert_eq!(drain_times(Duration::from_secs(60)), (Duration::from_secs(40), Duration::from_secs(10)));
    }

    #[test]
    fn the_name_of_the_machine_names_the_fleet() {
        assert_eq!(default_name("web-1.example.org"), "web-1");
        assert_eq!(default_name("…"), "fleet");
        assert!(check_name(&default_name(&"a".repeat(100))).is_ok());
    }
}
