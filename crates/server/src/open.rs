//! Where a store without identities is served, and where not.
//!
//! Without identities, every request may do everything. That is right for a first try on one machine. It is refused where
//! a stranger could use it: where other machines reach the listener, where requests may run programs, and where several
//! nodes share the store.

use std::net::SocketAddr;

use turnwise_identity::identities;
use turnwise_queue::{Keyspace, nodes};
use turnwise_store::StoreUrl;

use crate::start::{Opened, Refused, StartError, check_readable};

/// What a request to this server could reach.
pub(crate) struct Exposure<'a> {
    pub listen: SocketAddr,
    /// Whether requests may run programs.
    pub commands: bool,
    pub url: &'a StoreUrl,
    /// This node's name: a node of this name is its own earlier run.
    pub node: &'a str,
}

/// Refuses to serve everyone where that is dangerous.
pub(crate) async fn check(
    opened: &Opened,
    keys: &Keyspace,
    exposure: &Exposure<'_>,
    insecure_no_auth: bool,
) -> Result<(), StartError> {
    let read = async {
        let tx = opened.store.begin().await?;
        check_readable(&tx, keys).await?;
        let is_open = identities::session_key(&tx, keys).await?.is_none();
        // An embedded store has one process at a time. The nodes that it names have ended.
        let mut others = match is_open && !opened.exclusive {
            true => nodes::list(&tx, keys).await?,
            false => Vec::new(),
        };
        others.retain(|other| other.node != exposure.node);
        Ok::<_, Refused>((is_open, !others.is_empty()))
    };
    let (is_open, others) = opened.asked(read).await?;
    if !is_open {
        return Ok(());
    }
    let listen = exposure.listen;
    let why = match () {
        () if !listen.ip().to_canonical().is_loopback() => format!("other machines can reach {listen}"),
        () if exposure.commands => "[command] enabled lets requests run programs".to_owned(),
        () if others => "another node uses the same store".to_owned(),
        () => {
            tracing::warn!(
                "this server is open: every local request may do everything, until the first user or token is added"
            );
            return Ok(());
        }
    };
    if insecure_no_auth {
        tracing::warn!("--insecure-no-auth: every request may do everything, although {why}");
        return Ok(());
    }
    let store = exposure.url;
    Err(StartError::Usage(format!(
        "{why}, and there are no users and tokens yet, so everyone could do everything. Add the first one with `turnwise tokens add \
         --scope admin --store {store}` or `turnwise users add NAME --scope admin --store {store}`, and start again; or give \
         --insecure-no-auth"
    )))
}
