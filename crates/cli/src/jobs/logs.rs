//! `turnwise jobs logs`.

use anyhow::anyhow;
use turnwise_client::protocol::{LogLine, MAX_CLAIM, MAX_LIMIT};
use turnwise_client::{Client, LogUpdate};
use turnwise_policy::timestamp::timestamp;

use super::JobArgs;
use crate::Failure;
use crate::output::{is_done, write_line};
use crate::remote::PATIENCE;

/// More than the number of any line: a page from there on states only which lines there are. It is the highest number that the server takes.
const END: u64 = MAX_CLAIM;

#[derive(clap::Args)]
#[command(after_help = "\
Each line is TIME LEVEL MESSAGE FIELDS, of all attempts of the job. The server keeps the last 1,000 lines of a job, or 256 kB; a message on stderr \
says so if earlier ones are gone. With --follow, the command ends when the job has ended, and retries for a minute if the server does not answer.

Exit codes: 0 success, 1 failure, such as a job that does not exist or was removed, 2 wrong usage, 4 no answer from the server.

Examples:
  turnwise jobs logs mail mail-17 --follow
  turnwise jobs logs mail mail-17 --tail 0 --json | jq .message")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Go on as lines are logged, until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Print the lines from this number on, which --json shows: the first line of a job has the number 0
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=END))]
    from: Option<u64>,
    /// Print the last lines only, and those that follow; 0 for all. The default is 100, or all with --from
    #[arg(long, value_name = "N")]
    tail: Option<u64>,
    /// Print each line as a line of JSON, with all fields
    #[arg(long)]
    json: bool,
}

/// How many lines are printed unless the options state otherwise.
const TAIL: u64 = 100;

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let JobArgs { job_type, id, server } = &args.job;
    let client = server.client()?;
    let known = client.log_page(job_type, id, END, 1).await?;
    let mut printer = Printer { next: args.start(known.next), json: args.json };
    // The lines that are gone already are missed without any that follows them.
    if printer.next < known.first {
        printer.missed(known.first);
    }
    match args.follow {
        // It has answered once, so it may be restarting when it does not.
        true => follow(&client.retry_for(PATIENCE), job_type, id, printer).await,
        false => print(&client, job_type, id, printer, known.next).await,
    }
}

impl Args {
    /// The number of the first line to print, where the next line will have the number `end`.
    fn start(&self, end: u64) -> u64 {
        let tail = match self.tail.unwrap_or(if self.from.is_some() { 0 } else { TAIL }) {
            0 => 0,
            tail => end.saturating_sub(tail),
        };
        tail.max(self.from.unwrap_or(0))
    }
}

/// Prints the lines before the number `end`: a job may log faster than they are printed.
async fn print(
    client: &Client,
    job_type: &str,
    id: &str,
    mut printer: Printer,
    end: u64,
) -> Result<(), Failure> {
    while printer.next < end {
        let page = client.log_page(job_type, id, printer.next, MAX_LIMIT).await?;
        if page.lines.is_empty() {
            break;
        }
        for line in page.lines.iter().take_while(|line| line.number < end) {
            if printer.print(line)? {
                return Ok(());
            }
        }
        printer.next = printer.next.max(page.next);
    }
    Ok(())
}

async fn follow(client: &Client, job_type: &str, id: &str, mut printer: Printer) -> Result<(), Failure> {
    let mut lines = client.follow_log(job_type, id, printer.next)?;
    while let Some(update) = lines.next().await? {
        match update {
            LogUpdate::Line(line) => {
                if printer.print(&line)? {
                    return Ok(());
                }
            }
            LogUpdate::End(job) => {
                let state = job.state.as_str();
                match &job.reason {
                    Some(reason) => tell!("{state}: {reason}"),
                    None => tell!("{state}"),
                }
            }
            LogUpdate::Removed => return Err(anyhow!("the job was removed").into()),
        }
    }
    Ok(())
}

/// Prints lines in their order.
struct Printer {
    /// The number of the next line, if none is gone.
    next: u64,
    json: bool,
}

impl Printer {
    /// Prints a line. Returns whether the reader has closed the pipe.
    fn print(&mut self, line: &LogLine) -> Result<bool, Failure> {
        if line.number > self.next {
            self.missed(line.number);
        }
        self.next = line.number + 1;
        let text = match self.json {
            true => serde_json::to_string(line).map_err(|error| Failure::Failed(error.into()))?,
            false => shown(line),
        };
        is_done(write_line(format_args!("{text}")))
    }

    /// Says that the lines before this one are gone.
    fn missed(&mut self, first: u64) {
        let gone = first - self.next;
        tell!("turnwise: {gone} earlier lines are no longer kept");
        self.next = first;
    }
}

/// A line as text: `2026-11-21T09:10:58.123Z INFO  half of them are sent {"sent":12}`.
fn shown(LogLine { at_us, level, message, fields, .. }: &LogLine) -> String {
    let (seconds, ms) = (timestamp(*at_us), at_us.rem_euclid(1_000_000) / 1_000);
    let seconds = seconds.trim_end_matches('Z');
    let level = level.as_str().to_uppercase();
    let fields = fields.as_ref().map(|fields| format!(" {fields}")).unwrap_or_default();
    format!("{seconds}.{ms:03}Z {level:5} {message}{fields}")
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use turnwise_client::protocol::LogLevel;

    use super::*;

    #[test]
    fn a_line_is_its_time_its_level_its_message_and_its_fields() {
        let mut line = LogLine {
            number: 7,
            at_us: 1_795_252_258_012_999,
            level: LogLevel::Warn,
            message: "the mail server is slow".to_owned(),
            fields: None,
        };
        assert_eq!(shown(&line), "2026-11-21T09:10:58.012Z WARN  the mail server is slow");
        line.fields = Some(RawValue::from_string(r#"{"seconds":12}"#.to_owned()).unwrap());
        line.level = LogLevel::Error;
        assert_eq!(shown(&line), r#"2026-11-21T09:10:58.012Z ERROR the mail server is slow {"seconds":12}"#);
    }
}
