//! Jobs of two types that lock, on two external workers and the server's own worker, while one of them is killed. Each
//! command logs when it enters and leaves its locks, so the log shows which commands held locks at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::Child;

use crate::server::{Home, PATIENCE, Server, turnwise};

/// The number of jobs of each type, including the victim.
const JOBS: usize = 100;
/// The number of instances that the jobs lock.
const INSTANCES: usize = 11;
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
const CONFIG: &str = "[workers]\nhealth_interval = 0.5\nhealth_timeout = 5\n[jobs]\nbackoff_base_ms = 100\n\
                      [command]\nenabled = true\nallow_root = true\nmax_jobs = 4\n";
/// The line that the test writes to the log when it has killed a worker.
const KILLED: &str = "killed";
/// The name of the worker that is killed, in the commands' lines of the log.
const DIES: &str = "dies";

/// Enters, works, and leaves; each is logged with one write. The caller sets `$LOG`, `$WHO` and `$LOCKS`.
const INSIDE: &str = r#"RUN="$TURNWISE_JOB_TYPE/$TURNWISE_JOB_ID $TURNWISE_ATTEMPT $WHO $$ $LOCKS"
    echo "enter $RUN" >>"$LOG"
    sleep 0.02
    echo "leave $RUN" >>"$LOG""#;

/// The beginning of the external type's commands: sets the variables of `INSIDE` from the options. On the killed
/// worker, `victim` never leaves.
const EXTERNAL: &str = r#"options=$(cat); LOCKS=$(expr "$options" : '.*"said": *"\([^"]*\)"'); LOG=$0; SAID=$1; WHO=$2
    if [ "$TURNWISE_JOB_ID/$WHO" = victim/dies ]; then
        echo "enter ext/victim $TURNWISE_ATTEMPT $WHO $$ $LOCKS" >>"$LOG"
        echo inside >"$SAID"
        exec sleep 1000
    fi
"#;

/// What a job locks, and its text in the log. Each job locks one instance exclusively. Of every five jobs, one also
/// locks the node exclusively, and one shares it.
fn locks(n: usize) -> (Value, String) {
    let name = format!("web{}", n % INSTANCES);
    let instance = json!({ "exclusive": [name] });
    match n % 5 {
        0 => (
            json!({ "instance": instance, "node": { "exclusive": ["n1"] } }),
            format!("instance/{name}=exclusive,node/n1=exclusive"),
        ),
        1 => (
            json!({ "instance": instance, "node": { "shared": ["n1"] } }),
            format!("instance/{name}=exclusive,node/n1=shared"),
        ),
        _ => (json!({ "instance": instance }), format!("instance/{name}=exclusive")),
    }
}

/// `turnwise work`, for jobs of type `ext`.
fn worker(server: &Server, log: &Path, said: &Path, who: &str) -> Child {
    turnwise()
        .args(["work", "--type", "ext", "--slots", "4", "--exec", "sh", "-c"])
        .arg(format!("{EXTERNAL}{INSIDE}"))
        .args([log, said])
        .arg(who)
        .env("TURNWISE_SERVER", server.url())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn stdout_of(server: &Server, args: &[&str]) -> String {
    let output = turnwise().args(args).env("TURNWISE_SERVER", server.url()).output().await.unwrap();
    let output = crate::server::clean(output);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A run, parsed from its lines in the log.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Run<'a> {
    job: &'a str,
    who: &'a str,
    pid: &'a str,
    /// Locks, and whether they are exclusive.
    locks: Vec<(&'a str, bool)>,
}

fn run(line: &str) -> Run<'_> {
    let [job, _attempt, who, pid, locks] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{line:?}")
    };
    let locks = locks.split(',').map(|lock| lock.split_once('=').unwrap());
    Run { job, who, pid, locks: locks.map(|(lock, mode)| (lock, mode == "exclusive")).collect() }
}

/// The runs that entered and never left.
fn never_left(log: &str) -> BTreeSet<&str> {
    let left: BTreeSet<&str> = log.lines().filter_map(|line| line.strip_prefix("leave ")).collect();
    log.lines().filter_map(|line| line.strip_prefix("enter ")).filter(|run| !left.contains(run)).collect()
}

/// Checks the log. No run holds locks at the same time as a run with conflicting locks, or another run of its job. Only
/// runs of the killed worker never leave, and they end when it is killed. Returns how often each job ran.
fn check(log: &str) -> BTreeMap<String, usize> {
    let (mut inside, mut runs) = (BTreeMap::<&str, Run<'_>>::new(), BTreeMap::new());
    let never_left = never_left(log);
    assert!(never_left.iter().all(|line| run(line).who == DIES), "{never_left:?} never left:\n{log}");
    let mut killed = false;
    for line in log.lines() {
        if line == KILLED {
            killed = true;
            inside.retain(|run, _| !never_left.contains(run));
            continue;
        }
        let (what, line) = line.split_once(' ').unwrap();
        if what == "leave" {
            assert!(inside.remove(line).is_some(), "{line} leaves, and is not inside:\n{log}");
            continue;
        }
        let enters = run(line);
        for (other, held) in &inside {
            let goes = |(lock, alone): &(&str, bool)| {
                !held.locks.iter().any(|(held, exclusive)| held == lock && (*alone || *exclusive))
            };
            let go = enters.locks.iter().all(goes) && held.job != enters.job;
            assert!(go, "{line} enters while {other} is inside:\n{log}");
        }
        *runs.entry(enters.job.to_owned()).or_default() += 1;
        // A run of the killed worker may have logged this before the guard ended it.
        if !(killed && never_left.contains(line)) {
            assert!(inside.insert(line, enters).is_none(), "{line} enters twice:\n{log}");
        }
    }
    assert!(inside.is_empty());
    runs
}

/// Whether a process runs. A zombie, which has ended but is not reaped, has no command line.
fn lives(pid: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test]
async fn locks_exclude_across_types_and_workers_and_are_freed_when_one_dies() {
    let folder = tempfile::tempdir().unwrap();
    let [log, said] = ["log", "said"].map(|name| folder.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&said).status().unwrap().success());
    let mut hears = pipe::OpenOptions::new().open_receiver(&said).unwrap();
    let _open = pipe::OpenOptions::new().open_sender(&said).unwrap();
    let home = Home::new(CONFIG);
    let server = home.serve().await;

    // The victim holds its lock on a worker of its own, and never leaves.
    let victim = json!({ "id": "victim", "locks": { "instance": { "exclusive": ["web0"] } },
        "options": { "said": "instance/web0=exclusive" } });
    server.post("/v1/jobs/ext", &victim).await;
    let mut dies = worker(&server, &log, &said, DIES);
    let mut word = vec![0; "inside\n".len()];
    tokio::time::timeout(PATIENCE, hears.read_exact(&mut word)).await.expect("no command enters").unwrap();
    let held = "/v1/locks?level=instance&name=web0";
    let first = server.get(held).await["locks"][0].clone();
    assert_eq!((&first["id"], &first["how"]), (&json!("victim"), &json!("holds")));

    // The other jobs are added, of both types, and another worker runs some of them.
    let mut jobs = Vec::new();
    for n in 1..=2 * JOBS - 1 {
        let (locks, said) = locks(n);
        jobs.push(match n % 2 {
            0 => json!({ "type": "ext", "id": format!("job-{n}"), "locks": locks, "options": { "said": said } }),
            _ => json!({ "type": "command", "id": format!("job-{n}"), "locks": locks, "options": {
                "argv": ["sh", "-c", INSIDE], "env": { "LOG": log, "WHO": "server", "LOCKS": said } } }),
        });
    }
    server.post("/v1/jobs", &json!({ "jobs": jobs })).await;
    let _helps = worker(&server, &log, &said, "helps");
    // One of the server's own jobs wants the lock that the victim holds.
    let waits = "job-11";
    let why = server
        .until(&format!("/v1/jobs/command/{waits}/why"), |why| {
            why["reason"] == "locked" || why["state"] != "pending"
        })
        .await;
    assert_eq!(
        (&why["reason"], &why["locks"]["by"][0]["id"], &why["locks"]["wanted"]["name"]),
        (&json!("locked"), &json!("victim"), &json!("web0")),
        "{why}"
    );
    let text = stdout_of(&server, &["locks", "--level", "instance", "--name", "web0"]).await;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["LEVEL", "NAME", "MODE", "HOW", "TYPE", "JOB", "TENANT", "SINCE"]);
    assert_eq!(rows[1][..6], ["instance", "web0", "exclusive", "holds", "ext", "victim"]);

    // The victim's worker is killed, with everything else that it runs.
    dies.kill().await.unwrap();
    let died = Instant::now();
    let mut file = tokio::fs::OpenOptions::new().append(true).open(&log).await.unwrap();
    file.write_all(format!("{KILLED}\n").as_bytes()).await.unwrap();
    file.flush().await.unwrap();
    server
        .until(held, |page| {
            page["locks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|row| (&row["id"], &row["since_us"]) != (&first["id"], &first["since_us"]))
        })
        .await;
    // The promise is two health timeouts, which a test with simulated time checks (`services.rs` of the worker). Here
    // each poll is late, by as much as a busy machine delays it.
    let freed = died.elapsed();
    assert!(freed <= 10 * HEALTH_TIMEOUT, "{freed:?}");
    // Its commands have ended before other jobs get the locks.
    let so_far = std::fs::read_to_string(&log).unwrap();
    let dead: Vec<Run<'_>> = never_left(&so_far).into_iter().map(run).filter(|run| run.who == DIES).collect();
    assert!(
        dead.iter().any(|run| run.job == "ext/victim") && !dead.iter().any(|run| lives(run.pid)),
        "{so_far}"
    );

    for (job_type, id) in std::iter::once(("ext", "victim".to_owned()))
        .chain((1..=2 * JOBS - 1).map(|n| (if n % 2 == 0 { "ext" } else { "command" }, format!("job-{n}"))))
    {
        let path = format!("/v1/jobs/{job_type}/{id}/wait?timeout_ms=300000");
        let ended = server.get(&path).await;
        assert_eq!(ended["job"]["state"], "completed", "{ended}");
    }
    let log = std::fs::read_to_string(&log).unwrap();
    let runs = check(&log);
    assert_eq!((runs.len(), runs["ext/victim"]), (2 * JOBS, 2), "{log}");
    // Jobs that ran on the killed worker ran once more, and no other job did.
    assert!(
        runs.values().all(|runs| *runs <= 2) && runs.values().filter(|runs| **runs == 2).count() <= 4,
        "{runs:?}"
    );
    assert_eq!(stdout_of(&server, &["locks"]).await.trim_end(), "No locks.");
}
