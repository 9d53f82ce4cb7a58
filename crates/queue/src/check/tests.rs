//! Every key is parsed, and each violation is found.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::predictive_queue::locks::Mode;

use super::*;
use crate::concurrency::LimitedPlace;
use crate::keyspace::{QueuePlace, SortKey};
use crate::locks::Spot;
use crate::{Keyspace, Parked};

#[test]
fn every_key_of_the_keyspace_has_a_meaning() {
    let keys = Keyspace::default();
    let job = || ("t".to_owned(), "i".to_owned());
    let by_time = |order_us| QueuePlace::by_time("x", order_us);
    let by_key = |key| QueuePlace { key: SortKey::new(key), ..by_time(-5) };
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let at = Parked { group: "g".into(), key: "k".into() };
    let filter = Bucket::Filter("f".into());
    let held_back = || LimitedPlace {
        limit: Limit { bucket: Bucket::Reason("b".into()), most: 7 },
        tenant: "x".into(),
        priority: -3,
        order_us: -5,
    };
    let (big, all, spot) = (Spot::BIG_LOCK, Spot::whole("l"), Spot::resource("l", "r"));
    for (key, row) in [
        (keys.format(), Row::Other),
        (keys.server_uuid(), Row::Other),
        (keys.clock(), Row::Clock),
        (keys.job("t", "i"), Row::Job(job())),
        (keys.options_piece("t", "i", 7), Row::Options(job(), 7)),
        (keys.output_row("t", "i", "log", 0), Row::Output(job(), "log".into(), 0)),
        (keys.log_head("t", "i"), Row::Output(job(), "log".into(), -1)),
        (keys.tag_entry("t", "eu", "u", "i"), Row::Tag(job(), "eu".into(), "u".into())),
        (keys.pending_entry("t", &by_time(-5), "i"), Row::Index(job(), IndexRow::Pending(by_time(-5)))),
        (keys.pending_entry("t", &by_key(-0.1), "i"), Row::Index(job(), IndexRow::Pending(by_key(-0.1)))),
        (keys.parked_entry("t", &at, "i"), Row::Parked(job(), at.clone())),
        (keys.unwatched_entry("t", &at, "i"), Row::Unwatched(job(), at.clone())),
        (keys.unwatched_wake("t"), Row::Stamp),
        (keys.lock_holder(&spot, Mode::Shared, "t", "i"), Row::Lock(job(), spot.clone(), Mode::Shared)),
        (keys.lock_holder(&big, Mode::Exclusive, "t", "i"), Row::Lock(job(), big.clone(), Mode::Exclusive)),
        (keys.lock_queue_entry(&all, 7, "t", "i"), Row::LockQueue(job(), all.clone(), 7)),
        (keys.lock_wake(), Row::Stamp),
        (keys.limited_entry("t", &held_back(), "i"), Row::Index(job(), IndexRow::Limited(held_back()))),
        (keys.bucket_holder(&filter, "t", "i"), Row::InBucket(job(), filter.clone())),
        (keys.bucket_guard(255), Row::Other),
        (keys.after_guard(), Row::Other),
        (keys.follower(("t", "i"), "u", "j"), Row::Follower(job(), ("u".into(), "j".into()))),
        (keys.unmarked_entry(&Bucket::Reason("r".into())), Row::Unmarked(Bucket::Reason("r".into()))),
        (keys.roomy_entry("t", &filter), Row::Roomy("t".into(), filter.clone())),
        (keys.roomy_at("t", 5, "f\nk"), Row::Roomy("t".into(), Bucket::Rate("f\nk".into()))),
        (keys.start_count("f"), Row::StartCount("f".into())),
        (keys.start_entry("f", 7), Row::Start("f".into(), 7)),
        (keys.waiting_entry("t", "a"), Row::Waiting("t".into(), a.clone())),
        (keys.usage_entry("t", "a", "b"), Row::Usage("t".into(), a.clone(), b.clone())),
        (keys.run_times("t"), Row::RunTimes("t".into())),
        (keys.boost("t"), Row::Boost("t".into())),
        (keys.delayed_entry("t", 5, "i"), Row::Index(job(), IndexRow::Delayed(5))),
        (keys.ended_entry("t", 7, 5, "i"), Row::Index(job(), IndexRow::Ended(7, 5))),
        (keys.active_entry("t", "a", "i"), Row::Index(job(), IndexRow::Active(a.clone()))),
        (keys.lifetime_entry(5, "t", "i"), Row::Lifetime(job(), 5)),
        (keys.unique("h"), Row::Unique("h".into())),
        (keys.unique_until(5, "h"), Row::UniqueUntil(5, "h".into())),
        (keys.unique_secret(), Row::Secret),
        (keys.deadline(5, "t", "i"), Row::Deadline(job(), 5)),
        (keys.wake("t"), Row::Wake("t".into())),
        (keys.signal("t", "i"), Row::Worker(job(), WorkerRow::Signal)),
        (keys.claim_number("t", "i"), Row::Worker(job(), WorkerRow::Claims)),
        (keys.worker("t", "i"), Row::Worker(job(), WorkerRow::Member)),
        (keys.health("t", "i"), Row::Worker(job(), WorkerRow::Health)),
        (keys.node_mode("n"), Row::Other),
        (keys.workers_versionstamp("t"), Row::Membership("t".into())),
        (keys.database("a"), Row::Database(a.clone())),
        (keys.sequence("a"), Row::Sequence(a.clone())),
        (keys.document("a", "b"), Row::Document(a.clone(), b.clone())),
        (keys.body_piece("a", "b", 1), Row::Body(a.clone(), b.clone(), 1)),
        (keys.local("a", "b"), Row::Local(a.clone(), b.clone())),
        (keys.change("a", 9), Row::Change(a.clone(), 9)),
        (keys.replication("a", "b"), Row::Replication(a.clone(), b.clone())),
        (keys.mirror("a"), Row::Mirror(a.clone())),
        (keys.mirror_seen("a", "b"), Row::Mirror(a.clone())),
        (keys.mirror_owed("a", "b"), Row::Mirror(a.clone())),
        (keys.unresolved_entry(3, "a", "b"), Row::Unresolved(3, a.clone(), b.clone())),
        (keys.filter_check(3, "a", "b"), Row::FilterCheck(3, a, b)),
        (keys.unresolved_wake(), Row::Stamp),
        (keys.config_entry("a", "b"), Row::Other),
        (keys.config_versionstamp(), Row::Stamp),
        (keys.bulk("a"), Row::Secret),
        (keys.bulk_used(None, "a"), Row::Secret),
        (keys.bulk_used(Some("user:jan"), "a"), Row::Secret),
        (keys.bulk_wake(), Row::Stamp),
        (keys.fleet("a"), Row::Other),
        (keys.webhook("a"), Row::Secret),
        (keys.webhook_progress("a"), Row::Secret),
        (keys.webhook_more("a"), Row::Secret),
        (keys.webhooks_versionstamp(), Row::Stamp),
        (keys.schedule("a"), Row::Schedule("a".into())),
        (keys.schedule_options_piece("a", 1), Row::ScheduleOptions("a".into(), 1)),
        (keys.schedule_due_entry(5, "a"), Row::ScheduleDue(5, "a".into())),
        (keys.schedule_ends("a"), Row::ScheduleEnds("a".into())),
        (keys.tenant_schedule("t", "a"), Row::TenantSchedule("t".into(), "a".into())),
        (keys.schedules_versionstamp(), Row::Stamp),
        (keys.user("a"), Row::Secret),
        (keys.token("a"), Row::Secret),
        (keys.token_use("a"), Row::Other),
        (keys.session_key(), Row::Secret),
        (keys.identities_versionstamp(), Row::Stamp),
    ] {
        assert_eq!(Row::parse(&keys, &key), Some(row), "{}", key_text(&key));
    }
    let zero = turnwise_store::tuple::pack(&("turnwise", "pending", "t", "x", -0.0, 0, 5, "i"));
    let new = turnwise_store::tuple::pack(&("turnwise", "new", 1));
    let nameless = turnwise_store::tuple::pack(&("turnwise", "locks", None::<&str>, "shared", "r", "t", "i"));
    let modeless = turnwise_store::tuple::pack(&("turnwise", "locks", "l", "queue", "r", "t", "i"));
    for key in [&b"x"[..], b"", &keys.jobs("t").0, &new, &zero, &nameless, &modeless] {
        assert_eq!(Row::parse(&keys, key), None, "{}", key_text(key));
    }
    let keyed = keys.pending_entry("t", &by_key(0.5), "i\"");
    assert_eq!(key_text(&keyed), r#"["pending","t","x",0.5,0,-5,"i\""]"#);
    // Without a key first, then by the key; within that by priority and time.
    let of_priority = |priority, place| QueuePlace { priority, ..place };
    let places = [
        of_priority(-20, by_time(9)),
        of_priority(-1, by_time(8)),
        by_time(7),
        of_priority(19, by_time(1)),
        by_key(-1.5),
        by_key(-1.0),
        by_key(0.0),
        by_key(2.0),
    ];
    let rows: Vec<_> = places.iter().map(|place| keys.pending_entry("t", place, "i")).collect();
    assert!(rows.is_sorted(), "{rows:?}");
    assert_eq!(key_text(b"\xffx"), r#"{"$bytes":"ff78"}"#);
}

fn record(extra: serde_json::Value) -> Bytes {
    let mut job = json!({"state": "pending", "tenant": "x", "added_us": 1, "changed_us": 2, "order_us": 3,
        "history": [], "summary": {}, "options": {}});
    for (name, value) in extra.as_object().unwrap() {
        match value.is_null() {
            true => drop(job.as_object_mut().unwrap().remove(name)),
            false => job[name] = value.clone(),
        }
    }
    Bytes::from(job.to_string())
}

/// The row of a job outside of the queue, and its value.
fn row_of(state: &str) -> (IndexRow, String) {
    let job = crate::rows::decode_job(&record(json!({ "state": state }))).unwrap();
    (job.index_row(), String::from_utf8(job.row_value().to_vec()).unwrap())
}

/// The findings for a job with this record and these rows; worker `w` is known.
fn found(extra: serde_json::Value, places: &[(IndexRow, &str)], pieces: &[(u32, usize)]) -> Vec<Invariant> {
    let key = ("t".to_owned(), "i".to_owned());
    let mut rows = JobRows::default();
    if !extra.is_null() {
        // A record that cannot be read still counts as existing.
        let _ = rows.set_record(&key, Some(&record(extra)));
    }
    rows.places = places.iter().map(|(place, value)| (place.clone(), value.to_string().into())).collect();
    rows.pieces = pieces.iter().copied().collect();
    let findings = check_job(&Keyspace::default(), &key, &rows, |worker| worker.1 == "w");
    findings.into_iter().map(|finding| finding.invariant).collect()
}

#[test]
fn a_job_is_checked() {
    let active = |claim: u64, cancel: bool| {
        json!({"claim": claim, "tenant": "x", "started_us": 1, "updated_us": 1, "cancel_requested": cancel,
            "summary": {}})
        .to_string()
    };
    let running = || json!({"state": "running", "claim": ["w", 4]});
    let of = |worker: &str| IndexRow::Active(worker.to_owned());
    let by_time = |order_us| IndexRow::Pending(QueuePlace::by_time("x", order_us));
    let pending = || (by_time(3), "");
    let (failed_row, failed_value) = row_of("failed");
    let failed = || (failed_row.clone(), failed_value.as_str());
    let (crashing_row, crashing_value) = row_of("crashing");
    assert_eq!(found(json!({}), &[pending()], &[]), []);
    let crashing = || json!({"state": "crashing"});
    assert_eq!(found(crashing(), &[(crashing_row.clone(), &crashing_value)], &[]), []);
    assert_eq!(found(crashing(), &[(crashing_row, "")], &[]), [Invariant::RowAgrees]);
    assert_eq!(found(json!({"state": "failed", "order_us": null}), &[failed()], &[]), []);
    assert_eq!(found(json!({"state": "failed"}), &[failed()], &[]), [Invariant::OnePlace], "a time too many");
    assert_eq!(found(running(), &[(of("w"), &active(4, false))], &[]), []);
    assert_eq!(found(json!({"options": null}), &[pending()], &[(0, 90_000), (1, 3)]), []);

    assert_eq!(found(json!({}), &[], &[]), [Invariant::OnePlace]);
    assert_eq!(found(json!({}), &[pending(), failed()], &[]), [Invariant::OnePlace]);
    let wrong = [Invariant::OnePlace, Invariant::OnePlace];
    assert_eq!(found(json!({}), &[(by_time(4), "")], &[]), wrong);
    assert_eq!(found(json!(null), &[pending()], &[(0, 5)]), [Invariant::Owned, Invariant::Owned]);
    let unreadable = [Invariant::Readable];
    assert_eq!(found(json!({"state": "running"}), &[], &[]), unreadable, "no claim");
    let by_key =
        (IndexRow::Pending(QueuePlace { key: SortKey::new(0.1), ..QueuePlace::by_time("x", 3) }), "");
    assert_eq!(found(json!({"keyed": true, "priority": 0.1}), std::slice::from_ref(&by_key), &[]), []);
    assert_eq!(found(json!({"priority": 0.1}), &[pending()], &[]), []);
    assert_eq!(found(json!({"priority": 0.1}), &[by_key], &[]), wrong);
    assert_eq!(found(json!({"keyed": true}), &[pending()], &[]), [Invariant::Keyed]);
    let ended = json!({"state": "failed", "keyed": true, "priority": 0.1});
    assert_eq!(found(ended, &[failed()], &[]), [Invariant::OnePlace]);
    let unclaimed = json!({"claim": ["w", 4]});
    assert_eq!(found(unclaimed, &[pending()], &[]), [Invariant::OnePlace]);
    assert_eq!(found(json!({"then": "remove"}), &[pending()], &[]), [Invariant::OnePlace]);
    let lost = json!({"state": "running", "claim": ["v", 4]});
    assert_eq!(found(lost, &[(of("v"), &active(4, false))], &[]), [Invariant::HolderKnown]);
    for wrong in [active(5, false), active(4, true)] {
        assert_eq!(found(running(), &[(of("w"), &wrong)], &[]), [Invariant::ActiveAgrees]);
    }
    assert_eq!(found(running(), &[(of("w"), "[]")], &[]), [Invariant::Readable]);
    let ended = json!({"state": "running", "claim": ["w", 4],
        "ended_claim": ["w", 4]});
    assert_eq!(found(ended, &[(of("w"), &active(4, false))], &[]), [Invariant::ClaimUnique]);
    for pieces in [&[(0, 5)][..], &[(3, 5)]] {
        assert_eq!(found(json!({}), &[pending()], pieces), [Invariant::OptionsWhole]);
    }
    for pieces in [&[][..], &[(1, 5)], &[(0, 90_000), (2, 5)], &[(0, 5), (1, 5)]] {
        assert_eq!(found(json!({"options": null}), &[pending()], pieces), [Invariant::OptionsWhole]);
    }
}

#[test]
fn a_worker_is_checked() {
    let key = ("t".to_owned(), "w".to_owned());
    let member = json!({"node": "n", "started_us": 1, "slots": 1, "health_timeout_us": 9}).to_string();
    let health = json!({"counter": 1, "timeout_us": 9, "seen_us": 1}).to_string();
    let other = json!({"counter": 1, "timeout_us": 8, "seen_us": 1}).to_string();
    let found = |rows: &[(WorkerRow, &str)]| -> Vec<Invariant> {
        let rows: BTreeMap<_, _> = rows.iter().map(|(row, value)| (*row, value.to_string().into())).collect();
        let findings = check_worker(&Keyspace::default(), &key, &rows);
        findings.into_iter().map(|finding| finding.invariant).collect()
    };
    use WorkerRow::{Claims, Health, Member, Signal};
    assert_eq!(found(&[(Member, &member), (Health, &health), (Claims, "3"), (Signal, "0123456789")]), []);
    // The worker is being removed.
    assert_eq!(found(&[(Health, &health), (Claims, "3")]), []);
    assert_eq!(found(&[(Member, &member)]), [Invariant::MemberHealthy]);
    assert_eq!(found(&[(Signal, "0123456789")]), [Invariant::Outlived]);
    assert_eq!(found(&[(Member, &member), (Health, &other)]), [Invariant::WorkerAgrees]);
    assert_eq!(found(&[(Member, "{}"), (Health, &health)]), [Invariant::Readable]);
    assert_eq!(found(&[(Health, &health), (Claims, "x")]), [Invariant::Readable]);
    assert_eq!(found(&[(Health, &health), (Signal, "x")]), [Invariant::Stamped]);
}

#[test]
fn two_claims_of_a_worker_differ_and_are_counted() {
    let active = |claim: u64| {
        serde_json::from_value(json!({"claim": claim, "tenant": "x", "started_us": 1, "updated_us": 1,
            "summary": {}}))
        .unwrap()
    };
    let found = |claims: &[u64], counted| -> Vec<Invariant> {
        let rows = claims.iter().enumerate().map(|(n, claim)| (n.to_string(), active(*claim))).collect();
        let key = ("t".to_owned(), "w".to_owned());
        let findings = check_claims(&Keyspace::default(), &key, &rows, counted);
        findings.into_iter().map(|finding| finding.invariant).collect()
    };
    assert_eq!(found(&[1, 2, 9], None), []);
    assert_eq!(found(&[1, 2, 9], Some(9)), []);
    assert_eq!(found(&[1, 2, 1], None), [Invariant::ClaimUnique]);
    assert_eq!(found(&[1, 2, 9], Some(8)), [Invariant::ClaimCounted]);
}

/// The findings for a job that wants locks. Its rows are `place`, a row for each lock in `held` (with the number of the
/// claim that holds it), and an entry with `ticket` in the queue of `l/r`.
fn found_in_locks(
    extra: serde_json::Value,
    place: (IndexRow, &str),
    held: &[(Spot, Mode, u64)],
    ticket: Option<(i64, Option<u64>)>,
) -> Vec<Invariant> {
    let key = ("t".to_owned(), "i".to_owned());
    let mut rows = JobRows::default();
    let named = extra["held"].clone();
    rows.set_record(&key, Some(&record(extra))).unwrap();
    rows.places = [(place.0, place.1.to_owned().into())].into();
    let add = |rows: &mut JobRows, row, value: serde_json::Value| {
        rows.add(row, &Bytes::from(value.to_string())).unwrap();
    };
    let job = rows.record.clone().unwrap();
    for (spot, mode, number) in held {
        let mut row = json!({"worker": "w", "number": number, "tenant": "x", "since_us": 1, "units": 1});
        if *spot == Spot::BIG_LOCK {
            row["all"] = json!({"locks": job.locks, "held": named});
            if let Some(waits) = job.waits() {
                row["all"]["waits"] = json!(waits.lock);
            }
        }
        add(&mut rows, Row::Lock(key.clone(), spot.clone(), *mode), row);
    }
    if let Some((ticket, number)) = ticket {
        let mut row = json!({"mode": "exclusive", "units": 1, "tenant": "x", "since_us": 1});
        if let Some(number) = number {
            row["waits"] = json!({"worker": "w", "number": number, "inside": false});
        }
        add(&mut rows, Row::LockQueue(key.clone(), Spot::resource("l", "r"), ticket), row);
    }
    let findings = check_job(&Keyspace::default(), &key, &rows, |_| true);
    findings.into_iter().map(|finding| finding.invariant).collect()
}

#[test]
fn the_places_of_a_job_in_buckets_are_checked() {
    let found = |job: serde_json::Value, place: IndexRow, buckets: &[(&str, u64)]| -> Vec<Invariant> {
        let key = ("t".to_owned(), "i".to_owned());
        let mut rows = JobRows::default();
        rows.set_record(&key, Some(&record(job))).unwrap();
        let active = json!({"claim": 4, "tenant": "x", "started_us": 1, "updated_us": 1, "summary": {}});
        let value = match place {
            IndexRow::Active(_) => active.to_string(),
            IndexRow::Limited(_) => "{}".to_owned(),
            IndexRow::Ended(..) => row_of("failed").1,
            _ => String::new(),
        };
        rows.add(Row::Index(key.clone(), place), &value.into()).unwrap();
        for (name, number) in buckets {
            let row = json!({"worker": "w", "number": number, "tenant": "x", "since_us": 1, "most": 2});
            let bucket = Bucket::Reason((*name).to_owned());
            rows.add(Row::InBucket(key.clone(), bucket), &row.to_string().into()).unwrap();
        }
        let findings = check_job(&Keyspace::default(), &key, &rows, |_| true);
        findings.into_iter().map(|finding| finding.invariant).collect()
    };
    const WRONG: Invariant = Invariant::BucketAgrees;
    let runs = || IndexRow::Active("w".into());
    let claim = json!(["w", 4]);
    let running = || json!({"state": "running", "claim": claim, "buckets": [{"reason": "a"}]});
    assert_eq!(found(running(), runs(), &[("a", 4)]), []);
    assert_eq!(found(running(), runs(), &[]), [WRONG], "a row is missing");
    assert_eq!(found(running(), runs(), &[("a", 3)]), [WRONG], "of another claim");
    assert_eq!(found(running(), runs(), &[("a", 4), ("b", 4)]), [WRONG], "one too many");
    let limit = Limit { bucket: Bucket::Reason("a".into()), most: 2 };
    let place = LimitedPlace { limit: limit.clone(), tenant: "x".into(), priority: 0, order_us: 3 };
    let held_back = || json!({"state": "delayed", "limited": limit});
    assert_eq!(found(held_back(), IndexRow::Limited(place.clone()), &[]), []);
    assert_eq!(found(held_back(), IndexRow::Delayed(3), &[]), [Invariant::OnePlace; 2]);
    let pending = IndexRow::Pending(QueuePlace::by_time("x", 3));
    assert_eq!(found(json!({"limited": limit}), pending, &[]), [Invariant::OnePlace]);
    let ended = json!({"state": "failed", "buckets": [{"reason": "a"}]});
    assert_eq!(found(ended, row_of("failed").0, &[("a", 4)]), [Invariant::OnePlace, WRONG]);
}

#[test]
fn the_locks_of_a_job_are_checked() {
    const WRONG: Invariant = Invariant::LockAgrees;
    let active =
        json!({"claim": 4, "tenant": "x", "started_us": 1, "updated_us": 1, "summary": {}}).to_string();
    let active = || (IndexRow::Active("w".into()), active.as_str());
    let wants = json!({"l": {"exclusive": ["r"]}});
    let claim = json!(["w", 4]);
    let holds = json!({"big_lock": "shared", "levels": {"l": {"exclusive": ["r"]}}});
    let running = || json!({"state": "running", "claim": claim, "locks": wants, "held": holds});
    let big = |number| (Spot::BIG_LOCK, Mode::Shared, number);
    let one = |number| (Spot::resource("l", "r"), Mode::Exclusive, number);
    assert_eq!(found_in_locks(running(), active(), &[big(4), one(4)], None), []);
    assert_eq!(found_in_locks(running(), active(), &[big(4)], None), [WRONG], "a row is missing");
    assert_eq!(found_in_locks(running(), active(), &[big(4), one(3)], None), [WRONG], "of another claim");
    let other = (Spot::resource("l", "s"), Mode::Shared, 4);
    assert_eq!(found_in_locks(running(), active(), &[big(4), one(4), other], None), [WRONG], "one too many");
    let unheld = json!({"state": "running", "claim": claim, "locks": wants});
    assert_eq!(found_in_locks(unheld, active(), &[], None), [WRONG], "it holds nothing");
    assert_eq!(found_in_locks(running(), active(), &[big(4), one(4)], Some((9, Some(4)))), [WRONG]);

    let mut waits = running();
    waits["state"] = "waiting".into();
    waits["held"] = json!({"big_lock": "shared"});
    waits["waits"] = json!({"level": "l", "name": "r", "mode": "exclusive", "ticket": 9, "since_us": 1});
    assert_eq!(found_in_locks(waits.clone(), active(), &[big(4)], Some((9, Some(4)))), []);
    assert_eq!(
        found_in_locks(waits.clone(), active(), &[big(4)], Some((9, Some(3)))),
        [WRONG],
        "another claim"
    );
    assert_eq!(found_in_locks(waits.clone(), active(), &[big(4)], Some((8, Some(4)))), [WRONG, WRONG]);

    let pending = || (IndexRow::Pending(QueuePlace::by_time("x", 3)), r#"{"l":{"exclusive":["r"]}}"#);
    let job = json!({"locks": wants});
    assert_eq!(found_in_locks(job.clone(), pending(), &[], None), []);
    assert_eq!(
        found_in_locks(job, (pending().0, ""), &[], None),
        [WRONG],
        "its row does not say what it wants"
    );
    let all = json!({"locks": wants, "reserved": 9});
    // The row of the big lock is missing.
    assert_eq!(found_in_locks(all.clone(), pending(), &[], Some((9, None))), [WRONG]);
    assert_eq!(found_in_locks(all, pending(), &[one(4)], Some((9, None))), [WRONG, WRONG]);
    let ended = json!({"state": "failed", "held": holds});
    let stray = [Invariant::OnePlace, WRONG, WRONG];
    let (row, value) = row_of("failed");
    assert_eq!(found_in_locks(ended, (row, &value), &[big(4), one(4)], None), stray);
}

#[test]
fn the_holders_of_a_level_are_compared() {
    let keys = Keyspace::default();
    let found = |held: &[(&Spot, Mode, &str, u32, Option<u32>)]| -> Vec<Invariant> {
        let mut rows: Vec<(Bytes, serde_json::Value)> = Vec::new();
        for (spot, mode, id, units, capacity) in held {
            let row = json!({"worker": "w", "number": 1, "tenant": "x", "since_us": 1, "units": units, "capacity": capacity});
            rows.push((keys.lock_holder(spot, *mode, "t", id), row));
        }
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        let mut tally = LockTally::default();
        let mut findings = Vec::new();
        for (key, value) in rows {
            let row = Row::parse(&keys, &key).unwrap();
            findings.extend(tally.enter(&key, &row, value.to_string().as_bytes()));
        }
        findings.extend(tally.finish());
        findings.into_iter().map(|finding| finding.invariant).collect()
    };
    use Mode::{Exclusive, Shared};
    let (all, one, two) = (&Spot::whole("l"), &Spot::resource("l", "a"), &Spot::resource("l", "b"));
    let (big, elsewhere) = (&Spot::BIG_LOCK, &Spot::resource("m", "a"));
    let wrong = [Invariant::LockExcludes];
    assert_eq!(found(&[(one, Exclusive, "i", 1, None), (two, Exclusive, "j", 1, None)]), []);
    assert_eq!(
        found(&[(one, Shared, "i", 1, None), (one, Shared, "j", 1, None), (all, Shared, "k", 1, None)]),
        []
    );
    assert_eq!(
        found(&[(all, Exclusive, "i", 1, None), (one, Exclusive, "i", 1, None), (two, Shared, "i", 1, None)]),
        []
    );
    assert_eq!(found(&[(all, Exclusive, "i", 1, None), (elsewhere, Exclusive, "j", 1, None)]), []);
    for pair in [
        [(one, Exclusive), (one, Exclusive)],
        [(one, Exclusive), (one, Shared)],
        [(all, Exclusive), (one, Exclusive)],
        [(all, Exclusive), (one, Shared)],
        [(all, Exclusive), (all, Shared)],
        [(all, Exclusive), (all, Exclusive)],
        [(all, Shared), (one, Exclusive)],
        [(big, Exclusive), (big, Shared)],
    ] {
        let [(first, how), (second, other)] = pair;
        assert_eq!(found(&[(first, how, "i", 1, None), (second, other, "j", 1, None)]), wrong, "{pair:?}");
    }
    let units = |units: &[(u32, Option<u32>)]| {
        let ids: Vec<String> = (0..units.len()).map(|n| n.to_string()).collect();
        let rows =
            units.iter().zip(&ids).map(|((units, most), id)| (one, Shared, id.as_str(), *units, *most));
        found(&rows.collect::<Vec<_>>())
    };
    assert_eq!(units(&[(1, Some(3)), (2, Some(3))]), []);
    assert_eq!(units(&[(2, Some(3)), (2, Some(3))]), [Invariant::LockCapacity]);
    // The capacity was four once, or was not counted.
    assert_eq!(units(&[(2, Some(4)), (2, Some(3))]), []);
    assert_eq!(units(&[(2, None), (2, Some(3))]), []);
}
