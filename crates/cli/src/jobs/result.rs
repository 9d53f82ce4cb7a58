//! `turnwise jobs result`.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::anyhow;
use turnwise_client::JobResult;

use super::JobArgs;
use crate::Failure;

#[derive(clap::Args)]
#[command(after_help = "\
The command prints the bytes of the result as they are; on a terminal, with control characters escaped. `turnwise jobs wait` waits for the end \
of a job, and prints its result then.

Exit codes: 0 success, 1 no result or no such job, 2 wrong usage, 4 no answer from the server.

Examples:
  turnwise jobs result report report-17 | jq .total
  turnwise jobs result thumbnail cat-7 --output cat-7.png")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Write the result to this file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) async fn run(Args { job, output }: Args) -> Result<(), Failure> {
    let JobArgs { job_type, id, server } = job;
    let result = server.client()?.result(&job_type, &id).await?;
    match output {
        Some(file) => std::fs::write(&file, &result.bytes)
            .map_err(|error| anyhow!("--output: cannot write {}: {error}", file.display()).into()),
        None => print(&result),
    }
}

/// Prints a result: on a terminal as text that cannot control it.
pub(crate) fn print(JobResult { bytes, .. }: &JobResult) -> Result<(), Failure> {
    if io::stdout().is_terminal() {
        say!("{}", String::from_utf8_lossy(bytes));
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot write to stdout: {error}").into())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
