//! `turnwise jobs count`: how many jobs there are, by state.

use indicatif::HumanCount;
use turnwise_client::{CountBy, CountJobs, CountedJobs};

use crate::table::PagesArgs;
use crate::units::words;
use crate::{Failure, table};

#[derive(clap::Args)]
#[command(after_help = "\
The numbers are exact, and cost the server the same with ten jobs and with millions. States that no listed job is in have no column.

Examples:
  turnwise jobs count
  turnwise jobs count --type mail --by tenant
  turnwise jobs count --json | jq 'map(.jobs.failed) | add'")]
pub(crate) struct Args {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Count the jobs of all tenants together (type), or those of each (tenant)
    #[arg(long, value_name = "BY", value_parser = words::<CountBy>(CountBy::WORDS), default_value = "type")]
    by: CountBy,
    #[command(flatten)]
    rows: PagesArgs,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let Args { job_type, tenant, by, rows } = args;
    let counts = rows.server.client()?.counts(CountJobs { job_type, tenant, by, page: rows.page() });
    let (counts, more) = rows.collect(counts).await?;
    if rows.json {
        return crate::say_json(&counts);
    }
    for line in lines(&counts, by == CountBy::Tenant) {
        say!("{line}");
    }
    if more {
        tell!("There may be more: raise --limit, or select with --type and --tenant.");
    }
    Ok(())
}

/// A table with a column for each state that occurs.
fn lines(counts: &[CountedJobs], by_tenant: bool) -> Vec<String> {
    if counts.is_empty() {
        return vec!["No jobs.".to_owned()];
    }
    let all: Vec<_> = counts.iter().map(|counted| counted.jobs.by_state()).collect();
    let states: Vec<usize> = (0..all[0].len()).filter(|n| all.iter().any(|jobs| jobs[*n].1 > 0)).collect();
    let mut head = vec!["TYPE".to_owned()];
    head.extend(by_tenant.then(|| "TENANT".to_owned()));
    head.extend(states.iter().map(|n| all[0][*n].0.to_uppercase()));
    let mut cells = vec![head];
    let mut align = vec![table::Align::Left; 1 + usize::from(by_tenant)];
    align.resize(cells[0].len(), table::Align::Right);
    for (counted, jobs) in counts.iter().zip(&all) {
        let mut row = vec![counted.job_type.clone()];
        row.extend(by_tenant.then(|| counted.tenant.clone().unwrap_or_default()));
        row.extend(states.iter().map(|n| HumanCount(jobs[*n].1).to_string()));
        cells.push(row);
    }
    table::columns(&cells, &align, None)
}
