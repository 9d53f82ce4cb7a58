//! `turnwise workers`: the workers that are registered at a server, and whether they take new jobs.

use clap::Subcommand;
use turnwise_client::WorkerInfo;
use turnwise_client::protocol::Mode;

use crate::remote::ServerArgs;
use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, say_json, table};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only workers for jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Take no new jobs until the worker is resumed; running jobs continue
    Quiet(Which),
    /// Take no new jobs, and leave when the running ones have ended
    ///
    /// An external worker ends. A worker inside a server gives back the jobs that do not end by themselves, so that they start
    /// elsewhere. It stays registered, and can be resumed.
    Drain(Which),
    /// Take new jobs again
    Resume(Which),
}

#[derive(clap::Args)]
struct Which {
    /// The type of its jobs, and its id, as in the list
    #[arg(value_names = ["TYPE", "WORKER"], num_args = 2, required_unless_present = "node")]
    worker: Vec<String>,
    /// All workers inside this node, also those that it starts later, even after a restart
    #[arg(long, value_name = "NODE", conflicts_with = "worker")]
    node: Option<String>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Args { command, job_type, list } = args;
    match command {
        Some(Command::Quiet(which)) => change(which, Mode::Quiet).await,
        Some(Command::Drain(which)) => change(which, Mode::Drain).await,
        Some(Command::Resume(which)) => change(which, Mode::Active).await,
        None => {
            let workers = list.server.client()?.workers(job_type.as_deref()).all().await?;
            let columns = ["TYPE", "WORKER", "NAME", "NODE", "MODE", "RUNS", "SINCE"];
            table::list(&workers, list.json, "workers", columns, row)
        }
    }
}

async fn change(which: Which, mode: Mode) -> Result<(), Failure> {
    let client = which.server.client()?;
    if let Some(node) = &which.node {
        let changed = client.set_node_mode(node, mode).await?;
        if which.json {
            return say_json(&changed);
        }
        let workers = crate::tenants::plural(changed.workers, "worker", "workers");
        say!("{}: {}, {workers}", changed.node, changed.mode.as_str());
        return Ok(());
    }
    let [job_type, id] = which.worker.as_slice() else {
        return Err(Failure::Usage(anyhow::anyhow!(
            "name one worker by its type and its id, or a node with --node"
        )));
    };
    let worker = client.set_worker_mode(job_type, id, mode).await?;
    if which.json {
        return say_json(&worker);
    }
    let more = if worker.more_running { "+" } else { "" };
    say!("{} {}: {}, runs {}{more}", worker.job_type, worker.id, worker.mode.as_str(), worker.running.len());
    Ok(())
}

fn row(worker: &WorkerInfo) -> [String; 7] {
    let more = if worker.more_running { "+" } else { "" };
    let bounds = worker.slot_bounds.map(|bounds| format!(" ({}-{})", bounds.least, bounds.most));
    [
        worker.job_type.clone(),
        worker.id.clone(),
        worker.name.clone().unwrap_or_else(|| if worker.external { "-" } else { "(server)" }.to_owned()),
        worker.node.clone(),
        worker.mode.as_str().to_owned(),
        format!("{}{more}/{}{}", worker.running.len(), worker.slots, bounds.unwrap_or_default()),
        ago(worker.started_us),
    ]
}
