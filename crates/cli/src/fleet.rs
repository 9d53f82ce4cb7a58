//! `turnwise fleet`: keeps as many workers as the backlog needs; and `turnwise fleets`, which lists fleets.

use std::path::PathBuf;

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;
use turnwise_client::protocol::{Fleet, FleetType};
use turnwise_command::Own;
use turnwise_fleet::{Config, Options};

use crate::input::first_line;
use crate::remote::ServerArgs;
use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, table};

/// The name of the subcommand that becomes a worker.
pub(crate) const LAUNCH: &str = "fleet-launch";

#[derive(clap::Args)]
#[command(after_help = "\
The fleet asks the server how many slots the backlog of each type needs, and starts and stops worker processes accordingly. A worker gets \
TURNWISE_SERVER, TURNWISE_TOKEN, TURNWISE_FLEET_WORKER (its name), TURNWISE_JOB_TYPE and TURNWISE_SLOTS in its environment.

On SIGTERM or Ctrl-C, the fleet stops its workers: each gets SIGTERM, and SIGKILL with its process group after its grace period. On a second \
signal it kills them immediately. With --keep, they run on. If the fleet is killed, they run on, too. The next start with the same state finds them.

The fleet's token needs the scope operator, that of its workers worker:TYPES.

Example of a fleet.toml:
  server = \"http://127.0.0.1:7984\"
  token_file = \"fleet.token\"
  worker_token_file = \"worker.token\"
  [types.mail]
  exec = [\"./send-mail\"]   # a program per job; or command = [...], a program that is a worker
  slots = 4                # of each worker
  min = 0
  max = 20                 # workers
  drain_target = \"1m\"      # the time in which the backlog is to be worked off
  idle = \"1m\"              # the time without jobs after which only min workers are left
  min_lifetime = \"30s\"
  grace = \"1m\"             # the time between SIGTERM and SIGKILL")]
pub(crate) struct Args {
    /// What to run: per type a command, and the limits
    #[arg(value_name = "FLEET.TOML")]
    file: PathBuf,
    /// Check the file and exit
    #[arg(long)]
    check: bool,
    /// Folder for the state: which workers run. Two fleets cannot share one
    #[arg(long, value_name = "DIR", default_value = "./turnwise-fleet")]
    state: PathBuf,
    /// Leave the workers running when the fleet stops
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::read(&args.file).map_err(|problem| Failure::Usage(problem.into()))?;
    if let Some(url) = &config.server {
        let wrong = |error| Failure::Usage(anyhow!("{}: server: {error}", args.file.display()));
        turnwise_client::Client::new(url).map_err(wrong)?;
    }
    let server = args.server.or(config.server.clone(), config.token_file.clone());
    let client = server.client()?;
    let worker_token = match &config.worker_token_file {
        Some(file) => Some(first_line("worker_token_file", file)?.trim().to_owned()),
        None => server.token()?,
    };
    if args.check {
        let most: usize = config.types.values().map(|of_type| of_type.limits.max).sum();
        say!("{}: {} types, up to {most} workers", args.file.display(), config.types.len());
        return Ok(());
    }
    // Its environment and its memory have tokens, and the workers are processes of the same user.
    turnwise_command::hide_from_commands().map_err(|error| Failure::Failed(error.into()))?;
    let options = Options {
        config,
        client,
        server: server.url().to_owned(),
        worker_token,
        state: args.state,
        keep: args.keep,
        launcher: Own::with([LAUNCH]).map_err(|error| Failure::Failed(error.into()))?,
    };
    let (stop, now) = (CancellationToken::new(), CancellationToken::new());
    let mut signals = crate::StopSignals::listen();
    let listening = {
        let (stop, now) = (stop.clone(), now.clone());
        async move {
            signals.next().await;
            stop.cancel();
            signals.next().await;
            now.cancel();
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = turnwise_fleet::run(options, stop, now.clone()) => {
            done.map_err(|error| Failure::Failed(error.into()))?;
        }
        () = listening => {}
    }
    if now.is_cancelled() {
        return Err(anyhow!("stopped immediately, after a second signal: its workers were killed").into());
    }
    Ok(())
}

pub(crate) async fn list(args: ListArgs) -> Result<(), Failure> {
    let fleets = args.server.client()?.fleets().await?;
    if args.json {
        return crate::say_json(&fleets);
    }
    let rows: Vec<(&Fleet, &FleetType)> =
        fleets.iter().flat_map(|fleet| fleet.types.iter().map(move |of_type| (fleet, of_type))).collect();
    let head = ["FLEET", "HOST", "TYPE", "RUNS", "WANTED", "LIMITS", "SEEN", "WHY"];
    table::list(&rows, false, "fleets", head, row)
}

fn row((fleet, of_type): &(&Fleet, &FleetType)) -> [String; 8] {
    let stopping = match of_type.stopping {
        0 => String::new(),
        n => format!("+{n} stopping"),
    };
    [
        fleet.name.clone(),
        fleet.host.clone(),
        of_type.job_type.clone(),
        format!("{}{stopping}", of_type.running),
        of_type.target.to_string(),
        format!("{}-{}", of_type.min, of_type.max),
        ago(fleet.seen_us),
        of_type.why.clone(),
    ]
}
