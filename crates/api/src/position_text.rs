//! Positions in lists, as clients see them.
//!
//! A position names the row before it, which may be one that the sender may not read. So only operators get it as text. For
//! others it is sealed, with a key that all nodes have. Its length would tell that of the row's names, so it is padded.

use turnwise_web::access::Caller;

use super::app::App;
use super::error::{Result, V1Error};

/// The `next` of a page.
pub(super) async fn shown(app: &App, caller: &Caller, position: Option<String>) -> Result<Option<String>> {
    let Some(position) = position else { return Ok(None) };
    if caller.operates() {
        return Ok(Some(position));
    }
    let key = app.identities.session_key().await?;
    Ok(key.map(|key| format!("{SEALED}{}", key.seal(&padded(position)))))
}

/// The `after` of a request.
pub(super) async fn read(app: &App, caller: &Caller, after: Option<String>) -> Result<Option<String>> {
    let Some(after) = after else { return Ok(None) };
    if caller.operates() {
        return Ok(Some(after));
    }
    let key = app.identities.session_key().await?;
    let position = key.and_then(|key| key.open(after.strip_prefix(SEALED)?));
    let position = position.map(|padded| padded.trim_end_matches(PADDING).to_owned());
    position.map(Some).ok_or_else(wrong)
}

pub(super) fn wrong() -> V1Error {
    V1Error::bad("after: must be the `next` of a page", "leave it out to begin with the first page")
}

/// What a sealed position begins with.
const SEALED: &str = "sealed/";
/// A sealed position has a multiple of so many bytes. Longer ones have names of hundreds of characters.
const BYTES: usize = 512;
/// No name has this character.
const PADDING: char = '\0';

fn padded(mut position: String) -> String {
    let missing = position.len().next_multiple_of(BYTES) - position.len();
    position.extend(std::iter::repeat_n(PADDING, missing));
    position
}
