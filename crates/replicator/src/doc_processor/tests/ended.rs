//! Tests of what a job's end writes into its document.

use super::*;

const STATS: &str =
    r#"{"docs_written": 3, "checkpointed_source_seq": "3-x", "source_seq": "4-x", "through_seq": "4-x"}"#;

async fn ended(ending: Ending) -> (World, String) {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    world.documents.clock.advance(std::time::Duration::from_secs(59));
    world.end(&id, &claim, ending, Some(serde_json::from_str(STATS).unwrap())).await;
    (world, id)
}

#[tokio::test]
async fn a_completed_job_leaves_its_statistics() {
    let (world, id) = ended(completed()).await;
    assert!(world.jobs().await.is_empty());
    let document = world.get("a").await;
    assert_eq!(document.head.rev.generation, 2);
    let stats =
        json!({"docs_written": 3, "checkpointed_source_seq": "3-x", "start_time": "1970-01-01T00:00:01Z"});
    let expected = json!({"_replication_id": id, "_replication_state": "completed",
        "_replication_state_time": "1970-01-01T00:01:00Z", "_replication_stats": stats});
    assert_eq!(body(&document), with(doc("s"), expected));
    assert_eq!(
        world.status("a").await.unwrap(),
        json!({"database": DB, "doc_id": "a", "id": null, "source": "http://s/db/", "target": "http://t/db/",
            "state": "completed", "info": {"docs_written": 3, "checkpointed_source_seq": "3-x"}, "error_count": 0,
            "last_updated": "1970-01-01T00:01:00Z", "start_time": "1970-01-01T00:00:01Z"})
    );
}

#[tokio::test]
async fn a_failed_job_leaves_its_reason() {
    let (world, _) = ended(Ending::Failed("no good".into())).await;
    assert!(world.jobs().await.is_empty());
    let document = world.get("a").await;
    assert_eq!(document.body["_replication_state"], "failed");
    assert_eq!(document.body["_replication_state_reason"], "no good");
    assert_eq!(document.body.get("_replication_stats"), None);
    let status = world.status("a").await.unwrap();
    assert_eq!((&status["state"], &status["error_count"]), (&json!("failed"), &json!(1)));
    assert_eq!(status["info"], json!({"error": "no good"}));
}

#[tokio::test]
async fn a_cancelled_job_fails_its_document() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    let (keys, job) = (world.keys(), id.as_str());
    world
        .store()
        .transact(|tx| async move { jobs::cancel(&tx, keys, JOB_TYPE, job, 5).await })
        .await
        .unwrap();
    world.end(&id, &claim, Ending::Stopped, None).await;
    assert!(world.jobs().await.is_empty());
    assert!(
        world.get("a").await.body["_replication_state_reason"].as_str().unwrap().starts_with("cancelled")
    );
}

#[tokio::test]
async fn crashes_and_stops_write_nothing() {
    for ending in [Ending::Stopped, Ending::Crashed { error: "ouch".into(), retry_us: Some(9) }] {
        let (world, _) = ended(ending).await;
        assert_eq!(body(&world.get("a").await), doc("s"));
        assert_eq!(world.jobs().await.len(), 1);
    }
}

#[tokio::test]
async fn a_document_that_has_ended_stays_so_until_its_state_is_taken_out() {
    let (world, id) = ended(completed()).await;
    let finished = body(&world.get("a").await);
    world.put("a", with(finished.clone(), json!({"note": 1}))).await.unwrap();
    assert!(world.jobs().await.is_empty());
    let status = world.status("a").await.unwrap();
    assert_eq!((&status["state"], &status["info"]["docs_written"]), (&json!("completed"), &json!(3)));
    assert_eq!(status["start_time"], "1970-01-01T00:00:01Z");
    let mut again = finished;
    again.as_object_mut().unwrap().shift_remove("_replication_state");
    world.put("a", again).await.unwrap();
    assert_eq!((world.job().await.id.clone(), world.state("a").await.as_str()), (id, "pending"));
}

#[tokio::test]
async fn a_document_marked_as_failed_may_be_invalid() {
    let world = World::new().await;
    let wrong = json!({"source": "http://u:p/w@s/db", "target": 5, "_replication_state": "failed",
        "_replication_state_reason": "r", "_replication_state_time": "2020-01-01T00:00:00Z"});
    world.put("a", wrong).await.unwrap();
    let status = world.status("a").await.unwrap();
    assert_eq!(
        (&status["source"], &status["target"], &status["info"]["error"]),
        (&json!(null), &json!(null), &json!("r"))
    );
    assert_eq!(status["last_updated"], "2020-01-01T00:00:00Z");
}

#[tokio::test]
async fn a_running_job_goes_when_its_document_says_it_has_ended() {
    let world = World::new().await;
    world.put("a", doc("s")).await.unwrap();
    let id = world.job().await.id.clone();
    let claim = world.start(&id).await;
    let over = with(doc("s"), json!({"_replication_state": "completed"}));
    world.put("a", over.clone()).await.unwrap();
    world.end(&id, &claim, Ending::Failed("late".into()), None).await;
    assert!(world.jobs().await.is_empty());
    assert_eq!(body(&world.get("a").await), over);
}

#[tokio::test]
async fn the_late_end_of_an_old_job_writes_nothing() {
    let world = World::new().await;
    world.put("a", doc("one")).await.unwrap();
    let old = world.job().await.id.clone();
    let claim = world.start(&old).await;
    world.put("a", doc("two")).await.unwrap();
    world.end(&old, &claim, completed(), None).await;
    assert_eq!(body(&world.get("a").await), doc("two"));
    assert_ne!(world.job().await.id.clone(), old);
    assert_eq!(world.state("a").await, "pending");
}

#[tokio::test]
async fn the_end_of_a_job_that_is_not_the_documents_writes_nothing() {
    let world = World::new().await;
    world.put("a", doc("one")).await.unwrap();
    let mut old = world.job().await;
    old.place = turnwise_queue::Place::Ended(turnwise_queue::End::Completed);
    world.put("a", doc("two")).await.unwrap();
    let (keys, old) = (world.keys(), &old);
    world.store().transact(|tx| async move { job_ended(&tx, keys, old, 5).await }).await.unwrap();
    assert_eq!(body(&world.get("a").await), doc("two"));
    assert_eq!(world.state("a").await, "pending");
}

#[tokio::test]
async fn finished_requests_are_removed_after_a_while() {
    let world = World::new().await;
    let body = doc("s").as_object().unwrap().clone();
    let replication = Replication::parse(&body, &Defaults::default()).unwrap();
    for id in ["done", "waits"] {
        let new = &new_job(&replication, id, Origin::Request, &body, 0).unwrap();
        let keys = world.keys();
        world.store().transact(|tx| async move { jobs::add(&tx, keys, new, 0).await }).await.unwrap();
    }
    let claim = world.start("done").await;
    world.end("done", &claim, completed(), None).await;
    let sweep = async || remove_finished_requests(world.store(), world.keys()).await.unwrap();
    assert_eq!(sweep().await, 0);
    world.documents.clock.advance(std::time::Duration::from_secs(601));
    assert_eq!(sweep().await, 1);
    assert_eq!(world.job().await.id.clone(), "waits");
    assert_eq!(world.job().await.tenant, "_replicate");
}
