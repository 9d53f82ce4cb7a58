//! `turnwise schedules`.

use std::process::Output;

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

async fn schedules(server: &Server, args: &[&str]) -> (i32, String, String) {
    let mut command = turnwise();
    command.arg("schedules").args(args).env("TURNWISE_SERVER", server.url());
    let Output { status, stdout, stderr } = clean(command.output().await.unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_schedule_is_previewed_added_shown_paused_fired_and_filled() {
    let server = Home::new("").serve().await;
    let said = async |args: &[&str]| {
        let (code, said, told) = schedules(&server, args).await;
        assert_eq!(code, 0, "{args:?}: {told}");
        said
    };
    // On one of these seven days, the clocks are set forward.
    let cron = "0 30 2 25-31 3 * 2031";
    let preview = said(&["preview", "--cron", cron, "--zone", "Europe/Berlin"]).await;
    assert_eq!(preview.lines().count(), 7, "{preview}");
    assert_eq!(preview.lines().filter(|line| line.contains("clocks")).count(), 1, "{preview}");

    let (code, _, told) = schedules(&server, &["add", "daily", "t", "--options", "{}"]).await;
    assert!(code == 2 && told.contains("--cron"), "{told}");
    let (code, _, told) = schedules(&server, &["add", "daily", "t", "--cron", "61 * * * *"]).await;
    assert!(code == 1 && told.contains("when.cron: "), "{told}");
    let add =
        ["add", "daily", "t", "--every", "1d", "--options", r#"{"a":1}"#, "--overlap", "cancel-running"];
    let added = said(&add).await;
    assert!(added.starts_with("daily fires at 20") && added.contains("00:00:00"), "{added}");
    let show = async || serde_json::from_str::<Value>(&said(&["show", "daily"]).await).unwrap();
    let shown = show().await;
    assert_eq!(
        (&shown["when"], &shown["overlap"], &shown["job"]["options"]),
        (&json!({"every_ms": 86_400_000}), &json!("cancel_running"), &json!({"a": 1}))
    );
    let list = said(&["list"]).await;
    assert!(list.contains("daily") && list.contains("every 1d") && list.contains("active"), "{list}");

    assert_eq!(said(&["pause", "daily"]).await, "daily is paused");
    let fired = said(&["fire", "daily"]).await;
    assert_eq!(server.get(&format!("/v1/jobs/t/{fired}")).await["schedule"]["name"], "daily");
    assert!(said(&["resume", "daily"]).await.starts_with("daily fires at "));
    let past = ["backfill", "daily", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"];
    assert_eq!(said(&[&past[..], &["--dry-run"]].concat()).await.lines().count(), 3);
    let (_, _, told) = schedules(&server, &past).await;
    assert_eq!(told, "3 jobs were added for 3 fires");
    assert_eq!(server.get("/v1/jobs/t/daily@2026-01-03T00:00:00Z").await["state"], "pending");
    assert_eq!(said(&["remove", "daily"]).await, "removed the schedule daily");
    assert_eq!(said(&["list"]).await, "No schedules.");
}
