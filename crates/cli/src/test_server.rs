//! `turnwise test-server`: a server for the tests of programs that use turnwise.
//!
//! The program that starts it holds the other end of its stdin. When that program ends, in whatever way, the server ends, and nothing stays.

use std::io;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use turnwise_server::Server;

use crate::Failure;
use crate::output::write_line;

/// Where Linux has files in memory. Elsewhere, the store is in the folder of temporary files, and does not wait for the disk either.
const MEMORY: &str = "/dev/shm";

#[derive(clap::Args)]
#[command(after_help = "\
It listens on a free port of 127.0.0.1, and prints one line of JSON with its `url`. The client libraries start it: `turnwise_client.testing` for \
Python, `turnwise-client/testing` for TypeScript.")]
pub(crate) struct Args {}

pub(crate) async fn run(Args {}: Args) -> Result<(), Failure> {
    // Before anything that the program which started this process may end by.
    let mut signals = crate::StopSignals::listen();
    let mut folder = tempfile::Builder::new();
    folder.prefix("turnwise-test-");
    let folder = folder.tempdir_in(MEMORY).or_else(|_| folder.tempdir());
    let folder = folder.context("cannot create a folder for the store")?;
    let server = Server::start_for_tests(folder.path());
    let server = server.await.map_err(|error| anyhow!(error).context("cannot start"))?;
    let url = format!("http://{}", server.listen());
    write_line(format_args!("{}", json!({ "url": url, "version": env!("CARGO_PKG_VERSION") })))
        .context("cannot write to stdout")?;
    tokio::select! {
        () = signals.next() => {}
        () = closed() => {}
    }
    server.shutdown().await;
    folder.close().context("cannot remove the store")?;
    Ok(())
}

/// Returns when stdin has ended.
async fn closed() {
    // The thread ends with the process.
    let read = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    let _ = read.await;
}
