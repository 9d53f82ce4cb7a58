//! JSON Web Tokens as identities.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::common::TestServer;

const SECRET: &[u8] = b"a secret of the service that signs";

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn token(algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    encode(&header, claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

/// Base64 without padding, as JSON Web Keys have it.
fn base64url(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[tokio::test]
async fn a_token_of_another_service_is_an_identity() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let keys = json!({"keys": [{"kty": "oct", "kid": "one", "alg": "HS256", "k": base64url(SECRET)}]});
    std::fs::write(&file, keys.to_string()).unwrap();
    // The server refuses a key that others can sign with.
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server =
        TestServer::start_with(&format!("[jwt_auth]\nkeys = {}\naudience = turnwise\n", file.display()))
            .await;
    server.close().await;
    let claims = |more: Value| {
        let mut claims = json!({
            "sub": "jan", "aud": "turnwise", "exp": now_s() + 600,
            "_couchdb": {"roles": ["client:acme", "some role of theirs"]}
        });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims
    };
    let good = server.with(&token(Algorithm::HS256, Some("one"), &claims(json!({}))));
    let me = good.get("/v1/me").await.body;
    assert_eq!(me, json!({"open": false, "identity": "jwt:jan", "scopes": ["client:acme"]}));
    assert_eq!(good.get("/_session").await.body["info"]["authenticated"], "jwt");
    assert_eq!(good.post("/v1/jobs/t", &json!({"id": "a"})).await.status, 201);
    assert_eq!(good.get("/v1/jobs/t/a").await.body["tenant"], "acme");
    assert_eq!(good.get("/v1/nodes").await.status, 403);
    let admin = claims(json!({"_couchdb": {"roles": ["_admin"]}}));
    let admin = server.with(&token(Algorithm::HS256, Some("one"), &admin));
    assert_eq!(admin.get("/v1/users").await.status, 200);
    let without = server.with(&token(Algorithm::HS256, Some("one"), &claims(json!({"_couchdb": null}))));
    assert_eq!((without.get("/v1/me").await.status, without.get("/v1/jobs").await.status), (200, 403));

    let with = |more: Value| token(Algorithm::HS256, Some("one"), &claims(more));
    let mut expired = claims(json!({}));
    expired.as_object_mut().unwrap().remove("exp");
    let unsigned = format!(
        "{}.{}.",
        base64url(br#"{"alg":"none","kid":"one"}"#),
        base64url(claims(json!({})).to_string().as_bytes())
    );
    for (wrong, what) in [
        (with(json!({"exp": now_s() - 60})), "expired"),
        (token(Algorithm::HS256, Some("one"), &expired), "without exp"),
        (with(json!({"aud": "another service"})), "of another audience"),
        (with(json!({"aud": null})), "without an audience"),
        (with(json!({"sub": null})), "without a subject"),
        (with(json!({"nbf": now_s() + 600})), "not valid yet"),
        (token(Algorithm::HS256, Some("two"), &claims(json!({}))), "of another key"),
        (token(Algorithm::HS256, None, &claims(json!({}))), "without a key"),
        (token(Algorithm::HS512, Some("one"), &claims(json!({}))), "with another algorithm"),
        (unsigned, "not signed"),
        (format!("{}x", with(json!({}))), "with another signature"),
    ] {
        assert_eq!(server.with(&wrong).get("/v1/me").await.error(), (401, "unauthorized"), "{what}");
    }
    // Another set takes over.
    let keys = json!({"keys": [{"kty": "oct", "kid": "two", "alg": "HS256", "k": base64url(SECRET)}]});
    std::fs::write(&file, keys.to_string()).unwrap();
    server.server.reload(turnwise_server::Config::default());
    assert_eq!(good.get("/v1/me").await.status, 401);
    let second = server.with(&token(Algorithm::HS256, Some("two"), &claims(json!({}))));
    assert_eq!(second.get("/v1/me").await.status, 200);
    std::fs::write(&file, "nonsense").unwrap();
    server.server.reload(turnwise_server::Config::default());
    assert_eq!(second.get("/v1/me").await.status, 200, "a file that cannot be used changes nothing");
}
