//! Continuous replications, stopping, and resuming from a checkpoint.

use crate::common::{context, request, run, spawn, until};
use serde_json::json;
use turnwise_replicator::{Seq, Stats};
use turnwise_testkit::{Dataset, Fault, FaultProxy, Peer, compare};

#[tokio::test]
async fn later_writes_follow_and_a_stop_leaves_a_checkpoint() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let loaded = Dataset::small().load(&from).await.leaves as u64;
    let replication = request(from.url(), to.url(), json!({"continuous": true}));
    let first = context();
    let running = spawn(replication.clone(), &first);
    until(&first, |stats| stats.docs_written == loaded).await;

    let rev = from.put("later", &json!({"v": 1})).await;
    until(&first, |stats| stats.docs_written == loaded + 1).await;
    from.put("later", &json!({"_rev": rev, "_deleted": true})).await;
    let stats = until(&first, |stats| stats.docs_written == loaded + 2).await;
    assert_eq!(stats.source_seq, stats.through_seq);
    compare(&from, &to).await.unwrap();

    first.stop.cancel();
    let report = running.await.unwrap().unwrap();
    assert!(report.stopped);
    assert_eq!(report.stats.checkpointed_source_seq, report.stats.through_seq);

    // The next run copies what was written meanwhile, and nothing else.
    from.put("meanwhile", &json!({})).await;
    let second = context();
    let running = spawn(replication, &second);
    let stats = until(&second, |stats| stats.docs_written == 1).await;
    assert_eq!(stats.revisions_checked, 1);
    second.stop.cancel();
    assert_eq!(running.await.unwrap().unwrap().history.len(), 2);
}

#[tokio::test]
async fn a_run_reports_when_it_is_idle_and_when_it_is_busy_again() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("a", &json!({})).await;
    let context = context();
    let mut idle = context.idle.subscribe();
    let running = spawn(request(from.url(), to.url(), json!({"continuous": true})), &context);
    until(&context, |stats| stats.docs_written == 1).await;
    idle.wait_for(|idle| *idle).await.unwrap();
    from.put("b", &json!({})).await;
    idle.wait_for(|idle| !*idle).await.unwrap();
    until(&context, |stats| stats.docs_written == 2).await;
    idle.wait_for(|idle| *idle).await.unwrap();
    context.stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn checkpoints_are_written_while_it_runs() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("a", &json!({})).await;
    let context = context();
    let fields = json!({"continuous": true, "checkpoint_interval": 50});
    let running = spawn(request(from.url(), to.url(), fields), &context);
    for id in ["b", "c"] {
        let stats = until(&context, |stats| {
            stats.docs_written > 0
                && stats.through_seq == stats.source_seq
                && stats.checkpointed_source_seq == stats.through_seq
        })
        .await;
        from.put(id, &json!({})).await;
        until(&context, |now| now.docs_written > stats.docs_written).await;
    }
    context.stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_feed_that_has_gone_silent_is_opened_again() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("a", &json!({})).await;
    let proxy = FaultProxy::start(&source).await;
    proxy
        .set(Fault::HangMidBody { after: 2 }.when(|request| request.path.contains("_changes?feed=")).times(1))
        .await;
    let context = context();
    let fields = json!({"continuous": true, "connection_timeout": 1_000, "retries_per_request": 1});
    let running = spawn(request(&proxy.through(&from), to.url(), fields), &context);
    until(&context, |stats| stats.docs_written == 1).await;
    assert_eq!(proxy.count(|request| request.path.contains("_changes?feed=")), 2);
    context.stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_run_that_was_stopped_in_the_middle_goes_on_from_its_checkpoint() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    Dataset::plain(2_000).load(&from).await;
    let proxy = FaultProxy::start(&source).await;
    let through = proxy.through(&from);
    let fields = json!({"worker_batch_size": 20, "worker_processes": 2});
    let first = context();
    let running = spawn(request(&through, to.url(), fields.clone()), &first);
    until(&first, |stats| stats.docs_written >= 200).await;
    first.stop.cancel();
    let stopped = running.await.unwrap().unwrap();
    assert!(stopped.stopped && stopped.stats.docs_written < 2_000, "{stopped:?}");

    proxy.clear();
    let report = run(&through, to.url(), fields).await.unwrap();
    let since = proxy.wait_for(|request| request.path.contains("_changes?feed=")).await.path;
    let seq = stopped.source_last_seq.to_query();
    assert!(since.ends_with(&format!("since={seq}")), "{since} does not end in {seq}");
    // Nothing is copied twice: a batch in flight when the run was stopped has finished.
    assert_eq!(stopped.stats.docs_written + report.stats.docs_written, 2_000);
    compare(&from, &to).await.unwrap();
}

#[tokio::test]
async fn a_deleted_checkpoint_is_written_again() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    from.put("a", &json!({})).await;
    let context = context();
    let fields = json!({"continuous": true, "checkpoint_interval": 50});
    let replication = request(from.url(), to.url(), fields);
    let id = turnwise_replicator::replication_id(&replication, &context.client, &context.server_uuid)
        .await
        .unwrap();
    let running = spawn(replication, &context);
    let checkpointed = |stats: &Stats, docs: u64| {
        stats.docs_written == docs && stats.checkpointed_source_seq == stats.through_seq
    };
    until(&context, |stats| checkpointed(stats, 1)).await;

    let path = format!("/_local/{}", id.base);
    let rev = to.get(&path).await["_rev"].as_str().unwrap().to_owned();
    let (status, _) = to.request("DELETE".parse().unwrap(), &format!("{path}?rev={rev}"), None).await;
    assert!(status.is_success());
    from.put("b", &json!({})).await;
    until(&context, |stats| checkpointed(stats, 2)).await;
    assert_eq!(to.get(&path).await["session_id"], from.get(&path).await["session_id"]);
    context.stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_run_whose_source_does_not_answer_stops_at_once() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let proxy = FaultProxy::start(&source).await;
    proxy.set(Fault::HangMidBody { after: 1 }).await;
    let context = context();
    let running =
        spawn(request(&proxy.through(&from), to.url(), json!({"connection_timeout": 600_000})), &context);
    proxy.wait_for(|_| true).await;
    context.stop.cancel();
    let report = running.await.unwrap().unwrap();
    assert!(report.stopped && report.history.is_empty());
}

#[tokio::test]
async fn rows_before_a_bad_one_are_copied_before_those_after_them() {
    let (source, target) = Peer::pair().await;
    let (from, to) = (source.create("from").await, target.create("to").await);
    let mut feed = String::new();
    for seq in 1..=3 {
        let id = format!("d{seq}");
        let rev = from.put(&id, &json!({})).await;
        feed += &format!("{}\n", json!({"seq": seq, "id": id, "changes": [{"rev": rev}]}));
    }
    // CouchDB's response in the middle of a feed when a shard does not respond.
    feed += "{\"error\":\"timeout\",\"reason\":\"The request could not be processed in a reasonable amount of time.\"}\n";
    let proxy = FaultProxy::start(&source).await;
    let answer = Fault::Answer { status: 200, body: feed };
    proxy.set(answer.when(|request| request.path.contains("feed=continuous")).times(1)).await;
    // The next feed ends immediately, so that the row of an incomplete batch is sent as well.
    let ended = Fault::Answer { status: 200, body: String::new() };
    proxy.add(ended.when(|request| request.path.contains("feed=continuous")).times(1));
    let fields = json!({"continuous": true, "worker_batch_size": 2, "retries_per_request": 1});
    let context = context();
    let mut running = spawn(request(&proxy.through(&from), to.url(), fields), &context);
    let third = Some(Seq::from(&json!(3)));
    let stats = tokio::select! {
        stats = until(&context, |stats| stats.through_seq == third) => stats,
        ended = &mut running => panic!("{ended:?}"),
    };
    assert_eq!(stats.docs_written, 3);
    compare(&from, &to).await.unwrap();
    context.stop.cancel();
    running.await.unwrap().unwrap();
}
