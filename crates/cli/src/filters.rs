//! `turnwise filters`: rules for which waiting jobs may start.

use std::time::Duration;

use clap::builder::PossibleValue;
use turnwise_client::protocol::{Action, Filter, PauseRate, PutFilter, Rate as ApiRate, RateAlgorithm};
use turnwise_policy::eligibility::rate::{self, Rate};

use crate::remote::{IdArgs, ServerArgs};
use crate::table::ListArgs;
use crate::units::{ago, now_us, parse_duration, words};
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
  turnwise filters add mails rate --rate 100/60s --key options.customer --when 'type = mail'
  turnwise filters add vip accept --when 'tenant = vip' --priority -10
  turnwise filters add freeze pause --new")]
    Add(AddArgs),
    /// Start no more jobs of a filter's rate for a time: the service that it protects refuses requests
    PauseRate(PauseRateArgs),
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
    /// concurrency, and also for rate: the maximum number of these jobs that run at the same time
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000), required_if_eq("action", "concurrency"))]
    limit: Option<u32>,
    /// rate: how many of these jobs start per period, such as 100/60s (ms, s, min, h or d)
    #[arg(long, value_name = "N/PERIOD", value_parser = rate::parse, required_if_eq("action", "rate"))]
    rate: Option<Rate>,
    /// rate: an option, options.NAME, each of whose values has a rate of its own
    #[arg(long, value_name = "OPTION", requires = "rate")]
    key: Option<String>,
    /// rate: as how many starts each job counts
    #[arg(long, value_name = "N", requires = "rate", default_value_t = 1)]
    weight: u32,
    /// rate: count with a token bucket, which admits up to twice the rate after a pause
    #[arg(long, requires = "rate")]
    bucket: bool,
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
pub(crate) struct PauseRateArgs {
    /// The filter's name
    name: String,
    /// For how long, at most 1d; 0s ends a pause
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// The value of the rate's key, if it has one
    #[arg(long, value_name = "VALUE")]
    key: Option<String>,
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
fn actions() -> [PossibleValue; 6] {
    [
        PossibleValue::new("accept").help("The jobs may start; no later filter is evaluated"),
        PossibleValue::new("pause").help("The jobs do not start as long as the filter exists"),
        PossibleValue::new("reject").help("The jobs are cancelled"),
        PossibleValue::new("continue").help("The next filters decide"),
        PossibleValue::new("concurrency")
            .help("The jobs start while fewer than N of them run")
            .alias("rate-limit"),
        PossibleValue::new("rate").help("The jobs start as often per period as --rate allows"),
    ]
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Add(AddArgs {
            name,
            action,
            limit,
            rate,
            key,
            weight,
            bucket,
            when,
            priority,
            new,
            note,
            server,
        }) => {
            let watermark_us = if new { now_us() } else { 0 };
            let algorithm = if bucket { RateAlgorithm::Bucket } else { RateAlgorithm::Window };
            let rate =
                rate.map(|Rate { at_most, per_ms, .. }| ApiRate { at_most, per_ms, key, weight, algorithm });
            let filter = PutFilter { action, limit, rate, when, priority, watermark_us, note };
            server.client()?.put_filter(&name, &filter).await?;
            Ok(())
        }
        Command::PauseRate(PauseRateArgs { name, duration, key, server }) => {
            let for_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            server.client()?.pause_rate(&name, &PauseRate { for_ms, key }).await?;
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
                rate: None,
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

/// `100/60s per options.customer`
fn written(rate: &ApiRate) -> String {
    let key = rate.key.as_ref().map(|key| format!(" per {key}")).unwrap_or_default();
    format!("{}{key}", Rate::new(rate.at_most, rate.per_ms))
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
        [
            Some(action.to_owned()),
            filter.limit.map(|limit| limit.to_string()),
            filter.rate.as_ref().map(written),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" "),
        since,
        when.to_owned(),
        filter.note.clone().unwrap_or_default(),
    ]
}
