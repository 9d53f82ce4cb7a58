//! Tests of clients' writes, and their effects on jobs.

use turnwise_queue::Then;

use super::*;

#[tokio::test]
async fn a_document_gets_a_job_and_only_the_job_knows_the_password() {
    let world = World::new().await;
    let asked =
        with(doc("s"), json!({"user_ctx": {"name": "jan"}, "continuous": true, "_replication_id": "old"}));
    world.put("a", asked.clone()).await.unwrap();
    let job = world.job().await;
    assert_eq!((job.state(), job.tenant.as_str(), job.user.as_deref()), (State::Pending, DB, Some("jan")));
    assert!(job.id.ends_with("+continuous"), "{}", job.id);
    let mut options = asked;
    options.as_object_mut().unwrap().shift_remove("_replication_id");
    assert_eq!(world.options(&job).await, options);
    let summary = Summary::of(&job).unwrap();
    assert_eq!((summary.source.as_str(), summary.document()), ("http://s/db/", Some((DB, "a"))));
    assert!(!job.summary.get().contains("hunter2"));
    let status = world.status("a").await.unwrap();
    assert_eq!(
        status,
        json!({"database": DB, "doc_id": "a", "id": job.id, "node": null, "source": "http://s/db/",
            "target": "http://t/db/", "state": "pending", "info": null, "error_count": 0,
            "last_updated": "1970-01-01T00:00:01Z", "start_time": "1970-01-01T00:00:01Z",
            "source_proxy": null, "target_proxy": null})
    );
}

#[tokio::test]
async fn proxies_are_shown_without_their_passwords() {
    let world = World::new().await;
    let proxies =
        json!({"source_proxy": "http://u:hunter2@sproxy:12", "target_proxy": "socks5://u:hunter2@tproxy:34"});
    world.put("a", with(doc("s"), proxies)).await.unwrap();
    let status = world.status("a").await.unwrap();
    assert_eq!(status["source_proxy"], "http://u:*****@sproxy:12");
    assert_eq!(status["target_proxy"], "socks5://u:*****@tproxy:34");
    assert!(!world.job().await.summary.get().contains("hunter2"));
}

#[tokio::test]
async fn a_refused_document_changes_nothing() {
    let world = World::new().await;
    let long = format!("http://h/{}", "x".repeat(5_000));
    for (body, said) in [
        (json!({"source": "http://s/db"}), "target: is missing"),
        (with(doc("s"), json!({"continuous": "yes"})), "continuous: must be"),
        (with(doc("s"), json!({"_replication_state": "completed", "selector": 5})), "selector: must be"),
        (with(doc("s"), json!({"_replication_state": "running"})), "_replication_state: must be"),
        (with(doc("s"), json!({"_replication_state": 5})), "_replication_state: must be"),
        (with(doc("s"), json!({"source": "http://u:*****@s/db"})), "source: "),
        (with(doc("s"), json!({"source": long})), "source: has a URL of"),
        (with(doc("s"), json!({"proxy": "http://u:hunter2/bad"})), "proxy: is not a valid URL"),
        (with(doc("s"), json!({"target_proxy": format!("http://{}", "x.".repeat(600))})), "target_proxy: "),
        (with(doc("s"), json!({"user_ctx": {"name": "x".repeat(600)}})), "user_ctx.name: has 600 bytes"),
    ] {
        let error = world.put("a", body.clone()).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(_) | Error::Refused(_)), "{body}: {error}");
        assert!(error.to_string().starts_with(said), "{body}: {error}");
        assert!(!error.to_string().contains("hunter2"));
    }
    assert_eq!(world.documents.counters().await, Default::default());
    assert!(world.jobs().await.is_empty());
    assert_eq!(world.status("a").await, None);
}

#[tokio::test]
async fn the_later_of_two_documents_with_the_same_replication_fails() {
    let world = World::new().await;
    world.documents.create("x/_replicator").await.unwrap();
    world.put("a", doc("s")).await.unwrap();
    let written = world.put_in("x/_replicator", "b", doc("s")).await.unwrap();
    assert_eq!(written.rev.generation, 1);
    let id = world.job().await.id.clone();
    let tx = world.store().begin().await.unwrap();
    let second = documents::read::get(&tx, world.keys(), "x/_replicator", "b", None).await.unwrap();
    assert_eq!(second.head.rev.generation, 2);
    let reason = format!(
        "Replication `{id}` specified by document `b` already started, triggered by document `a` from db `_replicator`"
    );
    assert_eq!(second.body["_replication_state"], "failed");
    assert_eq!(second.body["_replication_state_reason"], json!(reason));
    let status =
        status(&tx, world.keys(), &mut Nodes::default(), "x/_replicator", "b", 9).await.unwrap().unwrap();
    assert_eq!((status.state, status.error_count, status.id), ("failed", 1, None));
    // A different login is a different replication.
    world.put("c", json!({"source": "http://other:pw@s/db", "target": "http://t/db"})).await.unwrap();
    assert_eq!(world.jobs().await.len(), 2);
}

#[tokio::test]
async fn a_changed_document_changes_its_job() {
    let world = World::new().await;
    world.put("a", doc("one")).await.unwrap();
    let first = world.job().await.id.clone();
    world.put("a", doc("two")).await.unwrap();
    let second = world.job().await;
    assert_ne!(second.id, first);
    // The same replication with other options: a job in its backoff starts again.
    let claim = world.start(&second.id).await;
    let ouch = Ending::Crashed { error: "ouch".into(), retry_us: Some(1 << 40) };
    world.end(&second.id, &claim, ouch, None).await;
    assert_eq!(world.state("a").await, "crashing");
    assert_eq!(world.status("a").await.unwrap()["info"], json!({"error": "ouch"}));
    world.put("a", with(doc("two"), json!({"http_connections": 3}))).await.unwrap();
    let third = world.job().await;
    assert_eq!((third.id.as_str(), third.state(), third.crashes), (second.id.as_str(), State::Pending, 0));
    assert_eq!(world.options(&third).await["http_connections"], 3);
}

#[tokio::test]
async fn a_running_job_is_restarted_with_what_has_changed() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    assert_eq!(world.state("a").await, "running");
    // No relevant change: the job continues.
    world.put("a", with(doc("s"), json!({"_replication_state": "triggered"}))).await.unwrap();
    assert_eq!(body(&world.get("a").await), doc("s"));
    assert!(!world.job().await.cancel_requested());
    // The new password must be used.
    let changed = json!({"source": "http://u:other@s/db", "target": "http://t/db"});
    world.put("a", changed.clone()).await.unwrap();
    let job = world.job().await;
    assert_eq!((job.id.as_str(), job.cancel_requested(), job.then()), (id.as_str(), true, Then::Again));
    world.end(&id, &claim, Ending::Stopped, None).await;
    let job = world.job().await;
    assert_eq!(job.state(), State::Pending);
    assert_eq!(world.options(&job).await, changed);
    assert_eq!(world.get("a").await.body.get("_replication_state"), None);
}

#[tokio::test]
async fn deleting_a_document_ends_its_job() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    world.delete("a").await;
    assert!(world.jobs().await.is_empty());
    assert_eq!(world.status("a").await, None);
    // A running job gets the request to stop, and is removed after it has stopped.
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    world.delete("a").await;
    assert!(world.job().await.cancel_requested());
    assert_eq!(world.status("a").await, None);
    world.end(&id, &claim, completed(), None).await;
    assert!(world.jobs().await.is_empty());
    assert!(world.documents.get("a", None).await.is_err());
}

#[tokio::test]
async fn a_document_written_while_its_deleted_namesake_stops_runs_afterwards() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    world.delete("a").await;
    // With another id, the same replication id, and other options.
    let again = with(doc("s"), json!({"http_connections": 2}));
    world.put("b", again.clone()).await.unwrap();
    assert_eq!(world.get("b").await.body.get("_replication_state"), None);
    world.end(&id, &claim, Ending::Stopped, None).await;
    let job = world.job().await;
    assert_eq!((job.state(), Summary::of(&job).unwrap().document()), (State::Pending, Some((DB, "b"))));
    assert_eq!(world.options(&job).await, again);
}

#[tokio::test]
async fn a_document_as_shown_can_be_written_back() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let mut shown = world.get("a").await.body;
    redaction::hide(&mut shown);
    assert!(!Value::Object(shown.clone()).to_string().contains("hunter2"));
    shown.insert("http_connections".into(), json!(2));
    world.put("a", Value::Object(shown.clone())).await.unwrap();
    assert_eq!(body(&world.get("a").await), with(doc("s"), json!({"http_connections": 2})));
    assert_eq!(world.options(&world.job().await).await["source"], "http://u:hunter2@s/db");
    // No client can copy a password that it does not know.
    assert!(world.put("copy", Value::Object(shown)).await.is_err());
}

#[tokio::test]
async fn design_documents_are_stored_and_mean_nothing() {
    let world = World::new().await;
    world.put("_design/x", json!({"views": {}, "source": "http://u:p@h/db"})).await.unwrap();
    assert!(world.jobs().await.is_empty());
    assert_eq!(world.status("_design/x").await, None);
    world.delete("_design/x").await;
}

#[tokio::test]
async fn a_deleted_database_takes_its_jobs_along() {
    let world = World::new().await;
    for n in 0..REMOVE_BATCH + 5 {
        world.put(&format!("d{n}"), doc(&format!("s{n}"))).await.unwrap();
    }
    world.documents.create("x/_replicator").await.unwrap();
    world.put_in("x/_replicator", "kept", doc("kept")).await.unwrap();
    let kept = world.jobs().await.into_iter().filter(|job| job.tenant != DB).collect::<Vec<_>>();
    delete_database(world.store(), world.keys(), DB).await.unwrap();
    assert_eq!(world.job().await.id.clone(), kept[0].id);
    assert!(matches!(world.documents.get("d1", None).await, Err(Error::NoDatabase)));
    world.documents.create(DB).await.unwrap();
    assert_eq!(world.documents.counters().await, Default::default());
    assert_eq!(world.status("d1").await, None);
}
