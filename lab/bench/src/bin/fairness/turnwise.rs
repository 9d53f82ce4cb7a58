//! The program that runs a workload on turnwise, as an application does: with the client library, over HTTP.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwise_client::{AddJob, Client, NewJob, Outcome, Run, WorkerOptions, work};

use crate::record::{Job, write};
use crate::workload::{BATCH, Stream, Workload};

const TYPE: &str = "sleep";
/// How often a tenant's backlog is filled again.
const TICK: Duration = Duration::from_millis(5);

/// The program's task, from the command line.
pub struct Arguments {
    pub port: u16,
    pub workload: PathBuf,
    pub out: PathBuf,
}

/// Runs the workload, and writes what happened to each job.
pub fn main(arguments: &Arguments) {
    let text = std::fs::read(&arguments.workload).expect("the workload can be read");
    let workload: Workload = serde_json::from_slice(&text).expect("the workload is valid");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let jobs = runtime.expect("the runtime starts").block_on(run(&workload, arguments.port));
    write(&arguments.out, &jobs).expect("the result can be written");
}

struct Bench {
    client: Client,
    workload: Workload,
    /// Set once all jobs that come before are added.
    begin: Mutex<Option<Instant>>,
    jobs: Mutex<Vec<Job>>,
    /// By stream: the number of jobs that were added and have not ended.
    open: Vec<AtomicUsize>,
}

async fn run(workload: &Workload, port: u16) -> Vec<Job> {
    let client = Client::new(&format!("http://127.0.0.1:{port}")).expect("the URL is valid");
    let open = workload.streams.iter().map(|_| AtomicUsize::new(0)).collect();
    let bench = Arc::new(Bench {
        client,
        workload: workload.clone(),
        begin: Mutex::default(),
        jobs: Mutex::default(),
        open,
    });
    bench.preload().await;
    let begin = Instant::now();
    *bench.begin.lock().expect("no task panics") = Some(begin);
    let end = tokio::time::Instant::from_std(begin + Duration::from_secs(workload.seconds));
    let mut tasks = JoinSet::new();
    let options = WorkerOptions { slots: workload.slots, ..WorkerOptions::new(TYPE) };
    let worker = bench.clone();
    tasks.spawn(async move {
        let runs = worker.clone();
        let handler = move |run: Run| runs.clone().handle(run);
        work(&worker.client, options, handler, CancellationToken::new()).await.expect("the worker works");
    });
    for stream in 0..workload.streams.len() {
        let Stream { burst, rate, keep, .. } = workload.streams[stream];
        if burst > 0 {
            tasks.spawn(bench.clone().burst(stream));
        }
        if rate > 0.0 {
            tasks.spawn(bench.clone().steady(stream));
        }
        if keep > 0 {
            tasks.spawn(bench.clone().keep(stream));
        }
    }
    tokio::time::sleep_until(end).await;
    // The server ends with the benchmark, so nothing is stopped cleanly.
    tasks.shutdown().await;
    std::mem::take(&mut *bench.jobs.lock().expect("no task panics"))
}

impl Bench {
    /// The time since the beginning, in ms; 0 before.
    fn now_ms(&self) -> f64 {
        let begin = self.begin.lock().expect("no task panics");
        begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64() * 1e3)
    }

    async fn preload(&self) {
        let streams = self.workload.streams.iter().enumerate();
        let mut all = streams.flat_map(|(n, stream)| std::iter::repeat_n(n, stream.preload)).peekable();
        while all.peek().is_some() {
            self.add(all.by_ref().take(BATCH).collect()).await;
        }
    }

    /// Adds one job for each of these streams.
    async fn add(&self, streams: Vec<usize>) {
        let first = {
            let mut jobs = self.jobs.lock().expect("no task panics");
            let first = jobs.len();
            jobs.extend(streams.iter().map(|stream| Job::new(*stream)));
            first
        };
        let job = |(n, stream): (usize, &usize)| {
            self.open[*stream].fetch_add(1, Relaxed);
            let options = RawValue::from_string((first + n).to_string());
            AddJob {
                tenant: Some(self.workload.streams[*stream].tenant.clone()),
                options: Some(options.expect("this is JSON")),
                ..AddJob::default()
            }
        };
        let mut new: Vec<AddJob> = streams.iter().enumerate().map(job).collect();
        if new.len() == 1 {
            let job = new.pop().expect("there is one");
            self.client.add(TYPE, job).await.expect("the job is added");
        } else {
            let new = new.into_iter().map(|job| NewJob::new(TYPE, job)).collect();
            self.client.add_many(new).await.expect("the jobs are added");
        }
        let now = self.now_ms();
        let mut jobs = self.jobs.lock().expect("no task panics");
        for job in &mut jobs[first..first + streams.len()] {
            job.added_ms = Some(now);
        }
    }

    async fn handle(self: Arc<Self>, run: Run) -> Outcome {
        let begun = self.now_ms();
        let n: usize = serde_json::from_str(run.job.options.get()).expect("the benchmark wrote them");
        let stream = {
            let mut jobs = self.jobs.lock().expect("no task panics");
            jobs[n].started_ms = Some(begun);
            jobs[n].stream
        };
        let run_ms = self.workload.streams[stream].run_ms_of(n);
        tokio::time::sleep(Duration::from_secs_f64(run_ms / 1e3)).await;
        let ended = self.now_ms();
        self.jobs.lock().expect("no task panics")[n].ended_ms = Some(ended);
        self.open[stream].fetch_sub(1, Relaxed);
        Outcome::completed(&true)
    }

    async fn burst(self: Arc<Self>, stream: usize) {
        let Stream { burst, burst_s, .. } = self.workload.streams[stream];
        tokio::time::sleep(Duration::from_secs(burst_s)).await;
        for first in (0..burst).step_by(BATCH) {
            self.add(vec![stream; BATCH.min(burst - first)]).await;
        }
    }

    /// Adds jobs one by one, without waiting for the answers.
    async fn steady(self: Arc<Self>, stream: usize) {
        let mut ticks =
            tokio::time::interval(Duration::from_secs_f64(1.0 / self.workload.streams[stream].rate));
        let mut adding = JoinSet::new();
        loop {
            ticks.tick().await;
            while adding.try_join_next().is_some() {}
            let bench = self.clone();
            adding.spawn(async move { bench.add(vec![stream]).await });
        }
    }

    async fn keep(self: Arc<Self>, stream: usize) {
        let keep = self.workload.streams[stream].keep;
        loop {
            let missing = keep.saturating_sub(self.open[stream].load(Relaxed));
            if missing >= (keep / 4).min(BATCH) {
                self.add(vec![stream; missing.min(BATCH)]).await;
            } else {
                tokio::time::sleep(TICK).await;
            }
        }
    }
}
