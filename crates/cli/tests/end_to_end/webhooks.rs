//! `turnwise webhooks`.

use std::process::Output;

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

/// Marked, so that what is printed and logged is searched for it.
const SECRET: &str = "hunter2-signs-the-deliveries";

async fn webhooks(server: &Server, secret: Option<&str>, args: &[&str]) -> (i32, String, String) {
    let mut command = turnwise();
    command.arg("webhooks").args(args).env("TURNWISE_SERVER", server.url());
    if let Some(secret) = secret {
        command.env("TURNWISE_WEBHOOK_SECRET", secret);
    }
    let Output { status, stdout, stderr } = clean(command.output().await.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn webhooks_are_added_paused_resumed_and_removed() {
    let server = Home::new("").serve().await;
    let url = "http://127.0.0.1:1/hooks";
    let add = ["add", "w", url, "--type", "mail,print", "--event", "failed", "--tenant", "acme"];
    let (code, _, told) = webhooks(&server, None, &add).await;
    assert!(code == 1 && told.contains("secret: is missing"), "{code}: {told}");
    assert_eq!(
        webhooks(&server, Some(SECRET), &add).await,
        (0, format!("events go to {url}"), String::new())
    );
    let show = async || {
        let (code, said, told) = webhooks(&server, None, &["show", "w"]).await;
        assert_eq!(code, 0, "{told}");
        serde_json::from_str::<Value>(&said).unwrap()
    };
    let webhook = show().await;
    assert_eq!(
        ["url", "types", "events", "tenant", "job_tenant"].map(|name| webhook[name].clone()),
        [json!(url), json!(["mail", "print"]), json!(["failed"]), json!("acme"), json!("acme")]
    );
    for (word, said, enabled) in
        [("pause", "the webhook w is paused", false), ("resume", "the webhook w delivers", true)]
    {
        assert_eq!(webhooks(&server, None, &[word, "w"]).await, (0, said.to_owned(), String::new()));
        let now = show().await;
        assert_eq!((&now["enabled"], &now["types"]), (&json!(enabled), &webhook["types"]));
    }
    let (_, said, _) = webhooks(&server, None, &["list"]).await;
    assert!(said.contains("w        enabled  0") && said.contains(url), "{said}");
    assert_eq!(webhooks(&server, None, &["remove", "w"]).await.0, 0);
    assert_eq!(webhooks(&server, None, &["remove", "w"]).await.0, 1);
    assert_eq!(webhooks(&server, None, &["list"]).await.1, "No webhooks.");
}
