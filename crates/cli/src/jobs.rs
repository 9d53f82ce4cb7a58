//! `turnwise jobs`: a look at a running server, through its HTTP API.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use crate::Failure;

/// Far more than a healthy server takes to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Jobs that one request asks for.
const PAGE: usize = 1_000;

/// Which server.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// URL of the server
    #[arg(long, value_name = "URL", env = "TURNWISE_SERVER", default_value = "http://127.0.0.1:7984")]
    server: String,
}

/// `turnwise jobs`
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the jobs and their states
    List {
        #[command(flatten)]
        server: ServerArgs,
        /// Print what the server answered, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one job, with its history, as JSON
    Show {
        /// The job's id
        id: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Cancel a job that was started through `_replicate`
    ///
    /// A job that belongs to a replication document is stopped by deleting the document.
    Cancel {
        /// The job's id
        id: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List { server, json } => list(&Api::new(&server)?, json).await,
        Command::Show { id, server } => show(&Api::new(&server)?, &id).await,
        Command::Cancel { id, server } => cancel(&Api::new(&server)?, &id).await,
    }
}

async fn list(api: &Api, as_json: bool) -> Result<(), Failure> {
    let mut jobs = Vec::new();
    loop {
        let path = format!("/_scheduler/jobs?limit={PAGE}&skip={}", jobs.len());
        let mut page = api.get(&path).await?;
        let rows = match page["jobs"].take() {
            Value::Array(rows) => rows,
            _ => return Err(anyhow!("the server's answer has no jobs: is it turnwise?").into()),
        };
        let last = rows.len() < PAGE;
        jobs.extend(rows);
        if last {
            break;
        }
    }
    if as_json {
        say!("{:#}", json!(jobs));
        return Ok(());
    }
    if jobs.is_empty() {
        say!("No jobs.");
        return Ok(());
    }
    let rows = jobs.iter().map(|job| {
        let text = |field: &str| job[field].as_str().unwrap_or("-").to_owned();
        let written = job["info"]["docs_written"].as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string());
        [text("id"), state(job).to_owned(), written, text("source"), text("target")]
    });
    print_table(["ID", "STATE", "WRITTEN", "SOURCE", "TARGET"], rows.collect());
    Ok(())
}

/// `_scheduler/jobs` names no state: the newest event tells it.
fn state(job: &Value) -> &'static str {
    match job["history"][0]["type"].as_str() {
        Some("started") => "running",
        Some("crashed") => "crashing",
        Some("added" | "stopped") => "pending",
        _ => "unknown",
    }
}

fn print_table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) {
    let mut widths = head.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say!("{}", padded.join("  ").trim_end());
    };
    line(head);
    for row in &rows {
        line(std::array::from_fn(|n| row[n].as_str()));
    }
}

async fn show(api: &Api, id: &str) -> Result<(), Failure> {
    let path = format!("/_scheduler/jobs/{}", id.replace('+', "%2B"));
    say!("{:#}", api.get(&path).await?);
    Ok(())
}

async fn cancel(api: &Api, id: &str) -> Result<(), Failure> {
    api.post("/_replicate", &json!({ "cancel": true, "replication_id": id })).await?;
    say!("{id} is being cancelled: it stops, and is gone from the list then.");
    Ok(())
}

/// The server's HTTP API.
struct Api {
    client: reqwest::Client,
    base: String,
}

impl Api {
    fn new(args: &ServerArgs) -> Result<Self, Failure> {
        let base = args.server.trim_end_matches('/').to_owned();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            let error = anyhow!("--server {base}: expected a URL, for example http://127.0.0.1:7984");
            return Err(Failure::Usage(error));
        }
        let client = turnwise_replicator::Client::new().context("cannot start an HTTP client")?;
        Ok(Api { client: client.http().clone(), base })
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.base));
        self.send(request.header("content-type", "application/json").body(body.to_string())).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
        let unreachable = || format!("no answer from {}: is `turnwise serve` running there?", self.base);
        let answer = request.timeout(TIMEOUT).send().await.with_context(unreachable)?;
        let status = answer.status();
        let text = answer.text().await.with_context(unreachable)?;
        let body: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} answered {status} without JSON: is it turnwise?", self.base))?;
        if !status.is_success() {
            let part = |field: &str| body[field].as_str().unwrap_or("no reason given").to_owned();
            bail!("{status}: {}: {}", part("error"), part("reason"));
        }
        Ok(body)
    }
}
