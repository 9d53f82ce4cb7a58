//! `turnwise workers`: the workers that are registered at a server.

use turnwise_client::{ListWorkers, WorkerInfo};

use crate::remote::ServerArgs;
use crate::units::ago;
use crate::{Failure, table};

/// `turnwise workers`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only workers for jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Print the workers as a JSON array, with the jobs that they run
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let pages = args.server.client()?.workers(ListWorkers { job_type: args.job_type });
    let (workers, _) = pages.collect(usize::MAX).await?;
    table::list(&workers, args.json, "workers", ["TYPE", "WORKER", "NAME", "NODE", "RUNS", "SINCE"], row)
}

fn row(worker: &WorkerInfo) -> [String; 6] {
    let more = if worker.more_running { "+" } else { "" };
    [
        worker.job_type.clone(),
        worker.id.clone(),
        worker.name.clone().unwrap_or_else(|| if worker.external { "-" } else { "(server)" }.to_owned()),
        worker.node.clone(),
        format!("{}{more}/{}", worker.running.len(), worker.slots),
        ago(worker.started_us),
    ]
}
