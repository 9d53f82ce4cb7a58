//! Keys and usages, compared with the plain formulas of the RFC, which change all values at each interval.

use proptest::prelude::*;

use super::*;

const S: i64 = 1_000_000;

fn rules(k1: f64, k2: f64, t1_s: i64, t2_s: i64) -> Rules {
    Rules {
        usage_coeff: k1,
        priority_coeff: k2,
        usage_interval_us: t1_s * S,
        priority_interval_us: t2_s * S,
        ..Rules::default()
    }
}

/// All priorities, multiplied every t2.
struct Plain {
    now_s: i64,
    priorities: Vec<f64>,
}

impl Plain {
    fn pass(&mut self, seconds: i64, rules: &Rules) {
        for _ in 0..seconds {
            self.now_s += 1;
            if self.now_s * S % rules.priority_interval_us == 0 {
                self.priorities.iter_mut().for_each(|priority| *priority *= rules.priority_coeff);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Add(f64),
    Grow(usize, f64),
    Pass(i64),
    Rules(f64, i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let priority = prop_oneof![Just(0.0), 0.0..1e12_f64, 1e-3..1.0_f64];
    let event = prop_oneof![
        priority.clone().prop_map(Event::Add),
        (any::<usize>(), priority).prop_map(|(job, more)| Event::Grow(job, more)),
        (1..200_i64).prop_map(Event::Pass),
        (0.5..=1.0_f64, 1..100_i64).prop_map(|(k2, t2)| Event::Rules(k2, t2)),
    ];
    prop::collection::vec(event, 1..40)
}

proptest! {
    /// Neither time nor another K2 or t2 changes an order. Keys are rewritten only for jobs that are charged.
    #[test]
    fn prop_keys_are_priorities_that_need_no_writes(events in events()) {
        let mut rules = rules(0.5, 0.98, 60, 60);
        let mut plain = Plain { now_s: 0, priorities: Vec::new() };
        let mut boost = Boost::new(0, &rules);
        let mut keys: Vec<Key> = Vec::new();
        for event in events {
            let v = boost.at(plain.now_s * S);
            match event {
                Event::Add(priority) => {
                    plain.priorities.push(priority);
                    keys.push(Key::of(priority, v));
                }
                Event::Grow(job, more) if !keys.is_empty() => {
                    let job = job % keys.len();
                    plain.priorities[job] += more;
                    keys[job] = keys[job].add(more, v);
                }
                Event::Grow(..) => {}
                Event::Pass(seconds) => plain.pass(seconds, &rules),
                Event::Rules(k2, t2) => {
                    rules.priority_coeff = k2;
                    rules.priority_interval_us = t2 * S;
                    boost = boost.with_rules(plain.now_s * S, &rules);
                }
            }
            let v = boost.at(plain.now_s * S);
            for (key, priority) in keys.iter().zip(&plain.priorities) {
                prop_assert!(key.get().is_finite());
                let same = (key.priority(v) - priority).abs() <= priority * 1e-9 + 1e-300;
                prop_assert!(same, "{} instead of {priority}", key.priority(v));
            }
            for (a, left) in keys.iter().zip(&plain.priorities) {
                for (b, right) in keys.iter().zip(&plain.priorities) {
                    // Values that differ by more than rounding have the same order.
                    if left + left * 1e-9 < *right {
                        prop_assert!(a < b, "{left} and {right}");
                    }
                }
            }
        }
    }

    /// A usage that is rolled up when it is read equals one that is rolled up at every t1. The usages of several
    /// chargers add up to that of one.
    #[test]
    fn prop_usages_equal_those_rolled_up_at_every_interval(
        charges in prop::collection::vec((0..400_i64, 0.0..1e9_f64, 0..3_usize), 1..40),
        k1 in 0.0..0.999_f64,
        t1_s in 1..100_i64,
    ) {
        let rules = rules(k1, 0.98, t1_s, 60);
        let (mut usage_us, mut accumulated_us, mut now_s) = (0.0, 0.0, 0);
        let mut chargers = [Usage::default(); 3];
        let total = |chargers: &[Usage; 3], now_s: i64| -> f64 {
            chargers.iter().map(|usage| usage.at(now_s * S, &rules)).sum()
        };
        let mut charged = 0.0;
        for (pause_s, ran_us, charger) in charges {
            for _ in 0..pause_s {
                now_s += 1;
                // A charge at a boundary counts for the interval before it, so the roll-up is a moment later.
                if (now_s - 1) % t1_s == 0 && now_s > 1 {
                    usage_us = usage_us * k1 + accumulated_us;
                    accumulated_us = 0.0;
                }
            }
            chargers[charger].charge(ran_us, now_s * S, &rules);
            accumulated_us += ran_us;
            charged += ran_us;
            let just_after = now_s * S % rules.usage_interval_us == 0 && now_s > 0;
            let expected = if just_after { usage_us * k1 + accumulated_us } else { usage_us };
            let found = total(&chargers, now_s);
            prop_assert!((found - expected).abs() <= charged * 1e-9, "{found} instead of {expected} at {now_s} s");
        }
    }
}

#[test]
fn a_priority_of_zero_has_a_finite_key_below_all_others() {
    for v in [0.0, 1.0, 1e6] {
        assert_eq!(Key::of(0.0, v), Key::ZERO);
        assert_eq!(Key::ZERO.priority(v), 0.0);
        assert!(Key::ZERO < Key::of(f64::MIN_POSITIVE, v));
        assert_eq!(Key::ZERO.add(0.0, v), Key::ZERO);
        assert_eq!(Key::ZERO.add(5.0, v), Key::of(5.0, v));
    }
    for strange in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        assert!(Key::of(strange, 0.0).get().is_finite());
        assert!(Key::stored(strange).get().is_finite());
        assert!(Key::of(1.0, strange).get().is_finite());
    }
    assert!(Key::of(f64::INFINITY, 0.0).priority(0.0).is_finite());
}

#[test]
fn priorities_decay_at_multiples_of_their_interval() {
    let half = rules(0.5, 0.5, 60, 60);
    let boost = Boost::new(30 * S, &half);
    let key = Key::of(8.0, boost.at(30 * S));
    for (at_s, priority) in [(30, 8.0), (59, 8.0), (60, 4.0), (119, 4.0), (120, 2.0)] {
        let found = key.priority(boost.at(at_s * S));
        assert!((found - priority).abs() < 1e-9, "{found} after {at_s} s");
    }
    // With new rules, the decay until now stays.
    let slower = boost.with_rules(130 * S, &rules(0.5, 0.25, 60, 100));
    for (at_s, priority) in [(130, 2.0), (199, 2.0), (200, 0.5)] {
        let found = key.priority(slower.at(at_s * S));
        assert!((found - priority).abs() < 1e-9, "{found} after {at_s} s");
    }
}

#[test]
fn charges_count_from_the_next_roll_up_on_and_decay_until_they_are_forgotten() {
    let rules = Rules::default();
    let mut usage = Usage::default();
    usage.charge(60e6, 30 * S, &rules);
    assert_eq!(usage.at(59 * S, &rules), 0.0);
    assert_eq!(usage.at(60 * S, &rules), 60e6);
    // A charge at the boundary itself counts for the interval before it.
    usage.charge(20e6, 60 * S, &rules);
    assert_eq!(usage.at(60 * S, &rules), 80e6);
    assert_eq!(usage.at(120 * S, &rules), 40e6);
    usage.charge(10e6, 150 * S, &rules);
    assert_eq!(usage.at(180 * S, &rules), 30e6);
    // 30 s halved fifteen times is less than a millisecond.
    assert!(!usage.is_forgotten(180 * S + 14 * 60 * S, &rules));
    assert!(usage.is_forgotten(180 * S + 15 * 60 * S, &rules));
    assert_eq!(usage.at(i64::MAX, &rules), 0.0);
}

#[test]
fn a_job_is_charged_for_its_whole_tenant() {
    assert_eq!(increment(60e6, 1, 100), 6_000.0);
    assert_eq!(increment(240e6, 20, 100), 480_000.0);
    assert_eq!(increment(240e6, 6, 200), 36_000.0);
    assert_eq!(increment(-1.0, 5, 0), 0.0);
}
