//! Changes of all jobs that meet a condition: `turnwise jobs … --where`, and a server that is killed meanwhile.

use std::process::Output;

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

/// The most jobs of one request.
const BATCH: usize = 1_000;

async fn jobs(server: &Server, args: &[&str]) -> (i32, String, String) {
    let command = turnwise().arg("jobs").args(args).env("TURNWISE_SERVER", server.url()).output().await;
    let Output { status, stdout, stderr } = clean(command.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

async fn add(server: &Server, count: usize) {
    for begin in (0..count).step_by(BATCH) {
        let batch: Vec<Value> = (begin..count.min(begin + BATCH))
            .map(|n| json!({"type": "mail", "id": format!("{n:06}"), "tenant": format!("t{}", n % 2)}))
            .collect();
        server.post("/v1/jobs", &json!({ "jobs": batch })).await;
    }
}

#[tokio::test]
async fn many_jobs_are_changed_by_one_command() {
    let server = Home::new("").serve().await;
    add(&server, 40).await;
    let which = "type = mail and tenant = t1 and state = pending";
    let (code, examples, told) = jobs(&server, &["cancel", "--where", which, "--dry-run"]).await;
    assert_eq!((code, told.as_str()), (0, "20 jobs match, 20 would be cancelled"));
    assert_eq!(examples.lines().count(), 21, "{examples}");
    let (code, said, told) = jobs(&server, &["cancel", "--where", which]).await;
    assert_eq!((code, said.as_str()), (0, "20 jobs cancelled"), "{told}");
    let (code, said, told) = jobs(&server, &["cancel", "--where", which]).await;
    assert_eq!((code, said.as_str(), told.as_str()), (0, "", "0 jobs match, 0 would be cancelled"));
    let (_, said, _) =
        jobs(&server, &["retry", "--where", "state = cancelled and id < '000010'", "--yes"]).await;
    assert_eq!(said, "5 jobs retried");
    let (_, said, _) = jobs(&server, &["priority", "--where", "state = pending", "--to", "-4"]).await;
    assert_eq!(said, "25 jobs changed");
    let (_, said, _) = jobs(&server, &["hold", "--where", "priority = -4", "--yes"]).await;
    assert_eq!(said, "25 jobs held");
    let (_, said, _) = jobs(&server, &["release", "--where", "tenant = t1", "--yes"]).await;
    assert_eq!(said, "5 jobs released");
    let (_, said, _) = jobs(&server, &["release", "--where", "state = paused", "--yes"]).await;
    assert_eq!(said, "20 jobs released");
    let (_, listed, _) = jobs(&server, &["list", "--where", "priority = -4 and id > '000035'"]).await;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let args = ["remove", "--where", "state in (cancelled, pending)", "--yes", "--detach"];
    let (code, id, _) = jobs(&server, &args).await;
    assert_eq!(code, 0);
    server.until(&format!("/v1/bulk/{id}"), |bulk| bulk["state"] == "done").await;
    let (_, said, _) = jobs(&server, &["bulk", "stop", &id]).await;
    assert_eq!(said, "40 jobs removed");
    let (_, shown, _) = jobs(&server, &["bulk", "show", &id]).await;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["changed"], 40);
    let (_, listed, _) = jobs(&server, &["bulk", "list"]).await;
    assert_eq!(listed.lines().count(), 8, "{listed}");
    assert_eq!(jobs(&server, &["list"]).await.1, "No jobs.");

    let cases: [(&[&str], i32, &str); 9] = [
        (&["cancel"], 2, "<TYPE>"),
        (&["cancel", "mail"], 2, "<ID>"),
        (&["cancel", "mail", "a", "--where", "id = a"], 2, "cannot be used with"),
        (&["priority", "mail", "a", "3", "--to", "4"], 2, "cannot be used with"),
        (&["priority", "--where", "id = a"], 2, "--to"),
        (&["run-now"], 2, "--where"),
        (&["retry"], 2, "<TYPE>"),
        (&["remove", "--where", "state = gone"], 1, "where: column 9: expected a state"),
        (&["bulk", "show", "none"], 1, "there is no bulk operation `none`"),
    ];
    // A job is not changed where the options are those of many.
    add(&server, 1).await;
    let (code, _, told) = jobs(&server, &["cancel", "mail", "000000", "--dry-run"]).await;
    assert!(code == 2 && told.contains("need --where"), "{code}: {told}");
    assert_eq!(server.get("/v1/jobs/mail/000000").await["state"], "pending");
    for (args, expected, says) in cases {
        let (code, _, told) = jobs(&server, args).await;
        assert!(code == expected && told.contains(says), "{args:?}: {code}: {told}");
    }
}

/// So many that the operation runs for seconds.
const MANY: usize = 20_000;

#[tokio::test]
async fn a_bulk_change_goes_on_after_kill_9() {
    let home = Home::new("");
    let server = home.serve().await;
    add(&server, MANY).await;
    server.put("/v1/bulk/op", &json!({"action": "cancel", "where": "type = mail"})).await;
    let bulk = server.until("/v1/bulk/op", |bulk| bulk["changed"].as_u64().unwrap() > 0).await;
    assert_eq!(bulk["state"], "running", "{bulk}");
    server.kill().await;
    let server = home.serve().await;
    let bulk = server.until("/v1/bulk/op", |bulk| bulk["state"] != "running").await;
    assert_eq!((&bulk["state"], &bulk["changed"]), (&json!("done"), &json!(MANY)), "{bulk}");
    let counted = server.get("/v1/matching?where=state+%3D+cancelled").await;
    assert_eq!(counted["matched"], MANY);
    assert_eq!(bulk["refused"], json!([]), "none was changed twice");
}
