//! The requests of tests to etcd itself, through its JSON gateway.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{ANSWER_TIMEOUT, EtcdCluster, HEALTH_TIMEOUT, LOOK_AGAIN};

/// The prefix of the roles of users other than root.
const ROLE: &str = "prefix-of-";
/// The keys that are cleared in one transaction.
const CLEARED_AT_ONCE: usize = 500;

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// The first key after all keys that begin with `prefix`.
fn end_of(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    let last = end.last_mut().expect("a prefix is not empty");
    *last += 1;
    BASE64_STANDARD.encode(end)
}

impl EtcdCluster {
    /// Sends one request to each member until one accepts it. Returns the last refusal if none does. Only for requests that
    /// may take effect twice.
    async fn try_call(&self, path: &str, body: &Value) -> Result<Value, String> {
        let token = self.token().await;
        let mut refusal = "no member answers".to_owned();
        for member in 0..self.members() {
            match self.call_member(member, path, body, token.as_deref()).await {
                Ok(answer) => return Ok(answer),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    /// The same, repeated until it succeeds: for clusters that are recovering.
    async fn call(&self, path: &str, body: &Value) -> Value {
        let mut refusal = String::new();
        let answer = async {
            loop {
                match self.try_call(path, body).await {
                    Ok(answer) => return answer,
                    Err(why) => refusal = why,
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let answer = tokio::time::timeout(HEALTH_TIMEOUT, answer).await;
        answer.unwrap_or_else(|_| panic!("etcd's {path}: {refusal} {}", self.guard.said()))
    }

    async fn call_member(
        &self,
        member: usize,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Value, String> {
        // The first client installs the TLS provider. The second one has other settings.
        let _ = crate::client();
        let builder = reqwest::Client::builder().timeout(ANSWER_TIMEOUT);
        let (scheme, builder) = match &self.certificates {
            Some(certificates) => ("https", certificates.trusted_by(builder)),
            None => ("http", builder),
        };
        let client = builder.build().map_err(|error| error.to_string())?;
        let mut request = client.post(format!("{scheme}://{}/v3/{path}", self.members[member].address));
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let answer = request.json(body).send().await.map_err(|error| format!("{error:?}"))?;
        let (status, text) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
        if status.is_success() {
            serde_json::from_str(&text).map_err(|error| error.to_string())
        } else {
            Err(text)
        }
    }

    /// An authentication token of the administrator, if one is necessary.
    async fn token(&self) -> Option<String> {
        let (name, password) = self.options.user.as_ref()?;
        let body = json!({ "name": name, "password": password });
        for member in 0..self.members() {
            // Refused while authentication is not enabled yet.
            if let Ok(answer) = self.call_member(member, "auth/authenticate", &body, None).await {
                return answer["token"].as_str().map(str::to_owned);
            }
        }
        None
    }

    /// Enables authentication, if the options ask for it.
    pub(super) async fn enable_auth(&self) {
        let Some((name, password)) = &self.options.user else { return };
        // etcd requires a user of this name.
        for (name, password) in [("root", password), (name.as_str(), password)] {
            // Refused if the user exists already, because an earlier response was lost.
            let _ = self.try_call("auth/user/add", &json!({ "name": name, "password": password })).await;
            self.call("auth/user/grant", &json!({ "user": name, "role": "root" })).await;
        }
        self.call("auth/enable", &json!({})).await;
    }

    /// Adds a user who may read and write only the keys under `prefix`.
    pub async fn add_user(&self, name: &str, password: &str, prefix: &str) {
        let role = format!("{ROLE}{name}");
        let permission =
            json!({ "permType": "READWRITE", "key": encode(prefix), "range_end": end_of(prefix) });
        let _ = self.try_call("auth/role/add", &json!({ "name": role })).await;
        self.call("auth/role/grant", &json!({ "name": role, "perm": permission })).await;
        let _ = self.try_call("auth/user/add", &json!({ "name": name, "password": password })).await;
        self.call("auth/user/grant", &json!({ "user": name, "role": role })).await;
    }

    /// Sets a key in any part of the store.
    pub async fn put(&self, key: &str, value: &str) {
        self.call("kv/put", &json!({ "key": encode(key), "value": encode(value) })).await;
    }

    /// The same, only once. Returns the refusal, if any.
    pub async fn try_put(&self, key: &str, value: &str) -> Result<(), String> {
        self.try_call("kv/put", &json!({ "key": encode(key), "value": encode(value) })).await.map(drop)
    }

    /// The text at a key.
    pub async fn get(&self, key: &str) -> Option<String> {
        let answer = self.call("kv/range", &json!({ "key": encode(key) })).await;
        let value = answer["kvs"][0]["value"].as_str()?;
        let bytes = BASE64_STANDARD.decode(value).expect("the gateway speaks base64");
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Clears a key.
    pub async fn delete(&self, key: &str) {
        self.call("kv/deleterange", &json!({ "key": encode(key) })).await;
    }

    /// Clears all keys under a prefix, in steps: once one transaction has written thousands of keys, etcd 3.4 copies a buffer of
    /// that length for each read until its process ends.
    pub async fn clear(&self, prefix: &str) {
        let (key, end) = (encode(prefix), json!(end_of(prefix)));
        loop {
            let range =
                json!({ "key": key, "range_end": end, "limit": CLEARED_AT_ONCE + 1, "keys_only": true });
            let answer = self.call("kv/range", &range).await;
            let next = answer["kvs"].get(CLEARED_AT_ONCE).map(|next| &next["key"]);
            self.call("kv/deleterange", &json!({ "key": key, "range_end": next.unwrap_or(&end) })).await;
            if next.is_none() {
                return;
            }
        }
    }

    /// The number of keys under a prefix.
    pub async fn count(&self, prefix: &str) -> u64 {
        let range = json!({ "key": encode(prefix), "range_end": end_of(prefix), "count_only": true });
        let answer = self.call("kv/range", &range).await;
        answer["count"].as_str().and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// The cluster's latest revision.
    pub async fn revision(&self) -> u64 {
        let answer = self.call("kv/range", &json!({ "key": encode("none") })).await;
        let revision = answer["header"]["revision"].as_str();
        revision.and_then(|revision| revision.parse().ok()).expect("an answer has a revision")
    }

    /// Removes all revisions before the latest one.
    pub async fn compact(&self) {
        let revision = self.revision().await;
        // Refused if it was done already, because an earlier response was lost.
        let _ = self.try_call("kv/compaction", &json!({ "revision": revision, "physical": true })).await;
    }

    /// Frees the space of deleted keys on every member, and disarms the alarm NOSPACE.
    pub async fn make_room(&self) {
        self.compact().await;
        let token = self.token().await;
        for member in 0..self.members() {
            let freed =
                self.call_member(member, "maintenance/defragment", &json!({}), token.as_deref()).await;
            freed.unwrap_or_else(|refusal| panic!("member {member} frees no room: {refusal}"));
        }
        for member in 0..self.members() {
            let id = &self.member_id(member).await;
            let alarm = json!({ "action": "DEACTIVATE", "memberID": id, "alarm": "NOSPACE" });
            self.call("maintenance/alarm", &alarm).await;
        }
        self.until_healthy().await.expect("a cluster without alarm");
    }

    async fn member_id(&self, member: usize) -> String {
        let token = self.token().await;
        let status = self.call_member(member, "maintenance/status", &json!({}), token.as_deref()).await;
        let status =
            status.unwrap_or_else(|refusal| panic!("member {member} does not tell its id: {refusal}"));
        status["header"]["member_id"].as_str().expect("an answer has a member id").to_owned()
    }
}
