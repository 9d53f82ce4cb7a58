//! The nodes as seen by the main process: processes that receive orders, all at the same time.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use turnwise_testkit::process;

use crate::options::Options;
use crate::report::Counts;

/// An order to all nodes.
#[derive(Clone, Copy)]
pub enum Order {
    /// Add jobs as fast as the submitters can.
    Add { first: usize, jobs: usize, batch: usize },
    /// Add jobs at a given rate.
    Rate { first: usize, jobs: usize, per_s: f64 },
    /// Reset the counters.
    Reset,
}

pub struct Fleet {
    nodes: Vec<Mutex<Node>>,
    ids: Vec<u32>,
}

struct Node {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Fleet {
    pub async fn start(url: &str, nodes: usize, options: &Options) -> Result<Self, String> {
        let mut fleet = Fleet { nodes: Vec::new(), ids: Vec::new() };
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        for number in 0..nodes {
            let submitters = share(options.submitters, nodes, number).1.max(1);
            let spawned = Command::new(&program)
                .args(["node", url, &number.to_string(), &submitters.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn();
            let mut child = spawned.map_err(|error| format!("a node cannot be started: {error}"))?;
            fleet.ids.extend(child.id());
            let input = child.stdin.take().expect("standard input is piped");
            let output = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
            fleet.nodes.push(Mutex::new(Node { child, input, output }));
        }
        for node in &fleet.nodes {
            node.lock().await.answer("ready").await?;
        }
        Ok(fleet)
    }

    /// Sends an order, and returns when every node has completed its part.
    pub async fn order(&self, order: Order) -> Result<(), String> {
        let count = self.nodes.len();
        let orders = self.nodes.iter().enumerate().map(|(number, node)| async move {
            let line = match order {
                Order::Add { first, jobs, batch } => {
                    let (from, jobs) = share(jobs, count, number);
                    format!("add {} {jobs} {batch}", first + from)
                }
                Order::Rate { first, jobs, per_s } => {
                    let (from, jobs) = share(jobs, count, number);
                    format!("rate {} {jobs} {}", first + from, per_s / count as f64)
                }
                Order::Reset => "reset".to_owned(),
            };
            node.lock().await.send(&line).await.map(drop)
        });
        futures::future::try_join_all(orders).await.map(drop)
    }

    /// The counters of all nodes since the last reset.
    pub async fn counters(&self) -> Result<Counts, String> {
        let mut counts = Counts::default();
        for node in &self.nodes {
            for line in node.lock().await.send("counters").await? {
                counts.add(&line)?;
            }
        }
        Ok(counts)
    }

    /// When jobs were acknowledged and started since the last reset, as lines from the nodes.
    pub async fn moments(&self) -> Result<Vec<String>, String> {
        let mut moments = Vec::new();
        for node in &self.nodes {
            moments.extend(node.lock().await.send("moments").await?);
        }
        Ok(moments)
    }

    /// The CPU time that the nodes have used.
    pub fn cpu_seconds(&self) -> f64 {
        self.ids.iter().filter_map(|id| process::cpu_seconds(*id)).sum()
    }

    /// Stops all nodes.
    pub async fn stop(self) -> Result<(), String> {
        for node in self.nodes {
            let mut node = node.into_inner();
            node.send("stop").await?;
            let status = node.child.wait().await.map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("a node ended with {status}"));
            }
        }
        Ok(())
    }
}

impl Node {
    /// Sends a line, and returns the lines of the response before `done`.
    async fn send(&mut self, line: &str) -> Result<Vec<String>, String> {
        let told = self.input.write_all(format!("{line}\n").as_bytes()).await;
        told.map_err(|error| format!("a node is gone: {error}"))?;
        self.answer("done").await
    }

    async fn answer(&mut self, last: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            let line = self.output.next_line().await.map_err(|error| error.to_string())?;
            match line {
                Some(line) if line == last => return Ok(lines),
                Some(line) => lines.push(line),
                None => return Err("a node has ended before it was told to".to_owned()),
            }
        }
    }
}

/// The start and the size of part `number` of `nodes` equal parts.
fn share(whole: usize, nodes: usize, number: usize) -> (usize, usize) {
    let begin = whole * number / nodes;
    (begin, whole * (number + 1) / nodes - begin)
}
