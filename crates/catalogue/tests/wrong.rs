//! Every error in a catalogue is refused in one line, with the place and how to correct it.

use turnwise_catalogue::{Catalogue, MAX_ENTRIES, MAX_FILE_BYTES};

fn refused(text: &str) -> String {
    let error = Catalogue::parse(text, "c.toml").expect_err(text).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// A type with one task `o`, whose locks begin at line 4.
fn task(locks: &str) -> String {
    format!("[jobs.t]\ntask = 'do'\n[jobs.t.tasks.o]\n{locks}\n")
}

#[test]
fn invalid_locks_are_refused() {
    for (locks, expected) in [
        (
            "nod.shared = 'all'",
            "c.toml:4: jobs.t.tasks.o.nod: there is no such level; the levels are node_group, instance, node, node_resource, network, and big_lock",
        ),
        (
            "node.shered = 'all'",
            "c.toml:4: jobs.t.tasks.o.node.shered: there is no such member; there are shared, exclusive, units, when, unless",
        ),
        (
            "instance.shared = ['a']\nnode.exclusive = []",
            "c.toml:5: jobs.t.tasks.o.node.exclusive: names nothing to lock exclusive; leave it out, or say \"unknown\" or \"all\"",
        ),
        (
            "node = { shared = ['{a}', 'b'], exclusive = ['b'] }",
            "c.toml:4: jobs.t.tasks.o.node: names \"b\" both shared and exclusive; exclusive is enough: leave it out of `shared`",
        ),
        ("node = { shared = ['{a}'], exclusive = ['{a}'] }", "names \"{a}\" both shared and exclusive"),
        ("node = { shared = 'all', exclusive = 'all' }", "all of the level both shared and exclusive"),
        (
            "node = [\n  { shared = ['{a}'] },\n  { exclusive = ['{a}'] },\n]",
            "c.toml:6: jobs.t.tasks.o.node[1]: names \"{a}\" both shared and exclusive",
        ),
        (
            "node = [\n  { shared = ['{a}'] },\n  { shared = 'unknown' },\n]",
            "c.toml:6: jobs.t.tasks.o.node[1]: is a second request of one mode under the conditions of line 5",
        ),
        ("node.shared = ['{a}', '{a}']", "jobs.t.tasks.o.node.shared[1]: names \"{a}\" twice"),
        (
            "node.shared = ['{a']",
            "has a { without its other one; write \"{option}\", or {{ for the brace itself",
        ),
        ("node.shared = ['{a..b}']", "has an empty member"),
        ("node.shared = ['{}']", "names no option"),
        ("node.shared = ['']", "has an empty name"),
        ("node.shared = '{a}'", "is \"{a}\"; write \"all\", \"unknown\", or a list of names: [\"{a}\"]"),
        ("node.shared = 3", "node.shared: is a number; it must be \"all\", \"unknown\", or a list of names"),
        ("node.shared = [3]", "node.shared[0]: is a number"),
        ("node = []", "is an empty list"),
        ("node = {}", "locks nothing; write `shared` or `exclusive`"),
        ("node = 'all'", "is a text; it must be a request"),
        ("big_lock = false", "is false; leave it out"),
        ("big_lock = 'yes'", "is a text; it must be true"),
        ("big_lock = {}", "has no conditions"),
        (
            "node = { shared = ['a'], units = 2 }",
            "counts units of node, which has none; give the level a capacity",
        ),
        ("node = { exclusive = ['a'], units = 2 }", "counts what is not counted; only shared locks"),
        ("node = { shared = 'all', units = 2 }", "counts what is not counted"),
        ("node = { shared = ['a'], when = {} }", "node.when: has 0 conditions"),
        ("node = { shared = ['a'], when = { a = [] } }", "node.when.a: has 0 values"),
        ("node = { shared = ['a'], when = { a = 1.5 } }", "node.when.a: is a number; it must be \"present\""),
        (
            "node = { shared = ['a'], when = { 'a b' = 1 } }",
            "a character that the path of an option cannot have",
        ),
        (
            "node = { shared = ['a'], when = { a.b = 1, 'a.b' = 2 } }",
            "says twice what an option must be; write a list of its values",
        ),
        ("node.shared = 'all'\nnode.shared = 'all'", "c.toml:5: duplicate key"),
    ] {
        let error = refused(&task(locks));
        assert!(error.contains(expected), "{locks}\n  gives {error}\n  not   {expected}");
    }
}

#[test]
fn invalid_types_are_refused() {
    for (text, expected) in [
        ("[job.t]\n", "c.toml:1: job: there is no such member; there are levels, jobs"),
        ("[jobs.t]\n", "c.toml:1: jobs.t: says nothing of its locks"),
        ("\n[jobs.t]\nlock = {}\n", "c.toml:3: jobs.t.lock: there is no such member; there are task, steps"),
        ("[jobs.t]\nsteps = 's'\n[jobs.t.tasks.o]\n", "does not say which option tells the task of each"),
        ("[jobs.t]\noperation = 'do'\n", "c.toml:2: jobs.t.operation: has another name now; write `task`"),
        ("[jobs.t.operations.o]\n", "c.toml:1: jobs.t.operations: has another name now; write `tasks`"),
        ("[jobs.t]\ntask = 'do'\n", "says which option tells the task, and has none"),
        ("[jobs.t]\nsteps = 's'\nlocks = {}\n", "`steps` or `otherwise` without tasks"),
        ("[jobs.t]\ntask = ''\n", "c.toml:2: jobs.t.task: names no option"),
        ("[jobs.t]\ntask = 3\n", "jobs.t.task: is a number; it must be the name of an option"),
        (
            "[jobs.t]\nlearn = ['a']\nlocks = {}\n",
            "c.toml:2: jobs.t.learn: no longer exists; leave it out, and declare the locks of each job",
        ),
        (
            "[jobs.t]\nlocks = {}\n[jobs.t]\nlocks = {}\n",
            "c.toml:3: duplicate key; it stands above already: make one entry of both",
        ),
        ("[jobs.t]\nlocks = {}\nx = \n", "c.toml:3: "),
        ("jobs = 3\n", "c.toml:1: jobs: is a number; it must be a table for each job type"),
        ("[jobs.'']\nlocks = {}\n", "jobs.\"\": has an empty name; name a job type"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected), "{text}\n  gives {error}\n  not   {expected}");
    }
}

#[test]
fn invalid_levels_are_refused() {
    for (text, expected) in [
        ("levels = []\n", "c.toml:1: levels: there are 0 levels; 1 to 16 are possible"),
        (
            "[[levels]]\nname = 'a'\n[[levels]]\nname = 'a'\n",
            "c.toml:4: levels[1].name: there are two levels \"a\"",
        ),
        ("[[levels]]\ncapacity = 1\n", "levels[0]: has no name"),
        ("[[levels]]\nname = 'big_lock'\n", "cannot be called big_lock"),
        ("[[levels]]\nname = ''\n", "has an empty name"),
        (
            "[[levels]]\nname = 'a'\ncapacity = 0\n",
            "c.toml:3: levels[0].capacity: is a capacity of 0; 1 to 1000000 are possible",
        ),
        ("[[levels]]\nname = 'a'\ncapacity = -1\n", "is a capacity of -1"),
        ("[[levels]]\nname = 'a'\ncapacity = 1.5\n", "is a number; it must be a number of units"),
        ("[[levels]]\nname = 'a'\ncapacity = 99999999999999999999\n", "is 99999999999999999999"),
        ("[[levels]]\nname = 'a'\ncapacities = {}\n", "names no resource"),
        ("[[levels]]\nname = 'a'\ncapacities = { b = -3 }\n", "levels[0].capacities.b: is a capacity of -3"),
        (
            "[[levels]]\nname = 'a'\nsize = 3\n",
            "levels[0].size: there is no such member; there are name, capacity, capacities",
        ),
        (
            "[[levels]]\nname = 'a'\ncapacity = 4\n[jobs.t.locks]\na = { shared = ['x'], units = 5 }\n",
            "c.toml:5: jobs.t.locks.a.units: is 5; 1 to 4 can be had",
        ),
        (
            "[[levels]]\nname = 'a'\ncapacity = 4\n[jobs.t.locks]\na = { shared = ['x'], units = -1 }\n",
            "is -1; 1 to 4 can be had",
        ),
        (
            "[[levels]]\nname = 'a'\ncapacity = 4\n[jobs.t.locks]\na = { shared = ['x'], units = '{n?}' }\n",
            "leaves a number of units out",
        ),
    ] {
        let error = refused(text);
        assert!(error.contains(expected), "{text}\n  gives {error}\n  not   {expected}");
    }
}

#[test]
fn a_file_beyond_a_limit_is_refused() {
    let long = format!("#{}", "x".repeat(MAX_FILE_BYTES));
    assert!(refused(&long).contains("at most 1048576 are read"));
    let many: String =
        (0..=MAX_ENTRIES / 2).map(|n| format!("[jobs.t.tasks.o{n}]\nnode.shared = ['a']\n")).collect();
    let error = refused(&format!("[jobs.t]\ntask = 'do'\n{many}"));
    assert!(error.contains(&format!("is task or request number {}", MAX_ENTRIES + 1)), "{error}");
    let names: Vec<String> = (0..1001).map(|n| format!("'n{n}'")).collect();
    let error = refused(&task(&format!("node.shared = [{}]", names.join(", "))));
    assert!(error.contains("has 1001 names; at most 1000 are possible: say \"all\""), "{error}");
    let conditions: Vec<String> = (0..33).map(|n| format!("o{n} = 1")).collect();
    let error =
        refused(&task(&format!("node = {{ shared = 'all', when = {{ {} }} }}", conditions.join(", "))));
    assert!(error.contains("33 conditions"), "{error}");
    let deep = "[".repeat(5_000);
    refused(&format!("x = {deep}"));
}
