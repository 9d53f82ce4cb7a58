//! The guard runs commands, and ends all that they have started: with the job, and when the process that runs them is killed.
//!
//! Started with arguments, this program is the guard, or the process that is killed.
#![allow(clippy::unwrap_used)]

mod common;
mod sandboxed;

use std::time::Duration;

use common::{Alive, PATIENCE, exists, sh, stdout};
use tokio_util::sync::CancellationToken;
use turnwise_command::{Cause, Command, Exit, Guard, StartError, guard_main, run};

const GUARD: &str = "be-the-guard";
const NO_GUARD: &str = "end-at-once";
const VICTIM: &str = "be-the-victim";
/// The size of the input of a victim's command.
const INPUT_BYTES: usize = 1_000_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [GUARD, argument] => guard_main(argument).unwrap(),
        [NO_GUARD, _] => {}
        [VICTIM, grace_ms, script] => block_on(victim(grace_ms, script)),
        [sandboxed::RUNNER, hidden, script] => block_on(sandboxed::runner(hidden, script)),
        _ => {
            block_on(a_killed_process_takes_its_command_along());
            block_on(a_command_of_a_killed_process_reads_its_whole_input());
            block_on(a_command_that_ignores_sigterm_is_killed_after_the_grace_period());
            block_on(a_guarded_command_is_like_any_other());
            block_on(neither_zombie_nor_guard_is_left_of_many_commands());
            block_on(a_guard_that_does_not_lead_its_group_does_nothing());
            block_on(a_command_whose_guard_has_ended_ends());
            block_on(a_command_that_kills_its_guard_ends());
            block_on(a_daemon_ends_with_its_command());
            block_on(a_daemon_ends_when_its_command_is_stopped());
            block_on(a_daemon_ends_when_its_command_is_dropped());
            block_on(a_daemon_ends_when_the_process_is_killed());
            block_on(processes_that_fork_on_and_on_end());
            block_on(a_control_group_ends_what_a_killed_guard_leaves());
            block_on(a_guarded_command_that_cannot_start_says_what_to_change());
            block_on(sandboxed::all());
            println!("test result: ok. guard");
        }
    }
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

fn guarded(script: &str) -> Command {
    Command { guard: Some(Guard::this_executable([GUARD]).unwrap()), ..sh(script) }
}

/// Runs a command until this process is killed.
async fn victim(grace_ms: &str, script: &str) {
    let grace = Duration::from_millis(grace_ms.parse().unwrap());
    let stdin = Some(vec![b'x'; INPUT_BYTES]);
    let _ = run(Command { grace, stdin, ..guarded(script) }, CancellationToken::new()).await;
}

fn start_victim(grace_ms: &str, script: &str) -> tokio::process::Child {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args([VICTIM, grace_ms, script]).kill_on_drop(true).spawn().unwrap()
}

async fn a_killed_process_takes_its_command_along() {
    let mut alive = Alive::new();
    let script =
        alive.script("trap 'echo bye >&3; exit' TERM; sh -c 'echo ready >&3; exec sleep 1000' & wait");
    let mut victim = start_victim("60000", &script);
    assert_eq!(alive.read(6).await, "ready\n");
    victim.kill().await.unwrap();
    assert_eq!(alive.read(4).await, "bye\n");
    alive.gone().await;
}

/// More input than a pipe holds, most of it unread when the process is killed.
async fn a_command_of_a_killed_process_reads_its_whole_input() {
    let mut alive = Alive::new();
    let script = alive
        .script("trap 'wc -c >&3; exit' TERM; sh -c 'echo ready >&3; exec sleep 1000' </dev/null & wait");
    let mut victim = start_victim("60000", &script);
    assert_eq!(alive.read(6).await, "ready\n");
    victim.kill().await.unwrap();
    assert_eq!(alive.read(8).await, format!("{INPUT_BYTES}\n"));
    alive.gone().await;
}

async fn a_command_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let mut alive = Alive::new();
    let script = alive.script("trap '' TERM; sh -c 'echo ready >&3; exec sleep 1000' & wait");
    let mut victim = start_victim("200", &script);
    alive.read(6).await;
    victim.kill().await.unwrap();
    alive.gone().await;
}

async fn a_guarded_command_is_like_any_other() {
    let finished = run(guarded("echo out; kill 0; exit 3"), CancellationToken::new()).await.unwrap();
    assert_eq!((finished.exit, stdout(&finished).as_str()), (Exit::Signal(15), "out\n"));
    let finished = run(guarded("echo out; exit 3"), CancellationToken::new()).await.unwrap();
    assert_eq!((finished.exit, stdout(&finished).as_str()), (Exit::Code(3), "out\n"));
    let finished = run(guarded("kill -KILL 0"), CancellationToken::new()).await.unwrap();
    assert_eq!((finished.exit, finished.cause), (Exit::Signal(9), Cause::Own));

    let mut alive = Alive::new();
    let stop = CancellationToken::new();
    let script = alive.script("trap 'echo bye; exit 9' TERM; sh -c 'echo ready >&3; exec sleep 1000' & wait");
    let running = tokio::spawn(run(guarded(&script), stop.clone()));
    alive.read(6).await;
    stop.cancel();
    let finished = running.await.unwrap().unwrap();
    assert_eq!((finished.exit, finished.cause), (Exit::Code(9), Cause::Stopped));
    assert_eq!(stdout(&finished), "bye\n");
    alive.gone().await;
}

async fn neither_zombie_nor_guard_is_left_of_many_commands() {
    let commands =
        (0..50).map(|_| run(guarded("echo $$ $PPID; sleep 0 & sleep 0 &"), CancellationToken::new()));
    let mut guards = Vec::new();
    for finished in futures::future::join_all(commands).await {
        let text = stdout(&finished.unwrap());
        let (command, guard) = text.trim().split_once(' ').unwrap();
        assert!(!exists(command) && !exists(guard));
        guards.push(format!("turnwise-{guard}"));
    }
    let own = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    assert_eq!(children, "");
    // Where there are control groups, the guards have removed theirs before they ended.
    let groups = own_control_group().into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let names: Vec<String> = groups.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !guards.contains(name)), "{guards:?} of {names:?}");
}

/// The folder of this process's control group, where guards create theirs.
fn own_control_group() -> Option<std::path::PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folders =
        ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(|root| std::path::Path::new(root).join(own));
    folders.into_iter().find(|folder| folder.join("cgroup.procs").exists())
}

async fn a_guard_that_does_not_lead_its_group_does_nothing() {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([GUARD, "0"]).stdin(std::process::Stdio::null()).output();
    let output = tokio::time::timeout(PATIENCE, output).await.unwrap().unwrap();
    assert!(!output.status.success() && output.status.code().is_some(), "{output:?}");
}

/// A guard that ends immediately stands for one that the system cannot start. Its command must end, too: nothing would end
/// it if this process were killed.
async fn a_command_whose_guard_has_ended_ends() {
    let guard = Some(Guard::this_executable([NO_GUARD]).unwrap());
    let command = Command { guard, ..sh("sleep 600") };
    let run = tokio::time::timeout(PATIENCE, run(command, CancellationToken::new()));
    let error = run.await.expect("the command runs on").err().expect("it was not guarded").to_string();
    assert!(error.ends_with("its guard has ended before it"), "{error}");
}

/// Nothing else can end it then: only a command of the same user can kill a guard.
async fn a_command_that_kills_its_guard_ends() {
    let mut alive = Alive::new();
    let command = guarded(&alive.script(&format!("{LEAVE}; kill -KILL $PPID; exec sleep 1000")));
    let run = tokio::time::timeout(PATIENCE, run(command, CancellationToken::new()));
    let error = run.await.expect("the command runs on").err().expect("it had no guard").to_string();
    assert!(error.ends_with("its guard has ended before it"), "{error}");
    alive.gone().await;
}

/// Leaves the control group of the command, as only root can, so that the guard has to find what it kills.
const LEAVE: &str =
    "for group in /sys/fs/cgroup /sys/fs/cgroup/unified; do echo $$ >$group/cgroup.procs; done 2>/dev/null";

/// A script that starts a daemon, as daemons do it: in a session of its own, and not as a child of the process that has asked for it.
/// The daemon ignores SIGTERM. The script goes on when the daemon runs, and has lost its parent.
fn with_daemon(alive: &Alive, then: &str) -> String {
    let daemon = "trap \"\" TERM; while read -r A B C P REST </proc/$$/stat; [ $P = $PARENT ]; do sleep 0.01; done; \
                  echo ready >&3; exec sleep 1000";
    let fork = "PARENT=$$ sh -c \"$DAEMON\" & exit 0";
    alive.script(&format!("{LEAVE}; export DAEMON='{daemon}'; setsid sh -c '{fork}'; {then}"))
}

async fn a_daemon_ends_with_its_command() {
    let mut alive = Alive::new();
    let go = alive.path().with_extension("go");
    let then = format!("until [ -e {} ]; do sleep 0.01; done; echo done", go.display());
    let running = tokio::spawn(run(guarded(&with_daemon(&alive, &then)), CancellationToken::new()));
    assert_eq!(alive.read(6).await, "ready\n");
    std::fs::write(go, "").unwrap();
    let finished = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert_eq!((finished.exit, stdout(&finished).as_str()), (Exit::Code(0), "done\n"));
    alive.gone().await;
}

async fn a_daemon_ends_when_its_command_is_stopped() {
    let mut alive = Alive::new();
    let stop = CancellationToken::new();
    let command =
        Command { grace: Duration::from_millis(200), ..guarded(&with_daemon(&alive, "exec sleep 1000")) };
    let running = tokio::spawn(run(command, stop.clone()));
    assert_eq!(alive.read(6).await, "ready\n");
    stop.cancel();
    let finished = running.await.unwrap().unwrap();
    assert_eq!((finished.exit, finished.cause), (Exit::Signal(15), Cause::Stopped));
    alive.gone().await;

    // A daemon may clean up, too.
    let mut alive = Alive::new();
    let script = "setsid sh -c 'trap \"echo bye; exit\" TERM; echo ready >&3; while :; do sleep 0.01; done' & exec sleep 1000";
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(guarded(&alive.script(script)), stop.clone()));
    assert_eq!(alive.read(6).await, "ready\n");
    stop.cancel();
    assert_eq!(stdout(&running.await.unwrap().unwrap()), "bye\n");
}

async fn a_daemon_ends_when_its_command_is_dropped() {
    let mut alive = Alive::new();
    let running =
        tokio::spawn(run(guarded(&with_daemon(&alive, "exec sleep 1000")), CancellationToken::new()));
    assert_eq!(alive.read(6).await, "ready\n");
    running.abort();
    alive.gone().await;
}

async fn a_daemon_ends_when_the_process_is_killed() {
    let mut alive = Alive::new();
    let mut victim = start_victim("200", &with_daemon(&alive, "exec sleep 1000"));
    assert_eq!(alive.read(6).await, "ready\n");
    victim.kill().await.unwrap();
    alive.gone().await;
}

/// Each process starts the next one in a session of its own, and ends: none of them lives long enough to be found at leisure.
async fn processes_that_fork_on_and_on_end() {
    for leave in ["true", LEAVE] {
        let mut alive = Alive::new();
        // They stop if this test fails.
        let next = format!("[ -e {} ] && setsid sh -c \"$NEXT\" &", alive.path().display());
        let script = format!("{leave}; {next} echo ready >&3; exec sleep 1000");
        let mut command = guarded(&alive.script(&script));
        command.env.push(("NEXT".into(), next.into()));
        let running = tokio::spawn(run(command, CancellationToken::new()));
        assert_eq!(alive.read(6).await, "ready\n");
        running.abort();
        alive.gone().await;
    }
}

async fn a_control_group_ends_what_a_killed_guard_leaves() {
    let own =
        run(guarded("grep ^0:: /proc/self/cgroup; echo $PPID"), CancellationToken::new()).await.unwrap();
    let own = stdout(&own);
    let (group, guard) = own.split_once('\n').unwrap_or_default();
    if !group.ends_with(&format!("/turnwise-{}", guard.trim())) {
        println!("no control group is delegated to this process: left out is a guard that its command kills");
        return;
    }
    let mut alive = Alive::new();
    let go = alive.path().with_extension("go");
    let then = format!("until [ -e {} ]; do sleep 0.01; done; kill -KILL $PPID", go.display());
    let command = guarded(&with_daemon(&alive, &then).replace(LEAVE, "true"));
    let running = tokio::spawn(run(command, CancellationToken::new()));
    assert_eq!(alive.read(6).await, "ready\n");
    std::fs::write(go, "").unwrap();
    assert!(running.await.unwrap().is_err());
    alive.gone().await;
}

async fn a_guarded_command_that_cannot_start_says_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "\u{7f}not a program").unwrap();
    let argv = |arg: &str| ["sh", "-c", arg].map(Into::into).into();
    for (command, says) in [
        (Command { program: "/nowhere/program".into(), ..guarded("") }, "is not there"),
        (Command { program: file.clone(), ..guarded("") }, "no permission"),
        (Command { cwd: Some("/nowhere".into()), ..guarded("") }, "cwd: there is no such folder"),
        (Command { argv: argv(&"x".repeat(10 << 20)), ..guarded("") }, "longer than the system allows"),
        (Command { argv: argv("a\0b"), ..guarded("") }, "NUL"),
    ] {
        match run(command, CancellationToken::new()).await {
            Err(StartError::Wrong(problem)) => assert!(problem.contains(says), "{says}: {problem}"),
            Err(error) => panic!("{says}: not sorted as wrong: {error}"),
            Ok(_) => panic!("{says}: it was started"),
        }
    }
}
