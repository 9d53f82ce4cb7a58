//! A node: a worker whose jobs do nothing, and submitters, in their own process. It executes orders line by line.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use turnwise_queue::Keyspace;
use turnwise_store::{Counters, Store};
use turnwise_worker::{JobContext, JobHandler, Options, Outcome, Worker};

use crate::queue::{self, JOB_TYPE};

/// When events happened to jobs, in µs since the epoch. All nodes share a machine and its clock.
type Moments = Arc<Mutex<Vec<(usize, i64)>>>;

/// A handler that does nothing, and notes the time.
struct Noop {
    store: Store,
    started: Moments,
}

#[async_trait]
impl JobHandler for Noop {
    async fn run(&self, job: JobContext) -> Outcome {
        let number = job.options.get().parse().expect("the options are the job's number");
        self.started.lock().expect("nobody panics").push((number, self.store.runtime().now_us()));
        Outcome::completed(&true)
    }
}

struct Node {
    store: Store,
    submitters: usize,
    started: Moments,
    acknowledged: Moments,
    since: Counters,
}

/// Arguments: URL, number of the node, number of submitters.
pub async fn main(arguments: &[String]) {
    let [url, number, submitters] = arguments else { panic!("URL, number, submitters") };
    let store = queue::open(&url.parse().expect("a store's URL")).await.expect("the store opens");
    let started = Moments::default();
    let handler = Arc::new(Noop { store: store.clone(), started: started.clone() });
    let options = Options { node: format!("bench-{number}"), ..Options::default() };
    let worker = Worker::start(store.clone(), Keyspace::default(), JOB_TYPE, handler, options).await;
    let worker = worker.expect("the worker starts");
    let mut node = Node {
        since: store.counters(),
        store,
        submitters: submitters.parse().expect("a number"),
        started,
        acknowledged: Moments::default(),
    };
    println!("ready");
    let (sender, mut lines) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.blocking_send(line))
    });
    // The loop also ends with the parent process.
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |n: usize| words[n].parse::<usize>().expect("a number");
        match words[0] {
            "add" => node.add(number(1), number(2), number(3)).await,
            "rate" => node.add_at(number(1), number(2), words[3].parse().expect("a rate")).await,
            "reset" => node.reset(),
            "counters" => node.print_counters(),
            "moments" => node.print_moments(),
            "stop" => break,
            _ => panic!("{line}"),
        }
        println!("done");
    }
    worker.shutdown().await;
    println!("done");
}

impl Node {
    fn reset(&mut self) {
        self.since = self.store.counters();
        self.started.lock().expect("nobody panics").clear();
        self.acknowledged.lock().expect("nobody panics").clear();
    }

    /// Adds `jobs` jobs from `first` on. Every submitter waits for its acknowledgement.
    async fn add(&self, first: usize, jobs: usize, batch: usize) {
        let next = Arc::new(AtomicUsize::new(0));
        let submitters: Vec<_> = (0..self.submitters)
            .map(|_| {
                let (store, next) = (self.store.clone(), next.clone());
                tokio::spawn(async move {
                    loop {
                        let begin = next.fetch_add(batch, Ordering::Relaxed);
                        if begin >= jobs {
                            return;
                        }
                        queue::add(&store, first + begin..first + (begin + batch).min(jobs)).await;
                    }
                })
            })
            .collect();
        for submitter in submitters {
            submitter.await.expect("adding does not panic");
        }
    }

    /// Adds jobs at the rate `per_s`, each when it is due, and notes when it was acknowledged.
    async fn add_at(&self, first: usize, jobs: usize, per_s: f64) {
        let begin = std::time::Instant::now();
        let mut due: VecDeque<usize> = (first..first + jobs).collect();
        let mut adding = tokio::task::JoinSet::new();
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        while !due.is_empty() {
            let added = first + jobs - due.front().expect("it is not empty");
            let late = (begin.elapsed().as_secs_f64() * per_s) as usize + added;
            for number in due.drain(..late.saturating_sub(jobs).min(due.len())).collect::<Vec<_>>() {
                let (store, acknowledged) = (self.store.clone(), self.acknowledged.clone());
                adding.spawn(async move {
                    queue::add(&store, number..number + 1).await;
                    let now_us = store.runtime().now_us();
                    acknowledged.lock().expect("nobody panics").push((number, now_us));
                });
            }
            tick.tick().await;
        }
        adding.join_all().await;
    }

    fn print_counters(&self) {
        let Counters {
            transactions,
            commits,
            conflicts,
            gets,
            ranges,
            rows_read,
            rows_written,
            commit_us,
            too_old,
            unknown_outcomes,
            unavailable,
            ..
        } = self.store.counters().since(&self.since);
        println!(
            "{transactions} {commits} {conflicts} {gets} {ranges} {rows_read} {rows_written} {commit_us} {}",
            too_old + unknown_outcomes + unavailable
        );
    }

    fn print_moments(&self) {
        for (what, moments) in [("started", &self.started), ("acknowledged", &self.acknowledged)] {
            for (number, at_us) in moments.lock().expect("nobody panics").iter() {
                println!("{what} {number} {at_us}");
            }
        }
    }
}
