//! Tests of conditions.
#![allow(clippy::unwrap_used)]

use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

fn option(path: &[String]) -> Option<Value> {
    Some(match path.join(".").as_str() {
        "to" => Value::Text("jan@example.org".into()),
        "retries.most" => Value::Number(3.into()),
        "long" => Value::Text("x".repeat(MAX_SEARCHED_BYTES + 1)),
        "hidden" => Value::Hidden,
        "digits" => Value::Text("007".into()),
        "n" => Value::Number(Number::parse("9007199254740993").unwrap()),
        "half" => Value::Number(Number::parse("0.5").unwrap()),
        "dry" => Value::Bool(true),
        "parent" => Value::Null,
        _ => return None,
    })
}

fn is_true(text: &str) -> bool {
    truth_of(text) == Truth::Holds
}

fn truth_of(text: &str) -> Truth {
    let reasons = ["maintenance".to_owned(), "by jan".to_owned()];
    let job = Subject {
        id: "17",
        job_type: "mail",
        tenant: "acme",
        user: None,
        task: Some("mail"),
        tags: &["eu", "nightly"].map(str::to_owned).into(),
        group: None,
        reasons: &reasons,
        added_us: 0,
        option: &option,
        standing: None,
    };
    Condition::parse(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}")).truth(&job)
}

#[test]
fn conditions_hold_as_they_are_written() {
    for text in [
        "",
        " ",
        "type = mail",
        "type='mail'",
        "id = 17",
        "id < 18",
        "id ~ '^1'",
        "not type = news",
        "type = news or tenant = acme",
        "(type = news or type = mail) and tenant != beta",
        "type = news and tenant = beta or id = 17",
        "options.to ~ \"@example\\.org$\"",
        "options.retries.most >= 3",
        "options.dry = true",
        "options.parent = null",
        "options.none != 1",
        "reason = maintenance",
        "reason ~ jan",
        "reason != other",
        "tag = eu and tag = nightly",
        "tag in (us, eu) and tag ~ '^night' and tag !~ us",
        "tag != us and not tag = us",
        "user != jan",
        "not (user = jan)",
    ] {
        assert!(is_true(text), "{text}");
    }
    for text in [
        "type = news",
        "not type = mail",
        "options.none = 1",
        "options.none < 1",
        "options.to < 5",
        "reason != maintenance",
        "tag = us",
        "tag != eu",
        "tag !~ u",
        "tag in (us, EU)",
        "user = jan",
        "options.dry ~ 't'",
        "type != mail or not id = 17",
    ] {
        assert!(!is_true(text), "{text}");
    }
}

#[test]
fn mistakes_are_reported_with_their_column() {
    for (text, column, problem) in [
        ("typ = mail", 1, "expected id, type"),
        ("type mail", 6, "expected one of ="),
        ("type = ", 8, "expected a number"),
        ("type = 'mail", 8, "no closing quote"),
        ("ä", 1, "expected id"),
        ("type = mail tenant = x", 13, "expected `and`"),
        ("(type = mail", 13, "expected `)`"),
        ("type ~ '('", 8, "not a regular expression"),
        ("options.to ~ 5", 14, "between quotes"),
        ("id ~ '[0-9]{100}{100}'", 6, "too large together"),
        ("options. = 1", 1, "expected id"),
    ] {
        let mistake = Condition::parse(text).unwrap_err();
        assert_eq!(mistake.column, column, "{text}: {mistake}");
        assert!(mistake.problem.contains(problem), "{text}: {mistake}");
    }
    assert!(Condition::parse(&"(".repeat(100)).unwrap_err().problem.contains("nested deeper"));
    assert!(Condition::parse(&"not ".repeat(100)).unwrap_err().problem.contains("nested deeper"));
    assert!(Condition::parse(&"x".repeat(5_000)).unwrap_err().problem.contains("at most 4000"));
    let many = vec!["id = 1"; 101].join(" or ");
    assert!(Condition::parse(&many).unwrap_err().problem.contains("comparisons"));
}

#[test]
fn the_field_decides_what_a_value_is() {
    for text in [
        "id = 17 and id in (16, 17) and id != 17.0 and id != 017 and id != 1.7e1",
        "options.digits = 007 and options.digits = '007' and options.digits != 7",
        "options.n = 9007199254740993 and options.n != 9007199254740992",
        "options.n > 9007199254740992 and options.n < 9007199254740994",
        "options.n < 123456789012345678901234567890123456789012345678901234567890",
        "options.n = 9007199254740992.0",
        "options.half = 0.50 and options.half < 1 and options.half > -1",
        "options.n != '9007199254740993'",
        // A text is neither below nor above a number, and texts are compared as texts.
        "not options.digits < 8 and not options.digits >= 7 and options.digits < '8'",
        "options.dry != 'true' and options.parent != 'null'",
    ] {
        assert!(is_true(text), "{text}");
    }
}

#[test]
fn what_is_too_long_to_be_searched_is_unknown() {
    for text in [
        "options.long ~ 'y'",
        "options.long !~ 'y'",
        "not options.long ~ 'y'",
        "options.long ~ 'y' and type = mail",
        "type = news or not (options.long ~ 'x')",
        // Both: the long text decides, or a job could evade a filter with one.
        "options.long ~ 'y' or options.hidden = 1",
        "options.hidden = 1 and options.long ~ 'y'",
        "not (options.hidden = 1 or options.long ~ 'y')",
    ] {
        assert_eq!(truth_of(text), Truth::Unknown, "{text}");
    }
    // Unless it does not matter. It can be compared nevertheless.
    assert_eq!(truth_of("options.long ~ 'y' or type = mail"), Truth::Holds);
    assert_eq!(truth_of("options.long ~ 'y' and type = news"), Truth::Fails);
    assert_eq!(truth_of("options.long > 'w'"), Truth::Holds);
}

#[test]
fn a_comparison_with_a_hidden_option_selects_nothing_whatever_it_is() {
    for text in [
        "options.hidden = 1",
        "options.hidden != 1",
        "options.hidden < 1",
        "options.hidden >= 'a'",
        "options.hidden ~ 'a'",
        "options.hidden !~ 'a'",
        "options.hidden in (a, b)",
        "not options.hidden in (a, b)",
        "not options.hidden = 1",
        "options.hidden = 1 or not options.hidden = 1",
        "type = mail and options.hidden != null",
    ] {
        assert_eq!(truth_of(text), Truth::Hidden, "{text}");
    }
    // Unless it does not matter.
    assert_eq!(truth_of("options.hidden = 1 or type = mail"), Truth::Holds);
    assert_eq!(truth_of("options.hidden = 1 and type = news"), Truth::Fails);
}

#[test]
fn patterns_of_a_condition_have_a_bound_in_sum() {
    let pattern = "reason ~ 'time[a-z]+ after [0-9]{1,6} s'";
    assert!(Condition::parse(pattern).is_ok());
    let many = vec![pattern; 40].join(" or ");
    assert!(Condition::parse(&many).unwrap_err().problem.contains("too large together"));
    assert!(Condition::parse(&vec!["id ~ 'ab'"; 40].join(" or ")).is_ok());
}

/// A job that failed on its second attempt, an hour after it was added on the first day of 2026.
fn failed(text: &str) -> bool {
    const ADDED_US: i64 = 1_767_225_600_000_000;
    const HOUR_US: i64 = 3_600_000_000;
    let reasons = ["nightly".to_owned(), "timeout after 30 s".to_owned()];
    let job = Subject {
        id: "17",
        job_type: "mail",
        tenant: "acme",
        user: None,
        task: Some("mail"),
        tags: &BTreeSet::new(),
        group: None,
        reasons: &reasons,
        added_us: ADDED_US,
        option: &option,
        standing: Some(Standing {
            states: &["failed"],
            priority: -5,
            attempts: 2,
            crashes: 1,
            changed_us: ADDED_US + HOUR_US,
            ended_us: Some(ADDED_US + HOUR_US),
            reason_class: Some("timeout after N ms"),
            now_us: ADDED_US + 3 * HOUR_US,
        }),
    };
    let condition = Condition::parse_selection(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}"));
    condition.holds(&job)
}

#[test]
fn selections_ask_for_states_numbers_and_times() {
    for text in [
        "state = failed",
        "state in (completed, failed)",
        "state != pending",
        "not state in ('pending', cancelled)",
        "reason ~ timeout and reason = nightly",
        "reason_class = 'timeout after N ms' and reason_class ~ timeout and reason_class != other",
        "type in (news, mail) and tenant in (acme)",
        "tag != eu and tag !~ eu",
        "priority < 0 and priority = -5",
        "attempts >= 2 and crashes in (0, 1)",
        "added = 2026-01-01T00:00:00Z",
        "added < 2026-01-01T01:30:00+01:00",
        "ended > '2026-01-01T00:59:59.5Z'",
        "age > 2h and age < 1d and age = 180m",
        "ended_age = 7200s and changed_age <= 1w",
    ] {
        assert!(failed(text), "{text}");
    }
    for text in [
        "state = completed",
        "reason_class = other",
        "priority > 0",
        "tag ~ ''",
        "attempts = 3",
        "ended < 2026-01-01T00:00:00Z",
        "age > 3h",
        "id in (1, 2)",
    ] {
        assert!(!failed(text), "{text}");
    }
}

#[test]
fn mistakes_in_selections_say_what_fits() {
    for (text, column, problem) in [
        ("state = fail", 9, "expected a state: pending"),
        ("state < failed", 7, "expected one of = != in"),
        ("state in failed", 10, "expected `(`"),
        ("state in (failed", 17, "expected `,` or `)`"),
        ("state in (failed,)", 18, "expected a number, a word"),
        ("age > 2", 7, "expected a duration"),
        ("age > 2y", 7, "expected a duration"),
        ("age > 99999999999999d", 7, "expected a duration"),
        ("added > 2d", 9, "expected a time"),
        ("added ~ '2026'", 7, "expected one of = != < <= > >= in"),
        ("attempts = many", 12, "expected a number"),
        ("group ~ eu", 7, "expected one of = != in"),
        ("colour = red", 1, "expected id, type, task, tenant, user, tag, group, state"),
    ] {
        let mistake = Condition::parse_selection(text).unwrap_err();
        assert_eq!(mistake.column, column, "{text}: {mistake}");
        assert!(mistake.problem.contains(problem), "{text}: {mistake}");
    }
    let many = format!("id in ({})", vec!["a"; 101].join(", "));
    assert!(Condition::parse_selection(&many).unwrap_err().problem.contains("comparisons"));
    // A filter judges jobs that are about to start.
    assert!(Condition::parse("state = failed").unwrap_err().problem.contains("expected id, type"));
}

#[test]
fn the_values_that_a_job_must_have_narrow_a_search() {
    for (text, field, values) in [
        ("type = mail", Indexed::Type, Some(vec!["mail"])),
        ("type = mail or type = news", Indexed::Type, Some(vec!["mail", "news"])),
        ("type in (mail, news) and type != news", Indexed::Type, Some(vec!["mail", "news"])),
        ("type in (mail, news) and type in (news, sms)", Indexed::Type, Some(vec!["news"])),
        ("type = mail or tenant = acme", Indexed::Type, None),
        ("not type = mail", Indexed::Type, None),
        ("type ~ mail", Indexed::Type, None),
        ("tenant = 17 or tenant = 007", Indexed::Tenant, Some(vec!["007", "17"])),
        ("type = a and (tenant = b and state = failed)", Indexed::State, Some(vec!["failed"])),
        ("state = delayed and state = parked", Indexed::State, Some(vec!["delayed"])),
        ("tag = eu and tag in (nightly, us)", Indexed::Tag, Some(vec!["eu"])),
        ("tag in (eu, us) and tag != eu", Indexed::Tag, Some(vec!["eu", "us"])),
        ("tag != eu", Indexed::Tag, None),
        ("tag = eu or state = failed", Indexed::Tag, None),
        ("group in (a, 'b')", Indexed::Tag, Some(vec!["group:a", "group:b"])),
        ("group = a and tag in (eu, group:a)", Indexed::Tag, Some(vec!["group:a"])),
        ("reason_class = 'a b' and state = failed", Indexed::ReasonClass, Some(vec!["a b"])),
        ("reason_class ~ a", Indexed::ReasonClass, None),
        ("", Indexed::Type, None),
    ] {
        let condition = Condition::parse_selection(text).unwrap();
        let found = condition.values(field).map(|values| values.into_iter().collect::<Vec<_>>());
        assert_eq!(found, values, "{text}");
    }
}

/// Conditions as text.
fn conditions() -> impl Strategy<Value = String> {
    let comparison = prop_oneof![
        (
            prop::sample::select(vec!["id", "type", "tenant", "tag"]),
            prop::sample::select(vec!["a", "b", "'c d'"])
        )
            .prop_flat_map(|(field, value)| {
                prop::sample::select(vec!["=", "!=", "<", ">="])
                    .prop_map(move |operator| format!("{field} {operator} {value}"))
            }),
        prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
            .prop_map(|values| format!("tenant in ({})", values.join(", "))),
        prop::sample::select(vec!["pending", "parked", "delayed", "failed"])
            .prop_map(|state| format!("state = {state}")),
        "[a-c]{1,2}".prop_map(|pattern| format!("id ~ '{pattern}'")),
        (0..9_u32).prop_map(|attempts| format!("attempts > {attempts}")),
    ];
    comparison.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|one| format!("not ({one})")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("({one}) and ({other})")),
            (inner.clone(), inner).prop_map(|(one, other)| format!("({one}) or ({other})")),
        ]
    })
}

proptest! {
    /// Any text is parsed, or refused with a column inside of it.
    #[test]
    fn prop_any_text_is_parsed_or_refused(text in "\\PC{0,80}|[a-z=<>~!()'\", .0-9]{0,80}") {
        for parsed in [Condition::parse(&text), Condition::parse_selection(&text)] {
            if let Err(mistake) = parsed {
                prop_assert!((1..=text.chars().count() + 1).contains(&mistake.column), "{mistake}");
            }
        }
    }

    /// The same for a condition that is cut anywhere.
    #[test]
    fn prop_a_cut_condition_is_parsed_or_refused(text in conditions(), cut in 0..200_usize) {
        let cut: String = text.chars().take(cut).collect();
        if let Err(mistake) = Condition::parse_selection(&cut) {
            prop_assert!((1..=cut.chars().count() + 1).contains(&mistake.column), "{mistake}");
        }
    }

    /// A job for which a condition holds has one of the values that narrow the search, and `not` reverses every condition.
    #[test]
    fn prop_a_selected_job_has_the_values_that_narrow_the_search(
        text in conditions(),
        (id, job_type, tenant) in ("[a-c]", "[a-c]", "[a-c]"),
        tags in prop::collection::btree_set("[a-c]", 0..3),
        states in prop::sample::select(vec![vec!["pending"], vec!["delayed", "parked"], vec!["delayed"], vec!["failed"]]),
        attempts in 0..9_u32,
    ) {
        let standing = Standing {
            states: &states,
            priority: 0,
            attempts,
            crashes: 0,
            changed_us: 0,
            ended_us: None,
            reason_class: None,
            now_us: 0,
        };
        let job = Subject {
            id: &id,
            job_type: &job_type,
            tenant: &tenant,
            user: None,
            task: None,
            tags: &tags,
            group: None,
            reasons: &[],
            added_us: 0,
            option: &option,
            standing: Some(standing),
        };
        let condition = Condition::parse_selection(&text).unwrap();
        let holds = condition.holds(&job);
        let reversed = Condition::parse_selection(&format!("not ({text})")).unwrap();
        prop_assert_eq!(reversed.holds(&job), !holds);
        let has = |field, values: &[&str]| {
            condition.values(field).is_none_or(|set| values.iter().any(|value| set.contains(value)))
        };
        let may_hold = has(Indexed::Id, &[&id])
            && has(Indexed::Type, &[&job_type])
            && has(Indexed::Tenant, &[&tenant])
            && has(Indexed::Tag, &tags.iter().map(String::as_str).collect::<Vec<_>>())
            && has(Indexed::State, &states);
        prop_assert!(!holds || may_hold, "{}", text);
    }
}
