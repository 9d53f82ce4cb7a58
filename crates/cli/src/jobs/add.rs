//! `turnwise jobs add`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::builder::PossibleValue;
use serde_json::value::RawValue;
use turnwise_client::protocol::names::{check_id, check_type};
use turnwise_client::protocol::{
    AddJobs, After, End, Input, MAX_ADDED, MAX_BATCH_BODY_BYTES, MAX_OPTIONS_BYTES, OnLost, Otherwise,
};
use turnwise_client::{
    AddJob, Added, AddedJob, FoundDid, IfExists, Locks, NewJob, OnConflict, Unique, UniqueMode, UniqueWithin,
};

use crate::Failure;
use crate::input::open;
use crate::remote::ServerArgs;
use crate::units::{parse_duration, words};

/// The maximum length of a line in a file of jobs, in bytes.
const MAX_LINE_BYTES: usize = MAX_OPTIONS_BYTES + (64 << 10);
/// The maximum total size of the jobs in one request, in bytes: the server's limit, less room for the rest of the body.
const MAX_BATCH_BYTES: usize = MAX_BATCH_BODY_BYTES - (256 << 10);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  turnwise jobs add mail --options '{\"to\":\"jan@example.org\"}'
  id=$(turnwise jobs add mail --options @mail.json --delay 15m --max-attempts 5)
  turnwise jobs add command --options '{\"argv\":[\"date\"]}'
  turnwise jobs add mail --after report/july --after report/august
  turnwise jobs add load --input rows=extract/7
  turnwise jobs add mail --many jobs.jsonl
  turnwise jobs add etl --many graph.jsonl --whole
  turnwise jobs add index --options '{\"shop\":7}' --unique while_waiting
  turnwise jobs add render --id film-7 --count 1000 --at-once 50

The command prints the ids of the jobs, one per line. If a job with the id exists, it is unchanged, so you can repeat a command \
with ids. If another job has the unique key, its id is printed.

Each line of a file for --many is an object with any of id, options, summary, tenant, user, task, tags, delay_ms, not_before_us, \
max_attempts, backoff, jitter, on_lost, max_snoozes, timeout_ms, heartbeat_timeout_ms, start_within_ms, keep_ms, after, inputs, locks, reason, priority, unique, group and if_exists. Each request adds up to 1,000 \
lines, all or none. With --whole, one request adds all lines; a line may also have a type and a name, and others refer to \
it: {\"type\":\"load\",\"inputs\":{\"rows\":{\"name\":\"extract\"}},\"after\":[{\"name\":\"check\"}]}.")]
pub(crate) struct Args {
    /// The type of the job, which decides the workers that run it
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's id, unique within its type. By default, the server generates one
    #[arg(long)]
    id: Option<String>,
    /// The tenant that the job is charged to
    #[arg(long)]
    tenant: Option<String>,
    /// The user on whose behalf the job runs
    #[arg(long)]
    user: Option<String>,
    /// What the job does, within its type: only workers that know this task get it
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// A word by which the job is found; may be given up to 16 times
    #[arg(long, value_name = "WORD")]
    tag: Vec<String>,
    /// The input of the job: JSON, or @FILE, or - for stdin. The worker that runs the job receives it. Operators and the job's tenant see it, but
    /// for what its type hides (`turnwise types set --secret`)
    #[arg(long, value_name = "JSON|@FILE|-")]
    options: Option<String>,
    /// A description of the job for lists, without secrets: a JSON object
    #[arg(long, value_name = "JSON|@FILE|-")]
    summary: Option<String>,
    /// Delay before the job may start: 500ms, 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    delay: Option<Duration>,
    /// The number of the last attempt, up to 1,000,000: if it crashes, the job has failed. 0 retries it without limit. The default is the server's setting, 20
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    max_attempts: Option<u32>,
    /// How long to wait after the first crash, the second one, and so on, as in 5s,30s,5m; the last one repeats. The default is the server's setting
    #[arg(long, value_name = "TIME,…", value_parser = parse_duration, value_delimiter = ',')]
    backoff: Vec<Duration>,
    /// What happens if the job's worker is lost: count it as a crash, or queue the job again without one
    #[arg(long, value_name = "WHAT", value_parser = words::<OnLost>(OnLost::WORDS))]
    on_lost: Option<OnLost>,
    /// Maximum duration of a run: 500ms, 90s, 15m, 2h. A run that exceeds it crashes. The default is the server's setting
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Maximum time between two reports of a run. A run that exceeds it crashes. The default is the server's setting
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    heartbeat_timeout: Option<Duration>,
    /// The job fails unless it starts within this time after it was added, or after --delay
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    start_within: Option<Duration>,
    /// How long the job's record is kept after its end; not longer than the server, or its type, keeps all jobs
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    keep: Option<Duration>,
    /// A dependency: the job starts only after this job has ended; may be given several times
    #[arg(long, value_name = "TYPE/ID")]
    after: Vec<String>,
    /// Final states of the dependencies that allow the job to start
    #[arg(long, value_name = "END", value_delimiter = ',', default_value = "completed", requires = "after")]
    #[arg(value_parser = words::<End>(End::WORDS))]
    accept: Vec<End>,
    /// What happens to the job if a dependency ends in another state
    #[arg(long, value_name = "WHAT", default_value = "cancel", requires = "after")]
    #[arg(value_parser = words::<Otherwise>(otherwise()))]
    otherwise: Otherwise,
    /// The result of another job that the job gets under this name, as in rows=extract/7; it is a dependency. May be given several times
    #[arg(long, value_name = "NAME=TYPE/ID")]
    input: Vec<String>,
    /// What the job locks while it runs: JSON, for example {"node": {"exclusive": ["n1"]}}. By default, the server's catalogue decides
    #[arg(long, value_name = "JSON|@FILE|-")]
    locks: Option<String>,
    /// Why the job is added, for conditions of filters; may be given several times. `concurrency:7:NAME` is a concurrency limit: the job starts while
    /// fewer than 7 jobs with this NAME run
    #[arg(long, value_name = "TEXT")]
    reason: Vec<String>,
    /// The open group of which the job is a member (`turnwise groups add`); of an array, the group in which its group is
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Add an array: so many jobs, up to 10,000, with the ids ID.0, ID.1 and so on, in a group with the name ID, which is printed
    #[arg(long, value_name = "N", conflicts_with = "many", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// With --count: at most so many of them run at the same time
    #[arg(long, value_name = "N", requires = "count", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    at_once: Option<u32>,
    /// The job's priority, -20 to 19, by default 0. A tenant's jobs with lower numbers start first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    priority: Option<i32>,
    /// Add the job only if no other job of its tenant and type has its unique key. The job holds the key while it waits, until its end, or for
    /// --unique-period
    #[arg(long, value_name = "MODE", value_parser = words::<UniqueMode>(UniqueMode::WORDS))]
    unique: Option<UniqueMode>,
    /// For how long the job holds its key: 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_duration, value_name = "TIME", requires = "unique")]
    unique_period: Option<Duration>,
    /// The unique key: a text. By default, the key is made of all options
    #[arg(long, value_name = "TEXT", requires = "unique")]
    unique_key: Option<String>,
    /// Make the unique key of these members of the options: JSON pointers, as in /customer,/kind
    #[arg(
        long,
        value_name = "POINTER,…",
        value_delimiter = ',',
        requires = "unique",
        conflicts_with = "unique_key"
    )]
    unique_of: Vec<String>,
    /// Which jobs of the tenant have one key if they state the same
    #[arg(long, value_name = "WHAT", default_value = "type", requires = "unique")]
    #[arg(value_parser = words::<UniqueWithin>(UniqueWithin::WORDS))]
    unique_within: UniqueWithin,
    /// If another job has the key: keep it, replace its options and start time if it waits, reject the request, or let it run once more after its run
    #[arg(long, value_name = "WHAT", default_value = "keep", requires = "unique")]
    #[arg(value_parser = words::<OnConflict>(OnConflict::WORDS))]
    on_conflict: OnConflict,
    /// If the job exists, run it again with the values that are given here
    #[arg(long)]
    again: bool,
    /// Add a job for each line of this file (- for stdin)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "options", "summary", "locks"])]
    many: Option<PathBuf>,
    /// Add all lines of --many in one transaction, or none: a graph of jobs, which may refer to each other by names
    #[arg(long, requires = "many")]
    whole: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// What may happen after a final state that is not accepted.
fn otherwise() -> [PossibleValue; 2] {
    [
        PossibleValue::new("cancel").help("The job is cancelled"),
        PossibleValue::new("free").help("The job no longer waits for this dependency"),
    ]
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match &args.many {
        Some(file) => add_many(&args, file).await,
        None => add_one(&args).await,
    }
}

async fn add_one(args: &Args) -> Result<(), Failure> {
    let job = only_job(args).map_err(Failure::Usage)?;
    if args.count.is_some() {
        let added = args.server.client()?.add_many(vec![NewJob::new(&args.job_type, job)]).await?;
        let first = added.first().map(|first| first.id.as_str()).unwrap_or_default();
        say!("{}", first.strip_suffix(".0").unwrap_or(first));
        return Ok(());
    }
    let added = args.server.client()?.add(&args.job_type, job).await?;
    print(&added);
    Ok(())
}

/// The job of the arguments.
fn only_job(args: &Args) -> anyhow::Result<AddJob> {
    Ok(AddJob {
        id: args.id.clone(),
        options: args.options.as_ref().map(|text| json("--options", text)).transpose()?,
        summary: args.summary.as_ref().map(|text| json("--summary", text)).transpose()?,
        locks: args.locks.as_ref().map(|text| locks(text)).transpose()?,
        count: args.count,
        at_once: args.at_once,
        ..defaults(args)?
    })
}

/// The values from the arguments that apply to every job.
fn defaults(args: &Args) -> anyhow::Result<AddJob> {
    let ms = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis())).transpose();
    Ok(AddJob {
        tenant: args.tenant.clone(),
        user: args.user.clone(),
        task: args.task.clone(),
        tags: (!args.tag.is_empty()).then(|| args.tag.clone()),
        delay_ms: ms(args.delay).context("--delay: too long")?,
        timeout_ms: ms(args.timeout).context("--timeout: too long")?,
        heartbeat_timeout_ms: ms(args.heartbeat_timeout).context("--heartbeat-timeout: too long")?,
        start_within_ms: ms(args.start_within).context("--start-within: too long")?,
        keep_ms: ms(args.keep).context("--keep: too long")?,
        max_attempts: args.max_attempts,
        backoff: crate::types::backoff(&args.backoff)?,
        on_lost: args.on_lost,
        reason: args.reason.clone(),
        priority: args.priority,
        after: args.after.iter().map(|name| after_job(args, name)).collect::<anyhow::Result<_>>()?,
        inputs: args.input.iter().map(|input| wanted(input)).collect::<anyhow::Result<_>>()?,
        unique: unique(args)?,
        group: args.group.clone(),
        if_exists: if args.again { IfExists::Again } else { IfExists::Keep },
        ..AddJob::default()
    })
}

/// The unique key of the arguments.
fn unique(args: &Args) -> anyhow::Result<Option<Unique>> {
    let Some(mode) = args.unique else { return Ok(None) };
    let period_ms = args.unique_period.map(|time| u64::try_from(time.as_millis())).transpose();
    Ok(Some(Unique {
        mode,
        period_ms: period_ms.context("--unique-period: too long")?,
        key: args.unique_key.clone(),
        of: args.unique_of.clone(),
        within: args.unique_within,
        on_conflict: args.on_conflict,
    }))
}

/// Parses an `--input`.
fn wanted(input: &str) -> anyhow::Result<(String, Input)> {
    let parts = input.split_once('=').filter(|(_, job)| job.contains('/'));
    let (name, job) = parts.with_context(|| {
        format!("--input: expected a name, and the type and the id of a job, as rows={input}")
    })?;
    Ok((name.to_owned(), Input { job: Some(job.to_owned()), name: None }))
}

/// Parses a dependency of `--after`.
fn after_job(args: &Args, name: &str) -> anyhow::Result<After> {
    let (job_type, id) = name
        .split_once('/')
        .with_context(|| format!("--after: expected the type and the id of a job, as mail/{name}"))?;
    check_type(job_type).context("--after")?;
    check_id(id).context("--after")?;
    let (job_type, id) = (Some(job_type.to_owned()), id.to_owned());
    let (accepted, otherwise) = (args.accept.clone(), args.otherwise);
    Ok(After { job_type, id, name: None, accepted, otherwise })
}

fn print(added: &AddedJob) {
    say!("{}", added.id);
    match added.added {
        Added::Queued | Added::Delayed | Added::Blocked => {}
        Added::Cancelled => {
            tell!("{} is cancelled: a dependency has ended in a state that is not accepted", added.id)
        }
        Added::Exists => {
            tell!("{} exists already and is unchanged; --again runs it again", added.id)
        }
        Added::RunsAgain => tell!("{} is running, and runs once more after this run", added.id),
        Added::AlreadyWaiting => tell!("{} was waiting already; it has the new options now", added.id),
        Added::Found => {
            let did = match added.found.as_ref().map(|found| found.did) {
                Some(FoundDid::Replaced) => "it has the new options now",
                Some(FoundDid::RunsAgain) => "it runs once more after this run",
                Some(FoundDid::Kept) | None => "nothing was added",
            };
            tell!("{} of type {} has this unique key: {did}", added.id, added.job_type);
        }
    }
}

/// Parses a JSON value from text, a file, or stdin. Errors do not quote the value, because options may hold secrets.
pub(crate) fn json(argument: &str, text: &str) -> anyhow::Result<Box<RawValue>> {
    let text = match text.strip_prefix('@') {
        None if text != "-" => text.to_owned(),
        file => {
            let file = Path::new(file.unwrap_or(text));
            let read = open(file).and_then(std::io::read_to_string);
            read.with_context(|| format!("{argument}: cannot read {}", file.display()))?
        }
    };
    let text = text.trim();
    if text.is_empty() {
        bail!("{argument}: the value is empty; expected JSON, for example '{{\"to\":\"jan\"}}'");
    }
    RawValue::from_string(text.to_owned()).map_err(|error| {
        anyhow!(
            "{argument}: not JSON at line {}, column {}; in a shell, put it between single quotes",
            error.line(),
            error.column()
        )
    })
}

/// Parses `--locks`. Locks hold no secrets, so errors quote the mistake.
fn locks(text: &str) -> anyhow::Result<Locks> {
    let json = json("--locks", text)?;
    serde_json::from_str(json.get()).map_err(|error| anyhow!("--locks: {error}"))
}

async fn add_many(args: &Args, file: &Path) -> Result<(), Failure> {
    let client = args.server.client()?;
    let input = open(file).with_context(|| format!("--many: cannot read {}", file.display()));
    let input = BufReader::new(input.map_err(Failure::Usage)?);
    let mut lines = Lines { input, number: 0 };
    let mut batch = Batch::default();
    let mut added = 0;
    while let Some(line) = lines.next().map_err(|error| stopped(error, added))? {
        let job = job(args, &line).map_err(|error| {
            let error = error.context(format!("line {} of {}", lines.number, file.display()));
            stopped(error, added)
        })?;
        let is_full = batch.jobs.len() == MAX_ADDED || batch.bytes + line.len() > MAX_BATCH_BYTES;
        if is_full && args.whole {
            let most = MAX_BATCH_BYTES >> 20;
            return Err(Failure::Usage(anyhow!(
                "--whole: one request has at most {MAX_ADDED} jobs, and {most} MB; nothing was added"
            )));
        }
        if is_full {
            added += batch.send(&client, args.whole).await.map_err(|failure| after(failure, added))?;
        }
        batch.bytes += line.len();
        batch.jobs.push(job);
        batch.lines.push(lines.number);
    }
    added += batch.send(&client, args.whole).await.map_err(|failure| after(failure, added))?;
    if batch.known > 0 {
        let what =
            if args.again { "have the new options now" } else { "are unchanged; --again runs them again" };
        tell!("{} of {added} jobs existed already, or their unique keys are taken: they {what}", batch.known);
    }
    Ok(())
}

/// Jobs that are added in one request.
#[derive(Default)]
struct Batch {
    jobs: Vec<NewJob>,
    /// The line numbers of these jobs in the file.
    lines: Vec<usize>,
    bytes: usize,
    /// How many of the jobs added so far existed before.
    known: usize,
}

impl Batch {
    async fn send(&mut self, client: &turnwise_client::Client, whole: bool) -> Result<usize, Failure> {
        self.bytes = 0;
        let jobs = std::mem::take(&mut self.jobs);
        let lines = std::mem::take(&mut self.lines);
        if jobs.is_empty() {
            return Ok(0);
        }
        let added = match whole {
            true => client.add_together(AddJobs { jobs, groups: Vec::new(), whole: true }).await,
            false => client.add_many(jobs).await,
        };
        let added = added.map_err(|error| at_line(error, &lines))?;
        for AddedJob { id, added, .. } in &added {
            // Also if the pipe is closed: the reader of the ids does not know how many jobs were added.
            crate::output::write_line(format_args!("{id}")).with_context(|| {
                format!(
                    "cannot write to stdout; the jobs up to line {} were added",
                    lines.last().copied().unwrap_or_default()
                )
            })?;
            self.known += usize::from(!matches!(
                added,
                Added::Queued | Added::Delayed | Added::Blocked | Added::Cancelled
            ));
        }
        Ok(added.len())
    }
}

/// Translates the index of a job in the request, which the server counts from 0, into the line of the user's file.
fn at_line(error: turnwise_client::Error, lines: &[usize]) -> Failure {
    let turnwise_client::Error::Refused(refused) = &error else { return error.into() };
    let told = refused.reason.strip_prefix("jobs[").and_then(|rest| rest.split_once(']'));
    let line = told.and_then(|(index, problem)| Some((lines.get(index.parse::<usize>().ok()?)?, problem)));
    // `jobs[7].tenant: …`, or `jobs[7]: …` for what no member is to blame for.
    let line = line.map(|(line, problem)| (line, problem.trim_start_matches(['.', ':', ' '])));
    match line {
        Some((line, problem)) => Failure::Failed(anyhow!("line {line}: {problem}\n{}", refused.hint)),
        None => error.into(),
    }
}

/// The lines of a file, each limited in length, without blank lines.
struct Lines {
    input: BufReader<Box<dyn Read>>,
    number: usize,
}

impl Lines {
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            let mut line = Vec::new();
            self.number += 1;
            let limit = MAX_LINE_BYTES as u64 + 1;
            let read = self.input.by_ref().take(limit).read_until(b'\n', &mut line);
            if read.context("cannot read")? == 0 {
                return Ok(None);
            }
            if line.len() > MAX_LINE_BYTES {
                bail!("line {} has more than {MAX_LINE_BYTES} bytes", self.number);
            }
            let line = String::from_utf8(line).map_err(|_| anyhow!("line {} is not UTF-8", self.number))?;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

/// The members of a line that only a graph has.
#[derive(serde::Deserialize)]
struct OfGraph {
    #[serde(rename = "type")]
    job_type: Option<String>,
    name: Option<String>,
}

/// The job of a line of a graph, without what [`job`] reads, and the rest of the line.
fn of_graph(line: &str) -> Option<(OfGraph, String)> {
    let of_graph = serde_json::from_str(line).ok()?;
    let mut rest: BTreeMap<String, Box<RawValue>> = serde_json::from_str(line).ok()?;
    rest.remove("type");
    rest.remove("name");
    Some((of_graph, serde_json::to_string(&rest).ok()?))
}

/// The job of a line, completed with values from the arguments.
fn job(args: &Args, line: &str) -> anyhow::Result<NewJob> {
    if args.whole
        && let Some((OfGraph { job_type, name }, rest)) = of_graph(line)
    {
        let job_type = job_type.unwrap_or_else(|| args.job_type.clone());
        return Ok(NewJob { job_type, name, ..one_job(args, &rest)? });
    }
    one_job(args, line)
}

fn one_job(args: &Args, line: &str) -> anyhow::Result<NewJob> {
    // Errors state only the position, because the line may hold secrets.
    let turnwise_client::protocol::Object(job) = serde_json::from_str::<
        turnwise_client::protocol::Object<AddJob>,
    >(line)
    .map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            anyhow!("column {}: not a job; `turnwise jobs add --help` lists the members", error.column())
        }
        _ => anyhow!("column {}: not JSON", error.column()),
    })?;
    job.id.as_deref().map_or(Ok(()), check_id)?;
    let mut others = defaults(args)?;
    if job.not_before_us.is_some() {
        others.delay_ms = None;
    }
    Ok(NewJob::new(&args.job_type, job.or(others)))
}

fn stopped(error: anyhow::Error, added: usize) -> Failure {
    match added {
        0 => Failure::Usage(error.context("nothing was added")),
        _ => Failure::Usage(error.context(format!("{added} jobs were added before"))),
    }
}

fn after(failure: Failure, added: usize) -> Failure {
    match failure {
        Failure::Failed(error) if added > 0 => Failure::Failed(error.context(before(added))),
        Failure::Code(code, error) if added > 0 => Failure::Code(code, error.context(before(added))),
        failure => failure,
    }
}

fn before(added: usize) -> String {
    format!("{added} jobs were added before; run the command again for the other jobs")
}
