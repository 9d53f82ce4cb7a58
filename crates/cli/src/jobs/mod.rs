//! `turnwise jobs`: the jobs of a running server, through its HTTP API.

mod add;
mod list;
mod wait;

use turnwise_client::State;

use crate::Failure;
use crate::remote::ServerArgs;

/// `turnwise jobs`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a job, or many
    Add(add::Args),
    /// List the jobs and their states
    List(list::Args),
    /// Show one job, with its history, as JSON
    Show(JobArgs),
    /// Cancel a job
    ///
    /// One that waits ends at once; one that runs is stopped by its worker. A replication that belongs to a document is stopped
    /// by deleting the document.
    Cancel(JobArgs),
    /// Wait until a job has ended, and print its result
    Wait(wait::Args),
    /// Remove a job and its record
    ///
    /// One that runs is stopped first.
    Remove(JobArgs),
}

/// Which job.
#[derive(clap::Args)]
pub(crate) struct JobArgs {
    /// Its type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// Its id
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show(args).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Remove(args) => remove(args).await,
    }
}

async fn show(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    let job = server.client()?.get(&job_type, &id).await?;
    crate::say_json(&job)
}

async fn cancel(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    match server.client()?.cancel(&job_type, &id).await? {
        State::Cancelled => say!("cancelled"),
        ended if ended.is_final() => say!("it had ended already: {}", list::state_name(ended)),
        _ => say!("its worker was told to stop it"),
    }
    Ok(())
}

async fn remove(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    match server.client()?.remove(&job_type, &id).await? {
        true => say!("removed"),
        false => say!("its worker was told to stop it; it is removed then"),
    }
    Ok(())
}
