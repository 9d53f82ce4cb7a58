//! The guard ends the commands of a process that is killed.
//!
//! Started with arguments, this program is the guard, or the process that is killed.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Alive, PATIENCE, exists, sh, stdout};
use tokio_util::sync::CancellationToken;
use turnwise_command::{Cause, Command, Exit, Guard, guard_main, run};

const GUARD: &str = "be-the-guard";
const NO_GUARD: &str = "end-at-once";
const VICTIM: &str = "be-the-victim";
/// The size of the input of a victim's command.
const INPUT_BYTES: usize = 1_000_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [GUARD, grace_ms] => guard_main(Duration::from_millis(grace_ms.parse().unwrap())).unwrap(),
        [NO_GUARD, _] => {}
        [VICTIM, grace_ms, script] => block_on(victim(grace_ms, script)),
        _ => {
            block_on(a_killed_process_takes_its_command_along());
            block_on(a_command_of_a_killed_process_reads_its_whole_input());
            block_on(a_command_that_ignores_sigterm_is_killed_after_the_grace_period());
            block_on(a_guarded_command_is_like_any_other());
            block_on(neither_zombie_nor_guard_is_left_of_many_commands());
            block_on(a_guard_that_does_not_lead_its_group_does_nothing());
            block_on(a_command_whose_guard_has_ended_ends());
            println!("test result: ok. 7 passed; 0 failed; guard");
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
    let script = alive.script("trap 'wc -c >&3; exit' TERM; echo ready >&3; sleep 1000 & wait");
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
    // The guard is in the group, and dies with it.
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
    let commands = (0..50).map(|_| run(guarded("echo $$; sleep 0 & sleep 0 &"), CancellationToken::new()));
    for finished in futures::future::join_all(commands).await {
        assert!(!exists(&stdout(&finished.unwrap())));
    }
    let own = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
    assert_eq!(children, "");
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
