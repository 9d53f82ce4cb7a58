//! `turnwise jobs edit`: change a job that does not run.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::value::RawValue;
use turnwise_client::protocol::{EditJob, OnLost};

use super::add::json;
use crate::Failure;
use crate::remote::ServerArgs;
use crate::units::{parse_duration, words};

pub(super) const EXAMPLES: &str = "\
Examples:
  turnwise jobs edit mail mail-17 --options '{\"to\":\"jan@example.org\"}'
  turnwise jobs edit mail mail-17 --delay 2h --max-attempts 5
  turnwise jobs edit mail mail-17 --delay 0s              # a job in its backoff starts now
  turnwise jobs edit mail mail-17 --reset backoff,timeout_ms

Its type, id, tenant, user, task, tags, dependencies, locks and reasons cannot be changed.";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The job's type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's id
    id: String,
    /// The input of the job, which replaces the whole input that it has: JSON, or @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-")]
    options: Option<String>,
    /// A description of the job for lists, without secrets: a JSON object
    #[arg(long, value_name = "JSON|@FILE|-")]
    summary: Option<String>,
    /// The priority: -20 to 19
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    priority: Option<i32>,
    /// Time from now until the job may start: 0s, 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    delay: Option<Duration>,
    /// The number of the last attempt; 0 retries the job without limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    max_attempts: Option<u32>,
    /// How long to wait after the first crash, the second one, and so on, as in 5s,30s,5m; the last one repeats
    #[arg(long, value_name = "TIME,…", value_parser = parse_duration, value_delimiter = ',')]
    backoff: Vec<Duration>,
    /// Whether each wait is up to a tenth longer, so that jobs that crashed together do not all start together
    #[arg(long, value_name = "BOOL")]
    jitter: Option<bool>,
    /// What happens if the job's worker is lost: count it as a crash, or queue the job again without one
    #[arg(long, value_name = "WHAT", value_parser = words::<OnLost>(OnLost::WORDS))]
    on_lost: Option<OnLost>,
    /// How often the job may be snoozed; one time more fails it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    max_snoozes: Option<u32>,
    /// Maximum duration of a run
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Maximum time between two reports of a run
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    heartbeat_timeout: Option<Duration>,
    /// Within which time the job must start, from now on, or from its start time on
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    start_within: Option<Duration>,
    /// How long its record is kept after its end
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    keep: Option<Duration>,
    /// Members that become what they are for a job that states nothing: terms follow from its task and type again, options and summary are empty, the
    /// priority is 0, and the wait for a time ends
    #[arg(long, value_name = "MEMBER,…", value_delimiter = ',')]
    #[arg(value_parser = ["options", "summary", "priority", "not_before_us", "max_attempts", "backoff", "jitter", "on_lost", "max_snoozes", "timeout_ms", "heartbeat_timeout_ms", "start_within_ms", "keep_ms"])]
    reset: Vec<String>,
    /// Change the job only if it has this version (`turnwise jobs show` prints it)
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let edit = edit(&args).map_err(Failure::Usage)?;
    let job = args.server.client()?.edit(&args.job_type, &args.id, &edit, args.version.as_deref()).await?;
    say!("{}", job.state.as_str());
    Ok(())
}

/// The changes of the arguments.
fn edit(args: &Args) -> anyhow::Result<EditJob> {
    let nulls: String = args.reset.iter().map(|member| format!("\"{member}\":null,")).collect();
    let mut edit: EditJob = serde_json::from_str(&format!("{{{}}}", nulls.trim_end_matches(',')))
        .map_err(|_| anyhow!("--reset: name each member once"))?;
    let ms = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis())).transpose();
    let value = |name, text: &Option<String>| -> anyhow::Result<Option<Option<Box<RawValue>>>> {
        text.as_ref().map(|text| json(name, text).map(Some)).transpose()
    };
    edit.options = value("--options", &args.options)?.or(edit.options);
    edit.summary = value("--summary", &args.summary)?.or(edit.summary);
    edit.priority = args.priority.map(Some).or(edit.priority);
    edit.delay_ms = ms(args.delay).context("--delay: too long")?.map(Some);
    edit.max_attempts = args.max_attempts.map(Some).or(edit.max_attempts);
    edit.backoff = crate::types::backoff(&args.backoff)?.map(Some).or(edit.backoff);
    edit.jitter = args.jitter.map(Some).or(edit.jitter);
    edit.on_lost = args.on_lost.map(Some).or(edit.on_lost);
    edit.max_snoozes = args.max_snoozes.map(Some).or(edit.max_snoozes);
    edit.timeout_ms = ms(args.timeout).context("--timeout: too long")?.map(Some).or(edit.timeout_ms);
    let heartbeat_timeout_ms = ms(args.heartbeat_timeout).context("--heartbeat-timeout: too long")?;
    edit.heartbeat_timeout_ms = heartbeat_timeout_ms.map(Some).or(edit.heartbeat_timeout_ms);
    let start_within_ms = ms(args.start_within).context("--start-within: too long")?;
    edit.start_within_ms = start_within_ms.map(Some).or(edit.start_within_ms);
    edit.keep_ms = ms(args.keep).context("--keep: too long")?.map(Some).or(edit.keep_ms);
    Ok(edit)
}
