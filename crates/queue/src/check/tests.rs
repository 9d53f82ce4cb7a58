//! Every key is parsed back, and each broken group is found as what it is.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::Keyspace;

#[test]
fn every_key_of_the_keyspace_has_a_meaning() {
    let keys = Keyspace::default();
    let job = || ("t".to_owned(), "i".to_owned());
    let (a, b) = ("a".to_owned(), "b".to_owned());
    for (key, row) in [
        (keys.format(), Row::Format),
        (keys.server_uuid(), Row::ServerUuid),
        (keys.job("t", "i"), Row::Job(job())),
        (keys.options_piece("t", "i", 7), Row::Options(job(), 7)),
        (keys.pending_entry("t", -5, "i"), Row::Place(job(), Place::Pending(-5))),
        (keys.delayed_entry("t", 5, "i"), Row::Place(job(), Place::Delayed(5))),
        (keys.ended_entry("t", 5, "i"), Row::Place(job(), Place::Ended(5))),
        (keys.active_entry("t", "a", "i"), Row::Place(job(), Place::Active(a.clone()))),
        (keys.wake("t"), Row::Wake("t".into())),
        (keys.signal("t", "i"), Row::Worker(job(), WorkerRow::Signal)),
        (keys.claim_number("t", "i"), Row::Worker(job(), WorkerRow::Claims)),
        (keys.worker("t", "i"), Row::Worker(job(), WorkerRow::Member)),
        (keys.health("t", "i"), Row::Worker(job(), WorkerRow::Health)),
        (keys.workers_versionstamp("t"), Row::Membership("t".into())),
        (keys.database("a"), Row::Database(a.clone())),
        (keys.sequence("a"), Row::Sequence(a.clone())),
        (keys.document("a", "b"), Row::Document(a.clone(), b.clone())),
        (keys.body_piece("a", "b", 1), Row::Body(a.clone(), b.clone(), 1)),
        (keys.local("a", "b"), Row::Local(a.clone(), b.clone())),
        (keys.change("a", 9), Row::Change(a.clone(), 9)),
        (keys.replication("a", "b"), Row::Replication(a.clone(), b.clone())),
        (keys.unresolved_entry(3, "a", "b"), Row::Unresolved(3, a.clone(), b.clone())),
        (keys.unresolved_wake(), Row::UnresolvedWake),
        (keys.config_entry("a", "b"), Row::Config(a, b)),
        (keys.config_versionstamp(), Row::ConfigStamp),
    ] {
        assert_eq!(Row::parse(&keys, &key), Some(row), "{}", key_text(&key));
    }
    for key in [&b"x"[..], b"", &keys.jobs("t").0, &turnwise_store::tuple::pack(&("turnwise", "new", 1))] {
        assert_eq!(Row::parse(&keys, key), None, "{}", key_text(key));
    }
    assert_eq!(key_text(&keys.pending_entry("t", -5, "i\"")), r#"["pending","t",-5,"i\""]"#);
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

/// What is found in a job with this record and these rows; worker `w` is known.
fn found(extra: serde_json::Value, places: &[(Place, &str)], pieces: &[(u32, usize)]) -> Vec<Invariant> {
    let key = ("t".to_owned(), "i".to_owned());
    let mut rows = JobRows::default();
    if !extra.is_null() {
        rows.set_record(&key, Some(&record(extra))).unwrap();
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
    let running = || json!({"state": "running", "claim": {"worker": "w", "number": 4}});
    let of = |worker: &str| Place::Active(worker.to_owned());
    let pending = || (Place::Pending(3), "");
    assert_eq!(found(json!({}), &[pending()], &[]), []);
    assert_eq!(found(json!({"state": "crashing"}), &[(Place::Delayed(3), "")], &[]), []);
    assert_eq!(found(json!({"state": "failed"}), &[(Place::Ended(2), "")], &[]), []);
    assert_eq!(found(running(), &[(of("w"), &active(4, false))], &[]), []);
    assert_eq!(found(json!({"options": null}), &[pending()], &[(0, 90_000), (1, 3)]), []);

    assert_eq!(found(json!({}), &[], &[]), [Invariant::OnePlace]);
    assert_eq!(found(json!({}), &[pending(), (Place::Ended(2), "")], &[]), [Invariant::OnePlace]);
    let wrong = [Invariant::OnePlace, Invariant::OnePlace];
    assert_eq!(found(json!({}), &[(Place::Pending(4), "")], &[]), wrong);
    assert_eq!(found(json!(null), &[pending()], &[(0, 5)]), [Invariant::Owned, Invariant::Owned]);
    assert_eq!(found(json!({"state": "running"}), &[], &[]), [Invariant::Claimed]);
    let unclaimed = json!({"claim": {"worker": "w", "number": 4}});
    assert_eq!(found(unclaimed, &[pending()], &[]), [Invariant::Unclaimed]);
    assert_eq!(found(json!({"then": "remove"}), &[pending()], &[]), [Invariant::Unclaimed]);
    let lost = json!({"state": "running", "claim": {"worker": "v", "number": 4}});
    assert_eq!(found(lost, &[(of("v"), &active(4, false))], &[]), [Invariant::HolderKnown]);
    for wrong in [active(5, false), active(4, true)] {
        assert_eq!(found(running(), &[(of("w"), &wrong)], &[]), [Invariant::ActiveAgrees]);
    }
    assert_eq!(found(running(), &[(of("w"), "[]")], &[]), [Invariant::Readable]);
    let ended = json!({"state": "running", "claim": {"worker": "w", "number": 4},
        "ended_claim": {"worker": "w", "number": 4}});
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
    let health = json!({"counter": 1, "timeout_us": 9}).to_string();
    let other = json!({"counter": 1, "timeout_us": 8}).to_string();
    let found = |rows: &[(WorkerRow, &str)]| -> Vec<Invariant> {
        let rows: BTreeMap<_, _> = rows.iter().map(|(row, value)| (*row, value.to_string().into())).collect();
        let findings = check_worker(&Keyspace::default(), &key, &rows);
        findings.into_iter().map(|finding| finding.invariant).collect()
    };
    use WorkerRow::{Claims, Health, Member, Signal};
    assert_eq!(found(&[(Member, &member), (Health, &health), (Claims, "3"), (Signal, "0123456789")]), []);
    // Its removal is under way.
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
