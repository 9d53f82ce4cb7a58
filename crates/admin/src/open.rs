//! Opening a store that must exist.

use std::sync::Arc;

use turnwise_store::{Error, Result, Seal, Store, StoreUrl, runtime};

/// Opens an existing store. An embedded store is not created, so that a mistyped folder is an error.
///
/// # Errors
/// As [`turnwise_store::open_with`]; [`Error::Unavailable`] if the folder holds no embedded store.
pub async fn open_existing(url: &StoreUrl, seal: &Seal) -> Result<Store> {
    is_there(url)?;
    turnwise_store::open_with(url, Arc::new(runtime::System), seal).await
}

/// Opens an existing store for reading. Nothing is written to an embedded store, so its disk may be read-only.
///
/// # Errors
/// As [`turnwise_store::open_to_read`]; [`Error::Unavailable`] if the folder holds no embedded store, or a server uses it.
pub async fn open_to_read(url: &StoreUrl, seal: &Seal) -> Result<Store> {
    is_there(url)?;
    turnwise_store::open_to_read(url, Arc::new(runtime::System), seal).await
}

fn is_there(url: &StoreUrl) -> Result<()> {
    if let StoreUrl::Embedded { data_dir } = url
        && !data_dir.join("store").is_dir()
    {
        let line = format!("there is no store in {}: check the folder's name", data_dir.display());
        return Err(Error::Unavailable(line));
    }
    Ok(())
}
