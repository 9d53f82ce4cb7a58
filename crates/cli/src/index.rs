//! `turnwise index`: replaces the design documents of a CouchDB without a wait for readers.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use indicatif::HumanCount;
use serde_json::{Map, Value};
use tokio::sync::watch;
use turnwise_indexer::{Database, Deployed, Error, Progress, Step, clean, deploy, rollback};

use crate::Failure;
use crate::progress::{Shown, show};

/// The time between two lines of progress, where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// How the bar of a build looks.
const BAR: &str = "{wide_bar} {percent:>3}%  {msg}  {eta}";
/// The largest file with a design document, in bytes: CouchDB's own limit for a document.
const MAX_DESIGN_BYTES: u64 = 8 << 20;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Replace a design document once the indexes of the new version are built
    ///
    /// The new version is written under a temporary name, and its indexes are built there while the live version is used. Then it replaces the live
    /// version, which finds the indexes complete. The version before is kept for a rollback. An interrupted deployment is completed by running it again.
    ///
    /// `validate_doc_update` is in force only while its version is live. Indexes of `_find` (language `query`) are refused: CouchDB would choose the
    /// temporary or the kept version for queries. Create the new index under a new name, and delete the old one when it is built.
    #[command(after_help = "\
Examples:
  turnwise index deploy http://admin:secret@localhost:5984/db design.json
  turnwise index deploy http://admin:secret@localhost:5984/db views.json --name search")]
    Deploy(DeployArgs),
    /// Go back to the version before the last deployment
    ///
    /// Its indexes are brought up to date first. A second rollback goes forward again.
    Rollback(NamedArgs),
    /// Remove the version before the last deployment, and what an interrupted deployment has left, with their indexes
    Clean(NamedArgs),
}

#[derive(clap::Args)]
pub(crate) struct DeployArgs {
    /// URL of the database, http://user:password@host:port/db
    #[arg(value_name = "DATABASE")]
    database: String,
    /// File with the new version, a JSON object
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the design document, without `_design/`; by default, from the `_id` in the file
    #[arg(long)]
    name: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct NamedArgs {
    /// URL of the database, http://user:password@host:port/db
    #[arg(value_name = "DATABASE")]
    database: String,
    /// Name of the design document, without `_design/`
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Deploy(args) => {
            let design = read(&args)?;
            let id = design.get("_id").and_then(Value::as_str).and_then(|id| id.strip_prefix("_design/"));
            let Some(name) = args.name.clone().or_else(|| id.map(str::to_owned)) else {
                return Err(Failure::Usage(anyhow::anyhow!(
                    "{}: there is no `_id` that starts with `_design/`: give the design document a name with --name",
                    args.file.display()
                )));
            };
            let database = database(&args.database)?;
            shown(args.json, async |progress| deploy(&database, &name, &design, progress).await).await
        }
        Command::Rollback(args) => {
            let database = database(&args.database)?;
            shown(args.json, async |progress| rollback(&database, &args.name, progress).await).await
        }
        Command::Clean(args) => {
            let removed = clean(&database(&args.database)?, &args.name).await.map_err(failure)?;
            if args.json {
                return crate::say_json(&removed);
            }
            match removed.is_empty() {
                true => say!("There was nothing to remove."),
                false => say!("Removed {}.", removed.join(" and ")),
            }
            Ok(())
        }
    }
}

fn database(url: &str) -> Result<Database, Failure> {
    Database::new(url).map_err(|error| Failure::Usage(error.into()))
}

fn failure(error: Error) -> Failure {
    Failure::Failed(error.into())
}

fn read(args: &DeployArgs) -> Result<Map<String, Value>, Failure> {
    let file = args.file.display();
    let read = || -> anyhow::Result<Map<String, Value>> {
        let length = std::fs::metadata(&args.file)?.len();
        anyhow::ensure!(length <= MAX_DESIGN_BYTES, "it is larger than {MAX_DESIGN_BYTES} bytes");
        serde_json::from_slice(&std::fs::read(&args.file)?).context("expected a JSON object")
    };
    read().with_context(|| format!("{file}")).map_err(Failure::Usage)
}

fn say_deployed(deployed: &Deployed, json: bool) -> Result<(), Failure> {
    if json {
        return crate::say_json(deployed);
    }
    let Deployed { design, replaced, kept } = deployed;
    match (replaced, kept) {
        (false, _) => say!("{design} was this version already, and its indexes are complete."),
        (true, None) => say!("{design} was created, and its indexes are complete."),
        (true, Some(kept)) => say!("{design} was replaced. The version before is {kept}."),
    }
    Ok(())
}

/// Waits for a deployment, and shows how far it is on stderr: as a bar on a terminal, or else as lines. Then says what was done.
async fn shown(
    json: bool,
    deploying: impl AsyncFnOnce(&watch::Sender<Progress>) -> Result<Deployed, Error>,
) -> Result<(), Failure> {
    let progress = watch::Sender::new(Progress::default());
    let prefix = if std::io::stderr().is_terminal() { "" } else { "turnwise: " };
    let look = || {
        let progress = *progress.borrow();
        let (all, left) = (progress.building.total, progress.building.left);
        Shown {
            line: format!("{prefix}{}", text(&progress)),
            part: Some((all.saturating_sub(left), all.max(1))),
        }
    };
    let deployed = tokio::select! {
        biased;
        deployed = deploying(&progress) => deployed.map_err(failure)?,
        never = show(LINE_INTERVAL, BAR, look) => match never {},
    };
    say_deployed(&deployed, json)
}

fn text(progress: &Progress) -> String {
    let building = progress.building;
    match progress.step {
        Step::Write => "writing the new version".to_owned(),
        Step::Build => format!(
            "building: {} of {} changes",
            HumanCount(building.total.saturating_sub(building.left)),
            HumanCount(building.total)
        ),
        Step::Keep => "keeping the live version".to_owned(),
        Step::Replace => "replacing the live version".to_owned(),
        Step::CleanUp => "cleaning up".to_owned(),
    }
}
