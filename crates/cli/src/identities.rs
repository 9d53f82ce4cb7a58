//! `turnwise users` and `turnwise tokens`: who may use a server.
//!
//! Both work through a running server, or with `--store` on a store itself: for the first identity of a store that no server
//! may serve without one, and when nobody knows a password any more.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use turnwise_client::protocol::{NewToken, NewUser};
use turnwise_client::{TokenInfo, UserInfo};
use turnwise_server::offline::{Error, Identities};

use crate::input::secret;
use crate::output::write_line;
use crate::remote::ServerArgs;
use crate::units::{ago, now_us, parse_duration};
use crate::{Failure, store, table};

const SCOPES: &str = "\
Scopes:
  admin                    everything, including users and tokens
  operator                 settings, filters, nodes, and the jobs of every tenant
  client:TENANTS           add, read and change the jobs of these tenants
  read:TENANTS             read the jobs of these tenants
  worker:TYPES[@TENANTS]   run jobs of these types (of these tenants only)
  command                  add jobs that run programs on servers, beside client:TENANTS
  metrics                  read the metrics
TENANTS and TYPES are names with commas between them; * stands for any characters. A `_replicator` database is a tenant.";

#[derive(clap::Subcommand)]
pub(crate) enum Users {
    /// Add a user, with a password
    ///
    /// The password is the content of --password-file, or of TURNWISE_PASSWORD, or is asked for.
    #[command(after_help = SCOPES)]
    Add(AddUser),
    /// List the users
    List(List),
    /// Change a user's password, which ends the user's sessions
    Rotate(RotateUser),
    /// Set what a user may do, instead of what it could do before
    ///
    /// The user keeps its password and its sessions.
    #[command(after_help = SCOPES)]
    Scopes(SetScopes),
    /// Remove a user
    ///
    /// What belongs to it ends: webhooks, bulk operations, sessions, workers. A user who is added with its name later has none of it.
    Revoke(Name),
}

#[derive(clap::Subcommand)]
pub(crate) enum Tokens {
    /// Add a token for a program, and print it: it is not shown again
    ///
    /// Programs send it as `Authorization: Bearer TOKEN`. turnwise's own commands read it from TURNWISE_TOKEN or from --token-file.
    #[command(after_help = SCOPES)]
    Add(AddToken),
    /// List the tokens, without their secrets
    List(List),
    /// Give a token a new secret, and print it; the old one is invalid from then on
    Rotate(Name),
    /// Revoke a token
    Revoke(Name),
}

/// Where the identities are.
#[derive(clap::Args)]
pub(crate) struct Where {
    /// Change the store itself instead of asking a server. No server may use an embedded store at the same time
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
pub(crate) struct AddUser {
    /// The user's name
    name: String,
    /// What the user may do; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
pub(crate) struct RotateUser {
    /// The user's name
    name: String,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
pub(crate) struct SetScopes {
    /// The user's name
    name: String,
    /// What the user may do; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,
    #[command(flatten)]
    place: Where,
}

/// Where a password comes from. Never from the command line, which every user of the machine can read.
#[derive(clap::Args)]
pub(crate) struct PasswordArgs {
    /// File with the password in its first line; - is stdin
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct AddToken {
    /// What the token may do; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,
    /// What the token is for
    #[arg(long, default_value = "", hide_default_value = true)]
    note: String,
    /// Let it expire after this time: 12h, 90d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    place: Where,
}

#[derive(clap::Args)]
pub(crate) struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

/// The name of a user, or the id of a token.
#[derive(clap::Args)]
pub(crate) struct Name {
    /// The user's name, or the token's id
    name: String,
    #[command(flatten)]
    place: Where,
}

impl Where {
    /// The store, if it is changed itself.
    async fn store(&self) -> Result<Option<Identities>, Failure> {
        let Some(url) = &self.store else { return Ok(None) };
        let url = store::parse("--store", url)?;
        let opened = Identities::open(&url, store::seal()).await;
        Ok(Some(opened.map_err(|error| match error.is_usage() {
            true => Failure::Usage(error.into()),
            false => Failure::Failed(error.into()),
        })?))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { .. } => Failure::Usage(error.into()),
            error => Failure::Failed(error.into()),
        }
    }
}

/// The answer of the store itself, or of the server.
macro_rules! at {
    ($place:expr, $method:ident($($argument:expr),*)) => {
        match $place.store().await? {
            Some(store) => store.$method($($argument),*).await?,
            None => $place.server.client()?.$method($($argument),*).await?,
        }
    };
}

pub(crate) async fn users(command: Users) -> Result<(), Failure> {
    match command {
        Users::Add(AddUser { name, scopes, password, place }) => {
            let user = NewUser { name, password: password.read()?, scopes };
            match place.store().await? {
                Some(store) => store.add_user(&user).await?,
                None => place.server.client()?.add_user(&user).await.map(drop)?,
            }
            say!("added the user {}", user.name);
        }
        Users::List(List { json, place }) => {
            let users = at!(place, users());
            table::list(&users, json, "users", ["USER", "SCOPES", "SINCE"], user_row)?;
        }
        Users::Rotate(RotateUser { name, password, place }) => {
            let password = password.read()?;
            at!(place, set_password(&name, password));
            say!("the user {name} has the new password, and no session");
        }
        Users::Scopes(SetScopes { name, scopes, place }) => {
            match place.store().await? {
                Some(store) => store.set_scopes(&name, &scopes).await?,
                None => place.server.client()?.set_scopes(&name, scopes.clone()).await.map(drop)?,
            }
            say!("the user {name} may do this now: {}", scopes.join(" "));
        }
        Users::Revoke(Name { name, place }) => {
            at!(place, remove_user(&name));
            say!("removed the user {name}");
        }
    }
    Ok(())
}

pub(crate) async fn tokens(command: Tokens) -> Result<(), Failure> {
    match command {
        Tokens::Add(AddToken { scopes, note, expires, place }) => {
            let token = NewToken { scopes, note, expires_in_s: expires.map(|time| time.as_secs().max(1)) };
            let made = at!(place, add_token(&token));
            tell!("added the token {}; this is its only copy:", made.about.id);
            print_secret(&made.text)?;
        }
        Tokens::List(List { json, place }) => {
            let tokens = at!(place, tokens());
            let columns = ["TOKEN", "SCOPES", "NOTE", "SINCE", "EXPIRES", "LAST USE"];
            table::list(&tokens, json, "tokens", columns, token_row)?;
        }
        Tokens::Rotate(Name { name, place }) => {
            let made = at!(place, rotate_token(&name));
            tell!("the token {name} has a new secret; this is its only copy:");
            print_secret(&made.text)?;
        }
        Tokens::Revoke(Name { name, place }) => {
            at!(place, revoke_token(&name));
            say!("revoked the token {name}");
        }
    }
    Ok(())
}

/// Prints a token. The server does not know its text, so that nobody has it if it cannot be written.
fn print_secret(text: &str) -> Result<(), Failure> {
    let written = write_line(format_args!("{text}"));
    Ok(written.context("cannot write the token to stdout; `turnwise tokens rotate` makes another one")?)
}

fn user_row(user: &UserInfo) -> [String; 3] {
    [user.name.clone(), user.scopes.join(" "), ago(user.created_us)]
}

fn token_row(token: &TokenInfo) -> [String; 6] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let expires = token.expires_us.map(|at_us| match at_us - now_us() {
        ..=0 => "expired".to_owned(),
        left_us => format!("in {}", ago(now_us() - left_us)),
    });
    [
        token.id.clone(),
        token.scopes.join(" "),
        token.note.clone(),
        ago(token.created_us),
        or_none(expires),
        or_none(token.last_used_us.map(ago)),
    ]
}

impl PasswordArgs {
    /// Reads a new password, which is asked for twice.
    fn read(&self) -> Result<String, Failure> {
        let given = secret("--password-file", self.password_file.as_deref(), "TURNWISE_PASSWORD")?;
        if let Some(password) = given {
            return Ok(password);
        }
        if !std::io::stdin().is_terminal() {
            let problem = "give the password with --password-file (- is stdin) or in TURNWISE_PASSWORD";
            return Err(Failure::Usage(anyhow!(problem)));
        }
        let ask = |prompt: &str| rpassword::prompt_password(prompt).context("cannot read the password");
        let password = ask("Password: ")?;
        if ask("Again: ")? != password {
            return Err(Failure::Failed(anyhow!("the two passwords differ")));
        }
        Ok(password)
    }
}
