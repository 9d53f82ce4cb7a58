//! The client of a running server for the commands, and the messages for its errors.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use turnwise_client::protocol::codes;
use turnwise_client::{Client, Error};

use crate::Failure;
use crate::input::secret;

/// How long an interactive command retries when the server does not answer.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(2);
/// How long a command that waits for something retries, once the server has answered: longer than a restart takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The exit code if the server does not answer, or cannot answer now, or something else answers in its place: what the command was to find
/// out or change is unknown.
pub(crate) const NO_ANSWER: u8 = 4;

/// Which server, or servers.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// URL of the server, or the URLs of several servers on one store, with commas between them. If one does not answer, turnwise asks the next one
    #[arg(long, value_name = "URL", env = "TURNWISE_SERVER", default_value = "http://127.0.0.1:7984")]
    #[arg(hide_env_values = true)]
    server: String,
    /// File with a token to send, in its first line. Or put the token into TURNWISE_TOKEN, or a name and a password into the server's URL
    #[arg(long, value_name = "FILE", env = "TURNWISE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// The options of a command about one object.
#[derive(clap::Args)]
pub(crate) struct IdArgs {
    /// Its id, as in the list
    pub id: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The variable with a token to send.
const TOKEN: &str = "TURNWISE_TOKEN";

impl ServerArgs {
    /// With what a file states, in place of the options.
    pub(crate) fn or(self, server: Option<String>, token_file: Option<PathBuf>) -> ServerArgs {
        ServerArgs { server: server.unwrap_or(self.server), token_file: token_file.or(self.token_file) }
    }

    /// The server's URL, which may have a password.
    pub(crate) fn url(&self) -> &str {
        &self.server
    }

    /// The token to send.
    pub(crate) fn token(&self) -> Result<Option<String>, Failure> {
        let token = secret("--token-file", self.token_file.as_deref(), TOKEN)?;
        Ok(token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()))
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let client =
            Client::new(&self.server).map_err(|error| Failure::Usage(anyhow!("--server: {error}")))?;
        let client = client.retry_for(RETRY_FOR);
        match self.token()? {
            Some(token) => {
                client.with_token(&token).map_err(|error| Failure::Usage(anyhow!("the token: {error}")))
            }
            None => Ok(client),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(problem) => Failure::Usage(anyhow!(problem)),
            Error::Refused(refused) if refused.error == codes::UNAUTHORIZED => Failure::Failed(anyhow!(
                "{}\nput a token into {TOKEN} or into a file for --token-file, or a name and a password into the server's URL",
                refused.reason
            )),
            Error::Refused(refused) => Failure::Failed(anyhow!("{}\n{}", refused.reason, refused.hint)),
            Error::Unavailable(refused) => {
                Failure::Code(NO_ANSWER, anyhow!("{}\n{}", refused.reason, refused.hint))
            }
            Error::NoAnswer { server, cause, .. } => Failure::Code(
                NO_ANSWER,
                anyhow!("no answer from {server}: is `turnwise serve` running there?\n{cause}"),
            ),
            error @ Error::Foreign { .. } => Failure::Code(NO_ANSWER, error.into()),
            error @ Error::JobFailed(_) => Failure::Failed(error.into()),
        }
    }
}
