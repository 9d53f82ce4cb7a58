//! The example catalogue: what each of its tasks locks with full options, and what is unknown without options.

use serde_json::{Value, json};
use turnwise_catalogue::{Catalogue, Derived};
use turnwise_policy::predictive_queue::locks::{Request, Requests};

const FILE: &str = include_str!("../../../examples/catalogue.toml");

/// The task, its full options, its locks with these, and its locks without any options. Notation: a letter for the mode (`x`
/// exclusive, `s` shared), names with units above one, `*` for all of the level, `?` for unknown.
#[rustfmt::skip]
const TASKS: [(&str, &str, &str, &str); 83] = [
    ("instance-create", r#"{"instance":"web1","nodes":["n1","n2"],"disks":2,"networks":["lan"]}"#,
        "instance x web1; node x n1,n2; node_resource s n1:2,n2:2; network s lan", "instance x ?; node x ?; node_resource s ?"),
    ("instance-create-many", r#"{"instances":[{"name":"a","nodes":["n1","n2"],"networks":["lan"]},{"name":"b","nodes":["n3"]}]}"#,
        "instance x a,b; node x n1,n2,n3; node_resource s n1,n2,n3; network s lan", "instance x ?; node x ?; node_resource s ?"),
    ("instance-import", r#"{"instance":"web1","nodes":["n1","n2"],"source_node":"n9","disks":1,"networks":["lan"]}"#,
        "instance x web1; node x n1,n2,n9; node_resource s n1,n2,n9; network s lan", "instance x ?; node x ?; node_resource s ?"),
    ("instance-remove", r#"{"instance":"web1","nodes":["n1","n2"],"networks":["lan"]}"#,
        "instance x web1; node x n1,n2; node_resource s n1,n2; network s lan", "instance x ?; node x ?; node_resource s ?"),
    ("instance-start", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node s n1,n2", "instance x ?; node s ?"),
    ("instance-stop", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node s n1,n2", "instance x ?; node s ?"),
    ("instance-reboot", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node s n1,n2", "instance x ?; node s ?"),
    ("instance-migrate", r#"{"instance":"web1","nodes":["n1"],"target":"n2"}"#, "instance x web1; node x n1,n2", "instance x ?; node x ?"),
    ("instance-failover", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node x n1,n2", "instance x ?; node x ?"),
    ("instance-move", r#"{"instance":"web1","nodes":["n1"],"target":"n2","disks":3}"#,
        "instance x web1; node x n1,n2; node_resource s n1:3,n2:3", "instance x ?; node x ?; node_resource s ?"),
    ("instance-replace-disks", r#"{"instance":"web1","nodes":["n1","n2"],"mode":"new-secondary","new_secondary":"n3"}"#,
        "instance x web1; node x n1,n2,n3; node_resource s n1,n2,n3", "instance x ?; node x ?; node_resource s ?"),
    ("instance-recreate-disks", r#"{"instance":"web1","nodes":["n1","n2"],"disks":2}"#,
        "instance x web1; node x n1,n2; node_resource s n1:2,n2:2", "instance x ?; node x ?; node_resource s ?"),
    ("instance-grow-disk", r#"{"instance":"web1","nodes":["n1","n2"]}"#,
        "instance x web1; node s n1,n2; node_resource s n1,n2", "instance x ?; node s ?; node_resource s ?"),
    ("instance-activate-disks", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node s n1,n2", "instance x ?; node s ?"),
    ("instance-deactivate-disks", r#"{"instance":"web1","nodes":["n1","n2"]}"#, "instance x web1; node s n1,n2", "instance x ?; node s ?"),
    ("instance-modify", r#"{"instance":"web1","nodes":["n1"],"disks":[{"add":10}],"interfaces":[{"add":"lan"}],"networks":["lan"]}"#,
        "instance x web1; node s n1; node_resource s n1; network s lan", "instance x ?"),
    ("instance-rename", r#"{"instance":"web1","new_name":"web9","nodes":["n1"]}"#,
        "instance x web1,web9; node s n1", "instance x ?; node s ?"),
    ("instance-reinstall", r#"{"instance":"web1","nodes":["n1"]}"#,
        "instance x web1; node s n1; node_resource s n1", "instance x ?; node s ?; node_resource s ?"),
    ("instance-snapshot", r#"{"instance":"web1","nodes":["n1"],"disks":2}"#,
        "instance x web1; node s n1; node_resource s n1:2", "instance x ?; node s ?; node_resource s ?"),
    ("instance-export", r#"{"instance":"web1","nodes":["n1","n2"],"target":"n9"}"#,
        "instance x web1; node x n1,n2,n9; node_resource s n1,n2", "instance x ?; node x ?; node_resource s ?"),
    ("instance-change-group", r#"{"instance":"web1","nodes":["n1","n2"],"group":"g1","target_groups":["g2"],"candidates":["n7","n8"]}"#,
        "node_group s g1,g2; instance x web1; node x n1,n2,n7,n8; node_resource s n1,n2,n7,n8", "node_group s ?; instance x ?; node x ?; node_resource s ?"),
    ("instance-console", r#"{"instance":"web1","nodes":["n1"]}"#, "instance s web1; node s n1", "instance s ?; node s ?"),
    ("instance-query", r#"{"instances":["web1","web2"]}"#, "", ""),
    ("backup-prepare", r#"{"instance":"web1","nodes":["n1"]}"#, "instance s web1; node s n1", "instance s ?; node s ?"),
    ("backup-remove", r#"{"instance":"web1","node":"n9"}"#, "node x n9", "node x *"),
    ("backup-list", r#"{"nodes":["n1","n9"]}"#, "", ""),
    ("node-add", r#"{"node":"n9","group":"g1"}"#, "big", "big"),
    ("node-remove", r#"{"node":"n9","group":"g1"}"#, "big", "big"),
    ("node-modify", r#"{"node":"n1","offline":true,"instances":["web1","web2"]}"#, "instance s web1,web2; node x n1; node_resource x n1", "node x ?; node_resource x ?"),
    ("node-evacuate", r#"{"node":"n1","group":"g1","instances":["web1","web2"],"targets":["n2","n3"]}"#,
        "node_group s g1; instance s web1,web2; node s n1,n2,n3", "node_group s ?; instance s ?; node s ?"),
    ("node-migrate", r#"{"node":"n1"}"#, "node s n1", "node s ?"),
    ("node-power-cycle", r#"{"node":"n1","instances":["web1"]}"#, "instance x web1; node x n1", "instance x ?; node x ?"),
    ("node-out-of-band", r#"{"nodes":["n1"],"command":"power-off"}"#, "node x n1", "node x ?"),
    ("node-repair", r#"{"node":"n1","instances":["web1"]}"#,
        "instance s web1; node x n1; node_resource x n1", "instance s ?; node x ?; node_resource x ?"),
    ("node-repair-storage", r#"{"node":"n1"}"#, "node x n1; node_resource x n1", "node x ?; node_resource x ?"),
    ("node-modify-storage", r#"{"node":"n1"}"#, "node x n1", "node x ?"),
    ("node-query-storage", r#"{"nodes":["n1"]}"#, "", ""),
    ("node-query-volumes", r#"{"nodes":["n1"]}"#, "", ""),
    ("node-run-command", r#"{"nodes":["n1"]}"#, "node s n1", "node s ?"),
    ("group-add", r#"{"group":"g9"}"#, "node_group x g9", "node_group x ?"),
    ("group-remove", r#"{"group":"g9"}"#, "node_group x g9", "node_group x ?"),
    ("group-assign-nodes", r#"{"group":"g1","from_groups":["g2"],"nodes":["n1","n2"]}"#,
        "node_group x g1,g2; node x n1,n2", "node_group x ?; node x ?"),
    ("group-evacuate", r#"{"group":"g1","target_groups":["g2"],"instances":["web1"],"nodes":["n1","n2"]}"#,
        "node_group s g1,g2; instance s web1; node s n1,n2", "node_group s ?; instance s ?; node s ?"),
    ("group-modify", r#"{"group":"g1","disk_parameters":"resync=fast","instances":["web1"]}"#,
        "node_group x g1; instance s web1", "node_group x ?"),
    ("group-rename", r#"{"group":"g1","new_name":"g9"}"#, "node_group x g1,g9", "node_group x ?"),
    ("group-verify", r#"{"group":"g1","instances":["web1"],"nodes":["n1","n2"]}"#,
        "node_group s g1; instance s web1; node s n1,n2", "node_group s ?; instance s ?; node s ?"),
    ("group-verify-disks", r#"{"group":"g1","instances":["web1"],"nodes":["n1","n2"]}"#,
        "node_group s g1; instance x web1; node s n1,n2", "node_group s ?; instance x ?; node s ?"),
    ("network-add", r#"{"network":"lan"}"#, "node s *; network x lan", "node s *; network x ?"),
    ("network-remove", r#"{"network":"lan"}"#, "node_group s *; network x lan", "node_group s *; network x ?"),
    ("network-connect", r#"{"network":"lan","group":"g1","instances":["web1"]}"#,
        "node_group x g1; instance s web1; network s lan", "node_group x ?; instance s ?; network s ?"),
    ("network-disconnect", r#"{"network":"lan","group":"g1","instances":["web1"]}"#,
        "node_group x g1; instance s web1; network s lan", "node_group x ?; instance s ?; network s ?"),
    ("network-modify", r#"{"network":"lan"}"#, "network x lan", "network x ?"),
    ("network-rename", r#"{"network":"lan","new_name":"wan"}"#, "network x lan,wan", "network x ?"),
    ("tags-set", r#"{"kind":"instance","name":"web1"}"#, "instance x web1", "node_group x ?; instance x ?; node x ?; network x ?"),
    ("tags-del", r#"{"kind":"node","name":"n1"}"#, "node x n1", "node_group x ?; instance x ?; node x ?; network x ?"),
    ("tags-get", r#"{"kind":"instance","name":"web1"}"#, "", ""),
    ("tags-search", r#"{"pattern":"x"}"#, "", ""),
    ("cluster-verify", r#"{}"#, "", ""),
    ("cluster-verify-config", r#"{}"#,
        "node_group s *; instance s *; node s *; network s *", "node_group s *; instance s *; node s *; network s *"),
    ("cluster-verify-group", r#"{"group":"g1","instances":["web1"],"nodes":["n1","n2"]}"#,
        "node_group s g1; instance s web1; node s n1,n2", "node_group s ?; instance s ?; node s ?"),
    ("cluster-verify-disks", r#"{"group":"g1"}"#, "node_group s g1", "node_group s *"),
    ("cluster-modify", r#"{"master_device":"eth1"}"#,
        "big; node_group s *; instance s *; node s *", "node_group s *; instance s *; node s *"),
    ("cluster-rename", r#"{"name":"c2"}"#, "big", "big"),
    ("cluster-repair-disk-sizes", r#"{"instances":["web1"],"nodes":["n1","n2"]}"#,
        "instance x web1; node_resource s n1,n2", "instance x *; node_resource s *"),
    ("cluster-redistribute-config", r#"{}"#, "node s *", "node s *"),
    ("cluster-renew-crypto", r#"{}"#, "node x *", "node x *"),
    ("cluster-master-failover", r#"{}"#, "big", "big"),
    ("cluster-activate-master-ip", r#"{}"#, "big", "big"),
    ("cluster-deactivate-master-ip", r#"{}"#, "big", "big"),
    ("cluster-upgrade", r#"{}"#, "big", "big"),
    ("cluster-destroy", r#"{}"#, "big", "big"),
    ("cluster-post-init", r#"{}"#, "big", "big"),
    ("cluster-query", r#"{}"#, "", ""),
    ("cluster-query-config", r#"{}"#, "", ""),
    ("query", r#"{"what":"node"}"#, "", ""),
    ("query-fields", r#"{"what":"node"}"#, "", ""),
    ("os-diagnose", r#"{}"#, "", ""),
    ("storage-diagnose", r#"{}"#, "", ""),
    ("test-allocator", r#"{}"#, "big", "big"),
    ("test-delay", r#"{"on_nodes":["n1","n2"]}"#, "node x n1,n2", ""),
    ("test-queue", r#"{}"#, "", ""),
    ("test-os-parameters", r#"{}"#, "", ""),
    ("test-dummy", r#"{}"#, "", ""),
];

/// The requests as one line.
fn line(requests: &Requests, levels: &Catalogue) -> String {
    let mut words = Vec::new();
    if requests.big_lock {
        words.push("big".to_owned());
    }
    for level in levels.levels().names() {
        let Some(at) = requests.levels.get(level) else { continue };
        for request in at.requests() {
            let (mode, names) = match request {
                Request::None => continue,
                Request::AllShared => ("s", "*".to_owned()),
                Request::AllExclusive => ("x", "*".to_owned()),
                Request::UnknownShared => ("s", "?".to_owned()),
                Request::UnknownExclusive => ("x", "?".to_owned()),
                Request::Exclusive(names) => ("x", names.iter().cloned().collect::<Vec<_>>().join(",")),
                Request::Shared(names) => {
                    let name = |(name, units): (&String, &u32)| match units {
                        1 => name.clone(),
                        units => format!("{name}:{units}"),
                    };
                    ("s", names.iter().map(name).collect::<Vec<_>>().join(","))
                }
            };
            words.push(format!("{level} {mode} {names}"));
        }
    }
    words.join("; ")
}

fn derive(catalogue: &Catalogue, task: &str, options: &str) -> Derived {
    let options: Value = serde_json::from_str(options).unwrap();
    catalogue.requests("cluster", Some(task), &options).unwrap()
}

#[test]
fn each_task_locks_what_it_must() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    for (task, options, full, bare) in TASKS {
        let derived = derive(&catalogue, task, options);
        assert_eq!(line(&derived.requests, &catalogue), full, "{task}");
        assert_eq!(derived.unknown_because, [], "{task}");
        assert_eq!(derived.warnings, [], "{task}");

        let derived = derive(&catalogue, task, "{}");
        assert_eq!(line(&derived.requests, &catalogue), bare, "{task} without options");
        let unknown = bare.matches('?').count();
        assert!(derived.unknown_because.len() >= unknown, "{task}: {:?}", derived.unknown_because);
        assert_eq!(derived.unknown_because.is_empty(), unknown == 0, "{task}");
        assert!(derived.unknown_because.iter().all(|because| !because.cause.is_fault()), "{task}");
    }
}

#[test]
fn the_table_has_every_task() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    assert_eq!(catalogue.types().collect::<Vec<_>>(), ["cluster"]);
    let mut table: Vec<&str> = TASKS.iter().map(|(task, ..)| *task).collect();
    table.sort_unstable();
    assert_eq!(table, catalogue.tasks("cluster").collect::<Vec<_>>());
    assert!(table.len() >= 40);
}

#[test]
fn conditions_decide_which_locks_apply() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    for (task, options, wanted) in CONDITIONS {
        let derived = derive(&catalogue, task, options);
        assert_eq!(line(&derived.requests, &catalogue), wanted, "{task} {options}");
    }
}

/// All steps of a job count.
#[test]
fn a_node_is_drained_and_repaired() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    let options = json!({"steps": [
        {"task": "instance-migrate", "instance": "web1", "nodes": ["n1", "n2"]},
        {"task": "node-modify", "node": "n1", "offline": true, "instances": ["web1"]},
        {"task": "instance-start", "instance": "web2", "nodes": ["n3"]},
    ]});
    let derived = catalogue.requests("cluster", None, &options).unwrap();
    let locks = "instance x web1,web2; node s n3; node x n1,n2; node_resource x n1";
    assert_eq!(line(&derived.requests, &catalogue), locks);
    assert_eq!(derived.unknown_because, []);
}

const CONDITIONS: [(&str, &str, &str); 18] = [
    (
        "instance-create",
        r#"{"instance":"a","nodes":["n"],"networks":[]}"#,
        "instance x a; node x n; node_resource s n",
    ),
    ("instance-create", r#"{"instance":"a","disks":2}"#, "instance x a; node x ?; node_resource s ?"),
    (
        "instance-replace-disks",
        r#"{"instance":"a","nodes":["n","m"],"mode":"in-place","disks":9}"#,
        "instance x a; node x m,n; node_resource s m:4,n:4",
    ),
    (
        "instance-replace-disks",
        r#"{"instance":"a","nodes":["n","m"],"mode":"new-secondary"}"#,
        "instance x a; node x ?; node_resource s ?",
    ),
    ("instance-modify", r#"{"instance":"a","memory":512}"#, "instance x a"),
    ("instance-modify", r#"{"instance":"a","interfaces":[{}]}"#, "instance x a; network s ?"),
    (
        "instance-export",
        r#"{"instance":"a","nodes":["n"],"mode":"remote"}"#,
        "instance x a; node x n; node_resource s n",
    ),
    ("node-modify", r#"{"node":"n","offline":false}"#, "node x n; node_resource x n"),
    ("node-modify", r#"{"node":"n","offline":true}"#, "instance s ?; node x n; node_resource x n"),
    (
        "node-modify",
        r#"{"node":"n","secondary_address":"10.0.0.9"}"#,
        "instance s ?; node x n; node_resource x n",
    ),
    (
        "node-modify",
        r#"{"node":"n","auto_promote":true,"master_candidate":false}"#,
        "node x *; node_resource x n",
    ),
    ("network-add", r#"{"network":"l","check_conflicts":false}"#, "network x l"),
    ("node-power-cycle", r#"{"node":"n","force":true}"#, ""),
    ("node-out-of-band", r#"{"nodes":["n"],"command":"health"}"#, "node s n"),
    (
        "network-connect",
        r#"{"network":"l","group":"g","check_conflicts":false}"#,
        "node_group x g; network s l",
    ),
    ("tags-set", r#"{"kind":"cluster"}"#, ""),
    ("tags-set", r#"{"kind":"node_group"}"#, "node_group x ?"),
    ("cluster-modify", r#"{"drbd":"off"}"#, "node_group s *; instance s *; node s *"),
];

/// The opcodes for which Ganeti takes its big lock (`hasBGL` of its lock declarations).
const BIG: [&str; 8] = [
    "OP_NODE_ADD",
    "OP_NODE_REMOVE",
    "OP_CLUSTER_ACTIVATE_MASTER_IP",
    "OP_CLUSTER_DEACTIVATE_MASTER_IP",
    "OP_CLUSTER_DESTROY",
    "OP_CLUSTER_POST_INIT",
    "OP_CLUSTER_RENAME",
    "OP_TEST_ALLOCATOR",
];

#[test]
fn the_big_lock_is_that_of_ganeti() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    let opcodes = OPCODES.split_whitespace().map(|opcode| format!("OP_{opcode}"));
    let big: Vec<String> =
        opcodes.filter(|opcode| derive(&catalogue, opcode, "{}").requests.big_lock).collect();
    let mut expected = BIG.to_vec();
    expected.sort_unstable();
    assert_eq!(big, expected);
}

/// All opcodes of Ganeti, without their `OP_`.
const OPCODES: &str = "\
    BACKUP_EXPORT BACKUP_PREPARE BACKUP_REMOVE CLUSTER_ACTIVATE_MASTER_IP CLUSTER_CONFIG_QUERY \
    CLUSTER_DEACTIVATE_MASTER_IP CLUSTER_DESTROY CLUSTER_POST_INIT CLUSTER_QUERY CLUSTER_REDIST_CONF \
    CLUSTER_RENAME CLUSTER_RENEW_CRYPTO CLUSTER_REPAIR_DISK_SIZES CLUSTER_SET_PARAMS CLUSTER_VERIFY \
    CLUSTER_VERIFY_CONFIG CLUSTER_VERIFY_DISKS CLUSTER_VERIFY_GROUP EXT_STORAGE_DIAGNOSE GROUP_ADD \
    GROUP_ASSIGN_NODES GROUP_EVACUATE GROUP_REMOVE GROUP_RENAME GROUP_SET_PARAMS GROUP_VERIFY_DISKS \
    INSTANCE_ACTIVATE_DISKS INSTANCE_CHANGE_GROUP INSTANCE_CONSOLE INSTANCE_CREATE \
    INSTANCE_DEACTIVATE_DISKS INSTANCE_FAILOVER INSTANCE_GROW_DISK INSTANCE_MIGRATE INSTANCE_MOVE \
    INSTANCE_MULTI_ALLOC INSTANCE_QUERY_DATA INSTANCE_REBOOT INSTANCE_RECREATE_DISKS INSTANCE_REINSTALL \
    INSTANCE_REMOVE INSTANCE_RENAME INSTANCE_REPLACE_DISKS INSTANCE_SET_PARAMS INSTANCE_SHUTDOWN \
    INSTANCE_STARTUP NETWORK_ADD NETWORK_CONNECT NETWORK_DISCONNECT NETWORK_REMOVE NETWORK_RENAME \
    NETWORK_SET_PARAMS NODE_ADD NODE_EVACUATE NODE_MIGRATE NODE_MODIFY_STORAGE NODE_POWERCYCLE \
    NODE_QUERYVOLS NODE_QUERY_STORAGE NODE_REMOVE NODE_SET_PARAMS OOB_COMMAND OS_DIAGNOSE QUERY \
    QUERY_FIELDS REPAIR_NODE_STORAGE RESTRICTED_COMMAND TAGS_DEL TAGS_GET TAGS_SEARCH TAGS_SET \
    TEST_ALLOCATOR TEST_DELAY TEST_DUMMY TEST_JQUEUE TEST_OS_PARAMS";

#[test]
fn every_opcode_of_ganeti_is_an_alias_and_locks_what_its_task_locks() {
    let catalogue = Catalogue::parse(FILE, "examples/catalogue.toml").unwrap();
    let aliases: std::collections::BTreeMap<&str, &str> = catalogue.aliases("cluster").collect();
    let opcodes: Vec<String> = OPCODES.split(' ').map(|name| format!("OP_{name}")).collect();
    assert_eq!(aliases.keys().copied().collect::<Vec<_>>(), opcodes);
    for (task, options, locks, _) in TASKS {
        for (alias, _) in aliases.iter().filter(|(_, of)| **of == task) {
            assert_eq!(line(&derive(&catalogue, alias, options).requests, &catalogue), locks, "{alias}");
        }
    }
}
