//! `turnwise demand`: how many slots the jobs of a type need.

use std::time::Duration;

use indicatif::HumanCount;
use turnwise_client::{Demand, TenantDemand};

use crate::remote::ServerArgs;
use crate::units::{ago, now_us, parse_duration};
use crate::{Failure, table};

#[derive(clap::Args)]
#[command(after_help = "\
Jobs that wait for a time, for locks, for other jobs, for a filter or for a concurrency limit need no slots. An autoscaler should provide the wanted
slots: they rise with the jobs at once, and fall one target later.

Examples:
  turnwise demand mail
  turnwise demand mail --drain-target 10s --json | jq .wanted_slots")]
pub(crate) struct Args {
    /// The type of the jobs
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The time within which what could run now shall have started
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    drain_target: Duration,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let demand = args.server.client()?.demand(&args.job_type, Some(args.drain_target)).await?;
    if args.json {
        return crate::say_json(&demand);
    }
    let Demand { runnable, running, workers, slots, needed_slots, wanted_slots, .. } = demand;
    let oldest_us = now_us().saturating_sub(i64::try_from(demand.oldest_age_us).unwrap_or(i64::MAX));
    say!("wanted   {} slots, now needed {}", HumanCount(wanted_slots), HumanCount(needed_slots));
    say!("there    {} slots of {} workers", HumanCount(slots), HumanCount(workers));
    say!("running  {} jobs", HumanCount(running));
    say!("runnable {} jobs, the oldest for {}", HumanCount(runnable), ago(oldest_us));
    say!("expected {:.3} s per job", Duration::from_micros(demand.expected_run_us).as_secs_f64());
    if demand.tenants.is_empty() {
        return Ok(());
    }
    say!("");
    table::list(
        &demand.tenants,
        false,
        "tenants",
        ["TENANT", "NEEDED", "RUNNING", "RUNNABLE", "EXPECTED"],
        row,
    )
}

fn row(of: &TenantDemand) -> [String; 5] {
    [
        of.tenant.clone(),
        HumanCount(of.needed_slots).to_string(),
        HumanCount(of.running).to_string(),
        HumanCount(of.runnable).to_string(),
        format!("{:.3} s", Duration::from_micros(of.expected_run_us).as_secs_f64()),
    ]
}
