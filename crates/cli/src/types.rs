//! `turnwise types`: what holds for all jobs of a type that do not state it themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use turnwise_client::protocol::{Backoff, OnLost, StatedType, TaskTerms, TypeTerms, WaitMs, WaitsMs};

use crate::remote::{IdArgs, ServerArgs};
use crate::table::ListArgs;
use crate::units::{ago, parse_duration, words};
use crate::{Failure, table};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the types of which something is stated
    List(ListArgs),
    /// State what holds for the jobs of a type that do not state it themselves, in place of what was stated before
    ///
    /// It holds from each job's next start on, and --secret at once. What is left out is the server's setting. The command is refused without --secret if
    /// the type hides options: they would be shown.
    #[command(after_help = "\
Examples:
  turnwise types set mail --max-attempts 5 --backoff 5s,30s,5m --timeout 60s
  turnwise types set mail --task thumbnail --max-attempts 2 --start-within 1h
  turnwise types set mail --secret /smtp/password --secret '/accounts/*/token'")]
    Set(SetArgs),
    /// State nothing of a type any more: the server's settings hold again
    Unset(IdArgs),
}

#[derive(clap::Args)]
pub(crate) struct SetArgs {
    /// The type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The number of a job's last attempt: if it crashes, the job has failed. 0 retries it without limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    max_attempts: Option<u32>,
    /// How long to wait after the first crash, the second one, and so on; the last one repeats
    #[arg(long, value_name = "TIME,…", value_parser = parse_duration, value_delimiter = ',')]
    backoff: Vec<Duration>,
    /// Whether each wait is up to a tenth longer, so that jobs that crashed together do not all start together
    #[arg(long, value_name = "BOOL")]
    jitter: Option<bool>,
    /// What happens if a job's worker is lost: count it as a crash, or queue the job again without one
    #[arg(long, value_name = "WHAT", value_parser = words::<OnLost>(OnLost::WORDS))]
    on_lost: Option<OnLost>,
    /// How often a job may be snoozed; one time more fails it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    max_snoozes: Option<u32>,
    /// Maximum duration of a run: 500ms, 90s, 15m, 2h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Maximum time between two reports of a run
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    heartbeat_timeout: Option<Duration>,
    /// A job that is added from now on fails unless it starts within this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    start_within: Option<Duration>,
    /// How long the record of a job is kept after its end, in place of the server's retention; for a task, only a shorter time has an effect
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    keep: Option<Duration>,
    /// The task of which this is stated, in place of what was stated of it before; without terms, nothing is stated of it any more. Without this, it is stated
    /// of the type, and what was stated of its tasks stays
    #[arg(long, value_name = "TASK", conflicts_with = "secrets")]
    task: Option<String>,
    /// A member of the options that no one but the jobs' workers sees, as a JSON pointer: /smtp/password; may be given several times. `*` stands for
    /// any member or element. `/` hides all options. Without this, options are shown to the clients of the job's tenant and to operators
    #[arg(long = "secret", value_name = "POINTER")]
    secrets: Vec<String>,
    /// A class of errors after which a job is not tried again, as its workers name it: ValidationError; may be given several times
    #[arg(long = "final-error", value_name = "CLASS")]
    final_errors: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => {
            let types = args.server.client()?.stated_types().await?;
            table::list(&types, args.json, "types", ["TYPE", "CHANGED", "BY", "TERMS"], row)
        }
        Command::Set(args) => {
            let mut terms = terms(&args).map_err(Failure::Usage)?;
            let client = args.server.client()?;
            let before = client.type_terms(&args.job_type).await?;
            match args.task {
                Some(task) => {
                    let of_task = std::mem::replace(&mut terms, before.terms).terms();
                    terms.tasks.remove(&task);
                    if of_task != TaskTerms::default() {
                        terms.tasks.insert(task, of_task);
                    }
                }
                None => {
                    if terms.secrets.is_empty() {
                        hides_nothing(&before)?;
                    }
                    terms.tasks = before.terms.tasks;
                }
            }
            client.put_type_terms(&args.job_type, &terms).await?;
            Ok(())
        }
        Command::Unset(IdArgs { id, server }) => {
            server.client()?.remove_type_terms(&id).await?;
            Ok(())
        }
    }
}

/// Refuses to replace terms that hide options by terms that hide none: their author meant another one of them.
fn hides_nothing(StatedType { job_type, terms, .. }: &StatedType) -> Result<(), Failure> {
    if terms.secrets.is_empty() {
        return Ok(());
    }
    let hidden: Vec<String> = terms.secrets.iter().map(|pointer| format!("--secret '{pointer}'")).collect();
    Err(Failure::Failed(anyhow::anyhow!(
        "{job_type} hides options: repeat {}, or show all of them with turnwise types unset {job_type} first",
        hidden.join(" ")
    )))
}

fn terms(args: &SetArgs) -> anyhow::Result<TypeTerms> {
    let ms = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis())).transpose();
    Ok(TypeTerms {
        max_attempts: args.max_attempts,
        backoff: backoff(&args.backoff)?,
        jitter: args.jitter,
        on_lost: args.on_lost,
        max_snoozes: args.max_snoozes,
        timeout_ms: ms(args.timeout).context("--timeout: too long")?,
        heartbeat_timeout_ms: ms(args.heartbeat_timeout).context("--heartbeat-timeout: too long")?,
        start_within_ms: ms(args.start_within).context("--start-within: too long")?,
        keep_ms: ms(args.keep).context("--keep: too long")?,
        final_errors: args.final_errors.clone(),
        tasks: BTreeMap::new(),
        secrets: args.secrets.clone(),
    })
}

/// The waits that `--backoff` states.
pub(crate) fn backoff(waits: &[Duration]) -> anyhow::Result<Option<Backoff>> {
    let ms = |wait: &Duration| u64::try_from(wait.as_millis()).map(WaitMs);
    let list: Result<Vec<WaitMs>, _> = waits.iter().map(ms).collect();
    let list = list.context("--backoff: too long")?;
    Ok(Some(list).filter(|list| !list.is_empty()).map(|list| Backoff::ListMs(WaitsMs(list))))
}

fn row(stated: &StatedType) -> [String; 4] {
    let terms = serde_json::to_string(&stated.terms).unwrap_or_default();
    [stated.job_type.clone(), ago(stated.changed_us), stated.by.clone().unwrap_or_default(), terms]
}
