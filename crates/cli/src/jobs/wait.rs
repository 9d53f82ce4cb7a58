//! `turnwise jobs wait`.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use anyhow::anyhow;
use turnwise_client::{Client, Error, Job, JobUpdate, State};

use super::result;
use crate::Failure;
use crate::remote::{NO_ANSWER, PATIENCE, ServerArgs};
use crate::units::parse_duration;

/// The exit code if the job has not ended in time.
const TIMEOUT_EXIT_CODE: u8 = 3;
/// How long the first request is retried before a message names the server that is waited for.
const FIRST_CONTACT: Duration = crate::remote::RETRY_FOR;
/// How long an answer may take, beyond the time that it waits on the server.
const ANSWER: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "\
The command prints the result to stdout: JSON, unless the job's worker has stated another media type; and the reason of a failure to stderr. If the server does not answer, the command \
retries for a minute. A gateway that cuts requests while they wait does not end it.

Exit codes: 0 completed, 1 failed, cancelled, removed or not found, 2 wrong usage, 3 not ended in time, 4 unknown: no answer from the \
server, or a refusal.")]
pub(crate) struct Args {
    /// The job's type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's id
    id: String,
    /// Wait for at most this long: 500ms, 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Print the job's events to stderr meanwhile
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut client = args.server.client()?;
    if let Some(timeout) = args.timeout.filter(|timeout| *timeout < FIRST_CONTACT * 2) {
        client = client.retry_for(timeout / 2);
    }
    let (job_type, id) = (args.job_type.as_str(), args.id.as_str());
    let answers = Cell::new(false);
    // The user must learn soon if the server is not reachable at all.
    let first_contact = async {
        match client.get(job_type, id).await {
            Ok(_) => {
                answers.set(true);
                Ok(())
            }
            Err(error @ (Error::NoAnswer { .. } | Error::Unavailable(_))) => {
                tell!("turnwise: retrying for up to a minute: {error}");
                Ok(())
            }
            Err(error) => Err(unknown(error)),
        }
    };
    let patient = client.clone().retry_for(PATIENCE);
    let ended = async {
        first_contact.await?;
        match (args.follow, args.timeout) {
            (true, _) => follow(&patient, job_type, id).await,
            (false, timeout) => {
                let answer = patient.wait(job_type, id, timeout).await.map_err(unknown)?;
                if answer.finished { Ok(answer.job) } else { Err(too_late(Some(answer.job.state))) }
            }
        }
    };
    let job = match args.timeout {
        Some(timeout) => {
            let mut ended = pin!(ended);
            match tokio::time::timeout(timeout, &mut ended).await {
                Ok(ended) => ended?,
                // The server's answer to a wait that timed out includes the job's state, so it is preferred.
                Err(_) if answers.get() && !args.follow => {
                    tokio::time::timeout(ANSWER, ended).await.map_err(|_| too_late(None))??
                }
                Err(_) => return Err(too_late(None)),
            }
        }
        None => ended.await?,
    };
    let state = job.state.as_str();
    match job.state {
        State::Completed => match job.result_bytes {
            // A large result, or one that is not JSON.
            Some(_) => {
                let stored = patient.result(job_type, id).await.map_err(unknown)?;
                match job.result_type {
                    Some(_) => result::print(&stored),
                    None => {
                        say!("{}", String::from_utf8_lossy(&stored.bytes));
                        Ok(())
                    }
                }
            }
            None => {
                say!("{}", job.result.as_ref().map_or("null", |result| result.get()));
                Ok(())
            }
        },
        _ => Err(Failure::Failed(match &job.reason {
            Some(reason) => anyhow!("{state}: {reason}"),
            None => anyhow!("{state}"),
        })),
    }
}

/// The exit code 1 is for what happened to the job. A refusal, such as that of an expired token, says nothing about it.
fn unknown(error: Error) -> Failure {
    let not_found = error.is_not_found();
    match Failure::from(error) {
        Failure::Failed(error) if !not_found => Failure::Code(NO_ANSWER, error),
        failure => failure,
    }
}

fn too_late(state: Option<State>) -> Failure {
    let state = state.map_or(String::new(), |state| format!(" and is {}", state.as_str()));
    let error = anyhow!(
        "the job has not ended in time{state}; wait longer with --timeout, or see `turnwise jobs show`"
    );
    Failure::Code(TIMEOUT_EXIT_CODE, error)
}

async fn follow(client: &Client, job_type: &str, id: &str) -> Result<Job, Failure> {
    let mut events = client.events(job_type, id).map_err(unknown)?;
    while let Some(update) = events.next().await.map_err(unknown)? {
        match update {
            JobUpdate::State(event) => {
                let kind = event.kind.as_str();
                match event.reason {
                    Some(reason) => tell!("{kind}: {reason}"),
                    None => tell!("{kind}"),
                }
            }
            JobUpdate::Progress(info) => tell!("progress: {info}"),
            JobUpdate::End(job) => return Ok(*job),
            JobUpdate::Removed => break,
        }
    }
    Err(Failure::Failed(anyhow!("the job was removed")))
}
