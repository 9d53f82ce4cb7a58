//! `turnwise store rekey`: encrypts the secrets of a store again.

use std::sync::atomic::AtomicU64;

use anyhow::anyhow;
use indicatif::HumanCount;

use super::open::{StoreArgs, seal};
use crate::Failure;

#[derive(clap::Args)]
#[command(after_help = "\
To encrypt a store that is not encrypted: stop all servers, start them with --seal-keys, and run this command.

To replace a key: add the new one as the last line of the file and restart all servers, so that all of them can read it. Make it the \
first line, restart them again, run this command, and remove the old key.

Servers on etcd and FoundationDB may run meanwhile. Stop the server of an embedded store. Deleted data may stay in free parts of an \
embedded store's files until they are used again: `turnwise store copy` to a new directory leaves it behind.

Examples:
  openssl rand -hex 32 > /etc/turnwise/keys && chmod 600 /etc/turnwise/keys
  turnwise store rekey embedded:/var/lib/turnwise --seal-keys /etc/turnwise/keys

Exit codes: 0 encrypted, 1 failed or interrupted, 2 wrong usage.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if seal().sealing.is_none() {
        return Err(Failure::Usage(anyhow!("--seal-keys names the file with the keys")));
    }
    let store = args.store.open().await?;
    let (progress, mut signals) = (AtomicU64::new(0), crate::StopSignals::listen());
    let rows = tokio::select! {
        done = turnwise_admin::rekey(&store, &progress) => done.map_err(|error| anyhow!("not encrypted: {error}"))?,
        () = signals.next() => return Err(anyhow!("interrupted; run the same command again to continue").into()),
    };
    say!("{} rows are encrypted with the first key.", HumanCount(rows));
    Ok(())
}
