//! JSON Web Tokens: identities that another service has signed.
//!
//! `[jwt_auth] keys` is a JSON Web Key Set. A token names its key (`kid`), and must be signed with the algorithm that the set
//! states for that key. It must have `sub`, `exp`, and the configured `aud`. The claim `[jwt_auth] roles_claim_path` lists its
//! scopes; strings in it that are no scopes are ignored, because a service may have roles of its own. As in CouchDB, `_admin` is
//! the scope `admin`, and `_metrics` the scope `metrics`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use turnwise_config::{JwtFiles, small_file};
use turnwise_identity::{MAX_NAME_BYTES, MAX_SCOPES, Scope, Scopes};

use super::Caller;

/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// How far the clocks of the service and of this node may differ, in s.
const LEEWAY_S: u64 = 30;

/// The keys that tokens may be signed with.
pub struct Jwt {
    file: PathBuf,
    audience: String,
    /// The claim with the scopes: its name, or a path with dots between its parts.
    roles: String,
    keys: RwLock<Arc<Keys>>,
}

type Keys = HashMap<String, (Algorithm, DecodingKey)>;

impl Jwt {
    /// With these settings; `None` if there are none.
    ///
    /// # Errors
    /// A setting is missing, or the file cannot be used, in one line. It does not repeat a key.
    pub fn new(settings: &JwtFiles) -> Result<Option<Jwt>, String> {
        let (file, audience) = match (&settings.keys, &settings.audience) {
            (None, None) => return Ok(None),
            (Some(file), Some(audience)) => (file.clone(), audience.clone()),
            _ => return Err("[jwt_auth] keys and audience need each other".to_owned()),
        };
        let roles = settings.roles_claim_path.as_deref().unwrap_or("_couchdb.roles");
        let roles = roles.to_owned();
        let keys = RwLock::new(Arc::new(read(&file)?));
        Ok(Some(Jwt { file, audience, roles, keys }))
    }

    /// Reads the file again. One that cannot be used changes nothing.
    pub fn reload(&self) {
        match read(&self.file) {
            Ok(keys) => *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys),
            Err(problem) => tracing::error!("[jwt_auth] keys stay as they were: {problem}"),
        }
    }

    /// The sender that a token names; `None` if it is not valid.
    pub fn caller(&self, token: &str) -> Option<Caller> {
        let token = Some(token).filter(|token| token.len() <= MAX_TOKEN_BYTES)?;
        let header = decode_header(token).ok()?;
        if has_critical(token)? {
            return None;
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (algorithm, key) = keys.get(&header.kid?)?;
        // The algorithm of the key, and not the one that the token asks for.
        let mut validation = Validation::new(*algorithm);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_S;
        let claims = decode::<Map<String, Value>>(token, key, &validation).ok()?.claims;
        let name = claims.get("sub").and_then(Value::as_str).filter(|name| is_name(name))?;
        Some(Caller::jwt(name, scopes(&claims, &self.roles).unwrap_or_default()))
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Whether a token has extensions that its reader must understand (RFC 7515, 4.1.11): this one understands none.
fn has_critical(token: &str) -> Option<bool> {
    let header = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
    let header: Map<String, Value> = serde_json::from_slice(&header).ok()?;
    Some(header.contains_key("crit"))
}

fn scopes(claims: &Map<String, Value>, path: &str) -> Option<Scopes> {
    // A name with dots in it, such as CouchDB's `_couchdb.roles`, goes before a path.
    let nested = || {
        let (first, rest) = path.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, part| value.get(part))
    };
    let claim = claims.get(path).or_else(nested)?;
    let texts = claim.as_array()?.iter().filter_map(Value::as_str);
    let texts = texts.map(|text| match text {
        "_admin" => "admin",
        "_metrics" => "metrics",
        text => text,
    });
    let known: Vec<&str> = texts.filter(|text| Scope::parse(text).is_ok()).take(MAX_SCOPES).collect();
    Scopes::parse(&known).ok()
}

fn read(file: &Path) -> Result<Keys, String> {
    let problem = |problem: &str| format!("{}: {problem}", file.display());
    let text = small_file::read(file)?;
    // The error could repeat a key.
    let set: JwkSet = serde_json::from_slice(&text).map_err(|_| problem("is no JSON Web Key Set"))?;
    let mut keys = Keys::new();
    for (n, jwk) in set.keys.iter().enumerate() {
        let wrong = |what: &str| problem(&format!("keys[{n}] {what}"));
        if matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_)) {
            // Who reads it can sign tokens.
            small_file::check_secret(file)?;
        }
        let kid = jwk.common.key_id.clone().ok_or_else(|| wrong("has no kid"))?;
        let algorithm = jwk.common.key_algorithm.ok_or_else(|| wrong("has no alg"))?;
        let algorithm: Algorithm =
            algorithm.to_string().parse().map_err(|_| wrong("has an alg that signs nothing"))?;
        let key = DecodingKey::from_jwk(jwk).map_err(|_| wrong("cannot be used"))?;
        if keys.insert(kid, (algorithm, key)).is_some() {
            return Err(wrong("has the kid of another one"));
        }
    }
    match keys.is_empty() {
        true => Err(problem("has no keys")),
        false => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_claim_is_a_name_before_it_is_a_path() {
        let of = |claims: Value| {
            scopes(claims.as_object().unwrap(), "_couchdb.roles").map(|scopes| scopes.texts())
        };
        let admin = Some(vec!["admin".to_owned()]);
        assert_eq!(of(serde_json::json!({"_couchdb.roles": ["_admin"]})), admin);
        assert_eq!(of(serde_json::json!({"_couchdb": {"roles": ["_admin"]}})), admin);
        let both = serde_json::json!({"_couchdb.roles": ["metrics"], "_couchdb": {"roles": ["_admin"]}});
        assert_eq!(of(both), Some(vec!["metrics".to_owned()]));
        assert_eq!(of(serde_json::json!({"_couchdb": 1})), None);
    }

    #[test]
    fn critical_extensions_are_seen() {
        let token = |header: &str| format!("{}.e30.x", BASE64_URL_SAFE_NO_PAD.encode(header));
        assert_eq!(has_critical(&token(r#"{"alg":"HS256","crit":["b64"]}"#)), Some(true));
        assert_eq!(has_critical(&token(r#"{"alg":"HS256"}"#)), Some(false));
        assert_eq!(has_critical("x"), None);
    }
}
