//! `turnwise jobs wait`.

use std::time::Duration;

use anyhow::anyhow;
use turnwise_client::{Client, Job, JobUpdate, State};

use crate::Failure;
use crate::remote::ServerArgs;
use crate::units::parse_duration;

/// The job has not ended in time.
const TIMEOUT_EXIT_CODE: u8 = 3;
/// A server that restarts is waited for.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// `turnwise jobs wait`
#[derive(clap::Args)]
#[command(after_help = "\
The result is printed to stdout, as JSON; why a job failed, to stderr. A server that restarts meanwhile is waited for.

Exit codes: 0 completed, 1 failed, cancelled or removed, 2 wrong usage, 3 not ended in time.")]
pub(crate) struct Args {
    /// Its type
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// Its id
    id: String,
    /// Wait for at most this long: 500ms, 90s, 15m, 2h, 3d
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Tell on stderr what happens meanwhile
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.server.client()?.retry_for(RETRY_FOR);
    let (job_type, id) = (args.job_type.as_str(), args.id.as_str());
    let job = match args.follow {
        true => {
            let following = follow(&client, job_type, id);
            match args.timeout {
                Some(timeout) => {
                    tokio::time::timeout(timeout, following).await.map_err(|_| too_late(None))??
                }
                None => following.await?,
            }
        }
        false => {
            let answer = client.wait(job_type, id, args.timeout).await?;
            if !answer.finished {
                return Err(too_late(Some(answer.job.state)));
            }
            answer.job
        }
    };
    let state = super::list::state_name(job.state);
    match job.state {
        State::Completed => {
            say!("{}", job.result.as_ref().map_or("null", |result| result.get()));
            Ok(())
        }
        _ => Err(Failure::Failed(match &job.reason {
            Some(reason) => anyhow!("{state}: {reason}"),
            None => anyhow!("{state}"),
        })),
    }
}

fn too_late(state: Option<State>) -> Failure {
    let state = state.map_or(String::new(), |state| format!(" and is {}", super::list::state_name(state)));
    let error =
        anyhow!("the job has not ended in time{state}; wait longer with --timeout, or look at `jobs show`");
    Failure::Code(TIMEOUT_EXIT_CODE, error)
}

async fn follow(client: &Client, job_type: &str, id: &str) -> Result<Job, Failure> {
    let mut events = client.events(job_type, id)?;
    while let Some(update) = events.next().await? {
        match update {
            JobUpdate::State(event) => {
                let kind = serde_json::to_value(event.kind).ok();
                let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("changed");
                match event.reason {
                    Some(reason) => eprintln!("{kind}: {reason}"),
                    None => eprintln!("{kind}"),
                }
            }
            JobUpdate::Progress(info) => eprintln!("progress: {info}"),
            JobUpdate::End(job) => return Ok(*job),
            JobUpdate::Removed => break,
        }
    }
    Err(Failure::Failed(anyhow!("the job was removed")))
}
