//! Replacing a design document without a wait for readers.
//!
//! CouchDB keeps one index for all design documents of a database with equal views, whatever their names. So the new version is first
//! written under another name, its indexes are built there, and then it replaces the live one, which finds them complete. The version
//! before is kept under a third name, which keeps its indexes.
//!
//! CouchDB applies `validate_doc_update` of every design document to each write, so only the live version has it. It does the same with
//! the indexes of `_find`: it chooses any of them for a query, so their design documents are refused.
//!
//! Each step depends only on what is in the database. An operation that was interrupted at any moment is completed by calling it again.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::build::{Building, Kind, build, committed, signature};
use crate::database::{Database, Error};

/// The suffix of the name under which a new version is built.
const NEW: &str = "-turnwise-new";
/// The suffix of the name under which the version before is kept.
const OLD: &str = "-turnwise-old";
/// The field of a kept version with what a rollback restores.
const KEPT: &str = "turnwise";
/// The field with the function that CouchDB calls at each write.
const RULE: &str = "validate_doc_update";

/// The steps of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Writes the new version under its temporary name.
    #[default]
    Write,
    /// Builds its indexes.
    Build,
    /// Keeps the live version.
    Keep,
    /// Replaces the live version.
    Replace,
    /// Removes the temporary name.
    CleanUp,
}

/// How far a deployment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The step that it makes.
    pub step: Step,
    /// How far its indexes are.
    pub building: Building,
}

/// The result of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deployed {
    /// The design document.
    pub design: String,
    /// Whether it was replaced, or created: false if it was this version before.
    pub replaced: bool,
    /// The design document with the version before; `None` if there was none.
    pub kept: Option<String>,
}

/// The parts of a design document that make a version: everything except what CouchDB adds.
fn content(doc: &Map<String, Value>) -> Map<String, Value> {
    doc.iter()
        .filter(|(name, _)| !name.starts_with('_'))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn rev(doc: &Map<String, Value>) -> Option<&str> {
    doc.get("_rev").and_then(Value::as_str)
}

/// A version as its indexes are built: its rule for writes is not yet in force. No index depends on it.
fn shadow_of(version: &Map<String, Value>) -> Map<String, Value> {
    let mut shadow = version.clone();
    shadow.remove(RULE);
    shadow
}

/// A version as it is kept: without being built at each write, and with its rule for writes no longer in force.
fn kept(version: &Map<String, Value>) -> Map<String, Value> {
    let mut kept = version.clone();
    let mut restores = Map::new();
    let before = kept.insert("autoupdate".to_owned(), Value::Bool(false));
    restores.insert("autoupdate".to_owned(), before.unwrap_or_default());
    restores.extend(kept.remove(RULE).map(|rule| (RULE.to_owned(), rule)));
    kept.insert(KEPT.to_owned(), Value::Object(restores));
    kept
}

/// The version that was kept.
fn restored(kept: &Map<String, Value>) -> Map<String, Value> {
    let mut version = content(kept);
    let Some(mut kept) = version.remove(KEPT) else { return version };
    match kept.get("autoupdate").cloned() {
        Some(Value::Null) => drop(version.remove("autoupdate")),
        Some(before) => drop(version.insert("autoupdate".to_owned(), before)),
        None => {}
    }
    if let Some(rule) = kept.get_mut(RULE) {
        version.insert(RULE.to_owned(), rule.take());
    }
    version
}

/// Replaces a design document, named without `_design/`, by a version: its indexes are built first, and the version before is kept. If
/// the version does not compile, nothing is left. After any other error, a further call continues.
///
/// # Errors
/// Those of the server; [`Error::Changed`] if another client changes the design document meanwhile; [`Error::OfFind`] if the version, or
/// the live one, is an index of `_find`.
pub async fn deploy(
    database: &Database,
    name: &str,
    version: &Map<String, Value>,
    progress: &watch::Sender<Progress>,
) -> Result<Deployed, Error> {
    check_name(name)?;
    let version = content(version);
    not_of_find(name, &version)?;
    let (new, old) = (format!("{name}{NEW}"), format!("{name}{OLD}"));
    let step = |step| progress.send_modify(|progress| progress.step = step);
    step(Step::Write);
    let live = database.design(name).await?;
    if live.as_ref().is_some_and(|live| content(live) == version) {
        return complete(database, name, &version, progress).await;
    }
    if let Some(live) = &live {
        not_of_find(name, live)?;
    }
    let (shadow, wanted) = (database.design(&new).await?, shadow_of(&version));
    if shadow.as_ref().is_none_or(|shadow| content(shadow) != wanted)
        && !database.put_design(&new, shadow.as_ref().and_then(rev), &wanted).await?
    {
        return Err(Error::Changed(format!("_design/{new}")));
    }
    if let Err(error) = built(database, &new, &version, progress).await {
        if error.is_wrong_design() {
            // It will never be complete, and costs the server work.
            if let Err(second) = database.delete_design(&new).await {
                tracing::warn!(%second, "cannot remove _design/{new}");
            }
        }
        return Err(error);
    }
    step(Step::Keep);
    let now = database.design(name).await?;
    if now.as_ref().and_then(rev) != live.as_ref().and_then(rev) {
        return match now.is_some_and(|now| content(&now) == version) {
            // By a request of an interrupted deployment that arrived late, or by the same deployment elsewhere.
            true => complete(database, name, &version, progress).await,
            false => Err(Error::Changed(format!("_design/{name}"))),
        };
    }
    if let Some(live) = &live {
        keep(database, &old, &content(live)).await?;
    }
    step(Step::Replace);
    let mut replacement = version.clone();
    // Attachments of the live version stay: as stubs, which only this document may have.
    let attachments = live.as_ref().and_then(|live| live.get("_attachments"));
    replacement.extend(attachments.map(|attachments| ("_attachments".to_owned(), attachments.clone())));
    if !database.put_design(name, live.as_ref().and_then(rev), &replacement).await?
        && database.design(name).await?.is_none_or(|now| content(&now) != version)
    {
        return Err(Error::Changed(format!("_design/{name}")));
    }
    step(Step::CleanUp);
    if version.contains_key("views") && signature(database, name).await? != signature(database, &new).await? {
        return Err(Error::Changed(format!("_design/{name}")));
    }
    committed(database, name).await?;
    database.delete_design(&new).await?;
    let kept = live.map(|_| format!("_design/{old}"));
    Ok(Deployed { design: format!("_design/{name}"), replaced: true, kept })
}

/// Completes a deployment that has replaced the live version.
async fn complete(
    database: &Database,
    name: &str,
    version: &Map<String, Value>,
    progress: &watch::Sender<Progress>,
) -> Result<Deployed, Error> {
    built(database, name, version, progress).await?;
    progress.send_modify(|progress| progress.step = Step::CleanUp);
    committed(database, name).await?;
    database.delete_design(&format!("{name}{NEW}")).await?;
    let old = format!("{name}{OLD}");
    let kept = database.design(&old).await?.map(|_| format!("_design/{old}"));
    Ok(Deployed { design: format!("_design/{name}"), replaced: false, kept })
}

/// Goes back to the version before, as a deployment of it. The version that is live now is kept in turn, so that a second call goes
/// forward again.
///
/// # Errors
/// [`Error::NoEarlier`] if there is no version before, and those of [`deploy`].
pub async fn rollback(
    database: &Database,
    name: &str,
    progress: &watch::Sender<Progress>,
) -> Result<Deployed, Error> {
    check_name(name)?;
    let old = format!("{name}{OLD}");
    match database.design(&old).await? {
        Some(kept) => deploy(database, name, &restored(&kept), progress).await,
        None => Err(Error::NoEarlier(format!("_design/{name}"), format!("_design/{old}"))),
    }
}

/// Removes the version before, and what an interrupted deployment has left, with their indexes. Returns which design documents were
/// removed.
///
/// # Errors
/// Those of the server.
pub async fn clean(database: &Database, name: &str) -> Result<Vec<String>, Error> {
    check_name(name)?;
    let mut removed = Vec::new();
    for suffix in [NEW, OLD] {
        if database.delete_design(&format!("{name}{suffix}")).await? {
            removed.push(format!("_design/{name}{suffix}"));
        }
    }
    // The files of indexes that no design document has any more.
    database.send(http::Method::POST, "_view_cleanup", Some(&json!({})), false).await?;
    Ok(removed)
}

async fn keep(database: &Database, old: &str, version: &Map<String, Value>) -> Result<(), Error> {
    let (before, kept) = (database.design(old).await?, kept(version));
    if before.as_ref().is_some_and(|before| content(before) == kept) {
        return Ok(());
    }
    match database.put_design(old, before.as_ref().and_then(rev), &kept).await? {
        true => Ok(()),
        false => Err(Error::Changed(format!("_design/{old}"))),
    }
}

async fn built(
    database: &Database,
    name: &str,
    version: &Map<String, Value>,
    progress: &watch::Sender<Progress>,
) -> Result<(), Error> {
    progress.send_modify(|progress| progress.step = Step::Build);
    let building = |now| progress.send_modify(|progress| progress.building = now);
    build(database, name, version, building).await
}

fn check_name(name: &str) -> Result<(), Error> {
    let problem = match name {
        "" => "a design document needs a name",
        _ if name.starts_with("_design/") => "the name is without `_design/`",
        _ if name.ends_with(NEW) || name.ends_with(OLD) => "this is a name for versions that are not live",
        _ => return Ok(()),
    };
    Err(Error::Invalid(format!("{name:?}: {problem}")))
}

/// CouchDB chooses among all indexes of `_find` that fit a query, so one that is not live would be used, too.
fn not_of_find(name: &str, version: &Map<String, Value>) -> Result<(), Error> {
    match Kind::is_of_find(version) {
        true => Err(Error::OfFind(format!("_design/{name}"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn what_is_kept_is_restored_as_it_was() {
        for version in [
            json!({ "views": {} }),
            json!({ "views": {}, "autoupdate": true }),
            json!({ "autoupdate": false, "language": "javascript" }),
            json!({ "validate_doc_update": "function () {}" }),
            json!({ "views": {}, "autoupdate": false, "validate_doc_update": null }),
        ] {
            let version = object(version);
            let kept = kept(&version);
            assert_eq!(kept["autoupdate"], false);
            assert!(!kept.contains_key(RULE) && !shadow_of(&version).contains_key(RULE));
            assert_eq!(restored(&kept), version);
        }
    }

    #[test]
    fn names_of_versions_that_are_not_live_are_refused() {
        for name in ["", "_design/x", "x-turnwise-new", "x-turnwise-old"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("x").is_ok());
    }
}
