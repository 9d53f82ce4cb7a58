//! `turnwise jobs list`.

use turnwise_client::protocol::{Limited, LimitedBy};
use turnwise_client::{Job, ListJobs, ListOrder, State};

use crate::Failure;
use crate::table::PagesArgs;
use crate::units::{ago, words};

#[derive(clap::Args)]
#[command(after_help = "\
SINCE is the time since the last change of the state, or until the job may start. ATTEMPTS is the number of attempts since the \
job was added, and the maximum number if there is one.

The newest jobs come first: by when they ended, started or became pending; for jobs that wait for a time, by that time. Lists by type, \
state, tenant, tag and reason class are fast with any number of jobs; `turnwise jobs failures` shows the classes.

Examples:
  turnwise jobs list --type mail --state failed
  turnwise jobs list --state failed --reason-class 'HTTP 503' --order oldest
  turnwise jobs list --where 'type = mail and state = failed and reason ~ timeout'
  turnwise jobs list --json | jq -r '.[] | select(.attempts > 2) | .id'")]
pub(crate) struct Args {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only jobs in this state
    #[arg(long, value_parser = words::<State>(State::WORDS), value_name = "STATE")]
    state: Option<State>,
    /// Only jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only jobs with this tag; several: --where 'tag = eu and tag = nightly'
    #[arg(long)]
    tag: Option<String>,
    /// Only jobs that failed, crashed or were cancelled for a reason of this class; a whole reason selects its class
    #[arg(long, value_name = "CLASS")]
    reason_class: Option<String>,
    /// Which jobs come first: those with the latest or the earliest times, or those with the lowest type and id
    #[arg(long, value_name = "ORDER", value_parser = words::<ListOrder>(ListOrder::WORDS), default_value = "newest")]
    order: ListOrder,
    /// Only jobs that meet this condition (`turnwise jobs bulk --help` describes it)
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
    #[command(flatten)]
    rows: PagesArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let which = ListJobs {
        job_type: args.job_type,
        state: args.state,
        tenant: args.tenant,
        tag: args.tag,
        reason_class: args.reason_class,
        condition: args.condition,
        order: Some(args.order),
        page: args.rows.page(),
    };
    let jobs = args.rows.server.client()?.list(which);
    let head = ["TYPE", "ID", "STATE", "SINCE", "ATTEMPTS", "TENANT", "PRIORITY", "ABOUT"];
    let more = "There may be more jobs: raise --limit, or select with --type, --state and --tenant.";
    args.rows.print(jobs, "jobs", head, row, more).await
}

fn row(job: &Job) -> [String; 8] {
    let state = match job.cancel_requested && !job.state.is_final() {
        true => "stopping",
        false => job.state.as_str(),
    };
    let since = match job.not_before_us {
        Some(not_before_us) => ago(not_before_us),
        None => ago(job.changed_us),
    };
    let attempts = match job.max_attempts {
        Some(max) => format!("{}/{max}", job.attempts),
        None => job.attempts.to_string(),
    };
    let kept_by = kept_by(job.paused_by.as_deref(), job.limited.as_ref(), job.waits_for);
    let about = match (kept_by, &job.reason, job.summary.get()) {
        (Some(kept_by), ..) => kept_by,
        (None, Some(reason), _) => reason.clone(),
        (None, None, "{}") => String::new(),
        (None, None, summary) => summary.to_owned(),
    };
    let (job_type, id, tenant) = (job.job_type.clone(), job.id.clone(), job.tenant.clone());
    [job_type, id, state.to_owned(), since, attempts, tenant, job.priority.to_string(), about]
}

/// What keeps a job out of the queue, other than its time: the filter or the limit by name, or the number of jobs that it waits for.
pub(crate) fn kept_by(
    paused_by: Option<&str>,
    limited: Option<&Limited>,
    waits_for: Option<u32>,
) -> Option<String> {
    match (paused_by, limited, waits_for) {
        (Some("client"), ..) => Some("held by a client".to_owned()),
        (Some("operator"), ..) => Some("held by an operator".to_owned()),
        (Some(filter), ..) => Some(format!("paused by filter {filter}")),
        (_, Some(Limited { by: LimitedBy::Filter, name, limit, .. }), _) => {
            Some(format!("limited by filter {name} to {limit} at a time"))
        }
        (_, Some(Limited { by: LimitedBy::Reason, name, limit, .. }), _) => {
            Some(format!("limited by concurrency:{limit}:{name}"))
        }
        (_, Some(Limited { by: LimitedBy::Rate, name, key, limit, .. }), _) => {
            let of = key.as_ref().map(|key| format!(" for {key}")).unwrap_or_default();
            Some(format!("limited by rate {name}{of} to {limit} per period"))
        }
        (_, _, Some(1)) => Some("waits for the end of 1 job".to_owned()),
        (_, _, Some(jobs)) => Some(format!("waits for the end of {jobs} jobs")),
        _ => None,
    }
}
