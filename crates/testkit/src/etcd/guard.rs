//! The members' parent: a shell that outlives the test's process only for the cleanup.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Starts the member that each line names, and responds with its process id. When its input ends, it kills the members and
/// removes the folder. Its input ends when the cluster is dropped, or when the test's process is dead.
///
/// It ignores signals that a terminal sends to the whole process group. Otherwise, it would die before the cleanup.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r member; do
    etcd --config-file "$1/$member.yaml" >>"$1/$member.log" 2>&1 </dev/null &
    eval "process_$member=$!"
    echo $!
done
member=0
while [ $member -lt "$2" ]; do
    eval "kill -KILL \$process_$member" 2>/dev/null
    member=$((member + 1))
done
wait
rm -rf "$1"
"#;

/// How much of a member's log is shown after a failure, in bytes.
const SAID_BYTES: usize = 2_000;

#[derive(Debug)]
pub(super) struct Guard {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    shell: Child,
    answers: BufReader<ChildStdout>,
    /// The latest process id of each member.
    processes: Vec<Option<u32>>,
}

impl Guard {
    /// A guard of `folder`, which holds `N.yaml` for each member.
    pub(super) fn new(folder: PathBuf, members: usize) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&folder)
            .arg(members.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let answers = BufReader::new(shell.stdout.take().expect("standard output is piped"));
        Guard { folder, state: Mutex::new(State { shell, answers, processes: vec![None; members] }) }
    }

    #[cfg(test)]
    pub(super) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Starts a member.
    pub(super) fn start(&self, member: usize) {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        let input = state.shell.stdin.as_mut().expect("open until the guard is dropped");
        writeln!(input, "{member}").expect("the shell lives");
        let mut answer = String::new();
        state.answers.read_line(&mut answer).expect("the shell lives");
        state.processes[member] = answer.trim().parse().ok();
    }

    fn process(&self, member: usize) -> Option<u32> {
        self.state.lock().expect("no holder of this lock panics").processes[member]
    }

    /// Sends a signal to a member.
    pub(super) fn signal(&self, member: usize, signal: &str) {
        let process = self.process(member).expect("the member was started").to_string();
        let sent = Command::new("kill").args([signal, &process]).status().expect("there is a kill");
        assert!(sent.success(), "member {member} is gone: {}", self.said());
    }

    /// Whether a member has not ended. It may be paused.
    pub(super) fn is_alive(&self, member: usize) -> bool {
        self.process(member).is_some_and(crate::process::is_alive)
    }

    /// The ends of the members' logs, as text.
    pub(super) fn said(&self) -> String {
        let members = self.state.lock().expect("no holder of this lock panics").processes.len();
        let said = |member| {
            let log = std::fs::read(self.folder.join(format!("{member}.log"))).unwrap_or_default();
            let end = &log[log.len().saturating_sub(SAID_BYTES)..];
            format!("\nmember {member}: …{}", String::from_utf8_lossy(end))
        };
        (0..members).map(said).collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Ok(state) = self.state.get_mut() else { return };
        drop(state.shell.stdin.take());
        let _ = state.shell.wait();
    }
}
