//! The edges between places.

use turnwise_policy::eligibility::concurrency::Bucket;

use super::*;

fn claim() -> Claim {
    Claim { worker: "w".into(), number: 4 }
}

fn active() -> Place {
    Place::Active(Arc::new(Run::new(claim(), Terms::default(), None, Vec::new())))
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
            "pending" => &["delayed", "paused", "limited", "active", "failed"],
            "crashing" => &["crashing", "paused"],
            "delayed" | "paused" | "limited" => &["delayed", "paused", "failed"],
            "blocked" => &["delayed", "paused", "failed"],
            "active" => &["delayed", "crashing", "parked", "completed", "failed"],
            "completed" | "failed" | "cancelled" => &["delayed", "paused"],
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
