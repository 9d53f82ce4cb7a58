//! The locks of a job, derived from its options: cases that the example file lacks.

use proptest::prelude::*;
use serde_json::{Value, json};
use turnwise_catalogue::{Catalogue, Derived, MAX_STEPS};
use turnwise_policy::predictive_queue::locks::Requests;

fn derive(locks: &str, options: Value) -> Derived {
    let text = format!(
        "levels = [{{ name = 'node' }}, {{ name = 'disk', capacity = 4, capacities = {{ big = 8 }} }}]\n\
         [jobs.t.locks]\n{locks}"
    );
    Catalogue::parse(&text, "c.toml").unwrap().requests("t", None, &options).unwrap()
}

fn wants(locks: &str, options: Value, wanted: Value) -> Derived {
    let derived = derive(locks, options);
    assert_eq!(serde_json::to_value(&derived.requests).unwrap(), wanted, "{locks}");
    derived
}

fn texts(reasons: &[turnwise_catalogue::Because]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}

#[test]
fn names_of_several_options_are_one_set() {
    let locks = "node.exclusive = ['{a}', '{b.c}', '{d.e?}', 'always']";
    let options = json!({"a": "x", "b": {"c": ["y", 3]}, "d": [{"e": "z"}, {}]});
    let derived = wants(locks, options, json!({"node": {"exclusive": ["3", "always", "x", "y", "z"]}}));
    assert_eq!(derived.unknown_because, []);
    let derived = wants(locks, json!({"a": "x"}), json!({"node": {"exclusive": "unknown"}}));
    assert_eq!(texts(&derived.unknown_because), [r#"node, exclusive: its option "b.c" is missing"#]);
}

#[test]
fn a_name_that_is_wanted_in_both_modes_is_exclusive() {
    let locks = "node = { shared = ['{a}', '{b}'], exclusive = ['{c}'] }";
    wants(
        locks,
        json!({"a": "x", "b": "y", "c": "x"}),
        json!({"node": {"shared": ["y"], "exclusive": ["x"]}}),
    );
    wants(locks, json!({"a": "x", "b": "x", "c": "x"}), json!({"node": {"exclusive": ["x"]}}));
}

#[test]
fn an_option_of_the_wrong_type_makes_it_unknown_and_is_a_fault() {
    let derived =
        wants("node.shared = ['{a}']", json!({"a": {"x": 1}}), json!({"node": {"shared": "unknown"}}));
    assert_eq!(
        texts(&derived.unknown_because),
        [r#"node, shared: its option "a" is an object, and must be a name"#]
    );
    assert!(derived.unknown_because[0].cause.is_fault());
    let derived = derive("node.shared = ['{a}']", json!({}));
    assert!(!derived.unknown_because[0].cause.is_fault());
    let derived = derive("node.shared = ['{a}']", json!("a text for options"));
    assert_eq!(texts(&derived.unknown_because), [r#"node, shared: its option "a" is missing"#]);
}

#[test]
fn units_are_counted_and_never_more_than_there_are() {
    let locks = "disk = { shared = ['{on}'], units = '{n}' }";
    wants(locks, json!({"on": "a", "n": 3}), json!({"disk": {"shared": {"a": 3}}}));
    wants(locks, json!({"on": "a", "n": [1, 2]}), json!({"disk": {"shared": {"a": 2}}}));
    wants(locks, json!({"on": "a", "n": 0}), json!({}));
    wants(locks, json!({"on": "a"}), json!({"disk": {"shared": "unknown"}}));
    let derived =
        wants(locks, json!({"on": ["a", "big"], "n": 6}), json!({"disk": {"shared": {"a": 4, "big": 6}}}));
    assert_eq!(
        texts(&derived.warnings),
        ["disk, shared: it wants more units than the 4 that there are, and gets these"]
    );
    let derived = wants(locks, json!({"on": "a", "n": -1}), json!({"disk": {"shared": "unknown"}}));
    assert!(derived.unknown_because[0].cause.is_fault());
}

#[test]
fn too_many_names_are_all_of_the_level() {
    let many: Vec<String> = (0..1_001).map(|n| format!("n{n}")).collect();
    let derived = wants("node.shared = ['{a}']", json!({"a": many}), json!({"node": {"shared": "all"}}));
    assert_eq!(
        texts(&derived.warnings),
        ["node, shared: it names more than 1000 resources, so that all of the level is locked"]
    );
    // No level has too many names, but all levels together do. The level with most of them is replaced.
    let locks = "node.exclusive = ['{a}']\ndisk.shared = ['{b}']";
    let derived = derive(locks, json!({"a": &many[..600], "b": &many[..500]}));
    assert_eq!(serde_json::to_value(&derived.requests.levels["node"]).unwrap(), json!({"exclusive": "all"}));
    assert_eq!(
        serde_json::to_value(&derived.requests.levels["disk"]).unwrap()["shared"].as_array().unwrap().len(),
        500
    );
    // The number of combinations is checked before they are built.
    derive("node.shared = ['{a}{a}{a}{a}']", json!({"a": &many[..999]}));
}

const STEPS: &str = "
    [jobs.t]
    task = 'do'
    steps = 'ops'
    locks.network.shared = ['{net?}']
    tasks.start.instance.exclusive = ['{instance}']
    tasks.start.node.shared = ['{node}']
    tasks.verify.node.shared = 'all'
    tasks.wipe.big_lock = { unless = { gently = true } }
";

#[test]
fn every_step_counts() {
    let catalogue = Catalogue::parse(STEPS, "c.toml").unwrap();
    let requests = |options: Value| {
        let derived = catalogue.requests("t", None, &options).unwrap();
        (serde_json::to_value(&derived.requests).unwrap(), texts(&derived.unknown_because))
    };
    let (wanted, because) = requests(json!({"net": "lan", "ops": [
        {"do": "start", "instance": "a", "node": "n1"},
        {"do": "start", "instance": "b", "node": "n2"},
    ]}));
    assert_eq!(
        wanted,
        json!({"instance": {"exclusive": ["a", "b"]}, "network": {"shared": ["lan"]}, "node": {"shared": ["n1", "n2"]}})
    );
    assert!(because.is_empty());
    // A later unknown step makes the request unknown, and the reason names the step. A step that locks all makes it known again.
    let (wanted, because) = requests(json!({"ops": [
        {"do": "start", "instance": "a", "node": "n1"}, {"do": "start", "instance": "b"},
    ]}));
    assert_eq!(wanted["node"], json!({"shared": "unknown"}));
    assert_eq!(because, [r#"node, shared: its option "node" is missing (step 2)"#]);
    let (wanted, because) =
        requests(json!({"ops": [{"do": "start", "instance": "b"}, {"do": "verify"}, {"do": "wipe"}]}));
    assert_eq!(
        wanted,
        json!({"big_lock": true, "instance": {"exclusive": ["b"]}, "node": {"shared": "all"}})
    );
    assert!(because.is_empty(), "{because:?}");
    // Without steps, the job's options are the only step.
    assert_eq!(requests(json!({"do": "verify"})).0, json!({"node": {"shared": "all"}}));
    assert_eq!(requests(json!({"do": "wipe", "gently": true})).0, json!({}));
    // A step uses only its own options.
    let (wanted, _) = requests(json!({"instance": "outer", "ops": [{"do": "start", "node": "n"}]}));
    assert_eq!(wanted["instance"], json!({"exclusive": "unknown"}));
}

#[test]
fn the_task_that_a_job_names_decides() {
    let catalogue = Catalogue::parse(STEPS, "c.toml").unwrap();
    let requests = |catalogue: &Catalogue, task, options: Value| {
        let derived = catalogue.requests("t", task, &options).unwrap();
        (serde_json::to_value(&derived.requests).unwrap(), texts(&derived.unknown_because))
    };
    let shared = json!({"node": {"shared": "all"}});
    assert_eq!(requests(&catalogue, Some("verify"), json!({})).0, shared);
    // The option counts only for a job that names no task.
    assert_eq!(requests(&catalogue, Some("verify"), json!({"do": "wipe"})).0, shared);
    // Beside its steps, a job locks what its own task locks; a task that the catalogue lacks adds nothing.
    let steps = json!({"ops": [{"do": "start", "instance": "a", "node": "n1"}]});
    let (wanted, _) = requests(&catalogue, Some("verify"), steps.clone());
    assert_eq!(wanted, json!({"instance": {"exclusive": ["a"]}, "node": {"shared": "all"}}));
    let (wanted, because) = requests(&catalogue, Some("dance"), steps);
    assert_eq!(wanted, json!({"instance": {"exclusive": ["a"]}, "node": {"shared": ["n1"]}}));
    assert!(because.is_empty(), "{because:?}");
    let (wanted, because) = requests(&catalogue, Some("dance"), json!({"do": "verify"}));
    assert_eq!(wanted["node"], json!({"exclusive": "unknown"}));
    assert_eq!(
        because,
        [
            "every level, exclusive: the catalogue has no such task as the job names, and no `otherwise` for it"
        ]
    );
    // No option needs to tell the task.
    let plain = Catalogue::parse("[jobs.t.tasks.start]\nnode.shared = ['{node}']\n", "c.toml").unwrap();
    assert_eq!(requests(&plain, Some("start"), json!({"node": "n"})).0, json!({"node": {"shared": ["n"]}}));
    let (_, because) = requests(&plain, None, json!({"node": "n"}));
    assert_eq!(
        because,
        ["every level, exclusive: it names no task, and the catalogue has no `otherwise` for it"]
    );
    // Locks of all jobs of a type need no task.
    let all = Catalogue::parse("[jobs.t]\nlocks.node.shared = ['{node}']\n", "c.toml").unwrap();
    assert_eq!(requests(&all, Some("any"), json!({"node": "n"})).0, json!({"node": {"shared": ["n"]}}));
}

#[test]
fn a_task_that_is_not_known_may_lock_anything() {
    let catalogue = Catalogue::parse(STEPS, "c.toml").unwrap();
    for (options, why) in [
        (json!({"do": "dance"}), "the catalogue has no such task as its option \"do\" says"),
        (json!({}), "its option \"do\" is missing"),
        (json!({"do": 3}), "its option \"do\" is a number, and must be the name of a task"),
        (json!({"ops": []}), "its option \"ops\" must be a list of 1 to 1000 steps"),
        (json!({"ops": vec![json!({"do": "verify"}); MAX_STEPS + 1]}), "1 to 1000 steps"),
        (json!({"ops": {"do": "start"}}), "1 to 1000 steps"),
        (json!({"ops": ["start"]}), "its option \"do\" is missing (step 1)"),
    ] {
        let derived = catalogue.requests("t", None, &options).unwrap();
        for level in catalogue.levels().names() {
            let at = serde_json::to_value(&derived.requests.levels[level]).unwrap();
            assert_eq!(at, json!({"exclusive": "unknown"}), "{options}");
        }
        let because = texts(&derived.unknown_because);
        assert!(
            because[0].starts_with("every level, exclusive: ") && because[0].contains(why),
            "{because:?}"
        );
    }
    let text = format!("{STEPS}\notherwise.node.shared = ['{{node}}']");
    let catalogue = Catalogue::parse(&text, "c.toml").unwrap();
    let derived = catalogue.requests("t", None, &json!({"do": "dance", "node": "n"})).unwrap();
    assert_eq!(serde_json::to_value(&derived.requests).unwrap(), json!({"node": {"shared": ["n"]}}));
    assert!(catalogue.requests("other", None, &json!({})).is_none());
}

/// Options of all shapes, with the members that the templates below name.
fn any_options() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..9_i64).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
        Just(Value::from("x".repeat(200))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|members| Value::from(members.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

proptest! {
    /// For all options, the derived requests are valid and can be serialized, and each unknown request has a reason.
    #[test]
    fn prop_derived_requests_are_valid(
        options in any_options(),
        task in prop_oneof![Just(None), Just(Some("a")), Just(Some("b")), Just(Some("c"))],
    ) {
        let text = "
            levels = [{ name = 'node' }, { name = 'disk', capacity = 4 }]
            [jobs.t]
            task = 'd'
            steps = 'c'
            locks.node.shared = ['{a.b?}', '{b}']
            tasks.a.node = [{ exclusive = ['{a}-{b}'], when = { a = 'present' } }, { shared = 'all', when = { a = 'absent' } }]
            tasks.b.disk = { shared = ['{a}', '{b=x}'], units = '{c=2}' }
            tasks.b.big_lock = { unless = { a = ['a', 1, true] } }
            otherwise.disk = { shared = ['{a?}'], exclusive = ['{b?}'] }
        ";
        let catalogue = Catalogue::parse(text, "c.toml").unwrap();
        let derived = catalogue.requests("t", task, &options).unwrap();
        prop_assert_eq!(catalogue.levels().check(&derived.requests), Ok(()));
        let written = serde_json::to_string(&derived.requests).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Requests>(&written).unwrap(), &derived.requests);
        prop_assert_eq!(derived.requests.has_unknown(), !derived.unknown_because.is_empty());
    }
}
