//! `turnwise webhooks`: events that the server sends to URLs.

use std::path::PathBuf;

use turnwise_client::protocol::{PutWebhook, Webhook};

use crate::input::secret;
use crate::remote::{IdArgs, ServerArgs};
use crate::table::ListArgs;
use crate::units::ago;
use crate::{Failure, table};

/// The variable with a webhook's secret.
const SECRET: &str = "TURNWISE_WEBHOOK_SECRET";

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Send events to a URL, from now on; or change a webhook
    ///
    /// The server sends the events that this identity may read, in order, and repeats a delivery until its target answers with 2xx.
    #[command(after_help = "\
The secret signs the deliveries. It is the first line of --secret-file without the newline at its end, or TURNWISE_WEBHOOK_SECRET. A webhook that exists keeps its secret \
if none is given.

Examples:
  turnwise webhooks add alerts https://example.com/hooks/turnwise --event failed --secret-file secret
  turnwise webhooks add mails https://example.com/mails --type mail --state completed,failed --tenant acme")]
    Add(AddArgs),
    /// List the webhooks that this identity may change
    List(ListArgs),
    /// Show a webhook, and how far it is behind
    Show(IdArgs),
    /// Remove a webhook
    Remove(IdArgs),
    /// Deliver nothing more; the webhook keeps its position
    Pause(IdArgs),
    /// Deliver again, from where it was, as far as the events are still kept
    Resume(IdArgs),
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// The webhook's id
    id: String,
    /// Where the events are sent
    url: String,
    /// File with the secret in its first line; the newline at its end does not belong to it. - is stdin
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Only events of jobs of these types
    #[arg(long = "type", value_name = "TYPES", value_delimiter = ',')]
    types: Vec<String>,
    /// Only events of jobs of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only events after which the job is in one of these states; removed is one
    #[arg(long = "state", value_name = "STATES", value_delimiter = ',')]
    states: Vec<String>,
    /// Only these events: added, started, stopped, crashed, snoozed, completed, failed, expired, cancelled, edited, held, released, removed, group_ended
    #[arg(long = "event", value_name = "EVENTS", value_delimiter = ',')]
    events: Vec<String>,
    /// The tenant of the job that delivers
    #[arg(long, value_name = "TENANT")]
    job_tenant: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add(args).await,
        Command::List(ListArgs { json, server }) => {
            let webhooks = server.client()?.webhooks().await?;
            let head = ["WEBHOOK", "STATE", "DELIVERED", "LAST SUCCESS", "LAST ERROR", "URL"];
            table::list(&webhooks, json, "webhooks", head, row)
        }
        Command::Show(IdArgs { id, server }) => crate::say_json(&server.client()?.webhook(&id).await?),
        Command::Remove(IdArgs { id, server }) => {
            server.client()?.remove_webhook(&id).await?;
            say!("removed the webhook {id}");
            Ok(())
        }
        Command::Pause(args) => enable(args, false).await,
        Command::Resume(args) => enable(args, true).await,
    }
}

async fn add(args: AddArgs) -> Result<(), Failure> {
    let AddArgs { id, url, secret_file, types, tenant, states, events, job_tenant, server } = args;
    let secret = secret("--secret-file", secret_file.as_deref(), SECRET)?;
    let webhook = PutWebhook { url, secret, enabled: true, types, tenant, states, events, job_tenant };
    let webhook = server.client()?.put_webhook(&id, &webhook).await?;
    say!("events go to {}", webhook.url);
    Ok(())
}

async fn enable(IdArgs { id, server }: IdArgs, enabled: bool) -> Result<(), Failure> {
    let client = server.client()?;
    let Webhook { url, types, tenant, states, events, job_tenant, .. } = client.webhook(&id).await?;
    let (secret, job_tenant) = (None, Some(job_tenant));
    let webhook = PutWebhook { url, secret, enabled, types, tenant, states, events, job_tenant };
    client.put_webhook(&id, &webhook).await?;
    say!("the webhook {id} {}", if enabled { "delivers" } else { "is paused" });
    Ok(())
}

fn row(webhook: &Webhook) -> [String; 6] {
    let state = match (webhook.enabled, &webhook.disabled_because) {
        (true, _) => "enabled".to_owned(),
        (false, None) => "paused".to_owned(),
        (false, Some(reason)) => format!("disabled: {reason}"),
    };
    let error = webhook.last_error.as_ref();
    [
        webhook.id.clone(),
        state,
        webhook.delivered.to_string(),
        webhook.last_success_us.map(ago).unwrap_or_default(),
        error.map(|error| format!("{} {}", ago(error.at_us), error.reason)).unwrap_or_default(),
        webhook.url.clone(),
    ]
}
