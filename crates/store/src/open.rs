//! Opens the store that a URL names.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::embedded::{self, Embedded, PRIVATE_FOLDER};
use crate::etcd::Etcd;
use crate::{Engine, Error, Result, Runtime, Seal, Store, StoreUrl, sealed};

/// The folder of the embedded store within the data directory.
const EMBEDDED_FOLDER: &str = "store";

/// Opens a store for reading. Several readers may open an embedded store at the same time. It is not written to, so its disk may
/// be read-only. An embedded store that a server uses is refused. A shared store is opened as [`open_with`] opens it.
///
/// # Errors
/// As [`open_with`]; [`Error::Misuse`] if there is no embedded store.
pub async fn open_to_read(url: &StoreUrl, runtime: Arc<dyn Runtime>, seal: &Seal) -> Result<Store> {
    let engine: Arc<dyn Engine> = match url {
        StoreUrl::Embedded { data_dir } => Embedded::open_to_read(data_dir.join(EMBEDDED_FOLDER))?,
        url => engine(url, &runtime).await?,
    };
    let engine = sealed::over(engine, seal, false).await?;
    Ok(Store::new(engine, runtime))
}

/// Opens a store whose rows are sealed, or are not.
///
/// # Errors
/// As [`open`]; [`Error::Misuse`] if the store is sealed, and its keys are not given.
pub async fn open_with(url: &StoreUrl, runtime: Arc<dyn Runtime>, seal: &Seal) -> Result<Store> {
    let engine = engine(url, &runtime).await?;
    engine.limits().check()?;
    let engine = sealed::over(engine, seal, true).await?;
    Ok(Store::new(engine, runtime))
}

/// Opens a store.
///
/// [`Error::Unavailable`], with one line that states what to do, if the store cannot be reached or opened within some seconds.
/// [`Error::Misuse`] if this build has no engine for the URL.
pub async fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Store> {
    let engine = engine(url, &runtime).await?;
    engine.limits().check()?;
    Ok(Store::new(engine, runtime))
}

/// Boxed, so that the crates that open stores do not compile all engines again.
fn engine<'a>(url: &'a StoreUrl, runtime: &'a Arc<dyn Runtime>) -> BoxFuture<'a, Result<Arc<dyn Engine>>> {
    Box::pin(async move {
        let engine: Arc<dyn Engine> = match url {
            StoreUrl::Embedded { data_dir } => {
                let created = DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(data_dir);
                created.map_err(|error| {
                    Error::Unavailable(format!("cannot create {}: {error}", data_dir.display()))
                })?;
                let options = embedded::Options { runtime: runtime.clone(), ..embedded::Options::default() };
                Embedded::open_with(data_dir.join(EMBEDDED_FOLDER), options)?
            }
            StoreUrl::Etcd(url) => Etcd::open(url, runtime.clone()).await?,
            #[cfg(feature = "foundationdb")]
            StoreUrl::Foundationdb { cluster_file, prefix } => {
                crate::foundationdb::Foundationdb::open(cluster_file, prefix).await?
            }
            #[cfg(not(feature = "foundationdb"))]
            StoreUrl::Foundationdb { .. } => {
                return Err(Error::Misuse(
                    "this build has no engine for FoundationDB: build it with --features foundationdb".into(),
                ));
            }
        };
        Ok(engine)
    })
}
