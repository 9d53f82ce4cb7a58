//! `/_node/{name}/_config`: reads and changes settings with CouchDB's names, values and errors. In contrast to CouchDB,
//! a change applies to all nodes, regardless of the node in the path.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::response::Response;
use serde_json::json;
use turnwise_config::{Entry, Refused};
use turnwise_web::answer::ok;
use turnwise_web::error::ApiError;
use turnwise_web::request;
use turnwise_web::room::Cost;

use super::app::App;
use super::call::Call;
use super::route::NodePart;

/// Largest body: a value.
const BODY_BYTES: usize = 64 << 10;
/// This node, under any name.
const LOCAL: &str = "_local";

pub async fn config(
    app: &App,
    call: &Call,
    body: Body,
    node: &str,
    part: NodePart,
) -> Result<Response, ApiError> {
    let is_this = check_node(app, node).await?;
    match (part, call.method.as_str()) {
        (NodePart::Value(section, key), "PUT") => put(app, call, body, &section, &key).await,
        (NodePart::Value(section, key), "DELETE") => match app.shared.unset(&section, &key).await {
            Err(Refused::Unknown(_)) => Err(unknown()),
            unset => answer(unset, &section, &key),
        },
        (NodePart::Value(..), method) if method != "GET" => Err(ApiError::method("DELETE,GET,HEAD,PUT")),
        (_, method) if method != "GET" => Err(ApiError::method("GET,HEAD")),
        (NodePart::Node, _) => Ok(ok(&json!({ "name": if is_this { &app.node } else { node } }))),
        // Only another node itself knows the settings of its file.
        _ if !is_this => {
            let reason = format!("ask {node} itself for its settings: /_node/{LOCAL}/_config");
            Err(ApiError::not_implemented(reason))
        }
        (NodePart::All, _) => {
            let config = app.shared.current().await?;
            let mut sections: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
            for (entry, value) in Entry::all(&config) {
                sections.entry(entry.section()).or_default().insert(entry.key(), value);
            }
            Ok(ok(&sections))
        }
        (NodePart::Section(section), _) => {
            let config = app.shared.current().await?;
            let in_section = Entry::all(&config).filter(|(entry, _)| entry.section() == section);
            Ok(ok(&in_section.map(|(entry, value)| (entry.key(), value)).collect::<BTreeMap<_, _>>()))
        }
        (NodePart::Value(section, key), _) => {
            let entry = Entry::find(&section, &key).ok_or_else(unknown)?;
            let value = entry.read(&app.shared.current().await?).ok_or_else(unknown)?;
            Ok(ok(&value))
        }
    }
}

/// Whether the name is this node's; an error if no node has it.
pub async fn check_node(app: &App, node: &str) -> Result<bool, ApiError> {
    if node == LOCAL || node == &*app.node {
        return Ok(true);
    }
    let tx = app.store.begin().await?;
    let nodes = turnwise_queue::nodes::list(&tx, &app.keys).await?;
    match nodes.iter().any(|other| other.node == node) {
        true => Ok(false),
        false => Err(ApiError::not_found(format!("no such node: {node}"))),
    }
}

fn unknown() -> ApiError {
    ApiError::not_found("unknown_config_value")
}

async fn put(app: &App, call: &Call, body: Body, section: &str, key: &str) -> Result<Response, ApiError> {
    // `X-Couch-Persist: false` is accepted and ignored: settings apply to all nodes, and are always persistent.
    let sent = request::bytes(&app.body_room, body, call.sender(), BODY_BYTES, Cost::TEXT).await?;
    let Ok(value) = serde_json::from_slice::<String>(&sent.text) else {
        return Err(ApiError::bad_request("the body must be the value, as a JSON string: \"500\""));
    };
    answer(app.shared.set(section, key, value.trim()).await, section, key)
}

/// The previous value; the empty string if there was none, as in CouchDB.
fn answer(changed: Result<Option<String>, Refused>, section: &str, key: &str) -> Result<Response, ApiError> {
    match changed {
        Ok(before) => Ok(ok(&before.unwrap_or_default())),
        Err(refused) => Err(error(refused, section, key)),
    }
}

/// Why a setting was not changed.
pub fn error(refused: Refused, section: &str, key: &str) -> ApiError {
    match refused {
        Refused::NotSet => unknown(),
        Refused::Store(error) => error.into(),
        Refused::Unknown(why) => ApiError::bad_request(why),
        Refused::Wrong(right) => ApiError::bad_request(format!("[{section}] {key}: expected {right}")),
        Refused::InFile(why) => {
            let reason =
                format!("[{section}] {key} cannot be changed here. {why}: change it in the server's file");
            ApiError::bad_request(reason)
        }
    }
}
