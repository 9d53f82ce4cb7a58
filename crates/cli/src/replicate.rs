//! `turnwise replicate`: one replication, without any server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use turnwise_outbound::Client;
use turnwise_replicator::{Context, Defaults, Replication, Report, Seq, replicate};

use crate::Failure;
use crate::progress::{human_bytes, show_replication};

/// A fixed id in place of a server's: any machine that runs the same command finds the checkpoints.
const NO_SERVER_UUID: &str = "turnwise-replicate";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  turnwise replicate http://localhost:5984/orders http://localhost:7000/orders --create-target
  turnwise replicate http://admin:secret@a:5984/db http://b:5984/db --doc-ids one,two
  turnwise replicate http://a:5984/db http://b:5984/db --selector '{\"type\":\"invoice\"}' --continuous

If you run the same command again, it resumes from the checkpoints in both databases.

Exit codes: 0 success (or a continuous replication was stopped), 1 failed or interrupted, 2 wrong usage.")]
pub(crate) struct Args {
    /// URL of the database to copy from, http://user:password@host:port/db
    source: String,
    /// URL of the database to copy to
    target: String,
    /// Keep copying changes of the source until interrupted
    #[arg(long)]
    continuous: bool,
    /// Create the target database if it does not exist
    #[arg(long)]
    create_target: bool,
    /// Copy only these documents
    #[arg(long, value_name = "ID,ID…", value_delimiter = ',')]
    doc_ids: Vec<String>,
    /// Copy only documents that this Mango selector matches
    #[arg(long, value_name = "JSON")]
    selector: Option<String>,
    /// Copy only documents that pass this filter function of the source, `design-document/name`
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Parameters for the filter function, a JSON object
    #[arg(long, value_name = "JSON", requires = "filter")]
    query_params: Option<String>,
    /// Start after this sequence of the source
    ///
    /// A run with this option resumes from the checkpoint of earlier runs that began at the same sequence or went on from there, and ignores the
    /// checkpoints of others. Runs without it began at 0.
    #[arg(long, value_name = "SEQ")]
    since: Option<String>,
    /// Any further field of a replication document, `name=JSON`
    #[arg(long = "option", value_name = "NAME=JSON")]
    options: Vec<String>,
    /// Configuration file. Only its `[replicator]` section is used: certificates, connections, batches
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Args {
    fn replication(&self, defaults: &Defaults) -> anyhow::Result<Replication> {
        let mut body = Map::new();
        for option in &self.options {
            let (name, value) =
                option.split_once('=').with_context(|| format!("--option {option}: expected NAME=JSON"))?;
            if matches!(name, "source" | "target") {
                bail!("--option {name}: SOURCE and TARGET are arguments");
            }
            body.insert(name.to_owned(), parse_json(&format!("--option {name}"), value)?);
        }
        body.insert("source".into(), json!(self.source));
        body.insert("target".into(), json!(self.target));
        let parsed = |option: &str, text: &Option<String>| {
            text.as_deref().map(|text| parse_json(option, text)).transpose()
        };
        // CouchDB's sequences are strings; those of PouchDB and of CouchDB 1.x are numbers.
        let since = |since: &String| since.parse::<u64>().map_or_else(|_| json!(since), |n| json!(n));
        let members = [
            ("continuous", self.continuous.then(|| json!(true))),
            ("create_target", self.create_target.then(|| json!(true))),
            ("doc_ids", (!self.doc_ids.is_empty()).then(|| json!(self.doc_ids))),
            ("selector", parsed("--selector", &self.selector)?),
            ("filter", self.filter.as_ref().map(|filter| json!(filter))),
            ("query_params", parsed("--query-params", &self.query_params)?),
            ("since_seq", self.since.as_ref().map(since)),
        ];
        body.extend(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(Replication::parse(&body, defaults)?)
    }
}

fn parse_json(option: &str, text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).with_context(|| format!("{option}: not JSON"))
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = crate::serve::config(args.config.as_deref(), |_| ())?;
    let replication = args.replication(&config.replication).map_err(Failure::Usage)?;
    let client = Client::with(&config.connections).context("cannot start an HTTP client")?;
    let mut context = Context::new(client, NO_SERVER_UUID);
    let stop = CancellationToken::new();
    context.stop = stop.clone();
    let mut signals = crate::StopSignals::listen();
    let signal = tokio::spawn(async move {
        signals.next().await;
        stop.cancel();
    });
    let started = Instant::now();
    let ended = tokio::select! {
        biased;
        ended = replicate(&replication, &context) => ended,
        never = show_replication(context.progress.subscribe(), replication.continuous) => match never {},
    };
    signal.abort();
    let elapsed = started.elapsed();
    let report = ended.map_err(|error| anyhow!("{error}"))?;
    let interrupted = report.stopped && !replication.continuous;
    print_summary(&report, elapsed, interrupted);
    if interrupted {
        return Err(anyhow!("interrupted before the end; run the same command again to resume").into());
    }
    Ok(())
}

fn print_summary(report: &Report, elapsed: Duration, interrupted: bool) {
    let stats = &report.stats;
    if report.no_changes {
        if !interrupted {
            say!("Nothing to copy: there are no changes since {}.", short(&report.source_last_seq));
        }
        return;
    }
    let seconds = elapsed.as_secs_f64();
    say!(
        "{} {} written ({}) in {seconds:.1} s, {:.0}/s.",
        stats.docs_written,
        if stats.docs_written == 1 { "document" } else { "documents" },
        human_bytes(stats.bytes_written),
        stats.docs_written as f64 / seconds.max(0.001),
    );
    say!(
        "{} revisions checked, {} missing, {} read, {} rejected by the target.",
        stats.revisions_checked,
        stats.missing_revisions_found,
        stats.docs_read,
        stats.doc_write_failures,
    );
    say!("Everything is copied up to {}.", short(&report.source_last_seq));
}

/// A sequence in readable form: CouchDB's have a number, followed by hundreds of opaque characters.
fn short(sequence: &Seq) -> String {
    let text = sequence.to_string();
    let text = text.trim_matches('"');
    match text.split_once('-') {
        Some((number, _)) => format!("sequence {number}"),
        None => format!("sequence {text}"),
    }
}
