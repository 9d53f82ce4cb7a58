//! Experience learns, forgets, and never grows beyond its bounds.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn traits(values: &[(&str, &str)]) -> Traits {
    let values = values.iter().map(|(option, value)| ((*option).to_owned(), (*value).to_owned())).collect();
    Traits { kind: "cluster instance-migrate".to_owned(), values }
}

fn requests(json: &str) -> Requests {
    serde_json::from_str(json).unwrap()
}

const UNKNOWN: &str = r#"{"instance":{"exclusive":["web1"]},"node":{"exclusive":"unknown"}}"#;

fn nodes(names: &[&str]) -> Requests {
    match names {
        [] => requests(r#"{"instance":{"exclusive":["web1"]}}"#),
        _ => requests(
            &serde_json::json!({"instance": {"exclusive": ["web1"]}, "node": {"exclusive": names}})
                .to_string(),
        ),
    }
}

fn record(experience: &mut Experience, names: &[&str]) {
    experience.record(&requests(UNKNOWN), &nodes(names));
}

/// The likely locks at level `node`, as JSON, and their confidence.
fn likely(experience: &Experience) -> Option<(String, f64)> {
    let web1 = traits(&[("instance", "web1")]);
    let (_, mut likely) = guess(&requests(UNKNOWN), &web1, |_, _| Some(experience));
    let Likely { set, confidence, .. } = likely.pop()?;
    Some((serde_json::to_string(&set).unwrap(), confidence))
}

#[test]
fn a_set_that_every_run_locks_is_likely() {
    let mut experience = Experience::default();
    for runs in 1..=3 {
        assert_eq!(likely(&experience), None, "after {} runs", runs - 1);
        record(&mut experience, &["n1", "n2"]);
    }
    // By hand: z² = 2.706, 1 / (1 + z²/n) with n = 3 is 0.526, and with n = 16 it is 0.855.
    let (set, confidence) = likely(&experience).unwrap();
    assert_eq!(set, r#"{"exclusive":["n1","n2"]}"#);
    assert!((confidence - 0.526).abs() < 0.001, "{confidence}");
    (0..200).for_each(|_| record(&mut experience, &["n1", "n2"]));
    let (_, sure) = likely(&experience).unwrap();
    assert!((sure - 0.855).abs() < 0.001, "{sure}");
}

#[test]
fn a_new_set_replaces_an_old_one() {
    let mut experience = Experience::default();
    (0..100).for_each(|_| record(&mut experience, &["old"]));
    let after: Vec<Option<String>> = (0..16)
        .map(|_| {
            record(&mut experience, &["new"]);
            likely(&experience).map(|(set, _)| set)
        })
        .collect();
    let old = Some(r#"{"exclusive":["old"]}"#.to_owned());
    let new = Some(r#"{"exclusive":["new"]}"#.to_owned());
    // The old set is likely for a while, then none, then the new set.
    assert_eq!(after[..4], vec![old; 4]);
    assert_eq!(after[4..11], vec![None; 7]);
    assert_eq!(after[11..], vec![new; 5]);
}

#[test]
fn runs_that_differ_make_no_guess() {
    let mut experience = Experience::default();
    for run in 0..100 {
        record(&mut experience, &[&format!("n{}", run % 5)]);
        assert_eq!(likely(&experience), None);
    }
}

#[test]
fn the_option_with_the_highest_confidence_counts_and_reports_its_runs() {
    let mut known: BTreeMap<(String, String), Experience> = BTreeMap::new();
    for run in 0..20 {
        let node = format!("n{}", run % 2);
        for option in [("os", "debian".to_owned()), ("instance", format!("web{}", run % 2))] {
            record(known.entry((option.0.to_owned(), option.1)).or_default(), &[&node]);
        }
    }
    let both = traits(&[("os", "debian"), ("instance", "web1"), ("other", "not seen")]);
    let find = |option: &str, value: &str| known.get(&(option.to_owned(), value.to_owned()));
    let (guessed, likely) = guess(&requests(UNKNOWN), &both, find);
    assert_eq!(guessed, nodes(&["n1"]));
    let [Likely { option, alike: 10, runs: 10, .. }] = &likely[..] else { panic!("{likely:?}") };
    assert_eq!((option.0.as_str(), option.1.as_str()), ("instance", "web1"));
}

#[test]
fn a_guess_replaces_only_unknown_requests() {
    let mut experience = Experience::default();
    (0..5).for_each(|_| record(&mut experience, &["n1"]));
    let web1 = traits(&[("instance", "web1")]);
    let guessed = |json| guess(&requests(json), &web1, |_, _| Some(&experience)).0;
    assert_eq!(
        guessed(r#"{"instance":{"shared":"unknown"},"node":{"shared":["a"],"exclusive":"unknown"}}"#),
        requests(r#"{"instance":{"shared":"unknown"},"node":{"shared":["a"],"exclusive":["n1"]}}"#)
    );
    let known = r#"{"node":{"exclusive":["n9"]}}"#;
    assert_eq!(guessed(known), requests(known));
    assert_eq!(guess(&requests(UNKNOWN), &web1, |_, _| None), (requests(UNKNOWN), vec![]));
}

#[test]
fn runs_without_locks_and_with_all_locks_are_learnt() {
    let (mut none, mut all) = (Experience::default(), Experience::default());
    for _ in 0..5 {
        record(&mut none, &[]);
        all.record(&requests(UNKNOWN), &requests(r#"{"node":{"exclusive":"all"}}"#));
    }
    assert_eq!(likely(&none).unwrap().0, "{}");
    assert_eq!(likely(&all).unwrap().0, r#"{"exclusive":"all"}"#);
    let (guessed, _) = guess(&requests(UNKNOWN), &traits(&[("instance", "web1")]), |_, _| Some(&none));
    assert!(guessed.levels["node"].is_none());
}

#[test]
fn declared_locks_are_not_learnt_and_each_mode_is_learnt_separately() {
    let learnt = |declared: &str, locked: &str| {
        let mut experience = Experience::default();
        (0..5).for_each(|_| experience.record(&requests(declared), &requests(locked)));
        let (guessed, likely) = guess(&requests(declared), &traits(&[("a", "b")]), |_, _| Some(&experience));
        (serde_json::to_string(&guessed).unwrap(), likely.len())
    };
    // A job that may lock exclusively may lock shared, and does.
    assert_eq!(
        learnt(r#"{"node":{"exclusive":"unknown"}}"#, r#"{"node":{"shared":["s"]}}"#),
        (r#"{"node":{"shared":["s"]}}"#.to_owned(), 1)
    );
    assert_eq!(
        learnt(
            r#"{"node":{"shared":["a"],"exclusive":"unknown"}}"#,
            r#"{"node":{"shared":["a","s"],"exclusive":["x"]}}"#
        ),
        (r#"{"node":{"shared":["a","s"],"exclusive":["x"]}}"#.to_owned(), 1)
    );
    assert_eq!(
        learnt(
            r#"{"node":{"shared":"unknown","exclusive":"unknown"}}"#,
            r#"{"node":{"shared":["s"],"exclusive":["x"]}}"#
        ),
        (r#"{"node":{"shared":["s"],"exclusive":["x"]}}"#.to_owned(), 2)
    );
    assert_eq!(learnt(r#"{"node":{"exclusive":["x"]}}"#, r#"{"node":{"exclusive":["x"]}}"#).1, 0);
}

proptest! {
    /// Whatever is recorded, nothing grows beyond its bound, and every confidence is within its range. The value
    /// survives its JSON.
    #[test]
    fn prop_bounds_hold(runs in prop::collection::vec((0..6u8, 0..100usize, 0..12u8, 1..120usize), 0..120)) {
        let mut experience = Experience::default();
        for (first, count, level, length) in runs {
            let names: Vec<String> = (0..count).map(|n| format!("n{first}-{n:0length$}")).collect();
            let level = format!("l{level}");
            let mut declared = serde_json::json!({});
            declared[&level] = serde_json::json!({"exclusive": "unknown"});
            let mut locked = serde_json::json!({});
            if count > 0 {
                locked[&level] = serde_json::json!({"exclusive": names});
            }
            let declared = requests(&declared.to_string());
            experience.record(&declared, &requests(&locked.to_string()));
            let (_, likely) = guess(&declared, &traits(&[("a", "b")]), |_, _| Some(&experience));
            for Likely { confidence, alike, runs, .. } in likely {
                prop_assert!((THRESHOLD..=1.0).contains(&confidence) && alike <= runs && runs <= MAX_RUNS);
            }
            prop_assert!(experience.bytes() <= MAX_BYTES && experience.places.len() <= MAX_PLACES);
            for sets in experience.places.values() {
                prop_assert!(sets.sets.len() <= MAX_SETS && sets.runs.len() <= MAX_RUNS);
                prop_assert!(sets.sets.iter().all(|set| size(set) <= MAX_NAMES));
                prop_assert!(sets.runs.iter().flatten().all(|run| *run < sets.sets.len()));
            }
        }
        let json = serde_json::to_string(&experience).unwrap();
        prop_assert!(json.len() < 4 * MAX_BYTES);
        prop_assert_eq!(serde_json::from_str::<Experience>(&json).unwrap(), experience);
    }
}
