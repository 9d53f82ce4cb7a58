//! A sound store has no findings, even while it is in use, and each kind of damage causes its own finding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Home, fill};
use bytes::Bytes;
use serde_json::{Value, json};
use turnwise_admin::check::{Progress, Report, check};
use turnwise_calendar::{Calendar, When};
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::eligibility::filters::{Action, Limits, Rule};
use turnwise_policy::eligibility::rate::{self, Rate, RateLimit};
use turnwise_policy::predictive_queue::locks::{Levels, Mode};
use turnwise_queue::check::Invariant;
use turnwise_queue::claims::{self, Claiming, Ending};
use turnwise_queue::concurrency::{Full, LimitedPlace, ReleaseOptions, Tally};
use turnwise_queue::groups::{self, CallbackJob, Member, NewGroup};
use turnwise_queue::keyspace::QueuePlace;
use turnwise_queue::locks::{self, LockAt, Spot};
use turnwise_queue::schedules::{self, NewSchedule, Template};
use turnwise_queue::tasks::Tasks;
use turnwise_queue::unique::{self, By, OnConflict, Unique, Within};
use turnwise_queue::{
    Claim, Context, Input, JobSpec, Keyspace, NewJob, Parked, RunKey, Terms, Worker, concurrency, filters,
    jobs, workers,
};
use turnwise_replicator::doc_processor::{self, Settings};
use turnwise_replicator::documents::{Draft, databases};
use turnwise_replicator::{Defaults, JOB_TYPE};
use turnwise_store::{Error, Store, Transaction};

const DB: &str = "_replicator";

async fn look(store: &Store) -> Report {
    check(store, false, &Progress::default()).await.unwrap()
}

/// A store with jobs in every state, and replication documents.
async fn home() -> Home {
    let home = Home::new().await;
    fill(&home.store, "u", 200).await;
    let keys = &Keyspace::default();
    let create = |tx: Transaction| async move {
        let worker = Worker { external: true, ..Worker::new("counted", "n", 1, 1) };
        workers::register(&tx, keys, "t", &worker)?;
        let number = claims::next_number(&tx, keys, "t", "counted").await?;
        let claim = Claim { worker: "counted".into(), number };
        claims::claim(Context::new(&tx, keys, "t", 5_000, 20), "job-6", &claim).await?;
        databases::create(&tx, keys, DB, 1).await.unwrap();
        Ok::<_, turnwise_queue::Error>(())
    };
    home.store.transact(create).await.unwrap();
    let settings = &Settings { server_uuid: "u".into(), defaults: Defaults::default() };
    for id in ["plain", "filtered", "done", "_design/x"] {
        let mut body = json!({ "_id": id, "source": format!("http://a:1/{id}"), "target": "http://b:1/t" });
        if id == "filtered" {
            body["filter"] = json!("d/f");
        }
        if id == "done" {
            body["_replication_state"] = json!("completed");
            body["filler"] = json!("x".repeat(100_000));
        }
        let draft = &Draft::parse(None, body.as_object().unwrap().clone(), "").unwrap();
        let write = |tx: Transaction| async move {
            doc_processor::write(&tx, keys, settings, DB, draft, 7).await.map(drop)
        };
        home.store.transact(write).await.unwrap();
    }
    home
}

#[tokio::test]
async fn a_sound_store_is_clean() {
    let home = home().await;
    let report = look(&home.store).await;
    assert_eq!((report.findings.as_slice(), report.found, report.undecided.len()), (&[][..], 0, 0));
    assert_eq!((report.families["jobs"], report.families["documents"]), (201, 4));
    assert_eq!(report.families["options"], 3, "{:?}", report.families);
    let empty = Home::new().await;
    assert_eq!(look(&empty.store).await.found, 0);
}

fn parked(group: &str, key: &str) -> Parked {
    Parked { group: group.into(), key: key.into() }
}

/// A change that damages a store.
enum Damage {
    Clear(Bytes),
    Set(Bytes, Value),
    Raw(Bytes, &'static [u8]),
    /// Replaces members of a JSON row.
    Change(Bytes, Value),
}
use Damage::{Change, Clear, Raw, Set};

async fn damage(store: &Store, damage: &Damage) {
    let write = |tx: Transaction| async move {
        match damage {
            Clear(key) => tx.clear(key.clone()),
            Set(key, value) => tx.set(key.clone(), value.to_string().into()),
            Raw(key, value) => tx.set(key.clone(), Bytes::from_static(value)),
            Change(key, members) => {
                let value = tx.get(key).await?.expect("the row is there");
                let mut row: Value = serde_json::from_slice(&value).unwrap();
                for (name, member) in members.as_object().unwrap() {
                    row[name] = member.clone();
                }
                tx.set(key.clone(), row.to_string().into())
            }
        }
    };
    store.transact::<_, Error, _, _>(write).await.unwrap();
}

/// A job that must start within a time, one with a result in rows of its own, and a schedule.
async fn fill_lasting(store: &Store) {
    let keys = &Keyspace::default();
    let json = |text: String| serde_json::value::RawValue::from_string(text).unwrap();
    let create = |tx: Transaction| async move {
        let mut short = NewJob::new("t", "short", json("1".into()));
        short.spec.lifetime.start_within_us = Some(3_600_000_000);
        jobs::add(&tx, keys, &short, 5).await?;
        for (id, mode) in [("only", unique::Mode::UntilEnd), ("rare", unique::Mode::Period(3_600_000_000))] {
            let (by, within) = (By::Key(id.to_owned()), Within::Type);
            let unique = Unique { mode, by, within, on_conflict: OnConflict::Keep };
            let new = NewJob::new("t", id, json("1".into())).with(|spec| spec.unique = Some(unique));
            jobs::add(&tx, keys, &new, 5).await?;
        }
        jobs::add(&tx, keys, &NewJob::new("t", "talks", json("1".into())), 5).await?;
        let claim = Claim { worker: "worker".into(), number: 900 };
        claims::claim(Context::new(&tx, keys, "t", 6, 20), "talks", &claim).await?.unwrap();
        let ending = Ending::completed(json(format!("\"{}\"", "x".repeat(20_000))));
        claims::end(Context::new(&tx, keys, "t", 7, 20), "talks", &claim, &ending, None, None).await?;
        let input = Input { job_type: "t".into(), id: "talks".into() };
        let reads = NewJob::new("t", "reads", json("1".into()));
        let reads = reads.with(|spec| drop(spec.inputs.insert("rows".into(), input)));
        jobs::add(&tx, keys, &reads, 8).await?;
        let calendar = Calendar {
            when: When::Every { every_us: 3_600_000_000, offset_us: 0 },
            from_us: None,
            until_us: None,
        };
        let template =
            Template { job_type: "t".into(), spec: JobSpec::default(), priority: None, states_locks: false };
        let hourly = NewSchedule::new("hourly", calendar, template, json("1".into()));
        schedules::put(&tx, keys, &hourly, 7).await?;
        let template =
            Template { job_type: "t".into(), spec: JobSpec::default(), priority: None, states_locks: false };
        let complete = CallbackJob { template, options: json("1".into()) };
        let callbacks = [(groups::On::Complete, complete)].into();
        groups::create(&tx, keys, &NewGroup { callbacks, ..NewGroup::new("default", "g") }, 7).await?;
        let member = NewJob::new("t", "member", json("1".into()));
        let member = member.with(|spec| spec.group = Some(Member::of("g")));
        jobs::add(&tx, keys, &member, 7).await?;
        groups::create(&tx, keys, &NewGroup::new("default", "ended"), 7).await?;
        groups::close(&tx, keys, "default", "ended").await?;
        Ok::<_, turnwise_queue::Error>(())
    };
    store.transact(create).await.unwrap();
    let end = |tx: Transaction| async move { groups::settle(&tx, keys, "default", "ended", 8).await };
    assert!(store.transact(end).await.unwrap().ended.is_some());
}

#[tokio::test]
async fn each_damage_violates_its_own_invariant() {
    use Invariant as I;
    let keys = Keyspace::default();
    let home = home().await;
    fill_lasting(&home.store).await;
    let rows = crate::common::all_rows(&home.store).await;
    let key_of = |prefix: &str| {
        let text = |key: &Bytes| turnwise_queue::check::key_text(key);
        rows.iter().map(|(key, _)| key.clone()).find(|key| text(key).starts_with(prefix)).expect(prefix)
    };
    let plain: Value = {
        let key = keys.replication(DB, "plain");
        let (_, value) = rows.iter().find(|(found, _)| *found == key).unwrap();
        serde_json::from_slice(value).unwrap()
    };
    let replication = plain["job"].as_str().unwrap();
    let unique = |id: &str| {
        let holds = |value: &Bytes| serde_json::from_slice::<Value>(value).is_ok_and(|row| row["id"] == id);
        let mut of_keys = rows.iter().filter(|(key, _)| keys.family(key).as_deref() == Some("unique"));
        of_keys.find(|(_, value)| holds(value)).unwrap().0.clone()
    };
    let foreign = turnwise_store::tuple::pack(&("turnwise", "new", 1));
    let cases: Vec<(Vec<Damage>, &[I])> = vec![
        // Jobs.
        (vec![Clear(key_of(r#"["pending","t""#))], &[I::OnePlace]),
        (vec![Clear(key_of(r#"["delayed""#))], &[I::OnePlace]),
        (vec![Clear(key_of(r#"["ended""#))], &[I::OnePlace]),
        (vec![Raw(key_of(r#"["ended""#), b"\"another tenant\"")], &[I::RowAgrees]),
        (vec![Raw(key_of(r#"["delayed""#), b"")], &[I::RowAgrees]),
        (vec![Clear(keys.active_entry("t", "worker", "job-5"))], &[I::OnePlace]),
        (
            vec![Raw(keys.pending_entry("t", &QueuePlace::by_time("default", 1), "job-8"), b"")],
            &[I::OnePlace],
        ),
        (vec![Raw(keys.pending_entry("t", &QueuePlace::by_time("default", 1), "nobody"), b"")], &[I::Owned]),
        (vec![Raw(keys.options_piece("t", "nobody", 0), b"1")], &[I::Owned]),
        (vec![Raw(keys.job("t", "job-8"), b"{")], &[I::Readable]),
        (vec![Clear(keys.options_piece("t", "job-7", 1))], &[I::OptionsWhole]),
        (vec![Clear(keys.options_piece("t", "job-7", 0))], &[I::OptionsWhole]),
        (vec![Raw(keys.options_piece("t", "job-7", 1), b"short")], &[I::OptionsWhole]),
        (vec![Change(keys.job("t", "job-8"), json!({ "claim": ["worker", 1] }))], &[I::OnePlace]),
        (vec![Change(keys.job("t", "job-8"), json!({ "then": "remove" }))], &[I::OnePlace]),
        (vec![Change(keys.job("t", "job-5"), json!({ "claim": null }))], &[I::Readable]),
        (vec![Change(keys.job("t", "job-5"), json!({ "cancel_requested": true }))], &[I::ActiveAgrees]),
        (
            vec![Change(keys.active_entry("t", "worker", "job-5"), json!({ "claim": 999 }))],
            &[I::ActiveAgrees],
        ),
        (
            vec![
                Change(keys.active_entry("t", "worker", "job-5"), json!({ "claim": 56 })),
                Change(keys.job("t", "job-5"), json!({ "claim": ["worker", 56] })),
            ],
            &[I::ClaimUnique],
        ),
        (vec![Raw(keys.active_entry("t", "worker", "job-5"), b"x")], &[I::Readable]),
        (vec![Raw(keys.claim_number("t", "counted"), b"0")], &[I::ClaimCounted]),
        (vec![Raw(keys.claim_number("t", "counted"), b"x")], &[I::Readable]),
        (vec![Change(keys.job("t", "job-8"), json!({ "keyed": true }))], &[I::Keyed]),
        // Jobs that state their times.
        (vec![Clear(key_of(r#"["lifetimes""#))], &[I::LifetimeAgrees]),
        (vec![Raw(keys.lifetime_entry(7, "t", "job-8"), b"")], &[I::LifetimeAgrees]),
        (vec![Raw(keys.lifetime_entry(7, "t", "nobody"), b"")], &[I::LifetimeAgrees]),
        (
            vec![Change(keys.job("t", "short"), json!({ "due_us": 8 }))],
            &[I::LifetimeAgrees, I::LifetimeAgrees],
        ),
        // Unique keys.
        (vec![Clear(unique("only"))], &[I::UniqueAgrees]),
        (
            vec![
                Clear(keys.job("t", "only")),
                Clear(keys.pending_entry("t", &QueuePlace::by_time("default", 5), "only")),
            ],
            &[I::UniqueAgrees],
        ),
        (vec![Change(unique("only"), json!({ "id": "job-8" }))], &[I::UniqueAgrees; 2]),
        (vec![Change(unique("only"), json!({ "id": "nobody" }))], &[I::UniqueAgrees; 2]),
        (vec![Set(keys.unique("x"), json!({ "type": "t", "id": "job-8" }))], &[I::UniqueAgrees]),
        (
            vec![Change(keys.job("t", "only"), json!({ "unique_key": { "hash": "x" } }))],
            &[I::UniqueAgrees; 2],
        ),
        (vec![Change(keys.job("t", "rare"), json!({ "unique_key": null }))], &[I::UniqueAgrees]),
        (vec![Clear(unique("rare"))], &[I::UniqueAgrees]),
        (vec![Clear(key_of(r#"["unique_until""#))], &[I::UniqueAgrees]),
        (vec![Raw(keys.unique_until(7, "x"), b"")], &[I::UniqueAgrees]),
        (vec![Raw(unique("only"), b"x")], &[I::Readable, I::UniqueAgrees]),
        // Followers.
        (vec![Raw(keys.follower(("t", "job-8"), "t", "talks"), b"[]")], &[I::FollowerKnown]),
        (vec![Raw(keys.follower(("t", "nobody"), "t", "talks"), b"[]")], &[I::FollowerKnown]),
        (vec![Raw(keys.follower(("t", "talks"), "t", "nobody"), b"")], &[I::FollowerKnown]),
        (vec![Clear(keys.follower(("t", "talks"), "t", "reads"))], &[I::FollowerKnown]),
        // Output.
        (vec![Clear(keys.output_row("t", "talks", "result", 0))], &[I::OutputWhole]),
        (vec![Change(keys.job("t", "talks"), json!({ "has_output": false }))], &[I::OutputWhole]),
        // Tags.
        (vec![Clear(keys.tag_entry("t", "eu", "default", "job-8"))], &[I::TagAgrees]),
        (vec![Raw(keys.tag_entry("t", "us", "default", "job-8"), b"")], &[I::TagAgrees]),
        (vec![Raw(keys.tag_entry("t", "eu", "other", "job-8"), b"")], &[I::TagAgrees]),
        (vec![Raw(keys.tag_entry("t", "eu", "default", "nobody"), b"")], &[I::Owned]),
        (vec![Change(keys.job("t", "job-8"), json!({ "tags": ["us"] }))], &[I::TagAgrees; 3]),
        // Parked jobs.
        (vec![Clear(keys.parked_entry("t", &parked("server 0", "db9"), "job-9"))], &[I::Parked]),
        (vec![Raw(keys.parked_entry("t", &parked("server 0", "db9"), "job-9"), b"7")], &[I::Parked]),
        (vec![Set(keys.parked_entry("t", &parked("x", "y"), "job-8"), json!("1"))], &[I::Parked]),
        (vec![Raw(keys.unwatched_entry("t", &parked("x", "y"), "nobody"), b"")], &[I::Parked]),
        (vec![Change(keys.job("t", "job-9"), json!({ "parked": null }))], &[I::Parked, I::Parked]),
        (vec![Raw(keys.unwatched_wake("t"), b"short")], &[I::Stamped]),
        // Tenants.
        (vec![Clear(keys.counts_of("t", "default"))], &[I::JobsCounted]),
        (vec![Raw(keys.counts_of("t", "nobody"), &[1; 64])], &[I::JobsCounted]),
        (vec![Raw(keys.counts_of("t", "nobody"), b"short")], &[I::Readable]),
        (vec![Clear(keys.waiting_entry("t", "default"))], &[I::TenantWaits]),
        (vec![Raw(keys.waiting_entry("t", "default"), b"short")], &[I::Stamped]),
        (vec![Raw(keys.usage_entry("t", "default", "w"), b"{\"tag\": -1.0}")], &[I::Charged]),
        (vec![Raw(keys.usage_entry("t", "default", "w"), b"[")], &[I::Readable]),
        (vec![Raw(keys.boost("t"), b"{}")], &[I::Readable]),
        // Workers.
        (vec![Clear(keys.health("t", "worker"))], &[I::MemberHealthy]),
        (vec![Clear(keys.health("t", "counted")), Clear(keys.worker("t", "counted"))], &[I::Outlived]),
        (
            vec![Clear(keys.health("t", "worker")), Clear(keys.worker("t", "worker"))],
            &[I::HolderKnown, I::HolderKnown, I::HolderKnown, I::HolderKnown],
        ),
        (vec![Change(keys.health("t", "worker"), json!({ "timeout_us": 1 }))], &[I::WorkerAgrees]),
        (vec![Clear(keys.workers_versionstamp("t"))], &[I::Stamped]),
        (vec![Raw(keys.wake("t"), b"short")], &[I::Stamped]),
        // Schedules.
        (vec![Clear(keys.schedule_due_entry(3_600_000_000, "hourly"))], &[I::ScheduleAgrees]),
        (vec![Raw(keys.schedule_due_entry(7, "hourly"), b"")], &[I::ScheduleAgrees]),
        (vec![Raw(keys.schedule_due_entry(7, "nobody"), b"")], &[I::ScheduleAgrees]),
        (vec![Clear(keys.schedule_options_piece("hourly", 0))], &[I::ScheduleAgrees]),
        (vec![Clear(keys.schedule_ends("hourly"))], &[I::ScheduleAgrees]),
        (vec![Set(keys.schedule_ends("nobody"), json!({ "created_us": 1 }))], &[I::ScheduleAgrees]),
        (vec![Clear(keys.tenant_schedule("default", "hourly"))], &[I::ScheduleAgrees]),
        (vec![Raw(keys.tenant_schedule("default", "hourly"), b"true")], &[I::ScheduleAgrees]),
        (vec![Raw(keys.tenant_schedule("other", "hourly"), b"")], &[I::ScheduleAgrees]),
        (vec![Change(keys.schedule("hourly"), json!({ "next": 9 }))], &[I::ScheduleAgrees; 2]),
        (vec![Raw(keys.schedule("hourly"), b"{")], &[I::Readable]),
        (vec![Raw(keys.schedules_versionstamp(), b"short")], &[I::Stamped]),
        // Groups: `g` is open, and has a job; `ended` has ended.
        (vec![Clear(keys.group_mark("default", "g"))], &[I::GroupAgrees]),
        (vec![Raw(keys.group_mark("default", "g"), b"short")], &[I::Stamped]),
        (vec![Clear(keys.group_callback("default", "g", "complete"))], &[I::GroupAgrees]),
        (vec![Set(keys.group_callback("default", "nobody", "complete"), json!({}))], &[I::GroupAgrees]),
        (vec![Clear(key_of(r#"["group_removals""#))], &[I::GroupAgrees]),
        (vec![Raw(keys.group_removal(7, "default", "g"), b"")], &[I::GroupAgrees]),
        (vec![Change(keys.group("default", "ended"), json!({ "ended": null }))], &[I::GroupAgrees; 2]),
        (vec![Raw(keys.group("default", "g"), b"{")], &[I::Readable]),
        (vec![Clear(key_of(r#"["group_counts","default","g@"#))], &[I::GroupCounted]),
        (vec![Raw(keys.group_counts("default", "g@1"), b"short")], &[I::Readable]),
        (vec![Raw(keys.group_counts("default", "nobody@1"), &[1; 64])], &[I::GroupCounted]),
        (vec![Raw(keys.group_wake(), b"short")], &[I::Stamped]),
        // The store.
        (vec![Raw(keys.format(), b"99")], &[I::Format]),
        (vec![Clear(keys.format())], &[I::Format]),
        (vec![Set(foreign.into(), json!(1))], &[I::Known]),
        // Documents.
        (vec![Change(keys.sequence(DB), json!({ "documents": 9 }))], &[I::Counted]),
        (vec![Clear(keys.sequence(DB))], &[I::Counted]),
        (vec![Clear(keys.change(DB, 1))], &[I::Changed]),
        (vec![Set(keys.change(DB, 99), json!("plain"))], &[I::Changed]),
        (vec![Set(keys.change(DB, 99), json!("nothing"))], &[I::Changed]),
        (vec![Clear(keys.body_piece(DB, "plain", 0))], &[I::BodyWhole]),
        (vec![Raw(keys.body_piece(DB, "plain", 0), b"{\"a\"")], &[I::BodyWhole]),
        (vec![Clear(keys.body_piece(DB, "done", 1))], &[I::BodyWhole]),
        (vec![Clear(keys.replication(DB, "done"))], &[I::Scheduled]),
        (vec![Change(keys.replication(DB, "done"), json!({ "rev": "9-x" }))], &[I::Scheduled]),
        (vec![Clear(key_of(r#"["unresolved","#))], &[I::Resolved]),
        (vec![Raw(keys.unresolved_entry(3, DB, "plain"), b"")], &[I::Resolved]),
        (vec![Raw(keys.filter_check(3, DB, "plain"), b"")], &[I::Resolved]),
        (vec![Change(keys.replication(DB, "plain"), json!({ "check_us": 5 }))], &[I::Resolved]),
        (
            vec![Change(keys.replication(DB, "plain"), json!({ "job": null }))],
            &[I::DocumentsJob, I::DocumentsJob],
        ),
        (
            vec![Change(keys.replication(DB, "plain"), json!({ "job": "other" }))],
            &[I::DocumentsJob, I::DocumentsJob],
        ),
        (
            vec![Clear(keys.job(JOB_TYPE, replication)), Clear(key_of(r#"["pending","replication""#))],
            &[I::DocumentsJob],
        ),
        (vec![Raw(keys.document(DB, "plain"), b"1")], &[I::Readable]),
        (vec![Raw(keys.local(DB, "x"), b"1")], &[I::Readable]),
        (vec![Raw(keys.local("gone/_replicator", "x"), b"{\"rev\":1,\"body\":{}}")], &[I::DatabaseThere]),
    ];
    find_each(&home, &rows, &cases).await;
}

/// Applies each damage, checks the findings, and undoes it.
async fn find_each(home: &Home, rows: &[(Bytes, Bytes)], cases: &[(Vec<Damage>, &[Invariant])]) {
    use Invariant as I;
    for (n, (damages, expected)) in cases.iter().enumerate() {
        for one in damages {
            damage(&home.store, one).await;
        }
        let report = look(&home.store).await;
        let mut found: Vec<Invariant> = report.findings.iter().map(|finding| finding.invariant).collect();
        // An unreadable head or a missing job has further consequences, which are also found; and a record that names another
        // place counts elsewhere.
        found.retain(|found| {
            let is_count = matches!(found, I::Counted | I::JobsCounted);
            expected.contains(found) || !expected.contains(&I::Readable) && !is_count
        });
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected, "case {n}: {:#?}", report.findings);
        restore(&home.store, rows).await;
    }
    assert_eq!(look(&home.store).await.findings, []);
}

#[tokio::test]
async fn each_damage_to_locks_violates_its_own_invariant() {
    use Invariant as I;
    let home = Home::new().await;
    fill(&home.store, "u", 1).await;
    let keys = &Keyspace::default();
    let levels = &Levels::default();
    let claim = |number| Claim { worker: "worker".into(), number };
    let node = &Spot::resource("node", "n");
    let create = |tx: Transaction| async move {
        for (id, declared) in [
            ("holds", r#"{"node":{"exclusive":["n"]},"network":{"shared":["w"]}}"#),
            ("waits", r#"{"node":{"exclusive":"unknown"},"instance":{"shared":["i"]}}"#),
            ("reserves", r#"{"node":{"exclusive":["n"]}}"#),
        ] {
            let mut new = NewJob::new("t", id, serde_json::value::RawValue::from_string("1".into()).unwrap());
            new.spec.locks = serde_json::from_str(declared).unwrap();
            jobs::add(&tx, keys, &new, 5).await?;
        }
        for (number, id) in [(901, "holds"), (902, "waits")] {
            claims::claim(Context::new(&tx, keys, "t", 6, 20), id, &claim(number))
                .await?
                .expect("it is free");
        }
        let lock = [LockAt::new(node.clone(), Mode::Exclusive)];
        locks::request(&tx, keys, levels, RunKey::new("t", "waits", &claim(902)), &lock, 7).await?;
        assert_eq!(locks::reserve(&tx, keys, "t", "reserves", 8).await?, Some(8));
        Ok::<_, turnwise_queue::Error>(())
    };
    home.store.transact(create).await.unwrap();
    let report = look(&home.store).await;
    assert_eq!(report.findings, []);
    assert_eq!((report.families["locks"], report.families["lock_queue"]), (5, 3));
    let rows = crate::common::all_rows(&home.store).await;
    let network = &Spot::resource("network", "w");
    let held = |spot: &Spot, mode, id: &str| keys.lock_holder(spot, mode, "t", id);
    let holder = json!({ "worker": "worker", "number": 902, "tenant": "default", "since_us": 6, "units": 1 });
    let cases: Vec<(Vec<Damage>, &[I])> = vec![
        (vec![Clear(held(node, Mode::Exclusive, "holds"))], &[I::LockAgrees]),
        (vec![Change(held(network, Mode::Shared, "holds"), json!({ "number": 900 }))], &[I::LockAgrees]),
        (vec![Set(held(network, Mode::Shared, "nobody"), holder.clone())], &[I::LockAgrees]),
        (vec![Set(held(network, Mode::Shared, "waits"), holder.clone())], &[I::LockAgrees]),
        (vec![Set(held(node, Mode::Exclusive, "waits"), holder.clone())], &[I::LockAgrees, I::LockExcludes]),
        (
            vec![
                Change(held(network, Mode::Shared, "holds"), json!({ "units": 3, "capacity": 4 })),
                Set(
                    held(network, Mode::Shared, "waits"),
                    json!({ "worker": "worker", "number": 902, "tenant": "x", "since_us": 6, "units": 2, "capacity": 4 }),
                ),
            ],
            &[I::LockAgrees, I::LockCapacity],
        ),
        (vec![Clear(keys.lock_queue_entry(node, 7, "t", "waits"))], &[I::LockAgrees]),
        (vec![Clear(keys.lock_queue_entry(node, 8, "t", "reserves"))], &[I::LockAgrees]),
        (
            vec![Change(keys.job("t", "reserves"), json!({ "reserved": null }))],
            &[I::LockAgrees, I::LockAgrees],
        ),
        (vec![Change(keys.job("t", "waits"), json!({ "state": "running" }))], &[I::OnePlace]),
        (vec![Change(keys.job("t", "reserves"), json!({ "locks": {} }))], &[I::LockAgrees; 3]),
        (vec![Raw(held(node, Mode::Exclusive, "holds"), b"1")], &[I::Readable]),
        (vec![Raw(keys.lock_wake(), b"short")], &[I::Stamped]),
    ];
    find_each(&home, &rows, &cases).await;
}

#[tokio::test]
async fn each_damage_to_buckets_violates_its_own_invariant() {
    use Invariant as I;
    let home = Home::new().await;
    fill(&home.store, "u", 1).await;
    let keys = &Keyspace::default();
    let levels = &Levels::default();
    let claim = |number| Claim { worker: "worker".into(), number };
    let rule = &Rule {
        id: "few".into(),
        priority: 0,
        watermark_us: 0,
        when: "id = b".into(),
        action: Action::Concurrency,
        limit: Some(1),
        rate: None,
        note: None,
    };
    let limit = &rule.concurrency().unwrap();
    let create = |tx: Transaction| async move {
        filters::put(&tx, keys, rule).await?;
        for id in ["a", "b", "full", "room", "rated"] {
            let mut new = NewJob::new("t", id, serde_json::value::RawValue::from_string("1".into()).unwrap());
            new.spec.reasons = vec!["concurrency:2:net".into()];
            jobs::add(&tx, keys, &new, 5).await?;
        }
        let tally = &mut Tally::default();
        let rate = RateLimit { bucket: rate::of_filter("few", None), rate: Rate::new(1, 60_000) };
        let limits = Limits { concurrency: Some(limit.clone()), rate: Some(rate.clone()) };
        for (number, id, filter) in [(901, "a", None), (902, "b", Some(&limits))] {
            let claim = claim(number);
            let claimed = claims::claim_within(
                Context::new(&tx, keys, "t", 6, 20),
                levels,
                tally,
                filter,
                &(&Terms::default()).into(),
                id,
                &claim,
            )
            .await?;
            assert!(claimed.job().is_some());
        }
        for (id, bucket, most) in [("full", "net", 2), ("room", "other", 1)] {
            let limit = Limit { bucket: Bucket::Reason(bucket.into()), most };
            assert!(concurrency::hold_back(&tx, keys, "t", id, &limit, None, 7).await?);
        }
        let limit = Limit { bucket: rate.bucket, most: 1 };
        let full = Full { limit, running: 0, rate: Some((rate.rate, 60_000_006)) };
        assert!(concurrency::hold_back_until(&tx, keys, "t", "rated", &full, None, 7).await?);
        Ok::<_, turnwise_queue::Error>(())
    };
    home.store.transact(create).await.unwrap();
    let report = look(&home.store).await;
    assert_eq!(report.findings, []);
    let count = |family: &str| report.families[family];
    assert_eq!((count("rates"), count("limited"), count("roomy"), count("rate_guard")), (3, 3, 3, 2));
    assert_eq!((count("starts"), count("start_counts")), (1, 1));
    let rows = crate::common::all_rows(&home.store).await;
    let (net, other) = (&Bucket::Reason("net".into()), &Bucket::Reason("other".into()));
    let place = |id: &str| keys.bucket_holder(net, "t", id);
    let held = json!({ "worker": "worker", "number": 901, "tenant": "default", "since_us": 6, "most": 2 });
    let stands = LimitedPlace {
        limit: Limit { bucket: other.clone(), most: 1 },
        tenant: "default".into(),
        priority: 0,
        order_us: 5,
    };
    let cases: Vec<(Vec<Damage>, &[I])> = vec![
        (vec![Clear(place("a"))], &[I::BucketAgrees]),
        (vec![Change(place("a"), json!({ "number": 900 }))], &[I::BucketAgrees]),
        (vec![Set(place("nobody"), held.clone())], &[I::BucketAgrees, I::BucketHolds]),
        (vec![Set(place("full"), held)], &[I::BucketAgrees, I::BucketHolds]),
        (vec![Raw(place("a"), b"1")], &[I::Readable]),
        (vec![Clear(keys.bucket_holder(&limit.bucket, "t", "b"))], &[I::BucketAgrees]),
        (vec![Clear(keys.limited_entry("t", &stands, "room"))], &[I::OnePlace]),
        (vec![Raw(keys.limited_entry("t", &stands, "nobody"), b"{}")], &[I::Owned]),
        (vec![Raw(keys.limited_entry("t", &stands, "room"), b"x")], &[I::Readable]),
        (vec![Clear(keys.roomy_entry("t", other))], &[I::BucketMarked]),
        // An unmarked entry is valid: a server is about to mark the type.
        (vec![Clear(keys.roomy_entry("t", other)), Raw(keys.unmarked_entry(other), b"null")], &[]),
        (vec![Clear(keys.roomy_entry("t", net))], &[]),
        (vec![Raw(keys.roomy_entry("t", net), b"short")], &[I::Stamped]),
        (vec![Clear(keys.roomy_at("t", 60_000_006, "few"))], &[I::BucketMarked]),
        (vec![Raw(keys.roomy_at("t", 60_000_006, "few"), b"x")], &[I::Readable]),
        (vec![Change(keys.start_count("few"), json!({ "total": 0 }))], &[I::StartsCounted]),
        (vec![Set(keys.start_entry("few", 2), json!(9))], &[I::StartsCounted]),
        (vec![Change(keys.start_count("few"), json!({ "last_us": 5 }))], &[I::StartsCounted]),
        (vec![Raw(keys.start_entry("few", 1), b"x")], &[I::Readable]),
        (vec![Raw(keys.start_count("few"), b"x")], &[I::Readable, I::StartsCounted]),
    ];
    find_each(&home, &rows, &cases).await;
}

/// Restores the store to these rows.
async fn restore(store: &Store, rows: &[(Bytes, Bytes)]) {
    let now = crate::common::all_rows(store).await;
    let (now, rows) = (&now, &rows);
    let write = |tx: Transaction| async move {
        for (key, _) in now.iter().filter(|row| !rows.contains(row)) {
            tx.clear(key.clone())?;
        }
        for (key, value) in rows.iter().filter(|row| !now.contains(row)) {
            tx.set(key.clone(), value.clone())?;
        }
        Ok::<_, Error>(())
    };
    store.transact(write).await.unwrap();
}

#[tokio::test]
async fn a_store_in_use_gives_no_false_alarm() {
    let home = home().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut users = Vec::new();
    for user in 0..3 {
        let (store, stop) = (home.store.clone(), stop.clone());
        users.push(tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                step(&store, user, n).await;
            }
            n
        }));
    }
    let mut examined = 0;
    for _ in 0..8 {
        let report = check(&home.store, true, &Progress::default()).await.unwrap();
        assert_eq!(report.findings, []);
        examined += report.examined;
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        assert!(user.await.unwrap() > 0);
    }
    assert!(examined > 0);
    assert_eq!(look(&home.store).await.findings, []);
}

/// One step of a user that adds, runs, ends and removes jobs, registers and removes workers, and writes and deletes documents.
async fn step(store: &Store, user: i64, n: i64) {
    let keys = &Keyspace::default();
    let (id, worker) = (&format!("u{user}-{}", n % 20), &format!("worker-{user}-{}", n / 30));
    let claim = &Claim { worker: worker.clone(), number: u64::try_from(n).unwrap() };
    let now_us = 10_000 + n;
    let settings = &Settings { server_uuid: "u".into(), defaults: Defaults::default() };
    let write = |tx: Transaction| async move {
        match n % 7 {
            0 => workers::register(&tx, keys, "t", &Worker::new(worker, "n", 1, 1))?,
            1 | 2 => {
                let options = serde_json::value::RawValue::from_string("{}".into()).unwrap();
                let mut new = NewJob::new("t", id, options);
                if n % 2 == 0 {
                    let declared = format!(r#"{{"node":{{"exclusive":["n{}"],"shared":["s"]}}}}"#, n % 5);
                    new.spec.locks = serde_json::from_str(&declared).unwrap();
                }
                new.spec.reasons = vec![format!("concurrency:1:{}", n % 3)];
                jobs::add(&tx, keys, &new, now_us).await?;
                let levels = Levels::default();
                let claimed =
                    claims::claim_with(Context::new(&tx, keys, "t", now_us, 20), &levels, id, claim).await?;
                if let Claiming::Limited(full) = claimed {
                    concurrency::hold_back(&tx, keys, "t", id, &full.limit, None, now_us).await?;
                }
            }
            3 => {
                for (id, active) in jobs::active_of(&tx, keys, "t", worker, 3).await? {
                    let claim = Claim { worker: worker.clone(), number: active.claim };
                    claims::end(
                        Context::new(&tx, keys, "t", now_us, 20),
                        &id,
                        &claim,
                        &Ending::Stopped,
                        None,
                        None,
                    )
                    .await?;
                }
            }
            4 if n % 2 == 0 => {
                let first = |waiting: &[(String, usize)], _: usize| (0..waiting.len()).collect();
                concurrency::release_limited(
                    &tx,
                    keys,
                    "t",
                    ReleaseOptions {
                        rotation: &concurrency::Rotation::default(),
                        most: 3,
                        clears: true,
                        tasks: &Tasks::default(),
                        now_us: 9,
                    },
                    |_, _| true,
                    first,
                )
                .await?;
            }
            4 => drop(workers::remove(Context::new(&tx, keys, "t", now_us, 20), worker, 100).await?),
            5 => jobs::remove(&tx, keys, "t", id).await?,
            _ => {
                let body = json!({ "source": format!("http://a:1/{id}"), "target": "http://b:1/t" });
                let current = turnwise_replicator::documents::read::get(&tx, keys, DB, id, None).await.ok();
                let rev = current.map(|document| document.head.rev);
                let draft = Draft {
                    id: id.clone(),
                    rev,
                    deleted: n % 2 == 0,
                    body: body.as_object().unwrap().clone(),
                };
                doc_processor::write(&tx, keys, settings, DB, &draft, now_us).await.map(drop).or_else(
                    |error| match error {
                        turnwise_replicator::documents::Error::Queue(error) => Err(error),
                        _ => Ok(()),
                    },
                )?;
            }
        }
        Ok::<_, turnwise_queue::Error>(())
    };
    match store.transact(write).await {
        Ok(()) | Err(turnwise_queue::Error::Halt | turnwise_queue::Error::NotFound) => {}
        Err(error) => panic!("{error}"),
    }
}
