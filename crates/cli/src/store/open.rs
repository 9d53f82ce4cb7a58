//! Opens stores, with the keys of this process.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::anyhow;
use turnwise_store::{Error, Seal, Store, StoreUrl};

use crate::Failure;

/// The keys of this process, from `--seal-keys`.
static SEAL: OnceLock<Seal> = OnceLock::new();

/// Reads the file with the keys. No error contains a key.
pub(crate) fn use_keys(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    turnwise_server::check_secret(file)?;
    let seal = turnwise_queue::sealing::seal(Some(&text))?;
    SEAL.set(seal).map_err(|_| "it was read before".to_owned())
}

/// How this process opens stores.
pub(crate) fn seal() -> &'static Seal {
    SEAL.get_or_init(|| turnwise_queue::sealing::seal(None).expect("no keys are no wrong ones"))
}

/// Which store.
#[derive(clap::Args)]
pub(super) struct StoreArgs {
    /// The store: embedded:DIR, etcd://host:port,…/prefix or fdb:CLUSTER_FILE[/prefix]
    #[arg(env = "TURNWISE_STORE", hide_env_values = true)]
    url: String,
}

impl StoreArgs {
    pub fn url(&self) -> Result<StoreUrl, Failure> {
        parse("URL", &self.url)
    }

    /// Opens an existing store.
    pub async fn open(&self) -> Result<Store, Failure> {
        let url = self.url()?;
        turnwise_admin::open_existing(&url, seal()).await.map_err(|error| cannot_open("URL", &url, &error))
    }
}

/// Parses a store's URL. Not with clap, because its error would repeat the password.
pub(crate) fn parse(name: &str, text: &str) -> Result<StoreUrl, Failure> {
    text.parse().map_err(|error| Failure::Usage(anyhow!("{name}: {error}")))
}

/// Opens an existing store for reading.
pub(super) async fn open_to_read(name: &str, url: &StoreUrl) -> Result<Store, Failure> {
    turnwise_admin::open_to_read(url, seal()).await.map_err(|error| cannot_open(name, url, &error))
}

/// Why a store cannot be opened.
pub(super) fn cannot_open(name: &str, url: &StoreUrl, error: &Error) -> Failure {
    match error {
        Error::Exposed(_) => Failure::Usage(anyhow!("{name}: {error}")),
        _ => Failure::Failed(anyhow!("{name}: cannot open the store {url}: {error}")),
    }
}
