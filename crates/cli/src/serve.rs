//! `turnwise serve`: runs the server until a signal stops it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use turnwise_server::{
    Config, RunningServer, Server, ServerConfig, StoreUrl, check_advertised_url, check_node_name, log,
};

use crate::Failure;
use crate::output::write_line;

#[derive(clap::Args)]
#[command(after_help = "\
Any number of servers can share a store on etcd or FoundationDB, and each of them answers for all. Put a URL with a password \
into TURNWISE_STORE, because every user of the machine can read the command line.

Examples:
  turnwise serve
  turnwise serve --store embedded:/var/lib/turnwise --listen 127.0.0.1:8000
  turnwise serve --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/turnwise --listen 10.0.1.1:7984")]
pub(crate) struct Args {
    /// The store: embedded:DIR, etcd://host:port,…/prefix (user:password@ may come before the hosts) or
    /// fdb:CLUSTER_FILE[/prefix]
    // Parsed later, because an error of clap would repeat the password.
    #[arg(long, value_name = "URL", env = "TURNWISE_STORE", default_value = "embedded:./turnwise-data")]
    #[arg(hide_env_values = true)]
    store: String,
    /// This node's name, unique among the nodes of its store (default: turnwise@ADDRESS:PORT)
    #[arg(long, value_name = "NODE", env = "TURNWISE_NODE", value_parser = parse_name)]
    name: Option<String>,
    /// URL at which other nodes and clients reach this node (default: http://ADDRESS:PORT)
    #[arg(long, value_name = "URL", value_parser = parse_advertised)]
    advertise: Option<String>,
    /// Address to listen on; with port 0, the server takes a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7984")]
    #[arg(value_parser = parse_listen)]
    listen: SocketAddr,
    /// Configuration file, in CouchDB's INI format
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve everyone without credentials, also where others can reach the server, where it runs commands, or where several nodes share the store
    #[arg(long)]
    insecure_no_auth: bool,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, for example 127.0.0.1:7984".to_owned())
}

fn parse_name(text: &str) -> Result<String, String> {
    check_node_name(text).map(|()| text.to_owned())
}

fn parse_advertised(text: &str) -> Result<String, String> {
    check_advertised_url(text).map(|()| text.to_owned())
}

/// Loads a configuration file; without one, the defaults. Passes it to `first`, and then logs what it ignores of the file.
pub(crate) fn config(file: Option<&Path>, first: impl FnOnce(&Config)) -> Result<Config, Failure> {
    let Some(file) = file else { return Ok(Config::default()) };
    let (config, ignored) = Config::load(file).map_err(|error| Failure::Usage(error.into()))?;
    first(&config);
    for problem in ignored {
        tracing::warn!("{problem}");
    }
    Ok(config)
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let store: StoreUrl = args.store.parse().map_err(|error| Failure::Usage(anyhow!("--store: {error}")))?;
    // Before anything else, so that a SIGHUP never ends the process.
    let mut hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let file = args.config;
    let config = config(file.as_deref(), |config| log::configure(&config.log))?;
    let guard = crate::guard().context("cannot start")?;
    if config.command.enabled {
        turnwise_command::hide_from_commands().context("cannot hide this process from commands")?;
    }
    let config = ServerConfig {
        store,
        listen: args.listen,
        name: args.name,
        advertise: args.advertise,
        config,
        guard: Some(guard),
        insecure_no_auth: args.insecure_no_auth,
        seal: crate::store::seal().clone(),
    };
    let server = match Server::start(config).await {
        Ok(server) => server,
        Err(error) if error.is_usage() => return Err(Failure::Usage(error.into())),
        Err(error) => return Err(anyhow!(error).context("cannot start").into()),
    };
    // Before the line on stdout that says the server runs, because a supervisor may stop it from then on.
    let mut signals = crate::StopSignals::listen();
    // The server goes on whatever happens to stdout.
    let _ = write_line(format_args!(
        "turnwise {} listens on {}://{}/",
        env!("CARGO_PKG_VERSION"),
        server.scheme(),
        server.listen()
    ));
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangups.recv() => reload(&server, file.as_deref()),
            // The server cannot write what a clean stop would write, so it exits immediately, as if it was killed.
            reason = server.ended() => {
                return Err(anyhow!("the store has failed permanently, so the server ends: {reason}").into());
            }
        }
    }
    let _ = write_line(format_args!(
        "turnwise is stopping: running replications write checkpoints, and jobs return to the queue"
    ));
    tokio::select! {
        () = server.shutdown() => Ok(()),
        // A second signal means that the user does not want to wait; the next start recovers what is left.
        () = signals.next() => Err(anyhow::anyhow!("stopped immediately, after a second signal").into()),
    }
}

/// Reloads the configuration file. A wrong file changes nothing.
fn reload(server: &RunningServer, file: Option<&Path>) {
    let Some(file) = file else {
        tracing::info!("SIGHUP: there is no configuration file to reload");
        return;
    };
    match Config::load(file) {
        Ok((config, ignored)) => {
            tracing::info!("SIGHUP: {} was reloaded", file.display());
            ignored.iter().for_each(|problem| tracing::warn!("{problem}"));
            server.reload(config);
        }
        Err(problem) => tracing::error!("SIGHUP: the settings are unchanged: {problem}"),
    }
}
