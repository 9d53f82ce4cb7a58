//! The client of a running server for the commands, and the messages for its errors.

use std::time::Duration;

use anyhow::anyhow;
use turnwise_client::{Client, Error};

use crate::Failure;

/// How long an interactive command retries when the server does not answer.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(2);

/// Which server, or servers.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// URL of the server, or the URLs of several servers on one store, with commas between them. If one does not answer, turnwise asks the next one
    #[arg(long, value_name = "URL", env = "TURNWISE_SERVER", default_value = "http://127.0.0.1:7984")]
    #[arg(hide_env_values = true)]
    server: String,
}

impl ServerArgs {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let client =
            Client::new(&self.server).map_err(|error| Failure::Usage(anyhow!("--server: {error}")))?;
        Ok(client.retry_for(RETRY_FOR))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(problem) => Failure::Usage(anyhow!(problem)),
            Error::Refused(refused) | Error::Unavailable(refused) => {
                Failure::Failed(anyhow!("{}\n{}", refused.reason, refused.hint))
            }
            Error::NoAnswer { server, cause, .. } => Failure::Failed(anyhow!(
                "no answer from {server}: is `turnwise serve` running there?\n{cause}"
            )),
            error @ Error::Foreign { .. } => Failure::Failed(error.into()),
        }
    }
}
