//! `turnwise jobs failures`: failed jobs by their task and the class of their reason.

use indicatif::HumanCount;
use turnwise_client::Failure as Class;

use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, table};

#[derive(clap::Args)]
#[command(after_help = "\
A class is a reason without its particulars: numbers of more than three digits, addresses and quoted text. LATEST is the time since the latest of \
these failures.

Examples:
  turnwise jobs failures
  turnwise jobs failures --type mail --tenant acme
  turnwise jobs list --state failed --reason-class 'HTTP 503'
  turnwise jobs retry --where 'state = failed and task = send and reason_class = \"HTTP 503\"'")]
pub(crate) struct Args {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only jobs of this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let Args { job_type, tenant, task, list: ListArgs { json, server } } = args;
    let failures = server.client()?;
    let failures = failures.failures(job_type.as_deref(), tenant.as_deref(), task.as_deref()).await?;
    table::list(&failures.failures, json, "failures", ["JOBS", "LATEST", "TASK", "CLASS", "EXAMPLE"], row)?;
    if !failures.complete && !json {
        tell!("The latest {} failed jobs were counted. There are more.", HumanCount(failures.looked_at));
    }
    Ok(())
}

fn row(class: &Class) -> [String; 5] {
    let example = format!("{} {}", class.job_type, class.id);
    let task = class.task.as_deref().unwrap_or("-").to_owned();
    [HumanCount(class.jobs).to_string(), ago(class.latest_us), task, class.reason_class.clone(), example]
}
