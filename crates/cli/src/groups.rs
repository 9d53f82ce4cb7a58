//! `turnwise groups`: jobs that end together.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use turnwise_client::protocol::{Group, GroupReason, GroupState, NewGroup, jobs_of_group, names};
use turnwise_client::{AddJob, BulkAction, NewJob};

use crate::jobs::bulk::{self, HowArgs};
use crate::jobs::json;
use crate::remote::ServerArgs;
use crate::table::PagesArgs;
use crate::units::{ago, parse_duration, words};
use crate::{Failure, table};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a group, to which jobs are added with `turnwise jobs add --group`
    ///
    /// It is open until it is closed. When it is closed and all its jobs have ended, the server adds the jobs with which it calls back, each once.
    #[command(after_help = "\
Examples:
  turnwise groups add import-7 --on-complete report --options '{\"of\":\"import-7\"}'
  turnwise jobs add file --group import-7 --options '{\"name\":\"a.csv\"}'
  turnwise groups close import-7
  turnwise groups cancel import-7

Each command for many jobs takes `--where 'group = NAME'`; a filter with this condition also pauses the jobs to come.")]
    Add(Box<AddArgs>),
    /// List the groups, with the numbers of their jobs
    List(ListArgs),
    /// Show a group, with the numbers of its jobs and the jobs that it has added, as JSON
    Show(GroupArgs),
    /// Show what the jobs of a group wait for
    ///
    /// Looks at some of its jobs that have not ended, at most 20 in each state. `turnwise why TYPE ID` says more of one.
    Why(WhyArgs),
    /// Close a group: it ends with the last of its jobs
    Close(GroupArgs),
    /// Cancel the jobs of a group that have not ended
    ///
    /// This, retry, hold and release change many jobs, like `turnwise jobs cancel --where 'group = NAME'` (`turnwise jobs bulk --help`). Groups in the group are left
    /// alone.
    Cancel(ManyArgs),
    /// Run the failed jobs of a group again, and its crashing ones now
    Retry(RetryArgs),
    /// Hold the jobs of a group that wait: they do not start until they are released
    ///
    /// Running jobs, jobs that wait for others, and jobs that are added later are not held. A filter pauses these, too.
    Hold(ManyArgs),
    /// Release the held jobs of a group
    Release(ManyArgs),
    /// Remove a group that has ended; its jobs stay
    Remove(GroupArgs),
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// The group's name: up to 58 letters, digits and _ - . : +
    name: String,
    /// The tenant of its jobs
    #[arg(long)]
    tenant: Option<String>,
    /// An open group in which the end of this one counts like the end of a job
    #[arg(long, value_name = "NAME")]
    parent: Option<String>,
    /// At most so many of its jobs run at the same time
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// How long the group is kept after its end. The default is `[jobs] retention`
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    keep: Option<Duration>,
    /// Add a job of this type when all jobs of the group have ended
    #[arg(long, value_name = "TYPE")]
    on_complete: Option<String>,
    /// Add a job of this type when all jobs of the group have completed
    #[arg(long, value_name = "TYPE")]
    on_success: Option<String>,
    /// Add a job of this type when a job of the group has failed for the first time
    #[arg(long, value_name = "TYPE")]
    on_first_failure: Option<String>,
    /// What these jobs do, within their type
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// The input of these jobs: JSON, or @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-")]
    options: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only groups of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only groups in this state
    #[arg(long, value_name = "STATE", value_parser = words::<GroupState>(GroupState::WORDS))]
    state: Option<GroupState>,
    #[command(flatten)]
    pages: PagesArgs,
}

#[derive(clap::Args)]
pub(crate) struct GroupArgs {
    /// The group's name
    name: String,
    /// The group's tenant
    #[arg(long, default_value = "default")]
    tenant: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    group: GroupArgs,
    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct ManyArgs {
    #[command(flatten)]
    group: GroupArgs,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(clap::Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    many: ManyArgs,
    /// Also the cancelled jobs
    #[arg(long)]
    cancelled: bool,
}

/// Changes the jobs of a group that meet this further condition.
async fn change(
    ManyArgs { group: GroupArgs { name, tenant, server }, how }: ManyArgs,
    action: BulkAction,
    further: &str,
) -> Result<(), Failure> {
    names::check_group("group", &name).map_err(|problem| Failure::Usage(anyhow!("{problem}")))?;
    let condition = jobs_of_group(&tenant, &name)
        .ok_or_else(|| Failure::Usage(anyhow!("a condition cannot name the tenant `{tenant}`")))?;
    bulk::change(how.of(condition + further), action, None, server).await
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => {
            let group = new(&args).map_err(Failure::Usage)?;
            let group = args.server.client()?.create_group(&group).await?;
            say!("{} is {}", group.name, group.state.as_str());
            Ok(())
        }
        Command::List(ListArgs { tenant, state, pages }) => {
            let groups = pages.server.client()?.groups(tenant.as_deref(), state, pages.page());
            let head = ["GROUP", "TENANT", "STATE", "OPEN", "COMPLETED", "FAILED", "CANCELLED", "ENDED"];
            pages.print(groups, "groups", head, row, "There may be more groups; --limit 0 shows all").await
        }
        Command::Show(GroupArgs { name, tenant, server }) => {
            crate::say_json(&server.client()?.group(&tenant, &name).await?)
        }
        Command::Close(GroupArgs { name, tenant, server }) => {
            let group = server.client()?.close_group(&tenant, &name).await?;
            say!("{name} is closed; {} of its jobs have not ended", group.counts.open);
            Ok(())
        }
        Command::Why(args) => why(args).await,
        Command::Cancel(many) => change(many, BulkAction::Cancel, "").await,
        Command::Retry(RetryArgs { many, cancelled: false }) => {
            change(many, BulkAction::Retry, " and state in (failed, crashing)").await
        }
        Command::Retry(RetryArgs { many, cancelled: true }) => {
            change(many, BulkAction::Retry, " and state in (failed, crashing, cancelled)").await
        }
        Command::Hold(many) => change(many, BulkAction::Hold, "").await,
        Command::Release(many) => change(many, BulkAction::Release, "").await,
        Command::Remove(GroupArgs { name, tenant, server }) => {
            server.client()?.remove_group(&tenant, &name).await?;
            say!("removed the group {name}");
            Ok(())
        }
    }
}

async fn why(WhyArgs { group: GroupArgs { name, tenant, server }, json }: WhyArgs) -> Result<(), Failure> {
    let why = server.client()?.why_group(&tenant, &name).await?;
    if json {
        return crate::say_json(&why);
    }
    say!("{}", why.sentence);
    if !why.groups.is_empty() {
        say!("Groups in it that have not ended: {}", why.groups.join(", "));
    }
    if !why.reasons.is_empty() {
        let row = |of: &GroupReason| {
            let job = format!("{} {}", of.job_type, of.id);
            [of.reason.as_str().to_owned(), of.jobs.to_string(), job, of.sentence.clone()]
        };
        say!("");
        let rows: Vec<_> = why.reasons.iter().map(row).collect();
        table::print(["REASON", "JOBS", "SUCH AS", "WHY"], &rows);
    }
    if !why.complete {
        say!("\nThese are {} of its jobs: at most 20 in each state were looked at.", why.looked_at);
    }
    Ok(())
}

/// The group of the arguments.
fn new(args: &AddArgs) -> anyhow::Result<NewGroup> {
    let options = args.options.as_ref().map(|text| json("--options", text)).transpose()?;
    let callback = |job_type: &String| {
        let job = AddJob { task: args.task.clone(), options: options.clone(), ..AddJob::default() };
        NewJob::new(job_type, job)
    };
    let keep_ms = args.keep.map(|time| u64::try_from(time.as_millis())).transpose();
    Ok(NewGroup {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        open: None,
        parent: args.parent.clone(),
        at_once: args.at_once,
        keep_ms: keep_ms.context("--keep: too long")?,
        on_complete: args.on_complete.as_ref().map(callback),
        on_success: args.on_success.as_ref().map(callback),
        on_first_failure: args.on_first_failure.as_ref().map(callback),
    })
}

fn row(group: &Group) -> [String; 8] {
    let counts = &group.counts;
    [
        group.name.clone(),
        group.tenant.clone(),
        group.state.as_str().to_owned(),
        counts.open.to_string(),
        counts.completed.to_string(),
        counts.failed.to_string(),
        (counts.cancelled + counts.removed).to_string(),
        group.ended_us.map(ago).unwrap_or_default(),
    ]
}
