//! `turnwise serve`: the server, until it is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use turnwise_server::{Config, Server, ServerConfig};

use crate::Failure;

/// `turnwise serve`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the embedded store; created if it is missing
    #[arg(long, value_name = "DIR", default_value = "./turnwise-data")]
    data_dir: PathBuf,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7984")]
    #[arg(value_parser = parse_listen)]
    listen: SocketAddr,
    /// Configuration, in CouchDB's INI format
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, for example 127.0.0.1:7984".to_owned())
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = match &args.config {
        Some(path) => {
            let (config, ignored) = Config::load(path).map_err(|error| Failure::Usage(error.into()))?;
            for problem in ignored {
                tracing::warn!("{problem}");
            }
            config
        }
        None => Config::default(),
    };
    let guard = crate::guard().context("cannot start")?;
    let config = ServerConfig { data_dir: args.data_dir, listen: args.listen, config, guard: Some(guard) };
    let server = Server::start(config).await.context("cannot start")?;
    say!("turnwise {} listens on http://{}/", env!("CARGO_PKG_VERSION"), server.listen());
    crate::stop_signal().await;
    say!("turnwise stops: jobs checkpoint and go back to the queue");
    tokio::select! {
        () = server.shutdown() => Ok(()),
        // Whoever asks twice is in a hurry; the next start recovers what is left.
        () = crate::stop_signal() => Err(anyhow::anyhow!("stopped at once").into()),
    }
}
