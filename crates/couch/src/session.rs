//! `_session`: login, logout, and who is logged in, as in CouchDB.

use axum::body::Body;
use axum::http::{Method, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use turnwise_identity::Scopes;
use turnwise_web::access::{Caller, LoggedIn, Who, expired_cookie, login};
use turnwise_web::answer::ok;
use turnwise_web::error::ApiError;
use turnwise_web::request;
use turnwise_web::request::Sent;
use turnwise_web::room::{Cost, SMALL_BODY_BYTES};

use super::app::App;
use super::call::Call;

const FORM: &str = "application/x-www-form-urlencoded";

pub async fn session(app: &App, call: &Call, body: Body) -> Result<Response, ApiError> {
    match call.method {
        Method::GET => Ok(ok(&current(&call.caller))),
        Method::POST => start(app, call, body).await,
        Method::DELETE => {
            let mut response = ok(&json!({ "ok": true }));
            response.headers_mut().insert(header::SET_COOKIE, expired_cookie(&call.peer));
            Ok(response)
        }
        _ => Err(ApiError::method("DELETE,GET,HEAD,POST")),
    }
}

fn name_of(caller: &Caller) -> Option<String> {
    match caller.who() {
        Who::Everyone | Who::Nobody => None,
        Who::User(name) | Who::Jwt(name) => Some(name.clone()),
        Who::Token(id) => Some(format!("token:{id}")),
    }
}

fn current(caller: &Caller) -> Value {
    let name = name_of(caller);
    let mut info = Map::new();
    let handlers = match caller.who() {
        Who::Everyone => json!([]),
        _ => json!(["cookie", "default"]),
    };
    info.insert("authentication_handlers".to_owned(), handlers);
    if let Some(how) = caller.how().as_str() {
        info.insert("authenticated".to_owned(), json!(how));
    }
    json!({ "ok": true, "userCtx": { "name": name, "roles": roles(caller.scopes()) }, "info": info })
}

/// The scopes as roles. Clients of CouchDB look for `_admin`, and for `_metrics`.
fn roles(scopes: &Scopes) -> Vec<String> {
    let admin = scopes.administer().then(|| "_admin".to_owned());
    let others = scopes.texts().into_iter().filter(|scope| scope != "admin");
    let others = others.map(|scope| if scope == "metrics" { "_metrics".to_owned() } else { scope });
    admin.into_iter().chain(others).collect()
}

async fn start(app: &App, call: &Call, body: Body) -> Result<Response, ApiError> {
    let Sent { text, .. } =
        request::bytes(&app.body_room, body, call.sender(), SMALL_BODY_BYTES, Cost::TREE).await?;
    let (name, password) = if request::has_type(&call.headers, FORM) {
        let field = |wanted: &str| {
            let mut fields = url::form_urlencoded::parse(&text);
            fields.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
        };
        // CouchDB also knows the name as `username`.
        (field("name").or_else(|| field("username")), field("password"))
    } else {
        let body = request::object(&text, "the body must be a JSON object or a form")?;
        let member = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        (member("name").or_else(|| member("username")), member("password"))
    };
    let (Some(name), Some(password)) = (name, password) else {
        return Err(ApiError::bad_request("request body must contain a username and a password"));
    };
    let (caller, cookie) = login(app, &call.peer, &name, &password).await?;
    let roles = roles(caller.scopes());
    let mut response = ok(&json!({ "ok": true, "name": name_of(&caller), "roles": roles }));
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response.extensions_mut().insert(LoggedIn(caller.name()));
    Ok(response)
}
