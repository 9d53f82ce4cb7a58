//! It learns, it forgets, and it never grows beyond its bounds.

use proptest::prelude::*;

use super::*;

fn traits(values: &[(&str, &str)]) -> Traits {
    let values = values.iter().map(|(option, value)| ((*option).to_owned(), (*value).to_owned())).collect();
    Traits { kind: "cluster instance-migrate".to_owned(), values }
}

fn declared(json: &str) -> Requests {
    serde_json::from_str(json).unwrap()
}

/// Locks at the level "node", which is the third.
fn nodes(names: &[&str], mode: Mode) -> Vec<Lock> {
    let lock =
        |name: &&str| Lock { place: Place::Resource { level: 2, name: (*name).to_owned() }, mode, units: 1 };
    names.iter().map(lock).collect()
}

fn exclusive(names: &[&str]) -> Request {
    Request::Exclusive(names.iter().map(|name| (*name).to_owned()).collect())
}

const UNKNOWN: &str = r#"{"instance":{"exclusive":["web1"]},"node":{"exclusive":"unknown"}}"#;

fn record(experience: &mut Experience, traits: &Traits, names: &[&str]) {
    let held = nodes(names, Mode::Exclusive);
    experience.record(traits, &declared(UNKNOWN), &held, &Levels::default());
}

#[test]
fn what_was_locked_again_and_again_is_likely() {
    let mut experience = Experience::default();
    let web1 = traits(&[("instance", "web1")]);
    for runs in 1..=3 {
        assert_eq!(experience.likely(&web1, "node", Mode::Exclusive), None, "after {} runs", runs - 1);
        record(&mut experience, &web1, &["n1", "n2"]);
    }
    let likely = experience.likely(&web1, "node", Mode::Exclusive).unwrap();
    assert_eq!(likely.request, exclusive(&["n1", "n2"]));
    assert_eq!(likely.option, ("instance".to_owned(), "web1".to_owned()));
    // By hand: n = 1 + 15/16 + 225/256 = 2.816, z² = 2.706, 1 / (1 + z²/n) = 0.510.
    assert!((likely.confidence - 0.510).abs() < 0.001, "{likely:?}");
    assert!((likely.runs - 2.816).abs() < 0.001, "{likely:?}");
    for _ in 0..200 {
        record(&mut experience, &web1, &["n1", "n2"]);
    }
    let sure = experience.likely(&web1, "node", Mode::Exclusive).unwrap();
    assert!(sure.confidence > 0.85 && sure.confidence < 0.86, "{sure:?}");
    assert!(sure.runs <= 16.0 + 1e-6);

    assert_eq!(experience.likely(&traits(&[("instance", "web2")]), "node", Mode::Exclusive), None);
    assert_eq!(experience.likely(&web1, "node", Mode::Shared), None);
    let other = Traits { kind: "cluster instance-remove".to_owned(), ..web1 };
    assert_eq!(experience.likely(&other, "node", Mode::Exclusive), None);
}

#[test]
fn a_new_habit_takes_the_place_of_an_old_one() {
    let mut experience = Experience::default();
    let web1 = traits(&[("instance", "web1")]);
    let likely = |experience: &Experience| Some(experience.likely(&web1, "node", Mode::Exclusive)?.request);
    (0..100).for_each(|_| record(&mut experience, &web1, &["old"]));
    assert_eq!(likely(&experience), Some(exclusive(&["old"])));
    let mut seen = Vec::new();
    for _ in 0..40 {
        record(&mut experience, &web1, &["new"]);
        let now = likely(&experience);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    // Sure of the old one for a while, then of neither, then of the new one.
    assert_eq!(seen, [Some(exclusive(&["old"])), None, Some(exclusive(&["new"]))]);
}

#[test]
fn runs_that_differ_make_no_guess() {
    let mut experience = Experience::default();
    let web1 = traits(&[("instance", "web1")]);
    for run in 0..100 {
        record(&mut experience, &web1, &[&format!("n{}", run % 5)]);
    }
    assert_eq!(experience.likely(&web1, "node", Mode::Exclusive), None);
}

#[test]
fn the_surest_option_counts() {
    let mut experience = Experience::default();
    for run in 0..20 {
        let instance = format!("web{}", run % 2);
        let node = format!("n{}", run % 2);
        record(&mut experience, &traits(&[("os", "debian"), ("instance", &instance)]), &[&node]);
    }
    let both = traits(&[("os", "debian"), ("instance", "web1")]);
    let likely = experience.likely(&both, "node", Mode::Exclusive).unwrap();
    assert_eq!((likely.request, likely.option.0.as_str()), (exclusive(&["n1"]), "instance"));
}

#[test]
fn a_guess_replaces_what_is_unknown_and_nothing_else() {
    let mut experience = Experience::default();
    let web1 = traits(&[("instance", "web1")]);
    (0..5).for_each(|_| record(&mut experience, &web1, &["n1"]));
    let (guessed, likely) = experience.guess(
        &web1,
        &declared(r#"{"instance":{"shared":"unknown"},"node":{"shared":["a"],"exclusive":"unknown"}}"#),
    );
    let wanted = r#"{"instance":{"shared":"unknown"},"node":{"shared":["a"],"exclusive":["n1"]}}"#;
    assert_eq!(guessed, declared(wanted));
    assert_eq!(likely.len(), 1);
    let known = declared(r#"{"node":{"exclusive":["n9"]}}"#);
    assert_eq!(experience.guess(&web1, &known), (known, vec![]));
}

#[test]
fn nothing_and_everything_are_learnt_too() {
    let mut experience = Experience::default();
    let (none, all) = (traits(&[("mode", "dry")]), traits(&[("mode", "whole")]));
    let whole = [Lock { place: Place::WholeLevel(2), mode: Mode::Exclusive, units: 1 }];
    for _ in 0..5 {
        record(&mut experience, &none, &[]);
        experience.record(&all, &declared(UNKNOWN), &whole, &Levels::default());
    }
    let request = |traits| experience.likely(traits, "node", Mode::Exclusive).unwrap().request;
    assert_eq!(request(&none), Request::None);
    assert_eq!(request(&all), Request::AllExclusive);
    let (guessed, _) = experience.guess(&none, &declared(UNKNOWN));
    assert!(guessed.levels["node"].is_none());
}

#[test]
fn values_that_never_come_back_do_not_push_out_those_that_do() {
    let mut experience = Experience::default();
    let web1 = traits(&[("instance", "web1")]);
    (0..5).for_each(|_| record(&mut experience, &web1, &["n1"]));
    for id in 0..3 * MAX_VALUES {
        record(&mut experience, &traits(&[("id", &id.to_string())]), &["n1"]);
        assert!(experience.len() <= MAX_VALUES);
    }
    assert_eq!(experience.len(), MAX_VALUES);
    assert!(experience.likely(&web1, "node", Mode::Exclusive).is_some());
}

#[test]
fn what_was_long_not_seen_makes_room_for_what_comes_now() {
    let mut experience = Experience::default();
    for value in 0..2 * MAX_VALUES {
        let traits = traits(&[("instance", &value.to_string())]);
        (0..3).for_each(|_| record(&mut experience, &traits, &["n1"]));
    }
    assert_eq!(experience.len(), MAX_VALUES);
    let known = |value: usize| {
        experience.likely(&traits(&[("instance", &value.to_string())]), "node", Mode::Exclusive).is_some()
    };
    assert!(!known(0) && !known(MAX_VALUES - 1));
    assert!(known(MAX_VALUES) && known(2 * MAX_VALUES - 1));
}

#[test]
fn rows_bring_back_what_was_learnt() {
    let mut experience = Experience::default();
    for run in 0..50 {
        let instance = format!("web{}", run % 7);
        record(&mut experience, &traits(&[("instance", &instance), ("id", &run.to_string())]), &[&instance]);
    }
    let text = serde_json::to_string(&experience).unwrap();
    let back: Experience = serde_json::from_str(&text).unwrap();
    assert_eq!(back, experience);
    let mut rows: Vec<Row> = experience.rows().collect();
    rows.reverse();
    assert_eq!(Experience::from(rows), experience);
}

proptest! {
    /// Whatever is recorded, nothing grows beyond its bound, and every confidence is one.
    #[test]
    fn prop_bounds_hold(runs in prop::collection::vec((0..40u8, 0..12u8, 0..100usize), 0..300)) {
        let mut experience = Experience::default();
        for (value, first, count) in runs {
            let traits = traits(&[("v", &value.to_string())]);
            let names: Vec<String> = (0..count).map(|n| format!("n{first}-{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            record(&mut experience, &traits, &names);
            if let Some(likely) = experience.likely(&traits, "node", Mode::Exclusive) {
                prop_assert!((THRESHOLD..=1.0).contains(&likely.confidence));
            }
        }
        prop_assert_eq!(experience.order[0].len() + experience.order[1].len(), experience.values.len());
        for seen in experience.values.values() {
            prop_assert!(seen.places.len() <= MAX_PLACES);
            for sets in seen.places.values() {
                prop_assert!(sets.sets.len() <= MAX_SETS && sets.runs <= 16.0 + 1e-9);
                prop_assert!(sets.sets.iter().all(|(set, _)| size(set) <= MAX_NAMES));
                prop_assert!(sets.sets.iter().map(|(_, weight)| weight).sum::<f64>() <= sets.runs + 1e-9);
            }
        }
    }
}
