//! `turnwise jobs`: the jobs of a running server, through its HTTP API.

mod add;
mod count;
mod list;
mod wait;

use anyhow::anyhow;
use turnwise_client::State;

pub(crate) use self::list::kept_by;

use crate::Failure;
use crate::remote::ServerArgs;

/// `turnwise jobs`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a job, or many
    Add(Box<add::Args>),
    /// List the jobs and their states
    List(list::Args),
    /// Count the jobs, by state
    Count(count::Args),
    /// Show one job, with its history, as JSON
    Show(JobArgs),
    /// Cancel a job
    ///
    /// A waiting job ends immediately, and a running job ends when its worker has stopped it. To stop the replication of a document, delete the
    /// document.
    Cancel(JobArgs),
    /// Retry one job or many now, so that they become pending
    ///
    /// With an id, this retries one job. A job that is crashing, delayed or blocked becomes pending now. A job that has failed or was cancelled runs
    /// again with its options, tenant, priority, locks and limits. If the job cannot be retried, the exit code is 1.
    ///
    /// Without an id, this retries all crashing jobs of a type or a tenant, and for replications also documents in state `error`. With --state, it
    /// retries all jobs in that state.
    #[command(after_help = "\
Examples:
  turnwise jobs retry replication                           # after a server has come back
  turnwise jobs retry replication --tenant high/_replicator
  turnwise jobs retry mail mail-17
  turnwise jobs retry mail --state failed                   # run all failed jobs again
  turnwise jobs retry --tenant acme --state cancelled")]
    Retry(RetryArgs),
    /// Change a job's priority class: -20 (first of its tenant's jobs) to 19 (last)
    ///
    /// A pending job moves in the queue immediately. For any other job, the class applies when the job is pending again.
    #[command(after_help = "\
Examples:
  turnwise jobs priority mail mail-17 -5")]
    Priority(PriorityArgs),
    /// Wait until a job has ended, and print its result
    Wait(wait::Args),
    /// Remove a job and its record
    ///
    /// A running job is removed when its worker has stopped it.
    Remove(JobArgs),
}

/// Which job.
#[derive(clap::Args)]
pub(crate) struct JobArgs {
    /// The job's type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's id
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// `turnwise jobs retry`
#[derive(clap::Args)]
pub(crate) struct RetryArgs {
    /// The type of the jobs
    #[arg(value_name = "TYPE", required_unless_present = "tenant")]
    job_type: Option<String>,
    /// The job's id; without it, all jobs of the type in the state
    id: Option<String>,
    /// Only jobs of this tenant
    #[arg(long, conflicts_with = "id")]
    tenant: Option<String>,
    /// Only jobs in this state
    #[arg(long, conflicts_with = "id", value_name = "STATE", value_enum, default_value = "crashing")]
    state: RetriedState,
    #[command(flatten)]
    server: ServerArgs,
}

/// The states in which many jobs can be retried together.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RetriedState {
    Crashing,
    Failed,
    Cancelled,
}

/// `turnwise jobs priority`
#[derive(clap::Args)]
pub(crate) struct PriorityArgs {
    /// The job's type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's id
    id: String,
    /// The priority class
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    priority: i32,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add::run(*args).await,
        Command::List(args) => list::run(args).await,
        Command::Count(args) => count::run(args).await,
        Command::Show(args) => show(args).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Retry(args) => retry(args).await,
        Command::Priority(args) => priority(args).await,
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
        ended if ended.is_final() => say!("the job had ended already: {}", ended.as_str()),
        _ => say!("cancelling: the worker was asked to stop the job"),
    }
    Ok(())
}

async fn retry(RetryArgs { job_type, id, tenant, state, server }: RetryArgs) -> Result<(), Failure> {
    let client = server.client()?;
    if let (Some(job_type), Some(id)) = (&job_type, &id) {
        let retried = client.retry(job_type, id).await?;
        // After a repeated retry, the job is already pending.
        if retried.retried || retried.state == State::Pending {
            say!("pending");
            return Ok(());
        }
        let hint = match retried.state {
            State::Completed => "; `turnwise jobs add --again` runs it once more",
            State::Paused => "; it can start when the filter is removed (`turnwise why` names the filter)",
            State::Limited => {
                "; it can start when fewer jobs of its bucket run (`turnwise why` names the bucket)"
            }
            _ => "",
        };
        return Err(Failure::Failed(anyhow!(
            "the job cannot be retried: it is {}{hint}",
            retried.state.as_str()
        )));
    }
    let state = match state {
        RetriedState::Crashing => turnwise_client::RetriedState::Crashing,
        RetriedState::Failed => turnwise_client::RetriedState::Failed,
        RetriedState::Cancelled => turnwise_client::RetriedState::Cancelled,
    };
    match client.retry_all(job_type.as_deref(), tenant.as_deref(), state).await? {
        (jobs, 0) => say!("{jobs} jobs are pending"),
        (jobs, documents) => say!("{jobs} jobs are pending, {documents} documents are retried"),
    }
    Ok(())
}

async fn priority(PriorityArgs { job_type, id, priority, server }: PriorityArgs) -> Result<(), Failure> {
    let set = server.client()?.set_priority(&job_type, &id, priority).await?;
    let state = set.state.as_str();
    match (set.changed, set.state) {
        (false, _) => say!("the job has ended, and is unchanged: {state}"),
        (true, State::Pending) => say!("priority {priority}"),
        (true, _) => say!("priority {priority} when the job is pending again; it is {state} now"),
    }
    Ok(())
}

async fn remove(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    match server.client()?.remove(&job_type, &id).await? {
        true => say!("removed"),
        false => say!("removing: the worker was asked to stop the job; the job is removed then"),
    }
    Ok(())
}
