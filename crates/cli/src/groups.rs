//! `turnwise groups`: jobs that end together.

use std::time::Duration;

use anyhow::Context as _;
use turnwise_client::protocol::{Group, NewGroup};
use turnwise_client::{AddJob, NewJob};

use crate::Failure;
use crate::jobs::json;
use crate::remote::ServerArgs;
use crate::table::PagesArgs;
use crate::units::{ago, parse_duration};

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
  turnwise jobs cancel --where 'group = import-7'

The jobs of a group are cancelled and retried with the commands for jobs, and `--where 'group = NAME'`; a filter with this condition pauses them.")]
    Add(Box<AddArgs>),
    /// List the groups, with the numbers of their jobs
    List(ListArgs),
    /// Show a group, with the numbers of its jobs and the jobs that it has added, as JSON
    Show(GroupArgs),
    /// Close a group: it ends with the last of its jobs
    Close(GroupArgs),
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

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => {
            let group = new(&args).map_err(Failure::Usage)?;
            let group = args.server.client()?.create_group(&group).await?;
            say!("{} is {}", group.name, group.state.as_str());
            Ok(())
        }
        Command::List(ListArgs { tenant, pages }) => {
            let groups = pages.server.client()?.groups(tenant.as_deref(), pages.page());
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
        Command::Remove(GroupArgs { name, tenant, server }) => {
            server.client()?.remove_group(&tenant, &name).await?;
            say!("removed the group {name}");
            Ok(())
        }
    }
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
