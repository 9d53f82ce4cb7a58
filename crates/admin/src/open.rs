//! Opening a store that must be there.

use std::sync::Arc;

use turnwise_store::{Error, Result, Store, StoreUrl, runtime};

/// Opens a store that is there already. An embedded one is not created: a mistyped folder stays a mistake.
///
/// # Errors
/// As [`turnwise_store::open`]; [`Error::Unavailable`] if there is no embedded store in the folder.
pub async fn open_existing(url: &StoreUrl) -> Result<Store> {
    is_there(url)?;
    turnwise_store::open(url, Arc::new(runtime::System)).await
}

/// Opens a store that is there already, to read it. An embedded one is not written to, so that its disk may be read-only.
///
/// # Errors
/// As [`turnwise_store::open_to_read`]; [`Error::Unavailable`] if there is no embedded store in the folder, or a server uses it.
pub async fn open_to_read(url: &StoreUrl) -> Result<Store> {
    is_there(url)?;
    turnwise_store::open_to_read(url, Arc::new(runtime::System)).await
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
