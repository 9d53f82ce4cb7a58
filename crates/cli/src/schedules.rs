//! `turnwise schedules`: jobs that the server adds again and again.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use turnwise_client::protocol::{
    Backfill, FireOutcome, Missed, Moved, Overlap, PreviewSchedule, PreviewedFire, PutSchedule, Schedule,
    SchedulePreview, ScheduleState, When,
};
use turnwise_client::{AddJob, Client, NewJob};
use turnwise_policy::timestamp::{parse_timestamp, timestamp};

use crate::Failure;
use crate::jobs::json;
use crate::remote::{IdArgs, ServerArgs};
use crate::table::PagesArgs;
use crate::units::{ago, parse_duration, words};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a schedule, or replace the one with this name
    ///
    /// From now on, each fire adds a job with the id NAME@TIME, as nightly@2026-11-29T01:30:00Z.
    #[command(after_help = "\
Examples:
  turnwise schedules add nightly report --cron '30 2 * * *' --zone Europe/Berlin
  turnwise schedules add poll fetch --every 10m --options '{\"url\":\"https://example.com/feed\"}'
  turnwise schedules add copy replication --cron @daily --options '{\"source\":\"http://a/db\",\"target\":\"http://b/db\"}'
  turnwise schedules add launch mail --at 2026-12-24T18:00:00+01:00")]
    Add(Box<AddArgs>),
    /// List the schedules, with their next fires
    List(ListArgs),
    /// Show a schedule, with its last fires, as JSON
    Show(IdArgs),
    /// Show the next fires of a schedule, or of one that is not added yet; fires that a change of clocks moves are marked
    #[command(after_help = "\
Examples:
  turnwise schedules preview nightly --count 20
  turnwise schedules preview --cron '30 2 * * *' --zone Europe/Berlin")]
    Preview(PreviewArgs),
    /// Pause a schedule: it does not fire until it is resumed
    Pause(IdArgs),
    /// Resume a schedule: it fires from now on, and makes no fire of the past
    Resume(IdArgs),
    /// Add a job of a schedule now; its next fire stays as it is
    Fire(IdArgs),
    /// Make the fires of a time of the past, at most 1,000, each of them once
    #[command(after_help = "\
Examples:
  turnwise schedules backfill nightly 2026-11-01T00:00:00Z 2026-11-08T00:00:00Z --dry-run")]
    Backfill(BackfillArgs),
    /// Remove a schedule; the jobs that it has added stay
    Remove(IdArgs),
}

/// When a schedule fires.
#[derive(clap::Args)]
struct WhenArgs {
    /// When it fires, as a cron expression: minute, hour, day of the month, month, day of the week
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// The time zone of --cron, by its IANA name. The default is UTC
    #[arg(long, value_name = "ZONE", requires = "cron")]
    zone: Option<String>,
    /// It fires each time that this has passed, counted from 1970 on: 90s, 15m, 2h, 1d
    #[arg(long, value_parser = parse_duration, value_name = "TIME", conflicts_with = "at")]
    every: Option<Duration>,
    /// Moves the fires of --every by this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME", requires = "every")]
    offset: Option<Duration>,
    /// It fires at this time alone, as 2026-12-24T18:00:00+01:00; may be given several times
    #[arg(long, value_parser = time, value_name = "DATE")]
    at: Vec<i64>,
    /// No fire before this time
    #[arg(long, value_parser = time, value_name = "DATE")]
    from: Option<i64>,
    /// No fire after this time
    #[arg(long, value_parser = time, value_name = "DATE")]
    until: Option<i64>,
}

impl WhenArgs {
    fn when(&self) -> anyhow::Result<When> {
        if self.cron.is_none() && self.every.is_none() && self.at.is_empty() {
            return Err(anyhow!("one of --cron, --every and --at is needed"));
        }
        Ok(When {
            cron: self.cron.clone(),
            zone: self.zone.clone(),
            every_ms: ms(self.every).context("--every: too long")?,
            offset_ms: ms(self.offset).context("--offset: too long")?,
            dates_us: self.at.clone(),
            from_us: self.from,
            until_us: self.until,
        })
    }
}

fn ms(time: Option<Duration>) -> anyhow::Result<Option<u64>> {
    Ok(time.map(|time| u64::try_from(time.as_millis())).transpose()?)
}

/// Parses a time, in µs since the Unix epoch.
fn time(text: &str) -> Result<i64, String> {
    let wrong = || "expected a time with its offset from UTC, for example 2026-12-24T18:00:00Z".to_owned();
    parse_timestamp(text).ok_or_else(wrong)
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// The schedule's name, up to 128 bytes without @ and /
    name: String,
    /// The type of its jobs, which decides the workers that run them
    #[arg(value_name = "TYPE")]
    job_type: String,
    #[command(flatten)]
    when: WhenArgs,
    /// Each job starts up to this time later, by chance
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    jitter: Option<Duration>,
    /// What happens to fires that no server made in time: the last one is made late, none is, or all are (not with --overlap skip)
    #[arg(long, value_name = "WHAT", default_value = "one", value_parser = words::<Missed>(Missed::WORDS))]
    missed: Missed,
    /// With --missed all: how many of them are made at most, up to 100
    #[arg(long, value_name = "N")]
    most_missed: Option<u32>,
    /// What happens to a fire while an earlier job of the schedule has not ended: skip it, allow both, queue one, or cancel the earlier job
    #[arg(long, value_name = "WHAT", default_value = "skip")]
    #[arg(value_parser = words::<Overlap>(["skip", "allow", "queue", "cancel-running"]))]
    overlap: Overlap,
    /// Pause the schedule after this number of its jobs in a row has failed, at its next fire
    #[arg(long, value_name = "N")]
    pause_after: Option<u32>,
    /// Add it paused
    #[arg(long)]
    paused: bool,
    /// Why it exists
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// The input of the jobs: JSON, or @FILE, or - for stdin; of a replication, what POST /_replicate takes. A schedule that exists keeps its options if
    /// this is left out
    #[arg(long, value_name = "JSON|@FILE|-")]
    options: Option<String>,
    /// A description of the jobs for lists, without secrets: a JSON object
    #[arg(long, value_name = "JSON|@FILE|-")]
    summary: Option<String>,
    /// The tenant that the jobs are charged to, to which the schedule belongs
    #[arg(long)]
    tenant: Option<String>,
    /// The user on whose behalf the jobs run
    #[arg(long)]
    user: Option<String>,
    /// What the jobs do, within their type
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// A word by which the jobs are found; may be given up to 16 times
    #[arg(long, value_name = "WORD")]
    tag: Vec<String>,
    /// The number of the last attempt of a job
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Maximum duration of a run: 500ms, 90s, 15m, 2h
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// A job fails unless it starts within this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    start_within: Option<Duration>,
    /// The priority of the jobs, -20 to 19
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only schedules of this tenant
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    pages: PagesArgs,
}

#[derive(clap::Args)]
pub(crate) struct PreviewArgs {
    /// A schedule that exists
    #[arg(conflicts_with_all = ["cron", "every", "at", "from", "until"])]
    name: Option<String>,
    #[command(flatten)]
    when: WhenArgs,
    /// How many fires to show, up to 100
    #[arg(long, value_name = "N", default_value_t = 10)]
    count: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct BackfillArgs {
    /// The schedule's name
    name: String,
    /// The first time, as 2026-11-01T00:00:00Z
    #[arg(value_parser = time)]
    from: i64,
    /// The time at which to stop, which does not belong to it
    #[arg(value_parser = time)]
    to: i64,
    /// Show the fires, and add nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add(&args).await,
        Command::List(ListArgs { tenant, pages }) => {
            let schedules = pages.server.client()?.schedules(tenant.as_deref(), pages.page());
            let head = ["SCHEDULE", "TENANT", "TYPE", "WHEN", "STATE", "NEXT", "LAST"];
            pages
                .print(schedules, "schedules", head, row, "There may be more schedules; --limit 0 shows all")
                .await
        }
        Command::Show(IdArgs { id, server }) => crate::say_json(&server.client()?.schedule(&id).await?),
        Command::Preview(args) => preview(&args).await,
        Command::Pause(IdArgs { id, server }) => {
            server.client()?.pause_schedule(&id).await?;
            say!("{id} is paused");
            Ok(())
        }
        Command::Resume(IdArgs { id, server }) => {
            say_next(&server.client()?.resume_schedule(&id).await?);
            Ok(())
        }
        Command::Fire(IdArgs { id, server }) => {
            let fired = server.client()?.fire_schedule(&id).await?;
            match fired.outcome {
                FireOutcome::Found => say!("no job was added: {} has its unique key", fired.job),
                _ => say!("{}", fired.job),
            }
            Ok(())
        }
        Command::Backfill(args) => backfill(&args).await,
        Command::Remove(IdArgs { id, server }) => {
            server.client()?.remove_schedule(&id).await?;
            say!("removed the schedule {id}");
            Ok(())
        }
    }
}

async fn add(args: &AddArgs) -> Result<(), Failure> {
    let put = put(args).map_err(Failure::Usage)?;
    let schedule = args.server.client()?.put_schedule(&args.name, &put).await?;
    say_next(&schedule);
    Ok(())
}

/// The schedule of the arguments.
fn put(args: &AddArgs) -> anyhow::Result<PutSchedule> {
    let job = AddJob {
        tenant: args.tenant.clone(),
        user: args.user.clone(),
        task: args.task.clone(),
        tags: (!args.tag.is_empty()).then(|| args.tag.clone()),
        options: args.options.as_ref().map(|text| json("--options", text)).transpose()?,
        summary: args.summary.as_ref().map(|text| json("--summary", text)).transpose()?,
        max_attempts: args.max_attempts,
        timeout_ms: ms(args.timeout).context("--timeout: too long")?,
        start_within_ms: ms(args.start_within).context("--start-within: too long")?,
        priority: args.priority,
        ..AddJob::default()
    };
    Ok(PutSchedule {
        when: args.when.when()?,
        job: NewJob::new(&args.job_type, job),
        jitter_ms: ms(args.jitter).context("--jitter: too long")?,
        missed: args.missed,
        most_missed: args.most_missed,
        overlap: args.overlap,
        pause_after: args.pause_after,
        paused: args.paused.then_some(true),
        note: args.note.clone(),
    })
}

fn say_next(schedule: &Schedule) {
    let name = &schedule.name;
    match (schedule.state, &schedule.next) {
        (ScheduleState::Active, Some(next)) => {
            say!("{name} fires at {} ({})", shown(next), ago(next.at_us));
        }
        (ScheduleState::Paused, _) => say!("{name} is paused"),
        _ => say!("{name} has no fire any more"),
    }
}

/// A fire, with what a change of clocks does to it.
fn shown(fire: &PreviewedFire) -> String {
    match fire.moved {
        None => fire.local.clone(),
        Some(Moved::Skipped) => format!("{}  moved: the clocks skip its time", fire.local),
        Some(Moved::Twice) => format!("{}  the first of two: the clocks are set back", fire.local),
    }
}

async fn preview(args: &PreviewArgs) -> Result<(), Failure> {
    let client = args.server.client()?;
    let preview: SchedulePreview = match &args.name {
        Some(name) => client.preview_schedule(name, Some(args.count)).await?,
        None => {
            let when = args.when.when().map_err(Failure::Usage)?;
            client.preview(&PreviewSchedule { when, count: Some(args.count), after_us: None }).await?
        }
    };
    if args.json {
        return crate::say_json(&preview);
    }
    for fire in &preview.fires {
        say!("{}", shown(fire));
    }
    if preview.fires.len() < args.count {
        tell!("the schedule has no further fire");
    }
    Ok(())
}

async fn backfill(args: &BackfillArgs) -> Result<(), Failure> {
    let client: Client = args.server.client()?;
    let BackfillArgs { name, from, to, dry_run, .. } = args;
    let request = Backfill { from_us: *from, to_us: *to, dry_run: *dry_run };
    let done = client.backfill_schedule(name, request).await?;
    for fire in &done.fires {
        say!("{}", shown(fire));
    }
    match dry_run {
        true => tell!("{} fires; without --dry-run, their jobs are added", done.fires.len()),
        false => tell!("{} jobs were added for {} fires", done.added, done.fires.len()),
    }
    Ok(())
}

fn row(schedule: &Schedule) -> [String; 7] {
    let state = match (schedule.state, schedule.paused_by) {
        (ScheduleState::Paused, Some(by)) => format!("paused: {}", by.as_str()),
        (state, _) => state.as_str().to_owned(),
    };
    let last = schedule.fires.first();
    [
        schedule.name.clone(),
        schedule.tenant.clone(),
        schedule.job.job_type.clone(),
        when(&schedule.when),
        state,
        schedule.next.as_ref().map(|next| next.local.clone()).unwrap_or_default(),
        last.map(|fire| format!("{} {}", ago(fire.fired_us), fire.outcome.as_str())).unwrap_or_default(),
    ]
}

fn when(when: &When) -> String {
    match (&when.cron, when.every_ms) {
        (Some(cron), _) => match when.zone.as_deref() {
            None | Some("UTC") => cron.clone(),
            Some(zone) => format!("{cron} {zone}"),
        },
        (None, Some(every_ms)) => format!("every {}", every(every_ms)),
        (None, None) => match when.dates_us.as_slice() {
            [at_us] => timestamp(*at_us),
            dates => format!("{} dates", dates.len()),
        },
    }
}

/// An interval in its largest unit that needs no fraction.
fn every(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.into_iter().find(|(of, _)| ms.is_multiple_of(*of)) {
        Some((of, unit)) => format!("{}{unit}", ms / of),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_their_largest_unit() {
        let shown: Vec<String> = [1_000, 90_000, 600_000, 172_800_000, 1_500].map(every).into();
        assert_eq!(shown, ["1s", "90s", "10m", "2d", "1500ms"]);
    }
}
