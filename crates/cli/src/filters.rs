//! `turnwise filters`: rules for which waiting jobs may start.

use clap::builder::PossibleValue;
use turnwise_client::protocol::{Action, Filter, PutFilter};

use crate::remote::{IdArgs, ServerArgs};
use crate::table::ListArgs;
use crate::units::{ago, now_us, words};
use crate::{Failure, table};

/// The name and the priority of the filter that `drain` writes. By its priority, it comes before other filters.
const DRAIN: &str = "drain";
const DRAIN_PRIORITY: i32 = -1_000;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the filters, in the order in which the server evaluates them
    List(ListArgs),
    /// Add or change a filter
    ///
    /// The first filter whose condition holds for a job decides. A job that no filter decides about may start.
    #[command(after_help = "\
A condition compares id, type, tenant, user, reason and options.NAME with a number, a word, or text in quotes. The operators are = \
!= < <= > >= ~ (a regular expression) and !~. Combine comparisons with and, or, not and parentheses. A filter without a condition \
applies to all jobs.

Examples:
  turnwise filters add no-mail pause --when 'type = mail and tenant = acme' --note 'their mail server is moving'
  turnwise filters add bad-hosts reject --when 'options.host ~ \"\\.test$\"' --priority 5
  turnwise filters add few-exports concurrency 3 --when 'type = export'
  turnwise filters add vip accept --when 'tenant = vip' --priority -10
  turnwise filters add freeze pause --new")]
    Add(AddArgs),
    /// Remove a filter; the jobs that it paused or limited return to their places in the queue
    Remove(IdArgs),
    /// Start no more jobs; running jobs continue. `turnwise filters remove drain` ends this
    Drain(DrainArgs),
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// The filter's name
    name: String,
    /// What happens to the jobs for which the condition holds
    #[arg(value_parser = words::<Action>(actions()))]
    action: Action,
    /// concurrency: the maximum number of these jobs that run at the same time
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000), required_if_eq("action", "concurrency"))]
    limit: Option<u32>,
    /// The filter's condition
    #[arg(long, value_name = "CONDITION", default_value = "")]
    when: String,
    /// The order of filters: the server evaluates lower priorities first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Apply the filter only to jobs that are added from now on
    #[arg(long)]
    new: bool,
    /// A note about the filter's purpose
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct DrainArgs {
    /// Pause only jobs for which this condition holds
    #[arg(long, value_name = "CONDITION", default_value = "")]
    when: String,
    /// A note about the purpose
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The actions of filters.
fn actions() -> [PossibleValue; 5] {
    [
        PossibleValue::new("accept").help("The jobs may start; no later filter is evaluated"),
        PossibleValue::new("pause").help("The jobs do not start as long as the filter exists"),
        PossibleValue::new("reject").help("The jobs are cancelled"),
        PossibleValue::new("continue").help("The next filters decide"),
        PossibleValue::new("concurrency")
            .help("The jobs start while fewer than N of them run")
            .alias("rate-limit"),
    ]
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Add(AddArgs { name, action, limit, when, priority, new, note, server }) => {
            let watermark_us = if new { now_us() } else { 0 };
            let filter = PutFilter { action, limit, when, priority, watermark_us, note };
            server.client()?.put_filter(&name, &filter).await?;
            Ok(())
        }
        Command::Remove(IdArgs { id, server }) => {
            server.client()?.remove_filter(&id).await?;
            Ok(())
        }
        Command::Drain(DrainArgs { when, note, server }) => {
            let filter = PutFilter {
                action: Action::Pause,
                limit: None,
                when,
                priority: DRAIN_PRIORITY,
                watermark_us: 0,
                note,
            };
            server.client()?.put_filter(DRAIN, &filter).await?;
            say!("no more jobs start; `turnwise filters remove {DRAIN}` ends this");
            Ok(())
        }
    }
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let filters = args.server.client()?.filters().await?;
    let head = ["FILTER", "PRIORITY", "ACTION", "JOBS SINCE", "WHEN", "NOTE"];
    table::list(&filters, args.json, "filters", head, row)
}

fn row(filter: &Filter) -> [String; 6] {
    let since = match filter.watermark_us {
        0 => "all".to_owned(),
        at_us => ago(at_us),
    };
    let action = filter.action.as_str();
    let when = if filter.when.trim().is_empty() { "always" } else { &filter.when };
    [
        filter.id.clone(),
        filter.priority.to_string(),
        filter.limit.map_or_else(|| action.to_owned(), |limit| format!("{action} {limit}")),
        since,
        when.to_owned(),
        filter.note.clone().unwrap_or_default(),
    ]
}
