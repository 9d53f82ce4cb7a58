//! The edges between places, and their form in records.

use serde_json::{Value, json};
use turnwise_policy::eligibility::rate_limits::Bucket;

use super::*;

fn claim() -> Claim {
    Claim { worker: "w".into(), number: 4 }
}

fn active() -> Place {
    Place::Active(Box::new(Run::new(claim(), Terms::default(), None, Vec::new())))
}

/// One place of each kind, by its name.
fn places() -> Vec<(&'static str, Place)> {
    let limit = Limit { bucket: Bucket::Reason("a".into()), most: 2 };
    vec![
        ("pending", Place::pending(3)),
        ("delayed", Place::Delayed { until_us: 3 }),
        ("crashing", Place::Crashing { until_us: 3 }),
        ("parked", Place::Parked { until_us: 3, at: Parked { group: "g".into(), key: "k".into() } }),
        ("blocked", Place::Blocked { until_us: 3, unmet: 2 }),
        ("paused", Place::Paused { order_us: 3, filter: "f".into() }),
        ("limited", Place::Limited { order_us: 3, limit }),
        ("active", active()),
        ("completed", Place::Ended(End::Completed)),
        ("failed", Place::Ended(End::Failed)),
        ("cancelled", Place::Ended(End::Cancelled)),
    ]
}

#[test]
fn places_have_exactly_these_edges() {
    // Every place leads to the queue, to blocked, and to cancelled.
    let always = ["pending", "blocked", "cancelled"];
    let more = |from: &str| -> &[&str] {
        match from {
            "pending" => &["paused", "limited", "active"],
            "crashing" => &["crashing"],
            "active" => &["delayed", "crashing", "parked", "completed", "failed"],
            _ => &["delayed"],
        }
    };
    for (from, was) in places() {
        for (to, is) in places() {
            let expected = always.contains(&to) || more(from).contains(&to);
            assert_eq!(was.leads_to(&is), expected, "{from} to {to}");
        }
    }
}

/// A record has the form of earlier releases, which kept places as fields: each release reads what the other wrote.
#[test]
fn a_place_is_written_as_fields_beside_each_other() {
    let limit = json!({"bucket": {"reason": "a"}, "most": 2});
    let written = |state: &str, order_us: i64, more: Value| {
        let mut fields = json!({"state": state, "order_us": order_us, "then": "keep"});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let expected = [
        written("pending", 3, json!({})),
        written("delayed", 3, json!({})),
        written("crashing", 3, json!({})),
        written("delayed", 3, json!({"parked": {"group": "g", "key": "k"}})),
        written("delayed", 3, json!({"unmet": 2})),
        written("delayed", 3, json!({"paused": "f"})),
        written("delayed", 3, json!({"limited": limit})),
        written("running", 0, json!({"claim": {"worker": "w", "number": 4}})),
        written("completed", 0, json!({})),
        written("failed", 0, json!({})),
        written("cancelled", 0, json!({})),
    ];
    for ((name, place), fields) in places().into_iter().zip(expected) {
        assert_eq!(serde_json::to_value(&place).unwrap(), fields, "{name}");
        assert_eq!(serde_json::from_value::<Place>(fields).unwrap(), place, "{name}");
    }
    let run = json!({
        "state": "running", "order_us": 9, "claim": {"worker": "w", "number": 4}, "then": "again", "unmet": 1,
        "cancel_requested": true, "next_refused": "no", "buckets": [{"reason": "a"}]
    });
    let place: Place = serde_json::from_value(run.clone()).unwrap();
    let Place::Active(active) = &place else { panic!("{place:?}") };
    assert_eq!((active.then, active.cancel_requested, active.next.not_before_us), (Then::Again, true, 9));
    assert_eq!((active.next.unmet, active.next.refused.as_deref()), (1, Some("no")));
    assert_eq!(serde_json::to_value(&place).unwrap(), run);
}

#[test]
fn contradictory_fields_are_refused_or_found() {
    let read = |fields: Value| serde_json::from_value::<Place>(fields);
    assert!(read(json!({"state": "running"})).is_err(), "no claim");
    // Fields of another place are ignored; `store check` reports them.
    let stray = json!({"state": "pending", "order_us": 3, "paused": "f"});
    let place = read(stray.clone()).unwrap();
    assert_eq!(place, Place::pending(3));
    assert!(!serde_json::from_value::<PlaceFields>(stray).unwrap().are_of(&place));
    let waits_for_nothing = json!({"state": "waiting", "claim": claim()});
    let place = read(waits_for_nothing.clone()).unwrap();
    assert_eq!(place.state(), State::Running);
    assert!(!serde_json::from_value::<PlaceFields>(waits_for_nothing).unwrap().are_of(&place));
    // Older releases left the time of the previous place.
    let ended = json!({"state": "failed", "order_us": 3});
    let place = read(ended.clone()).unwrap();
    assert!(serde_json::from_value::<PlaceFields>(ended).unwrap().are_of(&place));
}
