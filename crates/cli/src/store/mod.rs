//! `turnwise store`: tools for whole stores, without any server.

mod check;
mod copy;
mod dump;
mod open;
mod recount;
mod rekey;

pub(crate) use open::{parse, seal, use_keys};

use crate::Failure;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Copy a store into an empty one, while no server or worker uses either store
    Copy(copy::Args),
    /// Check every invariant of a store and explain violations, without repairing them
    Check(check::Args),
    /// Print rows as text: a key and a value per line
    Dump(dump::Args),
    /// Count the jobs of a store again, while no server uses it
    Recount(recount::Args),
    /// Encrypt the secrets of a store with the first of the keys, whatever they are encrypted with now
    Rekey(rekey::Args),
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Copy(args) => copy::run(args).await,
        Command::Check(args) => check::run(args).await,
        Command::Dump(args) => dump::run(args).await,
        Command::Recount(args) => recount::run(args).await,
        Command::Rekey(args) => rekey::run(args).await,
    }
}
