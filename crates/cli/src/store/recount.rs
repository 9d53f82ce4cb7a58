//! `turnwise store recount`: counts the jobs of a store again.

use anyhow::anyhow;
use indicatif::HumanCount;
use turnwise_queue::{Error, Keyspace, counts, nodes};

use super::open::StoreArgs;
use crate::Failure;

#[derive(clap::Args)]
#[command(after_help = "\
Servers keep the numbers of jobs by type, tenant and state up to date, and `turnwise store check` compares them with the jobs. This command is for a \
store in which they differ. It reads every job once. It can be interrupted and started again.

Examples:
  turnwise store recount embedded:/var/lib/turnwise

Exit codes: 0 counted, 1 failed or interrupted, 2 wrong usage.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let store = args.store.open().await?;
    let (keys, mut signals) = (&Keyspace::default(), crate::StopSignals::listen());
    let nodes = store.transact(|tx| async move { nodes::list(&tx, keys).await }).await;
    let nodes = nodes.map_err(|error: Error| anyhow!("not counted: {error}"))?;
    if let Some(node) = nodes.first() {
        return Err(anyhow!("not counted: node {} runs on the store: stop all nodes first", node.node).into());
    }
    let jobs = tokio::select! {
        done = counts::rebuild(&store, keys) => done.map_err(|error| anyhow!("not counted: {error}"))?,
        () = signals.next() => return Err(anyhow!("interrupted; run the same command again").into()),
    };
    say!("The store has {} jobs.", HumanCount(jobs));
    Ok(())
}
