//! `turnwise store`: tools for whole stores, without any server.

mod check;
mod copy;
mod dump;

use anyhow::anyhow;
use turnwise_store::{Error, Store, StoreUrl};

use crate::Failure;

/// `turnwise store`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Copy a store into an empty one, while no server or worker uses either store
    Copy(copy::Args),
    /// Check every invariant of a store and explain violations, without repairing them
    Check(check::Args),
    /// Print rows as text: a key and a value per line
    Dump(dump::Args),
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Copy(args) => copy::run(args).await,
        Command::Check(args) => check::run(args).await,
        Command::Dump(args) => dump::run(args).await,
    }
}

/// Parses a store's URL. Not with clap, because its error would repeat the password.
pub(crate) fn parse(name: &str, text: &str) -> Result<StoreUrl, Failure> {
    text.parse().map_err(|error| Failure::Usage(anyhow!("{name}: {error}")))
}

/// Opens an existing store.
async fn open(name: &str, url: &StoreUrl) -> Result<Store, Failure> {
    turnwise_admin::open_existing(url).await.map_err(|error| cannot_open(name, url, &error))
}

/// Opens an existing store for reading.
async fn open_to_read(name: &str, url: &StoreUrl) -> Result<Store, Failure> {
    turnwise_admin::open_to_read(url).await.map_err(|error| cannot_open(name, url, &error))
}

fn cannot_open(name: &str, url: &StoreUrl, error: &Error) -> Failure {
    Failure::Failed(anyhow!("{name}: cannot open the store {url}: {error}"))
}
