//! The resource usage of processes, read from `/proc` (Linux only).

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The kernel's unit of CPU time in `/proc/PID/stat`: 100 per second on every current Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The time between two readings of a running process's memory. The kernel keeps the peak, so that only growth in the last
/// moments can be missed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// How often the times of a process and its children are read until no child ends meanwhile.
const READINGS: usize = 10;

/// A program that ran to its end.
pub struct Run {
    /// The time from its start to its end.
    pub seconds: f64,
    /// User and system time of all threads.
    pub cpu_seconds: f64,
    /// The largest resident set, in MiB.
    pub peak_mb: f64,
    /// Its standard output.
    pub output: String,
}

/// Runs a program to its end. Panics, with its standard error, if it fails.
pub fn run(mut command: Command) -> Run {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let process = child.id();
    let output = collect(child.stdout.take().expect("standard output is piped"));
    let errors = collect(child.stderr.take().expect("standard error is piped"));

    let mut peak_kb = 0;
    // A process that has ended keeps its times in `/proc` until its parent waits for it.
    while state(process).is_some_and(|state| state != 'Z') {
        peak_kb = peak_kb.max(peak_memory_kb(process).unwrap_or(0));
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds(process).unwrap_or_default();
    let status = child.wait().expect("an own child can be waited for");
    let text = |reader: std::thread::JoinHandle<String>| reader.join().expect("reading does not panic");
    let (output, errors) = (text(output), text(errors));
    assert!(status.success(), "{:?} failed: {status}\n{output}{errors}", command.get_program());
    Run { seconds, cpu_seconds, peak_mb: peak_kb as f64 / 1024.0, output }
}

/// Reads a pipe to its end on its own thread, because a full pipe would block the program.
fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still useful.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The user and system time that a process has used so far.
pub fn cpu_seconds(process: u32) -> Option<f64> {
    let ticks = |index: usize| stat(process)?.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Whether a process has not ended. It may be paused.
pub fn is_alive(process: u32) -> bool {
    // A process that has ended stays in the table until its parent waits for it.
    state(process).is_some_and(|state| state != 'Z')
}

fn state(process: u32) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// The fields of `/proc/PID/stat` from the third on. The second is the program's name, which may contain spaces.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// The largest resident set that a running process has had, in MiB.
pub fn peak_memory_mb(process: u32) -> Option<f64> {
    Some(peak_memory_kb(process)? as f64 / 1024.0)
}

fn peak_memory_kb(process: u32) -> Option<u64> {
    status_kb(process, "VmHWM:")
}

fn status_kb(process: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process on this machine that listens on a loopback port, if it is visible.
pub fn listener(port: u16) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    // "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode": 0A is LISTEN.
    let inode = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|fields| {
        let listens = fields.get(3) == Some(&"0A") && fields.get(1)?.ends_with(&format!(":{port:04X}"));
        listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    })?;
    processes().find(|process| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd"));
        files
            .into_iter()
            .flatten()
            .flatten()
            .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.to_str() == Some(&inode)))
    })
}

/// The user and system time that a process and its children have used so far, including children that have ended.
pub fn family_cpu_seconds(process: u32) -> f64 {
    // The fields utime, stime, cutime and cstime.
    let ticks = |stat: &[String], fields: std::ops::Range<usize>| -> f64 {
        stat.get(fields).into_iter().flatten().filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
    };
    let parent = process.to_string();
    let read = || {
        let own = stat(process).unwrap_or_default();
        let children = processes().filter_map(stat).filter(|stat| stat.get(1) == Some(&parent));
        let of_children: f64 = children.map(|stat| ticks(&stat, 11..15)).sum();
        // A child whose end the process took note of in between is missing, or counts twice.
        let steady = stat(process).unwrap_or_default().get(13..15) == own.get(13..15);
        ((ticks(&own, 11..15) + of_children) / TICKS_PER_SECOND, steady)
    };
    let mut readings = (0..READINGS).map(|_| read());
    readings.find(|(_, steady)| *steady).unwrap_or_else(read).0
}

/// The time that all processors of this machine have spent since its start, busy and idle, in seconds.
pub fn machine_cpu_seconds() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // "cpu user nice system idle iowait irq softirq steal guest guest_nice": user and nice include the guests' times.
    let ticks = text.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let ticks: Vec<f64> = ticks.filter_map(|word| word.parse().ok()).collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    ((ticks.iter().sum::<f64>() - idle) / TICKS_PER_SECOND, idle / TICKS_PER_SECOND)
}

/// The resident memory of a process, in bytes.
pub fn memory_bytes(process: u32) -> Option<u64> {
    Some(status_kb(process, "VmRSS:")? * 1024)
}
