//! The command line of turnwise: it parses arguments and returns exit codes; the other libraries do the work.
//!
//! A library, so that it is compiled beside the server, and not after it.

/// Prints a line of results; see [`output::say`].
macro_rules! say {
    ($($line:tt)*) => { crate::output::say(format_args!($($line)*)) };
}

/// Prints a message to stderr, escaped in the same way. If stderr cannot be written, nobody can be told.
macro_rules! tell {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", crate::printable::Printable(format_args!($($line)*)));
    }};
}

mod demand;
mod events;
mod failure;
mod filters;
mod fleet;
mod groups;
mod identities;
mod index;
mod indexes;
mod input;
mod jobs;
mod locks;
mod nodes;
mod output;
mod printable;
mod progress;
mod remote;
mod replicate;
mod schedules;
mod serve;
mod signals;
mod simulate;
mod store;
mod table;
mod tenants;
mod test_server;
mod top;
mod types;
mod units;
mod webhooks;
mod why;
mod work;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use turnwise_server::log::{self, LogFilter, LogFormat};

use failure::Failure;
use output::say_json;
use signals::StopSignals;

/// The name of the subcommand that runs a guard.
const GUARD: &str = "command-guard";

/// Creates a guard for commands, which runs this executable.
fn guard() -> std::io::Result<turnwise_command::Guard> {
    turnwise_command::Guard::this_executable([GUARD])
}

/// A job server for many tenants, with a CouchDB replicator inside.
#[derive(Parser)]
#[command(name = "turnwise", version, about, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 success, 1 failure, 2 wrong usage, 4 no answer from the server (unavailable, or a gateway answers in its place).")]
struct Cli {
    /// What to log to stderr: a level (off, error, warn, info, debug, trace), or `target=level` pairs with commas between them
    #[arg(long, global = true, value_name = "LEVEL", env = "TURNWISE_LOG", default_value = "info")]
    log: LogFilter,

    /// Form of the log: text, or json with one object per line
    #[arg(long, global = true, value_name = "FORMAT", env = "TURNWISE_LOG_FORMAT", default_value = "text")]
    #[arg(value_parser = parse_log_format, hide_short_help = true)]
    log_format: LogFormat,

    /// File with the keys that encrypt secrets in the store, one per line in 64 hexadecimal digits. The first one encrypts, and all of them decrypt
    #[arg(long, global = true, value_name = "FILE", env = "TURNWISE_SEAL_KEYS", hide_short_help = true)]
    seal_keys: Option<std::path::PathBuf>,

    #[command(subcommand)]
    command: Command,
}

fn parse_log_format(text: &str) -> Result<LogFormat, String> {
    text.parse().map_err(|right| format!("expected {right}"))
}

#[derive(Subcommand)]
enum Command {
    /// Run the server, with its workers and its own store
    Serve(serve::Args),
    /// Copy one database to another, without any server
    Replicate(replicate::Args),
    /// Replace design documents of a CouchDB without a wait for readers, without any server
    #[command(subcommand)]
    Index(index::Command),
    /// Add, list, show, cancel, retry and remove the jobs of a running server, wait for them, and read their logs and results
    #[command(subcommand)]
    Jobs(jobs::Command),
    /// Explain why a job waits, runs or has ended, and when it is expected to start or end
    Why(why::Args),
    /// Show what happens to jobs, as it happens
    Events(events::Args),
    /// List tenants: their shares, their run time, and their waiting jobs
    Tenants(tenants::Args),
    /// Add jobs again and again: add, list, show, preview, pause, resume, fire, backfill and remove schedules
    #[command(subcommand)]
    Schedules(schedules::Command),
    /// Jobs that end together, and what is added then: add, list, show, explain, close, cancel, retry, hold, release and remove groups
    #[command(subcommand)]
    Groups(groups::Command),
    /// Send events to URLs: add, list, show, pause, resume and remove webhooks
    #[command(subcommand)]
    Webhooks(webhooks::Command),
    /// Show how many slots the jobs of a type need
    Demand(demand::Args),
    /// Control which of the waiting jobs may start
    #[command(subcommand)]
    Filters(filters::Command),
    /// State what holds for all jobs of a type: attempts, waits, timeouts, secrets
    #[command(subcommand)]
    Types(types::Command),
    /// Show tenants and jobs live, until q is pressed
    Top(top::Args),
    /// List the jobs that hold locks or wait for them
    Locks(locks::Args),
    /// List the indexes of CouchDBs that a running server keeps up to date
    Indexes(indexes::Args),
    /// List the workers of a running server; quiet, drain and resume them
    Workers(workers::Args),
    /// List the servers that share a running server's store
    Nodes(table::ListArgs),
    /// Add, list, rotate and revoke tokens: identities of programs
    #[command(subcommand)]
    Tokens(identities::Tokens),
    /// Add, list and revoke users, and change their passwords
    #[command(subcommand)]
    Users(identities::Users),
    /// Run a worker that executes a command for each job of a type
    Work(work::Args),
    /// Keep as many workers as the backlog needs, on this machine
    Fleet(fleet::Args),
    /// List the fleets that report to a running server
    Fleets(table::ListArgs),
    /// Simulate the scheduling policy on a described workload, without any server
    Simulate(simulate::Args),
    /// Copy, check or print a store, without any server
    #[command(subcommand)]
    Store(store::Command),
    /// Run a server for the tests of programs: in memory, without settings, with a clock that the tests move, until stdin ends
    TestServer(test_server::Args),
    /// Used internally: runs a command, and ends everything that it has started
    #[command(name = GUARD, hide = true)]
    Guard { argument: String },
    /// Used internally: becomes a worker of a fleet
    #[command(name = fleet::LAUNCH, hide = true)]
    FleetLaunch,
}

/// Does what the arguments of this process say. Returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Guard { argument } = &cli.command {
        // Before anything else, because the guard must stay small, and nothing reads its output.
        let guarded = turnwise_command::guard_main(argument);
        return if guarded.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Command::FleetLaunch = &cli.command {
        let Err(error) = turnwise_fleet::launch_main() else { return ExitCode::SUCCESS };
        tell!("turnwise fleet: {error}");
        return ExitCode::from(turnwise_fleet::NOT_EXECUTED);
    }
    if !matches!(&cli.command, Command::Top(args) if args.is_live()) {
        log::start(cli.log, cli.log_format);
    }
    if let Some(file) = &cli.seal_keys
        && let Err(problem) = store::use_keys(file)
    {
        tell!("turnwise: --seal-keys {}: {problem}", file.display());
        return ExitCode::from(2);
    }
    // One replication is one task beside its connections, and they wake each other for every piece of an answer. On several threads, that
    // costs more than all the rest.
    let runtime = match &cli.command {
        Command::Replicate(_) => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Runtime::new(),
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tell!("turnwise: cannot start: {error}");
            return ExitCode::from(1);
        }
    };
    let done = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Replicate(args) => replicate::run(args).await,
            Command::Index(command) => index::run(command).await,
            Command::Jobs(command) => jobs::run(command).await,
            Command::Why(args) => why::run(args).await,
            Command::Events(args) => events::run(args).await,
            Command::Schedules(command) => schedules::run(command).await,
            Command::Groups(command) => groups::run(command).await,
            Command::Webhooks(command) => webhooks::run(command).await,
            Command::Filters(command) => filters::run(command).await,
            Command::Types(command) => types::run(command).await,
            Command::Tenants(args) => tenants::run(args).await,
            Command::Demand(args) => demand::run(args).await,
            Command::Top(args) => top::run(args).await,
            Command::Locks(args) => locks::run(args).await,
            Command::Indexes(args) => indexes::run(args).await,
            Command::Workers(args) => workers::run(args).await,
            Command::Nodes(args) => nodes::run(args).await,
            Command::Tokens(command) => identities::tokens(command).await,
            Command::Users(command) => identities::users(command).await,
            Command::Work(args) => work::run(args).await,
            Command::Fleet(args) => fleet::run(args).await,
            Command::Fleets(args) => fleet::list(args).await,
            Command::Simulate(args) => simulate::run(args),
            Command::Store(command) => store::run(command).await,
            Command::TestServer(args) => test_server::run(args).await,
            Command::Guard { .. } | Command::FleetLaunch => unreachable!("it was seen to above"),
        }
    });
    // A name look-up or a disk that hangs must not delay the exit.
    runtime.shutdown_background();
    match done {
        Ok(()) if output::has_failed() => ExitCode::from(1),
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (code, error, hint) = match failure {
                Failure::Failed(error) => (1, error, ""),
                Failure::Code(code, error) => (code, error, ""),
                Failure::Usage(error) => (2, error, "\nFor more information, try '--help'."),
            };
            tell!("turnwise: {error:#}{hint}");
            ExitCode::from(code)
        }
    }
}
