//! `turnwise work`: an external worker that runs a command per job.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_client::protocol::MAX_INFO_BYTES;
use turnwise_client::{Outcome, Run, WorkerOptions};
use turnwise_command::{Command, Finished, Guard, Programs, Report, StartError, Verdict};

use crate::Failure;
use crate::remote::ServerArgs;
use crate::units::parse_duration;

/// What is kept of a command's stdout, and as much of its stderr, in bytes. More than a result may have, for a result that is
/// written with line ends and indentation.
const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// `turnwise work`
#[derive(clap::Args)]
#[command(after_help = "\
The command gets a job's options on stdin, as JSON, and TURNWISE_JOB_ID, TURNWISE_JOB_TYPE, TURNWISE_TENANT and \
TURNWISE_ATTEMPT in its environment. If all that it prints to stdout is one JSON value of at most 12 kB, that is the job's \
result. Otherwise the result is a report, {\"exit_code\":0,\"stdout\":\"…\",\"stderr\":\"…\",…}, with up to 12 kB of what it \
printed.

Its exit codes:
  0       the job is completed
  65      the job has failed, and is not tried again
  others  the job has crashed, and is tried again after a while, until its max_attempts; so it is after a signal
The last line of stderr is told as the reason, and the report is kept as the job's info.

A command whose job is cancelled, or whose time is over, gets SIGTERM, and SIGKILL after the grace period; so does all that \
it started. SIGTERM or Ctrl-C stops the worker: what runs is stopped the same way and given back; a second time, it exits at \
once. A server that is away is waited for.

Examples:
  turnwise work --type mail --slots 4 --exec ./send-mail
  turnwise work --type fetch --timeout 5m --exec sh -c 'jq -r .url | xargs curl -fsS'")]
pub(crate) struct Args {
    /// The type of the jobs
    #[arg(long = "type", value_name = "TYPE")]
    job_type: String,
    /// Jobs that run at the same time at most
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: usize,
    /// A name for the list of workers
    #[arg(long)]
    name: Option<String>,
    /// End a command after this long: 500ms, 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_timeout, value_name = "TIME")]
    timeout: Option<Duration>,
    /// What a command has between SIGTERM and SIGKILL
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "10s")]
    grace: Duration,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments; comes last: all that follows is the command's
    #[arg(long, value_name = "CMD", num_args = 1.., required = true, allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

/// A command that runs once per job.
struct Exec {
    program: std::path::PathBuf,
    argv: Vec<OsString>,
    timeout: Option<Duration>,
    grace: Duration,
    guard: Guard,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.server.client()?;
    let name =
        args.exec[0].to_str().ok_or_else(|| Failure::Usage(anyhow!("--exec: its name is not UTF-8")))?;
    let found = Programs::All.find(name, None, None);
    let program = found.map_err(|problem| Failure::Usage(anyhow!("--exec {name}: {problem}")))?;
    // Relative to the folder that the worker was started in, wherever it is.
    let program = std::path::absolute(program).map_err(|error| Failure::Failed(error.into()))?;
    let guard = crate::guard().map_err(|error| Failure::Failed(error.into()))?;
    if let Some(misplaced) = misplaced(&args.exec) {
        tracing::warn!("{misplaced} comes after --exec: the command gets it, and turnwise does not");
    }
    let exec = Arc::new(Exec { program, argv: args.exec, timeout: args.timeout, grace: args.grace, guard });
    let options = WorkerOptions {
        slots: args.slots,
        name: args.name,
        // A command that ignores SIGTERM is killed by then.
        stop_grace: args.grace.saturating_add(Duration::from_secs(5)),
        ..WorkerOptions::new(args.job_type)
    };
    tracing::info!(server = client.server(), "works for jobs of type {}", options.job_type);
    let stop = CancellationToken::new();
    let working = turnwise_client::work(
        &client,
        options,
        move |run| {
            let exec = exec.clone();
            async move { exec.run(run).await }
        },
        stop.clone(),
    );
    let mut stop_signals = crate::StopSignals::listen();
    let signals = async {
        stop_signals.next().await;
        tracing::info!("stops: what runs is stopped and given back; once more to stop at once");
        stop.cancel();
        stop_signals.next().await;
    };
    tokio::select! {
        worked = working => Ok(worked?),
        // Whoever asks twice is in a hurry: the guards end what still runs, and the server finds out.
        () = signals => Err(anyhow!("stopped at once").into()),
    }
}

/// An option of turnwise that has ended up behind the command, where it looks as if it were meant for turnwise.
fn misplaced(exec: &[OsString]) -> Option<&str> {
    let own = ["--server", "--type", "--slots", "--grace"];
    let words = exec.iter().filter_map(|word| word.to_str());
    words.filter_map(|word| word.split('=').next()).find(|word| own.contains(word))
}

/// A length of time that something can be done in.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if timeout.is_zero() { Err("expected more than no time".to_owned()) } else { Ok(timeout) }
}

impl Exec {
    async fn run(&self, run: Run) -> Outcome {
        let command = Command {
            program: self.program.clone(),
            argv: self.argv.clone(),
            inherit_env: true,
            env: vec![
                ("TURNWISE_JOB_ID".into(), run.job.id.clone().into()),
                ("TURNWISE_JOB_TYPE".into(), run.job_type.clone().into()),
                ("TURNWISE_TENANT".into(), run.job.tenant.clone().into()),
                ("TURNWISE_ATTEMPT".into(), run.job.attempt.to_string().into()),
            ],
            cwd: None,
            stdin: Some(run.job.options.get().as_bytes().to_vec()),
            timeout: self.timeout,
            grace: self.grace,
            max_output_bytes: MAX_OUTPUT_BYTES,
            guard: Some(self.guard.clone()),
        };
        let finished = match turnwise_command::run(command, run.stop.clone()).await {
            Ok(finished) => finished,
            // The job is not to blame for it: whoever runs the worker may correct it.
            Err(StartError::Wrong(problem)) => return Outcome::Crashed(format!("--exec: {problem}")),
            Err(error @ StartError::NotNow(_)) => return Outcome::Crashed(error.to_string()),
        };
        let verdict = Verdict::new(&finished);
        if let Verdict::Failed(_) | Verdict::Crashed(_) = verdict {
            run.report(&Report::new(&finished, MAX_INFO_BYTES));
        }
        let (id, seconds) = (&run.job.id, finished.duration.as_secs_f64());
        match verdict {
            Verdict::Completed => {
                tracing::info!(id, seconds, "completed");
                result(&finished)
            }
            Verdict::Failed(reason) => {
                tracing::warn!(id, seconds, "failed: {reason}");
                Outcome::Failed(reason)
            }
            Verdict::Crashed(reason) => {
                tracing::warn!(id, seconds, "crashed: {reason}");
                Outcome::Crashed(reason)
            }
            Verdict::Stopped => {
                tracing::info!(id, seconds, "stopped");
                Outcome::Stopped
            }
        }
    }
}

/// What a command printed, if it is JSON that a result can hold; otherwise a report of it.
fn result(finished: &Finished) -> Outcome {
    let text = finished.stdout.whole().and_then(|bytes| String::from_utf8(bytes).ok());
    let json = text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
    match json.filter(|json| json.get().len() <= MAX_INFO_BYTES) {
        Some(json) => Outcome::Completed(json),
        None => Outcome::completed(&Report::new(finished, MAX_INFO_BYTES)),
    }
}
