//! Real processes: the output that is kept, how they are ended, and that no process remains.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use turnwise_command::{Cause, Command, Exit, Finished, Report, StartError, Verdict, run};

use crate::common::{Alive, PATIENCE, exists, sh, stdout};

async fn finish(command: Command) -> Finished {
    let run = run(command, CancellationToken::new());
    tokio::time::timeout(PATIENCE, run).await.expect("it does not end").unwrap()
}

async fn refusal(command: Command) -> String {
    match run(command, CancellationToken::new()).await {
        Err(StartError::Wrong(problem)) => problem,
        Err(error) => panic!("not sorted as wrong: {error}"),
        Ok(_) => panic!("it was started"),
    }
}

#[tokio::test]
async fn what_a_command_prints_and_its_exit_code_are_kept() {
    let finished = finish(sh("echo out; echo err >&2; echo last words >&2; exit 7")).await;
    assert_eq!((finished.exit, finished.cause), (Exit::Code(7), Cause::Own));
    assert_eq!(stdout(&finished), "out\n");
    assert_eq!(finished.stderr.whole().unwrap(), b"err\nlast words\n");
    assert_eq!(Verdict::new(&finished), Verdict::Crashed("exit code 7: last words".into()));
    let report = serde_json::to_value(Report::new(&finished, 12 << 10)).unwrap();
    assert_eq!((&report["exit_code"], &report["stdout"]), (&7.into(), &"out\n".into()));
    assert!(report.get("signal").is_none() && report["seconds"].as_f64().unwrap() < 60.0);
}

#[tokio::test]
async fn exit_code_65_fails_for_good_and_a_signal_crashes() {
    assert_eq!(Verdict::new(&finish(sh("exit 65")).await), Verdict::Failed("exit code 65".into()));
    let killed = finish(sh("kill -SEGV $$")).await;
    assert_eq!(Verdict::new(&killed), Verdict::Crashed("killed by SIGSEGV".into()));
    assert_eq!(serde_json::to_value(Report::new(&killed, 1_000)).unwrap()["signal"], "SIGSEGV");
    // A command can reach only its own group with `kill 0`.
    assert_eq!(finish(sh("kill -KILL 0")).await.exit, Exit::Signal(9));
}

#[tokio::test]
async fn the_environment_is_clean_and_the_working_directory_is_the_one_asked_for() {
    let mut command = sh("/usr/bin/env; pwd");
    command.env.push(("GREETING".into(), "hello".into()));
    command.cwd = Some("/tmp".into());
    let finished = finish(command).await;
    let text = stdout(&finished);
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("PWD=")).collect();
    lines.retain(|line| !line.starts_with("SHLVL=") && !line.starts_with("_="));
    lines.sort_unstable();
    assert_eq!(lines, ["/tmp", "GREETING=hello", "PATH=/usr/bin:/bin"]);
}

#[tokio::test]
async fn stdin_is_the_text_or_nothing() {
    let mut command = sh("cat");
    command.stdin = Some(b"a line\n".to_vec());
    assert_eq!(stdout(&finish(command).await), "a line\n");
    assert_eq!(stdout(&finish(sh("cat; echo end")).await), "end\n");
    // More than the pipe's buffer, and no process reads it.
    let mut command = sh("exit 0");
    command.stdin = Some(vec![b'x'; 10 << 20]);
    assert_eq!(finish(command).await.exit, Exit::Code(0));
    // The same amount, copied: writing and reading do not block each other.
    let mut command = sh("cat");
    command.stdin = Some(vec![b'x'; 10 << 20]);
    assert_eq!(finish(command).await.stdout.total(), 10 << 20);
}

#[tokio::test]
async fn of_100_mb_the_head_and_the_tail_are_kept() {
    let finished = finish(sh("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last")).await;
    assert_eq!(finished.stdout.total(), 6 + 100_000_000 + 6);
    let report = Report::new(&finished, 12 << 10);
    assert!(report.truncated && !report.lossy);
    assert!(report.stdout.starts_with("first\nxxx") && report.stdout.ends_with("xxx\nlast\n"));
    assert!(report.stdout.contains("\n[… 99999012 bytes left out …]\n"), "{}", report.stdout);
}

#[tokio::test]
async fn a_report_fits_whatever_was_printed() {
    for byte in ["\\0", "\\\\", "\"", "\\377", "x", "\\n"] {
        let print = format!("head -c 50000 /dev/zero | tr '\\0' '{byte}'");
        let mut command = sh(&format!("{print}; {print} >&2"));
        command.max_output_bytes = 60_000;
        let finished = finish(command).await;
        let report = serde_json::to_string(&Report::new(&finished, 12 << 10)).unwrap();
        assert!(report.len() <= 12 << 10, "{byte}: {}", report.len());
        assert!(report.len() > 10 << 10, "{byte}: {}", report.len());
    }
}

#[tokio::test]
async fn a_command_that_closes_its_outputs_is_waited_for() {
    let mut alive = Alive::new();
    let script = alive.script("exec >&- 2>&-; echo closed >&3; sleep 0.3; exit 3");
    let running = tokio::spawn(finish(sh(&script)));
    assert_eq!(alive.read(7).await, "closed\n");
    assert_eq!(running.await.unwrap().exit, Exit::Code(3));
}

#[tokio::test]
async fn a_command_that_is_stopped_may_clean_up() {
    let mut alive = Alive::new();
    let stop = CancellationToken::new();
    let script = alive.script("trap 'echo bye; exit 9' TERM; sh -c 'echo ready >&3; exec sleep 1000' & wait");
    let running = tokio::spawn(run(sh(&script), stop.clone()));
    alive.read(6).await;
    stop.cancel();
    let finished = running.await.unwrap().unwrap();
    assert_eq!((finished.exit, finished.cause), (Exit::Code(9), Cause::Stopped));
    assert_eq!(stdout(&finished), "bye\n");
    assert_eq!(Verdict::new(&finished), Verdict::Stopped);
    alive.gone().await;
}

#[tokio::test]
async fn the_children_of_a_command_may_clean_up_too() {
    let mut alive = Alive::new();
    let stop = CancellationToken::new();
    let child = "trap 'sleep 0.2; echo cleaned; exit' TERM; echo ready >&3; while :; do sleep 0.01; done";
    let script = alive.script(&format!("({child}) & trap 'exit 0' TERM; wait"));
    let running = tokio::spawn(run(sh(&script), stop.clone()));
    alive.read(6).await;
    stop.cancel();
    assert_eq!(stdout(&running.await.unwrap().unwrap()), "cleaned\n");
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let mut alive = Alive::new();
    let stop = CancellationToken::new();
    let script = alive.script("trap '' TERM; echo ready >&3; while :; do sleep 1000; done");
    let mut command = sh(&script);
    command.grace = Duration::from_millis(300);
    let running = tokio::spawn(run(command, stop.clone()));
    alive.read(6).await;
    let asked = Instant::now();
    stop.cancel();
    let finished = running.await.unwrap().unwrap();
    assert_eq!((finished.exit, finished.cause), (Exit::Signal(9), Cause::Stopped));
    assert!(asked.elapsed() >= Duration::from_millis(300));
    alive.gone().await;
}

#[tokio::test]
async fn a_command_that_runs_for_too_long_crashes_with_that_reason() {
    let mut command = sh("echo working; echo nearly there >&2; exec sleep 1000");
    // Enough time to print both lines, even on a busy machine.
    command.timeout = Some(Duration::from_secs(3));
    let finished = finish(command).await;
    assert_eq!((finished.exit, finished.cause), (Exit::Signal(15), Cause::TimedOut));
    let Verdict::Crashed(reason) = Verdict::new(&finished) else { panic!("no crash") };
    assert!(reason.starts_with("timeout: it was ended after "), "{reason}");
    assert!(finished.duration >= Duration::from_secs(3), "{:?}", finished.duration);
    assert!(reason.ends_with(" s: nearly there"), "{reason}");
}

#[tokio::test]
async fn grandchildren_end_with_the_command() {
    let mut alive = Alive::new();
    let deep = "sh -c 'sleep 1000 & sh -c \"sleep 1000 & echo ready >&3; exit 0\"; exit 0' & wait";
    let finished = finish(sh(&alive.script(&format!("{deep}; echo done; exit 0")))).await;
    assert_eq!((finished.exit, stdout(&finished).as_str()), (Exit::Code(0), "done\n"));
    alive.gone().await;
}

#[tokio::test]
async fn a_command_that_is_dropped_is_gone_with_its_children() {
    let mut alive = Alive::new();
    let script = alive.script("trap '' TERM; sh -c 'echo ready >&3; exec sleep 1000' & wait");
    let running = tokio::spawn(run(sh(&script), CancellationToken::new()));
    alive.read(6).await;
    running.abort();
    alive.gone().await;
}

#[tokio::test]
async fn a_daemon_that_leaves_the_group_does_not_hold_up_the_end() {
    let mut alive = Alive::new();
    let pid = alive.path().with_extension("pid");
    // It leaves before the command ends, and runs longer than any wait of this test.
    let daemon = format!(
        "P={}; setsid sh -c \"echo \\$\\$ >$P; exec sleep 1000\" & until [ -s $P ]; do sleep 0.01; done; echo done; exit 0",
        pid.display()
    );
    let finished = finish(sh(&alive.script(&daemon))).await;
    assert_eq!(stdout(&finished), "done\n");
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(std::process::Command::new("kill").arg(pid.trim()).status().unwrap().success());
    alive.gone().await;
}

#[tokio::test]
async fn no_zombie_is_left_of_many_commands() {
    let commands = (0..50).map(|_| finish(sh("echo $$; sleep 0 & sleep 0 &")));
    for finished in futures::future::join_all(commands).await {
        assert!(!exists(&stdout(&finished)), "{} is left", stdout(&finished));
    }
}

#[tokio::test]
async fn a_command_that_cannot_start_reports_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let write = |text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut command = sh("");
    command.program = "/nowhere/program".into();
    assert!(refusal(command).await.contains("is not there"));
    let mut command = sh("");
    command.cwd = Some("/nowhere".into());
    assert!(refusal(command).await.contains("no such folder"));
    let start_script = || Command { program: script.clone(), ..sh("") };
    write("#!/nowhere/interpreter\n", 0o755);
    assert!(refusal(start_script()).await.contains("interpreter"));
    write("\u{7f}not a program", 0o755);
    assert!(refusal(start_script()).await.contains("no program for this machine"));
    write("#!/bin/sh\n", 0o644);
    assert!(refusal(start_script()).await.contains("permission"));
    let mut command = sh("");
    command.argv = vec!["sh".into(), "x".repeat(10 << 20).into()];
    assert!(refusal(command).await.contains("longer than the system allows"));
}
