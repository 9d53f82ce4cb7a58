//! `turnwise indexes`: the indexes of CouchDB servers that turnwise keeps up to date.

use turnwise_client::{Index, ListIndexes};

use crate::Failure;
use crate::table::PagesArgs;
use crate::units::ago;

#[derive(clap::Args)]
#[command(after_help = "\
BEHIND is how many changes of its database an index lacks, and the age of the oldest one, at most. A `-` says that it is not known.

Examples:
  turnwise indexes --tenant acme
  turnwise indexes --json | jq -r '.[] | select(.changes_behind > 1000) | .id'
  turnwise why indexing/couch:5984/acme%2Forders/by-date/views")]
pub(crate) struct Args {
    /// Only indexes of this server, as in the first column
    #[arg(long = "of", value_name = "SERVER")]
    of: Option<String>,
    /// Only indexes of this database
    #[arg(long)]
    database: Option<String>,
    /// Only indexes of this tenant
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    rows: PagesArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Args { of, database, tenant, rows } = args;
    let which = ListIndexes { server: of, database, tenant, page: rows.page() };
    let indexes = rows.server.client()?.indexes(which);
    let head = [
        "SERVER", "DATABASE", "DESIGN", "KIND", "TENANT", "STATE", "BEHIND", "BUILT", "TOOK", "SIZE", "ERROR",
    ];
    let more = "There may be more indexes: raise --limit, or select with --database and --tenant.";
    rows.print(indexes, "indexes", head, row, more).await
}

fn row(index: &Index) -> [String; 11] {
    let unknown = || "-".to_owned();
    let behind = match (index.changes_behind, index.seconds_behind) {
        (Some(0), _) => "0".to_owned(),
        (Some(changes), Some(seconds)) => format!("{changes} ({seconds}s)"),
        (Some(changes), None) => changes.to_string(),
        (None, _) => unknown(),
    };
    let state = match (&index.building, index.parked) {
        (Some(building), _) if building.total > 0 => {
            format!("running {}%", building.done.min(building.total) * 100 / building.total)
        }
        (_, true) => "parked".to_owned(),
        _ => index.state.as_str().to_owned(),
    };
    let built = index.built.as_ref();
    [
        index.server.clone(),
        index.database.clone(),
        index.design.clone(),
        index.kind.as_str().to_owned(),
        index.tenant.clone(),
        state,
        behind,
        built.map_or_else(unknown, |built| ago(built.ended_us)),
        built.map_or_else(unknown, |built| format!("{:.1}s", built.took_ms as f64 / 1e3)),
        built.map_or_else(unknown, |built| format!("{:.1}MB", built.size_bytes as f64 / 1e6)),
        index.error.clone().unwrap_or_default(),
    ]
}
