//! `turnwise work`: an external worker that executes a command per job.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use turnwise_client::protocol::json::check_result;
use turnwise_client::protocol::{LogLevel, MAX_INFO_BYTES};
use turnwise_client::{Outcome, Run, WorkerOptions};
use turnwise_command::{Command, Finished, Guard, Output, Programs, Report, StartError, Verdict};
use turnwise_queue::output::DEFAULT_MAX_RESULT_BYTES as MAX_RESULT_BYTES;

use crate::Failure;
use crate::remote::ServerArgs;
use crate::units::parse_duration;

/// How much of a command's stdout, and of its stderr, is kept, in bytes. This is more than a result may have, so that a result may
/// be surrounded by white space.
const MAX_OUTPUT_BYTES: usize = MAX_RESULT_BYTES + (64 << 10);

#[derive(clap::Args)]
#[command(after_help = "\
The command gets a job's options on stdin, as JSON, and TURNWISE_JOB_ID, TURNWISE_JOB_TYPE, TURNWISE_TASK (empty if the job has none), TURNWISE_TENANT and \
TURNWISE_ATTEMPT in its environment (TRACEPARENT, too, if the job is traced, TURNWISE_INPUTS if it has inputs: JSON, as a worker gets them, and TURNWISE_ARRAY_INDEX, from 0 on, if it is of an array), and neither TURNWISE_TOKEN nor TURNWISE_SERVER, which may have a password. If its stdout is one JSON value of at most 1 MB that every JSON library can read (no lone surrogates, no number beyond a double's range, \
nested no deeper than 96), this is the job's result. Otherwise the \
result is an object {\"exit_code\":0,\"stdout\":\"…\",\"stderr\":\"…\",…} with up to 12 kB of the output.

While the command runs, each line that it prints becomes a line of the job's log: those of stdout with the level info, those of stderr with \
warn, cut at 4 kB. The log keeps its last 1,000 lines, or 256 kB. `turnwise jobs logs TYPE ID --follow` shows them.

Exit codes of the command:
  0       the job has completed
  65      the job has failed, and is not retried
  others  the job has crashed, and is retried after a backoff, up to its max_attempts. This includes the end by a signal
After a failure or a crash, the last line of stderr is the reason, and the object with the output is the job's info.

If a job is cancelled or exceeds its timeout, the command and all processes that it started get SIGTERM, and SIGKILL after the \
grace period. On SIGTERM or Ctrl-C, the worker accepts no more jobs, waits for its commands for the time of --drain, stops the rest \
in the same way, gives their jobs back and exits. On a second signal it exits immediately. If the server does not answer, the worker keeps retrying.

Examples:
  turnwise work --type mail --slots 4 --exec ./send-mail
  turnwise work --type fetch --timeout 5m --exec sh -c 'jq -r .url | xargs curl -fsS'")]
pub(crate) struct Args {
    /// The type of the jobs
    #[arg(long = "type", value_name = "TYPE")]
    job_type: String,
    /// Maximum number of jobs that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: usize,
    /// A task whose jobs the worker gets; several times for several tasks. By default it gets all jobs of the type
    #[arg(long = "task", value_name = "NAME")]
    tasks: Vec<String>,
    /// A display name for the list of workers
    #[arg(long)]
    name: Option<String>,
    /// Maximum duration of a command: 500ms, 90s, 15m, 2h, 3d. The worker ends a command that exceeds it
    #[arg(long, value_parser = parse_timeout, value_name = "TIME")]
    timeout: Option<Duration>,
    /// How long running commands may go on after SIGTERM or Ctrl-C, while the worker accepts no more jobs. It stops those that run longer
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "0s")]
    drain: Duration,
    /// Time between SIGTERM and SIGKILL for a command that must stop
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "10s")]
    grace: Duration,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments. This option must be the last one, because everything after it belongs to the command
    #[arg(long, value_name = "CMD", num_args = 1.., required = true, allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

/// A command that is executed once per job.
struct Exec {
    program: std::path::PathBuf,
    argv: Vec<OsString>,
    timeout: Option<Duration>,
    grace: Duration,
    guard: Guard,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.server.client()?;
    let name = args.exec[0]
        .to_str()
        .ok_or_else(|| Failure::Usage(anyhow!("--exec: the name of the command is not UTF-8")))?;
    let found = Programs::All.find(name, None, None);
    let program = found.map_err(|problem| Failure::Usage(anyhow!("--exec {name}: {problem}")))?;
    // A relative path refers to the folder in which the worker was started, also when a command changes its folder.
    let program = std::path::absolute(program).map_err(|error| Failure::Failed(error.into()))?;
    let guard = crate::guard().map_err(|error| Failure::Failed(error.into()))?;
    // Its environment has the token, and the command is a process of the same user.
    turnwise_command::hide_from_commands().map_err(|error| Failure::Failed(error.into()))?;
    if let Some(misplaced) = misplaced(&args.exec) {
        tracing::warn!(
            "{misplaced} comes after --exec, so it is an argument of the command and not of turnwise"
        );
    }
    let drain = args.drain;
    let exec = Arc::new(Exec { program, argv: args.exec, timeout: args.timeout, grace: args.grace, guard });
    let options = WorkerOptions {
        slots: args.slots,
        name: args.name,
        tasks: Some(args.tasks).filter(|tasks| !tasks.is_empty()),
        drain,
        // By then, a command that ignores SIGTERM has been killed.
        stop_grace: args.grace.saturating_add(Duration::from_secs(5)),
        ..WorkerOptions::new(args.job_type)
    };
    tracing::info!(server = client.server(), "runs jobs of type {}", options.job_type);
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
        if drain.is_zero() {
            tracing::info!(
                "stopping: running commands are stopped, and their jobs given back; a second signal stops immediately"
            );
        } else {
            tracing::info!(
                "stopping: running commands have {drain:?} to end; a second signal stops immediately"
            );
        }
        stop.cancel();
        stop_signals.next().await;
    };
    tokio::select! {
        worked = working => Ok(worked?),
        // A second signal means that the user does not want to wait: the guards end the running commands, and the worker expires at the server.
        () = signals => Err(anyhow!("stopped immediately, after a second signal").into()),
    }
}

/// An option of turnwise after the command, where it is probably misplaced.
fn misplaced(exec: &[OsString]) -> Option<&str> {
    let own = ["--server", "--type", "--slots", "--drain", "--grace"];
    let words = exec.iter().filter_map(|word| word.to_str());
    words.filter_map(|word| word.split('=').next()).find(|word| own.contains(word))
}

/// Parses a duration that is not zero.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if timeout.is_zero() { Err("expected a duration above zero".to_owned()) } else { Ok(timeout) }
}

impl Exec {
    async fn run(&self, run: Run) -> Outcome {
        let run = Arc::new(run);
        let command = Command {
            program: self.program.clone(),
            argv: self.argv.clone(),
            inherit_env: true,
            env: [
                ("TURNWISE_JOB_ID".into(), run.job.id.clone().into()),
                ("TURNWISE_JOB_TYPE".into(), run.job_type.clone().into()),
                ("TURNWISE_TASK".into(), run.job.task.clone().unwrap_or_default().into()),
                ("TURNWISE_TENANT".into(), run.job.tenant.clone().into()),
                ("TURNWISE_ATTEMPT".into(), run.job.attempt.to_string().into()),
            ]
            .into_iter()
            .chain(run.job.traceparent.as_ref().map(|trace| ("TRACEPARENT".into(), trace.into())))
            .chain(inputs(&run).map(|inputs| ("TURNWISE_INPUTS".into(), inputs.into())))
            .chain(index(&run).map(|index| ("TURNWISE_ARRAY_INDEX".into(), index.to_string().into())))
            .collect(),
            cwd: None,
            stdin: Some(run.job.options.get().as_bytes().to_vec()),
            timeout: self.timeout,
            grace: self.grace,
            max_output_bytes: MAX_OUTPUT_BYTES,
            on_line: Some(Box::new({
                let run = run.clone();
                move |output, line| run.log(level(output), line)
            })),
            guard: Some(self.guard.clone()),
            // Who starts a worker chooses its command, and may start both in a sandbox.
            sandbox: None,
        };
        let finished = match turnwise_command::run(command, run.stop.clone()).await {
            Ok(finished) => finished,
            // This is not the job's fault, and the operator may correct it, so the job is retried.
            Err(StartError::Wrong(problem)) => return Outcome::Crashed(format!("--exec: {problem}").into()),
            Err(error @ StartError::NotNow(_)) => return Outcome::Crashed(error.to_string().into()),
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
                Outcome::Failed(reason.into())
            }
            Verdict::Crashed(reason) => {
                tracing::warn!(id, seconds, "crashed: {reason}");
                Outcome::Crashed(reason.into())
            }
            Verdict::Stopped => {
                tracing::info!(id, seconds, "stopped");
                Outcome::Stopped
            }
        }
    }
}

/// The inputs of a job, if it has some. They have 64 kB, besides a few names.
fn inputs(run: &Run) -> Option<String> {
    let inputs = Some(&run.job.inputs).filter(|inputs| !inputs.is_empty())?;
    serde_json::to_string(inputs).ok()
}

/// The place of a job in its array.
fn index(run: &Run) -> Option<u32> {
    run.job.group.as_ref()?.index
}

/// The level of a line that a command prints.
fn level(output: Output) -> LogLevel {
    match output {
        Output::Stdout => LogLevel::Info,
        Output::Stderr => LogLevel::Warn,
    }
}

/// A command's output, if it is JSON that fits into a result, and that the server takes; otherwise a report about the output.
fn result(finished: &Finished) -> Outcome {
    let text = finished.stdout.whole().and_then(|bytes| String::from_utf8(bytes).ok());
    let json = text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
    match json.filter(|json| json.get().len() <= MAX_RESULT_BYTES && check_result(json).is_ok()) {
        Some(json) => Outcome::Completed(json),
        None => Outcome::completed(&Report::new(finished, MAX_INFO_BYTES)),
    }
}
