//! What a command can do to the machine: its user, its rights, its limits, and what it sees of the process that runs it.
//!
//! As root, these tests use users that no one else has. Without root, the parts that need another user are left out.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::geteuid;
use tokio_util::sync::CancellationToken;
use turnwise_command::{Command, Exit, Finished, Limits, Sandbox, User, hide_from_commands, run};

use crate::common::stdout;
use crate::guarded;

/// The argument of a process that runs a command and prints its output.
pub const RUNNER: &str = "be-the-runner";
/// Its second argument, if commands must not look into it.
const HIDDEN: &str = "hidden";
/// A user who has no other process.
const UID: u32 = 64_321;

pub async fn all() {
    the_limits_of_a_command_are_those_that_were_set().await;
    a_command_inherits_no_descriptors().await;
    if !geteuid().is_root() {
        println!(
            "not root: left out are other users, set-user-id programs, and processes that a command may not read"
        );
        return;
    }
    a_command_has_its_user_with_its_groups_and_no_other_rights().await;
    a_set_user_id_program_gains_nothing().await;
    a_user_has_only_so_many_processes().await;
    a_command_of_the_same_user_cannot_read_a_hidden_process().await;
}

fn sandboxed(script: &str, sandbox: Sandbox) -> Command {
    Command { sandbox: Some(sandbox), ..guarded(script) }
}

fn as_user(script: &str) -> Command {
    let user = User { uid: UID, gid: UID + 1, groups: vec![UID + 1, UID + 2] };
    sandboxed(script, Sandbox { user: Some(user), ..Sandbox::default() })
}

async fn finish(command: Command) -> Finished {
    run(command, CancellationToken::new()).await.unwrap()
}

async fn the_limits_of_a_command_are_those_that_were_set() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        memory_bytes: Some(64 << 20),
        open_files: Some(32),
        file_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let limited = |script: &str| sandboxed(script, Sandbox { limits, ..Sandbox::default() });
    let finished = finish(limited("ulimit -c; ulimit -n; grep NoNewPrivs /proc/self/status")).await;
    assert_eq!(stdout(&finished), "0\n32\nNoNewPrivs:\t1\n");
    let dd = "dd if=/dev/zero of=/dev/null count=1 bs=";
    assert_eq!(finish(limited(&format!("{dd}16M"))).await.exit, Exit::Code(0));
    let refused = finish(limited(&format!("{dd}100M"))).await;
    assert_eq!(refused.exit, Exit::Code(1));
    assert!(
        refused.stderr.last_line().unwrap().contains("memory exhausted"),
        "{:?}",
        refused.stderr.last_line()
    );
    let large = format!("exec head -c 2000000 /dev/zero >{}", folder.path().join("large").display());
    // SIGXFSZ
    assert_eq!(finish(limited(&large)).await.exit, Exit::Signal(25));
}

async fn a_command_inherits_no_descriptors() {
    // As a library might open one, or the process that has started this one.
    let file = tempfile::tempfile().unwrap();
    fcntl_setfd(&file, FdFlags::empty()).unwrap();
    let listed = "for fd in /proc/self/fd/*; do echo ${fd##*/}; done";
    let finished = finish(sandboxed(listed, Sandbox::default())).await;
    // The shell itself lists the folder.
    assert_eq!(stdout(&finished), "0\n1\n2\n3\n");
}

async fn a_command_has_its_user_with_its_groups_and_no_other_rights() {
    let finished =
        finish(as_user("id -u; id -g; id -G; pwd; echo x >/dev/stderr; grep Cap /proc/self/status")).await;
    let capabilities = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n";
    let expected = format!("{UID}\n{0}\n{0} {1}\n/\n{capabilities}", UID + 1, UID + 2);
    let text = stdout(&finished);
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(finished.stderr.whole().unwrap(), b"x\n");
    // Neither the guard nor the folder of a store, which is for its own user only.
    let store = tempfile::tempdir().unwrap();
    std::fs::set_permissions(store.path(), Permissions::from_mode(0o700)).unwrap();
    let script = format!("kill -KILL $PPID || echo no; ls {} || echo no", store.path().display());
    assert_eq!(stdout(&finish(as_user(&script)).await), "no\nno\n");
}

async fn a_set_user_id_program_gains_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    chown(&program, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    // Without a sandbox it does: the folder permits such programs.
    let outside = std::process::Command::new(&program).arg("-u").uid(UID).output().unwrap();
    assert_eq!(String::from_utf8(outside.stdout).unwrap(), "0\n");
    let finished = finish(as_user(&format!("{0} -u; {0} -g", program.display()))).await;
    assert_eq!(stdout(&finished), format!("{UID}\n{}\n", UID + 1));
}

async fn a_user_has_only_so_many_processes() {
    let limits = Limits { processes: Some(5), ..Limits::default() };
    let user = Some(User { uid: UID + 3, gid: UID, groups: vec![] });
    let fork = "for n in 1 2 3 4 5 6 7; do sleep 1000 & echo $n; done";
    let finished = finish(sandboxed(fork, Sandbox { user, limits })).await;
    assert_eq!(stdout(&finished), "1\n2\n3\n4\n");
    let reason = finished.stderr.last_line().unwrap();
    assert!(reason.contains("fork"), "{reason}");
}

/// Runs a command, and prints its stdout.
pub async fn runner(hidden: &str, script: &str) {
    if hidden == HIDDEN {
        hide_from_commands().unwrap();
    }
    let command = Command { cwd: Some("/".into()), ..sandboxed(script, Sandbox::default()) };
    print!("{}", stdout(&finish(command).await));
}

async fn a_command_of_the_same_user_cannot_read_a_hidden_process() {
    let start = |hidden: &str, script: &str| {
        let mut command = tokio::process::Command::new("/proc/self/exe");
        command.args([RUNNER, hidden, script]).env("SECRET", "hunter2").uid(UID).gid(UID);
        command.output()
    };
    // The guard is the parent of the command, and a child of the runner.
    let runner = "read -r A B C R REST </proc/$PPID/stat";
    let script = format!(
        "{runner}; grep -q hunter2 /proc/$R/environ && echo environ; ls /proc/$R/fd | grep -qx 0 && echo fd; \
         head -c 0 /proc/$R/mem && echo mem; ls /proc/$PPID/fd | grep -qx 0 && echo guard; echo end"
    );
    // The guard always hides itself.
    for (hidden, seen) in [("", "environ\nfd\nmem\nend\n"), (HIDDEN, "end\n")] {
        let output = start(hidden, &script).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), seen, "{hidden}");
    }
}
