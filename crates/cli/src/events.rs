//! `turnwise events`: what happens to jobs.

use std::time::Duration;

use turnwise_client::EventsOfJobs;
use turnwise_client::protocol::stream::StreamEvent;

use crate::Failure;
use crate::output::{is_done, write_line};
use crate::remote::{PATIENCE, ServerArgs};

/// How long a request waits for an event.
const WAIT: Duration = Duration::from_secs(25);

#[derive(clap::Args)]
#[command(after_help = "\
The first request begins to record events: nothing is known from before. Without --since and --follow, this prints all events that \
the server still has. With --follow, the command retries for a minute if the server does not answer. A gateway that cuts requests while \
they wait does not end it.

Exit codes: 0 success, 1 failure, such as events that are no longer kept, 2 wrong usage, 4 no answer from the server.

Examples:
  turnwise events --follow                                  # from now on
  turnwise events --follow --type mail --event failed,crashed
  turnwise events --since 4711 --tenant acme --json")]
pub(crate) struct Args {
    /// Go on as events happen, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only the events after this sequence number, the first word of each line; or `oldest`
    #[arg(long, value_name = "SEQ")]
    since: Option<String>,
    /// Only events of jobs of these types, with commas between them
    #[arg(long = "type", value_name = "TYPES")]
    job_type: Option<String>,
    /// Only events of jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only events after which the job is in one of these states, with commas between them
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    /// Only these events: added, started, stopped, crashed, snoozed, completed, failed, expired, cancelled, edited, held, released, removed, group_ended
    #[arg(long, value_name = "EVENTS")]
    event: Option<String>,
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut client = args.server.client()?;
    let since = args.since.or_else(|| (!args.follow).then(|| "oldest".to_owned()));
    let Args { job_type, tenant, state, event, .. } = args;
    let mut wanted = EventsOfJobs { job_type, tenant, state, event, since };
    let mut any = false;
    loop {
        let wait = if args.follow { WAIT } else { Duration::ZERO };
        let page = client.events_of_jobs(&wanted, wait).await?;
        // It has answered once, so it may be restarting when it does not.
        client = if args.follow { client.retry_for(PATIENCE) } else { client };
        any |= !page.events.is_empty();
        for event in &page.events {
            let line = match args.json {
                true => serde_json::to_string(event).map_err(|error| Failure::Failed(error.into()))?,
                false => line(event),
            };
            if is_done(write_line(format_args!("{line}")))? {
                return Ok(());
            }
        }
        wanted.since = Some(page.next);
        if !page.more && !args.follow {
            if !any {
                tell!(
                    "No events so far: they are recorded from the first request on. --follow shows them as they happen."
                );
            }
            return Ok(());
        }
    }
}

fn line(event: &StreamEvent) -> String {
    let StreamEvent { seq, event, job_type, id, tenant, at_us, reason, .. } = event;
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let seconds = at_us.div_euclid(1_000_000).rem_euclid(86_400);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{seq}  {hours:02}:{minutes:02}:{seconds:02}Z  {event:9}  {job_type}/{id}  {tenant}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = StreamEvent {
            seq: "17".to_owned(),
            event: "failed".to_owned(),
            job_type: "mail".to_owned(),
            id: "a".to_owned(),
            tenant: "acme".to_owned(),
            task: None,
            tags: Vec::new(),
            state: "failed".to_owned(),
            at_us: 1_790_000_000_123_456,
            reason: Some("no such mailbox".to_owned()),
            class: None,
        };
        assert_eq!(line(&event), "17  14:13:20Z  failed     mail/a  acme: no such mailbox");
    }
}
