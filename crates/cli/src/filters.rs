//! `turnwise filters`: which of the jobs that wait may start.

use turnwise_client::protocol::{Action, Filter, PutFilter};

use crate::remote::ServerArgs;
use crate::units::ago;
use crate::{Failure, table};

/// The name and the priority of the filter that `drain` writes: before all others.
const DRAIN: &str = "drain";
const DRAIN_PRIORITY: i32 = -1_000;

/// `turnwise filters`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the filters, in the order in which they are asked
    List(ListArgs),
    /// Add a filter, or change one
    ///
    /// The first filter whose condition holds for a job decides. A job that none decides about may run.
    #[command(after_help = "\
A condition compares id, type, tenant, user, reason and options.NAME by = != < <= > >= ~ (a regular expression) and !~ with a number, a \
word, or text between quotes; with and, or, not and parentheses. Without one the filter is about all jobs.

Examples:
  turnwise filters add no-mail pause --when 'type = mail and tenant = acme' --note 'their server is moved'
  turnwise filters add bad-hosts reject --when 'options.host ~ \"\\.test$\"' --priority 5
  turnwise filters add few-exports rate-limit 3 --when 'type = export'
  turnwise filters add vip accept --when 'tenant = vip' --priority -10
  turnwise filters add freeze pause --new")]
    Add(AddArgs),
    /// Remove a filter: what it has paused or holds back goes back to where it stood in the queue
    Remove(RemoveArgs),
    /// Start no job any more; what runs goes on. `turnwise filters remove drain` ends it
    Drain(DrainArgs),
}

/// `turnwise filters list`
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print the filters as a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// `turnwise filters add`
#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// Its name
    name: String,
    /// What it does with the jobs that its condition holds for
    action: Does,
    /// rate-limit: how many of them run at the same time, at most
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000), required_if_eq("action", "rate-limit"))]
    limit: Option<u32>,
    /// Its condition
    #[arg(long, value_name = "CONDITION", default_value = "")]
    when: String,
    /// Lower ones are asked first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Only about jobs that are added from now on
    #[arg(long)]
    new: bool,
    /// Why it is there
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// `turnwise filters remove`
#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// `turnwise filters drain`
#[derive(clap::Args)]
pub(crate) struct DrainArgs {
    /// Only jobs that this condition holds for
    #[arg(long, value_name = "CONDITION", default_value = "")]
    when: String,
    /// Why
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// What a filter does.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Does {
    /// They may run, whatever later filters say
    Accept,
    /// They do not start as long as the filter is there
    Pause,
    /// They are cancelled
    Reject,
    /// The next filters are asked
    Continue,
    /// They start while fewer than N of them run
    RateLimit,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Add(args) => {
            let action = match args.action {
                Does::Accept => Action::Accept,
                Does::Pause => Action::Pause,
                Does::Reject => Action::Reject,
                Does::Continue => Action::Continue,
                Does::RateLimit => Action::RateLimit,
            };
            let watermark_us = if args.new { crate::units::now_us() } else { 0 };
            let AddArgs { when, priority, note, limit, .. } = args;
            let filter = PutFilter { action, limit, when, priority, watermark_us, note };
            args.server.client()?.put_filter(&args.name, &filter).await?;
            Ok(())
        }
        Command::Remove(RemoveArgs { name, server }) => {
            server.client()?.remove_filter(&name).await?;
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
            say!("no job starts any more; `turnwise filters remove {DRAIN}` ends that");
            Ok(())
        }
    }
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let filters = args.server.client()?.filters().await?;
    table::list(
        &filters,
        args.json,
        "filters",
        ["FILTER", "PRIORITY", "ACTION", "JOBS SINCE", "WHEN", "NOTE"],
        row,
    )
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
