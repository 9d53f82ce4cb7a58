//! `turnwise jobs … --where`: changes of all jobs that meet a condition; and `turnwise jobs bulk`.

use std::cell::RefCell;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use anyhow::anyhow;
use indicatif::HumanCount;
use turnwise_client::protocol::RefusedJobs;
use turnwise_client::{Bulk, BulkAction, BulkState, Client, MatchingJobs, PutBulk};

use crate::progress::{BAR, LINE_INTERVAL, Shown, show};
use crate::remote::{IdArgs, PATIENCE, ServerArgs};
use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, StopSignals, table};

/// The time between two requests for the progress.
const POLL: Duration = Duration::from_millis(500);
/// The most operations that are listed.
const MAX_LISTED: usize = 1_000;

/// How conditions are written.
pub(crate) const LANGUAGE: &str = "\
A condition compares fields with values: type, id, task, tenant, user, tag, state, priority, attempts, crashes, options.NAME, reason (a text of the \
add, or why the job failed, crashed or was cancelled), the times added, changed and ended (with 2026-01-31T12:00:00Z), and the ages age, \
changed_age and ended_age (with 90s, 15m, 2h, 3d or 1w). States are pending, delayed, parked, blocked, paused, limited, running, waiting, \
crashing, completed, failed and cancelled; a parked job is delayed, too. The operators are = != < <= > >= ~ (a regular expression that \
matches anywhere in the text), !~ and in (a, b). A job may have several tags: tag = eu holds if one of them is \
eu, tag != eu if none is. Combine comparisons with and, or, not and parentheses. Text with other characters than \
letters, digits and -_.@/:+ needs quotes.

The server makes the change in small transactions, also if this command ends. A job that meets the condition from the start until it is \
reached is changed once. Jobs that are added or retried after the start are left alone. To keep future jobs from starting, too, use \
`turnwise filters drain --when`.

Examples:
  turnwise jobs retry --where 'type = mail and tenant = acme and state = failed and reason ~ \"timeout\"'
  turnwise jobs cancel --where 'options.to = \"jan@example.org\" and not state in (completed, failed)' --dry-run
  turnwise jobs bulk list
  turnwise jobs bulk stop 4f0c…";

/// The selection of many jobs.
#[derive(clap::Args)]
pub(crate) struct ManyArgs {
    /// Change all jobs that meet this condition (`turnwise jobs bulk --help` describes it)
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
    #[command(flatten)]
    how: HowArgs,
}

/// How many jobs are changed.
#[derive(clap::Args)]
pub(crate) struct HowArgs {
    /// Count the jobs and show some of them, without a change
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Print the id of the operation, and do not wait for its end
    #[arg(long)]
    detach: bool,
}

impl HowArgs {
    /// The selection of the jobs that meet this condition.
    pub(crate) fn of(self, condition: String) -> ManyArgs {
        ManyArgs { condition: Some(condition), how: self }
    }
}

impl ManyArgs {
    /// The same, with this condition unless there is one.
    pub(super) fn or_where(self, condition: String) -> ManyArgs {
        ManyArgs { condition: self.condition.or(Some(condition)), ..self }
    }

    /// Whether many jobs are selected. Without a condition, the other options are refused: clap does not, where TYPE and ID
    /// exclude the condition, and `--dry-run` must not change a job.
    pub(super) fn is_given(&self) -> Result<bool, Failure> {
        let is_given = self.condition.is_some();
        let HowArgs { dry_run, yes, detach } = self.how;
        match !is_given && (dry_run || yes || detach) {
            true => Err(Failure::Usage(anyhow!("--dry-run, --yes and --detach need --where"))),
            false => Ok(is_given),
        }
    }
}

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List bulk operations, and how far they are
    List(ListArgs),
    /// Show one bulk operation as JSON
    Show(IdArgs),
    /// Stop a bulk operation; what it has changed stays changed
    Stop(IdArgs),
}

pub(super) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(IdArgs { id, server }) => crate::say_json(&server.client()?.bulk(&id).await?),
        Command::Stop(IdArgs { id, server }) => {
            let bulk = server.client()?.stop_bulk(&id).await?;
            say!("{}", sentence(&bulk));
            Ok(())
        }
    }
}

async fn list(ListArgs { json, server }: ListArgs) -> Result<(), Failure> {
    let (bulks, _) = server.client()?.bulks().collect(MAX_LISTED).await?;
    let head = ["ID", "ACTION", "STATE", "SINCE", "LOOKED AT", "MATCHED", "CHANGED", "BY", "WHERE"];
    table::list(&bulks, json, "bulk operations", head, |bulk| {
        let action = match bulk.priority {
            Some(priority) => format!("priority {priority}"),
            None => bulk.action.as_str().to_owned(),
        };
        [
            bulk.id.clone(),
            action,
            bulk.state.as_str().to_owned(),
            ago(bulk.ended_us.unwrap_or(bulk.begun_us)),
            looked_at(bulk),
            bulk.matched.to_string(),
            bulk.changed.to_string(),
            bulk.by.clone().unwrap_or_default(),
            bulk.condition.clone(),
        ]
    })
}

/// Changes all jobs that meet the condition, after a count and a confirmation.
pub(crate) async fn change(
    many: ManyArgs,
    action: BulkAction,
    priority: Option<i32>,
    server: ServerArgs,
) -> Result<(), Failure> {
    let ManyArgs { condition, how: HowArgs { dry_run, yes, detach } } = many;
    let Some(condition) = condition else {
        return Err(Failure::Usage(anyhow!("name a job by TYPE and ID, or jobs with --where")));
    };
    let client = server.client()?;
    if !yes || dry_run {
        let counted = client.count(&condition, Some(action), priority).await?;
        tell!("{}", expected(&counted, action));
        if dry_run {
            let head = ["TYPE", "ID", "STATE", "TENANT"];
            return table::list(&counted.examples, false, "such jobs", head, |job| {
                [job.job_type.clone(), job.id.clone(), job.state.as_str().to_owned(), job.tenant.clone()]
            });
        }
        if counted.complete && counted.changes == Some(0) {
            return Ok(());
        }
        if std::io::stdin().is_terminal() && !confirmed(action)? {
            return Err(Failure::Failed(anyhow!("nothing was changed")));
        }
    }
    let bulk = client.begin_bulk(&PutBulk { action, priority, condition }).await?;
    if detach {
        say!("{}", bulk.id);
        return Ok(());
    }
    let bulk = follow(&client, bulk).await?;
    match bulk.state {
        BulkState::Done => {
            say!("{}", sentence(&bulk));
            Ok(())
        }
        _ => Err(Failure::Failed(anyhow!("{}", sentence(&bulk)))),
    }
}

fn confirmed(action: BulkAction) -> Result<bool, Failure> {
    let (question, _) = told(action);
    let failed = |error: std::io::Error| Failure::Failed(error.into());
    let mut stderr = std::io::stderr();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Waits until an operation has ended, and shows its progress.
async fn follow(client: &Client, mut bulk: Bulk) -> Result<Bulk, Failure> {
    let client = client.clone().retry_for(PATIENCE);
    let line = RefCell::new(progress(&bulk));
    let look = || Shown { line: line.borrow().clone(), part: None };
    let mut showing = std::pin::pin!(show(LINE_INTERVAL, BAR, look));
    let mut signals = StopSignals::listen();
    while bulk.state == BulkState::Running {
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            never = &mut showing => match never {},
            () = signals.next() => {
                return Err(Failure::Failed(anyhow!(
                    "the server goes on with the change; `turnwise jobs bulk stop {}` stops it",
                    bulk.id
                )));
            }
        }
        bulk = client.bulk(&bulk.id).await.map_err(|error| match Failure::from(error) {
            Failure::Code(code, error) => {
                let goes_on =
                    format!("the server goes on with the change; see `turnwise jobs bulk show {}`", bulk.id);
                Failure::Code(code, error.context(goes_on))
            }
            failure => failure,
        })?;
        *line.borrow_mut() = progress(&bulk);
    }
    Ok(bulk)
}

fn progress(bulk: &Bulk) -> String {
    format!("{} jobs changed, {} looked at", HumanCount(bulk.changed), looked_at(bulk))
}

/// How far an operation is.
fn looked_at(bulk: &Bulk) -> String {
    let looked_at = HumanCount(bulk.looked_at);
    match bulk.about.filter(|_| bulk.state == BulkState::Running) {
        Some(about) => format!("{looked_at} of about {}", HumanCount(about.max(bulk.looked_at))),
        None => looked_at.to_string(),
    }
}

/// The question before an action, and what its jobs are afterwards.
fn told(action: BulkAction) -> (&'static str, &'static str) {
    match action {
        BulkAction::Retry => ("Retry these jobs?", "retried"),
        BulkAction::Cancel => ("Cancel these jobs?", "cancelled"),
        BulkAction::Remove => ("Remove these jobs?", "removed"),
        BulkAction::Priority => ("Change the priority of these jobs?", "changed"),
        BulkAction::RunNow => ("Start these jobs now?", "started"),
        BulkAction::Hold => ("Hold these jobs?", "held"),
        BulkAction::Release => ("Release these jobs?", "released"),
    }
}

/// `12,345 jobs match, 12,000 would be cancelled; unchanged: 345 (it has ended)`
fn expected(counted: &MatchingJobs, action: BulkAction) -> String {
    let (matched, changes) = (HumanCount(counted.matched), HumanCount(counted.changes.unwrap_or(0)));
    let mut text = format!("{matched} jobs match, {changes} would be {}", told(action).1);
    text += &unchanged(&counted.refused);
    if !counted.complete {
        text += &format!(
            "\nThese are the jobs among the first {} that were looked at: there may be more.",
            HumanCount(counted.looked_at)
        );
    }
    text
}

/// `12,000 jobs cancelled; unchanged: 345 (it has ended)`
fn sentence(bulk: &Bulk) -> String {
    let mut text = format!("{} jobs {}", HumanCount(bulk.changed), told(bulk.action).1);
    text += &unchanged(&bulk.refused);
    match (bulk.state, &bulk.reason) {
        (BulkState::Stopped, _) => text += "; the operation was stopped",
        (BulkState::Failed, reason) => {
            text += &format!("; the operation failed: {}", reason.as_deref().unwrap_or_default());
        }
        (BulkState::Running | BulkState::Done, _) => {}
    }
    text
}

fn unchanged(refused: &[RefusedJobs]) -> String {
    let parts: Vec<String> = refused
        .iter()
        .map(|RefusedJobs { reason, jobs }| format!("{} ({reason})", HumanCount(*jobs)))
        .collect();
    if parts.is_empty() { String::new() } else { format!("; unchanged: {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_in_a_sentence() {
        let refused = vec![RefusedJobs { reason: "it has ended".to_owned(), jobs: 1_345 }];
        let counted = MatchingJobs {
            complete: false,
            looked_at: 1_000_000,
            matched: 13_345,
            changes: Some(12_000),
            refused: refused.clone(),
            examples: Vec::new(),
        };
        assert_eq!(
            expected(&counted, BulkAction::Cancel),
            "13,345 jobs match, 12,000 would be cancelled; unchanged: 1,345 (it has ended)\n\
             These are the jobs among the first 1,000,000 that were looked at: there may be more."
        );
        let bulk = Bulk {
            id: "a".to_owned(),
            action: BulkAction::Retry,
            priority: None,
            condition: String::new(),
            by: None,
            state: BulkState::Stopped,
            reason: None,
            begun_us: 0,
            ended_us: None,
            looked_at: 5,
            about: Some(1_200),
            matched: 3,
            changed: 2,
            refused: Vec::new(),
        };
        assert_eq!(sentence(&bulk), "2 jobs retried; the operation was stopped");
        assert_eq!(progress(&bulk), "2 jobs changed, 5 looked at");
        let running = Bulk { state: BulkState::Running, ..bulk };
        assert_eq!(progress(&running), "2 jobs changed, 5 of about 1,200 looked at");
    }
}
