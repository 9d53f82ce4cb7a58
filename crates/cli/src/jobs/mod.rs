//! `turnwise jobs`: the jobs of a running server, through its HTTP API.

mod add;
pub(crate) mod bulk;
mod count;
mod edit;
mod failures;
mod list;
mod logs;
mod result;
mod wait;

use anyhow::anyhow;
use turnwise_client::protocol::bulk::quoted;
use turnwise_client::{BulkAction, State};

pub(crate) use self::add::json;
pub(crate) use self::list::kept_by;

use crate::Failure;
use crate::remote::ServerArgs;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a job, or many
    Add(Box<add::Args>),
    /// List the jobs and their states
    List(list::Args),
    /// Count the jobs, by state
    Count(count::Args),
    /// Count the failed jobs, by the class of their reason
    Failures(failures::Args),
    /// Show one job, with its history, as JSON
    Show(JobArgs),
    /// Print the lines that the runs of a job have logged
    Logs(logs::Args),
    /// Print the result of a job that has completed, of any size and type
    Result(result::Args),
    /// Print the options of a job, as JSON; `*****` stands for members that its type hides
    Options(JobArgs),
    /// Cancel a job
    ///
    /// A waiting job ends immediately, and a running job ends when its worker has stopped it. To stop the replication of a document, delete the
    /// document.
    ///
    /// With --where, this cancels all jobs that meet a condition: see `turnwise jobs bulk --help`.
    #[command(after_help = "\
Examples:
  turnwise jobs cancel mail mail-17
  turnwise jobs cancel --where 'type = mail and tenant = acme and state = pending' --dry-run")]
    Cancel(ChangeArgs),
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
  turnwise jobs retry extract 7 --with-dependents           # the graph from here
  turnwise jobs retry mail --state failed                   # run all failed jobs again
  turnwise jobs retry --tenant acme --state cancelled
  turnwise jobs retry --where 'state = failed and reason ~ timeout and ended_age < 2d'")]
    Retry(RetryArgs),
    /// Change a job's priority: -20 (first of its tenant's jobs) to 19 (last)
    ///
    /// A pending job moves in the queue immediately. For any other job, the priority applies when the job is pending again.
    #[command(after_help = "\
Examples:
  turnwise jobs priority mail mail-17 -5
  turnwise jobs priority --where 'tenant = acme and state = pending' --to 5")]
    Priority(PriorityArgs),
    /// Change a job that does not run: its options, summary, priority, start time and terms
    ///
    /// What is not given stays as it is. The history of the job states who changed what.
    #[command(after_help = edit::EXAMPLES)]
    Edit(Box<edit::Args>),
    /// Hold a job that waits: it does not start until it is released
    ///
    /// The tenant's clients may hold its jobs. What an operator holds, only an operator releases. With --where, this holds all jobs that meet a condition. A
    /// filter also pauses those that are added later: `turnwise filters`.
    #[command(after_help = "\
Examples:
  turnwise jobs hold mail mail-17
  turnwise jobs hold --where 'type = mail and tenant = acme'")]
    Hold(ChangeArgs),
    /// Release a job that is held: it returns to its place in the queue, or waits for its time
    ///
    /// With --where, this releases all held jobs that meet a condition.
    Release(ChangeArgs),
    /// Start all jobs that meet a condition without waiting for their time: delayed, parked and crashing ones
    ///
    /// For one job, use `turnwise jobs retry`.
    #[command(after_help = "\
Examples:
  turnwise jobs run-now --where 'type = mail and state = delayed and tenant = acme'")]
    RunNow(RunNowArgs),
    /// List, show and stop bulk operations: changes of all jobs that meet a condition
    #[command(subcommand, after_help = bulk::LANGUAGE)]
    Bulk(bulk::Command),
    /// Wait until a job has ended, and print its result
    Wait(wait::Args),
    /// Remove a job and its record
    ///
    /// A running job is removed when its worker has stopped it. With --where, this removes all jobs that meet a condition: see `turnwise jobs bulk --help`.
    Remove(ChangeArgs),
}

/// One job to change, or a condition that selects many.
#[derive(clap::Args)]
pub(crate) struct ChangeArgs {
    /// The job's type
    #[arg(value_name = "TYPE", required_unless_present = "condition", conflicts_with = "condition")]
    job_type: Option<String>,
    /// The job's id
    #[arg(required_unless_present = "condition", conflicts_with = "condition")]
    id: Option<String>,
    #[command(flatten)]
    many: bulk::ManyArgs,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct RunNowArgs {
    #[command(flatten)]
    many: bulk::ManyArgs,
    #[command(flatten)]
    server: ServerArgs,
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

#[derive(clap::Args)]
pub(crate) struct RetryArgs {
    /// The type of the jobs
    #[arg(value_name = "TYPE", required_unless_present_any = ["tenant", "condition"], conflicts_with = "condition")]
    job_type: Option<String>,
    /// The job's id; without it, all jobs of the type in the state
    id: Option<String>,
    /// Also the jobs that were cancelled because of its end, and those after them: they wait again for what they waited for
    #[arg(long, alias = "with-dependants", requires = "id", conflicts_with = "condition")]
    with_dependents: bool,
    /// Only jobs of this tenant
    #[arg(long, conflicts_with_all = ["id", "condition"])]
    tenant: Option<String>,
    /// Only jobs in this state
    #[arg(long, conflicts_with_all = ["id", "condition"], value_name = "STATE", value_parser = ["crashing", "failed", "cancelled"], default_value = "crashing")]
    state: String,
    #[command(flatten)]
    many: bulk::ManyArgs,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct PriorityArgs {
    #[command(flatten)]
    which: ChangeArgs,
    /// The priority
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    #[arg(required_unless_present = "condition", conflicts_with = "condition")]
    priority: Option<i32>,
    /// With --where: the priority
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    #[arg(conflicts_with = "job_type", required_unless_present = "job_type")]
    to: Option<i32>,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add::run(*args).await,
        Command::List(args) => list::run(args).await,
        Command::Count(args) => count::run(args).await,
        Command::Failures(args) => failures::run(args).await,
        Command::Show(args) => show(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Result(args) => result::run(args).await,
        Command::Options(args) => options(args).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Retry(args) => retry(args).await,
        Command::Priority(args) => priority(args).await,
        Command::Edit(args) => edit::run(*args).await,
        Command::Hold(args) => hold(args).await,
        Command::Release(args) => release(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Remove(args) => remove(args).await,
        Command::RunNow(RunNowArgs { many, server }) => {
            bulk::change(many, BulkAction::RunNow, None, server).await
        }
        Command::Bulk(command) => bulk::run(command).await,
    }
}

async fn show(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    let job = server.client()?.get(&job_type, &id).await?;
    crate::say_json(&job)
}

async fn options(JobArgs { job_type, id, server }: JobArgs) -> Result<(), Failure> {
    let options = server.client()?.options(&job_type, &id).await?;
    say!("{options}");
    Ok(())
}

async fn cancel(ChangeArgs { job_type, id, many, server }: ChangeArgs) -> Result<(), Failure> {
    many.is_given()?;
    let (Some(job_type), Some(id)) = (job_type, id) else {
        return bulk::change(many, BulkAction::Cancel, None, server).await;
    };
    match server.client()?.cancel(&job_type, &id).await? {
        State::Cancelled => say!("cancelled"),
        ended if ended.is_final() => say!("the job had ended already: {}", ended.as_str()),
        _ => say!("cancelling: the worker was asked to stop the job"),
    }
    Ok(())
}

async fn retry(args: RetryArgs) -> Result<(), Failure> {
    let RetryArgs { job_type, id, with_dependents, tenant, state, many, server } = args;
    if let (Some(job_type), Some(id)) = (&job_type, &id) {
        many.is_given()?;
        let client = server.client()?;
        let retried = match with_dependents {
            true => client.retry_with_dependents(job_type, id).await?,
            false => client.retry(job_type, id).await?,
        };
        let dependents = retried.dependents.unwrap_or(0);
        if with_dependents {
            tell!("{dependents} jobs that were cancelled because of it wait again");
        }
        if let Some(refused) = retried.refused.filter(|refused| *refused > 0) {
            tell!(
                "{refused} do not: another job has their unique key, what they waited for was removed or has ended otherwise, or you may not run them"
            );
        }
        if retried.more == Some(true) {
            tell!("there may be more: repeat the command");
        }
        // After a repeated retry, the job is already pending.
        if retried.retried || retried.state == State::Pending || dependents > 0 {
            say!("{}", retried.state.as_str());
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
    let mut terms = vec![format!("state = {state}")];
    for (field, value) in [("type", job_type), ("tenant", tenant)] {
        let Some(value) = value else { continue };
        let quoted = quoted(&value)
            .ok_or_else(|| Failure::Usage(anyhow!("{field}: a condition cannot end with a backslash")))?;
        terms.push(format!("{field} = {quoted}"));
    }
    let many = many.or_where(terms.join(" and "));
    bulk::change(many, BulkAction::Retry, None, server).await
}

async fn priority(PriorityArgs { which, priority, to }: PriorityArgs) -> Result<(), Failure> {
    let ChangeArgs { job_type, id, many, server } = which;
    many.is_given()?;
    let (Some(job_type), Some(id), Some(priority)) = (job_type, id, priority) else {
        return bulk::change(many, BulkAction::Priority, to, server).await;
    };
    let set = server.client()?.set_priority(&job_type, &id, priority).await?;
    let state = set.state.as_str();
    match (set.changed, set.state) {
        (false, _) => say!("the job has ended, and is unchanged: {state}"),
        (true, State::Pending) => say!("priority {priority}"),
        (true, _) => say!("priority {priority} when the job is pending again; it is {state} now"),
    }
    Ok(())
}

async fn hold(ChangeArgs { job_type, id, many, server }: ChangeArgs) -> Result<(), Failure> {
    many.is_given()?;
    let (Some(job_type), Some(id)) = (job_type, id) else {
        return bulk::change(many, BulkAction::Hold, None, server).await;
    };
    server.client()?.hold(&job_type, &id).await?;
    say!("held");
    Ok(())
}

async fn release(ChangeArgs { job_type, id, many, server }: ChangeArgs) -> Result<(), Failure> {
    many.is_given()?;
    let (Some(job_type), Some(id)) = (job_type, id) else {
        return bulk::change(many, BulkAction::Release, None, server).await;
    };
    let released = server.client()?.release(&job_type, &id).await?;
    match released.paused_by {
        Some(filter) => say!("paused by filter {filter}"),
        None => say!("{}", released.state.as_str()),
    }
    Ok(())
}

async fn remove(ChangeArgs { job_type, id, many, server }: ChangeArgs) -> Result<(), Failure> {
    many.is_given()?;
    let (Some(job_type), Some(id)) = (job_type, id) else {
        return bulk::change(many, BulkAction::Remove, None, server).await;
    };
    match server.client()?.remove(&job_type, &id).await? {
        true => say!("removed"),
        false => say!("removing: the worker was asked to stop the job; the job is removed then"),
    }
    Ok(())
}
