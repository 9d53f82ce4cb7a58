//! The commands that wait, behind the gateways: `turnwise jobs wait` and `turnwise events --follow`.
//!
//! An exit code of `jobs wait` is a statement about the job, so it must be true: 0 if the job has completed, 1 if it has failed or was
//! cancelled. `events --follow` ends only when it is stopped, and prints each event once, in order.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdout, Command};

use super::World;
use super::api::Answer;
use super::ledger::Entry;
use turnwise_testkit::Random;

/// The number of `jobs wait` at the same time.
const WAITERS: usize = 3;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(500);
/// How long one may take. A job that takes longer is no violation here.
const LONGEST: Duration = Duration::from_secs(90);
/// The end of what a command has said, in bytes.
const SAID_BYTES: usize = 400;
/// A command may give up if not all nodes worked at any moment of this time.
const RECENT: Duration = Duration::from_secs(30);

/// Waits for one job after the other, and follows all events, until the end.
pub(super) async fn run(world: Arc<World>) {
    let mut seeds = Random::new(world.options.seed ^ 0x3a17);
    let waiters = (0..WAITERS).map(|_| waits(&world, Random::new(seeds.bits())));
    let waiters = futures::future::join_all(waiters);
    futures::future::join(waiters, follow(&world)).await;
}

async fn waits(world: &World, mut random: Random) {
    while !world.stop.is_cancelled() {
        tokio::time::sleep(PAUSE).await;
        // One of the jobs whose end is not known, which no request adds again meanwhile.
        let open = world.ledger.open(1 + usize::try_from(random.below(20)).expect("small"));
        let Some(key) = open.last() else { continue };
        let again =
            |entry: &mut Entry| (entry.acknowledged && entry.adding_again == 0).then_some(entry.again);
        let Some(before) = world.ledger.change(key, again).flatten() else { continue };
        let Some((status, said)) = wait_for(world, key).await else { continue };
        let problem = wrong(world, key, status).await;
        let is_same = world.ledger.change(key, again).flatten() == Some(before);
        if let Some(problem) = problem.filter(|_| is_same) {
            let text = format!("`jobs wait` for {key} ended with {status}, {problem}: {said}");
            world.ledger.repeated("a command that waits was wrong", &text);
        }
    }
}

/// Runs `turnwise jobs wait`. `None` if it takes too long, or the test ends.
async fn wait_for(world: &World, key: &str) -> Option<(ExitStatus, String)> {
    let (job_type, id) = key.split_once('/')?;
    let mut command = command(world, &["jobs", "wait", job_type, id], false);
    let output = command.stderr(Stdio::piped()).output();
    let output = tokio::select! {
        () = world.stop.cancelled() => return None,
        output = tokio::time::timeout(LONGEST, output) => output,
    };
    world.counts.add(if output.is_ok() { "waits" } else { "waits that took too long" }, 1);
    let output = output.ok()?.expect("turnwise can be started");
    let said = &output.stderr[output.stderr.len().saturating_sub(SAID_BYTES)..];
    Some((output.status, String::from_utf8_lossy(said).into_owned()))
}

/// What is wrong with the exit code of a wait, if anything.
async fn wrong(world: &World, key: &str, status: ExitStatus) -> Option<String> {
    let Answer::Got(_, job) = world.api_any(Method::GET, &format!("/v1/jobs/{key}")).await else {
        return None;
    };
    let state = job["state"].as_str()?;
    match (status.code(), state) {
        (Some(0), "completed") | (Some(1), "failed" | "cancelled") => None,
        (Some(0 | 1), _) => Some(format!("and the job is {state}")),
        // Perhaps no node has answered for so long.
        _ if !world.was_calm_within(RECENT) => {
            world.counts.add("waits that gave up in a fault", 1);
            None
        }
        _ => Some(format!("although nodes have answered; the job is {state}")),
    }
}

/// Runs `turnwise events --follow`, and checks that it neither ends nor leaves the order.
async fn follow(world: &World) {
    let mut last = 0;
    while !world.stop.is_cancelled() {
        let begun = Instant::now();
        let mut command = command(world, &["events", "--follow"], true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("turnwise can be started");
        let said = tokio::spawn(said(child.stderr.take().expect("it is piped")));
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        tokio::select! {
            () = world.stop.cancelled() => return,
            () = read(world, &mut lines, &mut last) => {}
        }
        let (status, said) = (child.wait().await, said.await.unwrap_or_default());
        if world.was_calm_within(RECENT) {
            let text =
                format!("`events --follow` ended after {:.0?} with {status:?}: {said}", begun.elapsed());
            world.ledger.repeated("a command that follows has ended", &text);
        }
        world.counts.add("ends of `events --follow`", 1);
        tokio::time::sleep(PAUSE).await;
    }
}

/// The end of what a command says.
async fn said(mut stderr: ChildStderr) -> String {
    let mut said = Vec::new();
    let mut some = [0; SAID_BYTES];
    while let Ok(count @ 1..) = stderr.read(&mut some).await {
        said.extend_from_slice(&some[..count]);
        said.drain(..said.len().saturating_sub(SAID_BYTES));
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Reads the events until there are no more.
async fn read(world: &World, lines: &mut tokio::io::Lines<BufReader<ChildStdout>>, last: &mut u64) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(number) = line.split_whitespace().next().and_then(|word| word.parse().ok()) else {
            continue;
        };
        world.counts.add("events followed", 1);
        if number <= *last {
            let text = format!("{number} after {last}: {line}");
            world.ledger.repeated("`events --follow` left the order", &text);
        }
        *last = number;
    }
}

/// A command behind the gateways.
fn command(world: &World, words: &[&str], as_operator: bool) -> Command {
    let api = world.identities.client(0);
    let token = if as_operator { world.api.token() } else { api.token() };
    let mut command = Command::new(&world.binary.path);
    command.args(words).args(["--server", &api.urls().join(",")]).env("TURNWISE_TOKEN", token);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    command
}
