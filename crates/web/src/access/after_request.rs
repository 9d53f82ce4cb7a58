//! The identity of work that goes on after its request: bulk operations, webhooks.

use async_recursion::async_recursion as boxed;
use turnwise_identity::{Scopes, identities};
use turnwise_queue::{Keyspace, Result};
use turnwise_store::Transaction;

use super::{Caller, How, Identities};

/// The identity with this name ([`Caller::owner`]), with what it may do now. `None` if it is gone, has expired, or was everyone on a
/// store that has identities now. `scopes` are those that it had.
#[boxed]
pub async fn caller_now(
    identities: &Identities,
    tx: &Transaction,
    keys: &Keyspace,
    by: Option<&str>,
    scopes: &[String],
) -> Result<Option<Caller>> {
    let Some(by) = by else {
        let is_open = identities::session_key(tx, keys).await?.is_none();
        return Ok(is_open.then(Caller::everyone));
    };
    Ok(match by.split_once(':') {
        Some(("user", user)) => {
            let (name, uid) = user.split_once(':').unwrap_or((user, ""));
            let user = identities.user(name).await?.filter(|user| user.uid == uid);
            user.map(|user| Caller::user(&user, How::Nothing))
        }
        Some(("token", id)) => {
            identities.token_by_id(id).await?.map(|token| Caller::token(id, token.scopes.clone()))
        }
        // No row tells what the subject of a token of another server may do now.
        Some(("jwt", subject)) => Scopes::parse(scopes).ok().map(|scopes| Caller::jwt(subject, scopes)),
        _ => None,
    })
}
