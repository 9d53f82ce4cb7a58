//! `turnwise simulate` as users run it: its output, its drawings, and its errors.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const SCENARIO: &str = "name = 'two to one'\nslots = 6\nchurn = 2\ncycles = 60\n\
                        [[tenants]]\nname = 'a'\nshares = 200\njobs = 20\n[[tenants]]\nname = 'b'\njobs = 20\n";

const LOCKS: &str = "name = 'one by one'\nslots = 4\narrivals = [{ count = 30 }]\n\
                     [cluster]\ngroups = 1\nnodes = 2\ninstances = 3\n\
                     [[tasks]]\nname = 'reboot'\nweight = 1\nrun_ms = 1000\nlocks = { instance = { exclusive = ['{instance}'] } }\n";

fn simulate(scenario: &str, arguments: &[&str]) -> Output {
    simulate_into(Stdio::piped(), Stdio::piped(), scenario, arguments)
}

fn simulate_into(stdout: Stdio, stderr: Stdio, scenario: &str, arguments: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_turnwise"))
        .args(["simulate", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap();
    // A process that refuses its arguments exits without reading stdin.
    let written = child.stdin.take().unwrap().write_all(scenario.as_bytes());
    assert!(!written.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe));
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn output_that_cannot_be_written_is_a_failure_and_a_closed_pipe_is_none() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = simulate_into(full(), Stdio::piped(), SCENARIO, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout: No space left"));
    assert_eq!(simulate_into(full(), full(), SCENARIO, &[]).status.code(), Some(1));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = simulate_into(writer.into(), Stdio::piped(), SCENARIO, &[]);
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_table_shows_the_service_of_each_tenant() {
    let text = out(&simulate(SCENARIO, &[]));
    let words = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(
        words("two to one"),
        "two to one: 6 slots, churn 2, 60 cycles of 60 s, 40 jobs of 2 tenants"
            .split(' ')
            .collect::<Vec<_>>()
    );
    assert_eq!(words("a ")[..6], ["a", "200", "20", "4.000", "4.000", "1.000"]);
    assert_eq!(words("b ")[..6], ["b", "100", "20", "2.000", "2.000", "1.000"]);
}

#[test]
fn all_policies_are_compared() {
    let text = out(&simulate(SCENARIO, &["--compare"]));
    for policy in ["virtual_time", "rfc", "rfc_whole", "round_robin", "fifo"] {
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(policy)), "{policy}: {text}");
    }
    let json: Value =
        serde_json::from_str(&out(&simulate(SCENARIO, &["--policy", "fifo,rfc", "--json"]))).unwrap();
    assert_eq!((&json[0]["policy"], &json[1]["policy"]), (&"fifo".into(), &"rfc".into()));
    assert_eq!(json[0]["tenants"][1]["received"], 0.0);
    let json: Value = serde_json::from_str(&out(&simulate(SCENARIO, &["--json"]))).unwrap();
    assert_eq!((&json["policy"], &json["tenants"][0]["received"]), (&"virtual_time".into(), &240.0.into()));
}

#[test]
fn schedules_and_rates_have_tables_of_their_own() {
    let scenario = "name = 'x'\nslots = 6\nchurn = 0\ncycles = 60\nbegins = '2026-11-29T00:00:00Z'\n\
                    rates = [{ name = 'api', at_most = 2, per_ms = 60_000 }]\n[[tenants]]\nname = 'a'\njobs = []\n\
                    schedules = [{ name = 'nightly', count = 4, cron = '@hourly', run_ms = 5, rate = 'api' }]\n";
    let text = out(&simulate(scenario, &[]));
    let words = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("nightly "), ["nightly", "a", "4", "0", "0", "0", "60.0", "s"]);
    assert_eq!(words("api ")[..4], ["api", "2/60s", "2", "4"]);
    let json: Value = serde_json::from_str(&out(&simulate(scenario, &["--json"]))).unwrap();
    assert_eq!((&json["schedules"][0]["fires"], &json["rates"][0]["highest_use"]), (&4.into(), &2.into()));
}

#[test]
fn a_picture_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.svg");
    out(&simulate(SCENARIO, &["--svg", file.to_str().unwrap()]));
    let svg = fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("a: 200 shares"), "{svg}");
    let nowhere = simulate(SCENARIO, &["--svg", Path::new("/nowhere/at/all.svg").to_str().unwrap()]);
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn mistakes_in_a_scenario_are_reported_with_place_and_range() {
    for (from, to, words) in [
        ("slots = 6", "slots = 0", ["line 2", "1 to 100000"]),
        ("shares = 200", "shares = 2000", ["line 7", "1 to 1000"]),
        ("cycles = 60", "cycle = 60", ["line 4", "unknown field `cycle`"]),
    ] {
        let output = simulate(&SCENARIO.replace(from, to), &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    assert_eq!(simulate(SCENARIO, &["--policy", "fair"]).status.code(), Some(2));
}

#[test]
fn jobs_with_locks_are_compared_by_all_schemes() {
    let text = out(&simulate(LOCKS, &["--all"]));
    assert!(
        text.starts_with("one by one: 30 jobs on 4 slots; 3 instances on 2 nodes in 1 group, 1 task\n"),
        "{text}"
    );
    for name in ["fifo", "aging", "predictive", "best_wait", "best_makespan", "bound", "reboot"] {
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {text}");
    }
    let json: Value =
        serde_json::from_str(&out(&simulate(LOCKS, &["--policy", "predictive,fifo", "--json"]))).unwrap();
    assert_eq!(
        (&json["outcomes"][0]["scheme"], &json["outcomes"][1]["scheme"]),
        (&"predictive".into(), &"fifo".into())
    );
    // Each of 3 instances can be locked by one job at a time, so the busiest takes at least a third of 30 s.
    assert!(json["bound"]["makespan_s"].as_f64().unwrap() >= 10.0, "{json}");
    assert_eq!(json["outcomes"][0]["wasted_slot_s"], 0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.svg");
    out(&simulate(LOCKS, &["--svg", file.to_str().unwrap()]));
    let svg = fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("predictive"), "{svg}");
}

#[test]
fn a_policy_of_the_other_kind_and_a_wrong_lock_are_refused() {
    let error_of = |scenario: &str, arguments: &[&str]| {
        let output = simulate(scenario, arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = error_of(LOCKS, &["--policy", "rfc"]);
    assert!(error.contains("there is no scheme `rfc`"), "{error}");
    let error = error_of(SCENARIO, &["--policy", "aging"]);
    assert!(error.contains("there is no policy `aging`"), "{error}");
    let error = error_of(&LOCKS.replace("{instance}", "{instanec}"), &[]);
    assert!(error.contains("task `reboot`: locks.instance: there is no `{instanec}`"), "{error}");
    let error = error_of(&LOCKS.replace("count = 30", "count = 0"), &[]);
    assert!(error.contains("line 3") && error.contains("1 to 100000"), "{error}");
}
