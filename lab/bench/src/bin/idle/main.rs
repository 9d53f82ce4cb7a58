//! The cost of idle continuous replications: memory and CPU time of turnwise and of both servers while nothing happens, and how long a write
//! then takes.
//!
//! Sources are databases with one shard (`q=1`), so that one CouchDB can hold thousands. Several replications may share a source, each with
//! its own target. A write to such a source then starts all of them.

mod options;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use turnwise_testkit::process::{cpu_seconds, listener};
use turnwise_testkit::{Random, client, free_ports};

use options::{Options, USAGE};

/// The number of concurrent requests to the servers while databases are created.
const AT_ONCE: usize = 8;
/// The number of documents that one request adds.
const BULK: usize = 100;
/// The time between two checks for a document.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time until a write arrives. A write that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest time until the source's own replications are idle.
const SETTLES: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            std::process::exit(2);
        }
    };
    let bench = Bench { client: client(), options };
    bench.databases("PUT").await;
    bench.run().await;
    if !bench.options.keep {
        bench.databases("DELETE").await;
    }
}

struct Bench {
    client: reqwest::Client,
    options: Options,
}

/// A turnwise process with its own store.
struct Turnwise {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Turnwise {
    fn drop(&mut self) {
        // The store is removed with the process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bench {
    fn source(&self, n: usize) -> String {
        format!("{}/{}-s{n}", self.options.source, self.options.prefix)
    }

    fn target(&self, n: usize) -> String {
        format!("{}/{}-t{n}", self.options.target, self.options.prefix)
    }

    /// The numbers of a job's source and target.
    fn ends(&self, job: usize) -> (usize, usize) {
        (job % self.options.databases, job / self.options.databases)
    }

    /// Creates or deletes all databases.
    async fn databases(&self, method: &str) {
        let began = Instant::now();
        let targets = self.options.jobs.div_ceil(self.options.databases);
        let query = if method == "PUT" { "?q=1&n=1" } else { "" };
        let sources = (0..self.options.databases).map(|n| format!("{}{query}", self.source(n)));
        let all: Vec<String> =
            sources.chain((0..targets).map(|n| format!("{}{query}", self.target(n)))).collect();
        let count = all.len();
        let method: reqwest::Method = method.parse().expect("a method");
        let mut made = stream::iter(all)
            .map(|url| {
                let request = self.client.request(method.clone(), url);
                async move { request.send().await.expect("the servers answer").status() }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(status) = made.next().await {
            assert!(status.is_success() || status.as_u16() == 412, "{method}: {status}");
        }
        println!("{method} of {count} databases: {:.1} s", began.elapsed().as_secs_f64());
    }

    async fn start(&self) -> Turnwise {
        let folder = tempfile::TempDir::new().expect("a temporary folder can be made");
        let config = folder.path().join("turnwise.ini");
        let Options { multiplex, max_jobs, .. } = &self.options;
        let text =
            format!("[replicator]\nmultiplex = {multiplex}\nmax_jobs = {max_jobs}\ninterval = 60000\n");
        std::fs::write(&config, text).expect("the temporary folder can be written");
        let port = free_ports(1)[0];
        let mut command = Command::new(&self.options.turnwise);
        command.arg("serve").arg("--config").arg(config).arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.arg("--store").arg(format!("embedded:{}", folder.path().join("data").display()));
        let log =
            std::fs::File::create(folder.path().join("log")).expect("the temporary folder can be written");
        let copy = log.try_clone().expect("a file handle can be copied");
        let child =
            command.stdin(Stdio::null()).stdout(log).stderr(copy).spawn().expect("turnwise can be started");
        let server = Turnwise { child, url: format!("http://127.0.0.1:{port}"), _folder: folder };
        while self.client.get(format!("{}/_up", server.url)).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server
    }

    async fn run(&self) {
        let server = self.start().await;
        let process = server.child.id();
        println!("turnwise alone: {:.1} MB", memory_mb(process));
        let Options { jobs, .. } = self.options;
        let meters = [
            ("turnwise", Some(process)),
            ("source", self.listener(&self.options.source)),
            ("target", self.listener(&self.options.target)),
        ];
        let before = meters.map(|(_, process)| process.and_then(cpu_seconds));
        let began = Instant::now();
        self.add(&server).await;
        println!("{jobs} documents added after {:.1} s", began.elapsed().as_secs_f64());
        self.settle(&server, began).await;
        println!("all idle after {:.1} s", began.elapsed().as_secs_f64());
        for ((name, process), before) in meters.into_iter().zip(before) {
            if let (Some(now), Some(before)) = (process.and_then(cpu_seconds), before) {
                println!("  CPU until then, {name}: {:.1} s", now - before);
            }
        }
        // The effects of the start (caches, pending reports) are no cost of idle replications.
        tokio::time::sleep(Duration::from_secs(10)).await;
        println!("turnwise: {:.1} MB, {} connections to the source", memory_mb(process), self.connections());
        self.idle(&meters).await;
        self.latency(self.options.jobs).await;
        println!("turnwise: {:.1} MB", memory_mb(process));
        drop(server);
        if self.options.beside > 0 {
            self.couchdbs_own(&meters[1..]).await;
        }
    }

    /// Measures the first replications with the source's own replicator.
    async fn couchdbs_own(&self, meters: &[(&str, Option<u32>)]) {
        let count = self.options.beside;
        println!("{count} of the source's own replicator:");
        let began = Instant::now();
        let replicator = format!("{}/_replicator", self.options.source);
        let ids: Vec<String> = (0..count).map(|job| format!("{}-own-{job}", self.options.prefix)).collect();
        for (job, id) in ids.iter().enumerate() {
            let (source, target) = self.ends(job);
            let doc =
                json!({ "source": self.source(source), "target": self.target(target), "continuous": true });
            let written = self.client.put(format!("{replicator}/{id}")).json(&doc).send().await;
            assert!(
                written.is_ok_and(|answer| answer.status().is_success()),
                "the source takes a replication"
            );
        }
        loop {
            let url = format!("{}/_active_tasks", self.options.source);
            let answer = self.client.get(url).send().await.expect("the source answers");
            let tasks: Vec<Value> = answer.json().await.expect("the source answers JSON");
            let idle = |task: &&Value| task["type"] == "replication" && task["changes_pending"] == 0;
            if tasks.iter().filter(idle).count() >= count {
                break;
            }
            assert!(began.elapsed() < SETTLES, "the source's own replications do not come to rest");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        println!("all idle after {:.1} s", began.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.idle(meters).await;
        self.latency(count).await;
        for id in &ids {
            let url = format!("{replicator}/{id}");
            let doc: Value = match self.client.get(&url).send().await {
                Ok(answer) => answer.json().await.unwrap_or_default(),
                Err(_) => continue,
            };
            let deleted =
                self.client.delete(format!("{url}?rev={}", doc["_rev"].as_str().unwrap_or_default()));
            deleted.send().await.expect("the source answers");
        }
    }

    /// Prints the CPU usage of each process while nothing happens.
    async fn idle(&self, meters: &[(&str, Option<u32>)]) {
        let seconds = self.options.seconds;
        let before: Vec<_> = meters.iter().map(|(_, process)| process.and_then(cpu_seconds)).collect();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        for ((name, process), before) in meters.iter().zip(before) {
            if let (Some(now), Some(before)) = (process.and_then(cpu_seconds), before) {
                #[allow(clippy::cast_precision_loss, reason = "seconds of a benchmark")]
                let share = (now - before) / seconds as f64 * 100.0;
                println!("idle for {seconds} s, {name}: {share:.2} % of a core");
            }
        }
    }

    async fn add(&self, server: &Turnwise) {
        let jobs: Vec<usize> = (0..self.options.jobs).collect();
        for some in jobs.chunks(BULK) {
            let docs: Vec<Value> = some
                .iter()
                .map(|job| {
                    let (source, target) = self.ends(*job);
                    json!({ "_id": format!("idle-{job}"), "source": self.source(source),
                        "target": self.target(target), "continuous": true })
                })
                .collect();
            let request = self.client.post(format!("{}/_replicator/_bulk_docs", server.url));
            let answer = request.json(&json!({ "docs": docs })).send().await.expect("turnwise answers");
            assert!(answer.status().is_success(), "_bulk_docs: {}", answer.status());
        }
    }

    /// Waits until every job is parked, or, without a multiplexer, runs and has copied everything.
    async fn settle(&self, server: &Turnwise, began: Instant) {
        let mut told = Instant::now();
        loop {
            let parked = self.options.multiplex == "auto";
            let path = if parked { "/v1/tenants?type=replication" } else { "/_active_tasks" };
            let answer =
                self.client.get(format!("{}{path}", server.url)).send().await.expect("turnwise answers");
            let answer: Value = answer.json().await.expect("turnwise answers JSON");
            let idle = if parked {
                let counts = &answer["capacity"];
                let type_ = answer["types"].as_array().and_then(|types| types.first()).unwrap_or(counts);
                type_["delayed"].as_u64().unwrap_or(0)
            } else {
                let tasks = answer.as_array().map(Vec::as_slice).unwrap_or_default();
                tasks.iter().filter(|task| task["changes_pending"] == 0).count() as u64
            };
            if idle >= self.options.jobs as u64 {
                return;
            }
            if told.elapsed() > Duration::from_secs(10) {
                println!("  {idle} idle after {:.0} s", began.elapsed().as_secs_f64());
                told = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Writes to random sources of the first `jobs` jobs, and waits for each document at a target.
    async fn latency(&self, jobs: usize) {
        let mut random = Random::new(7);
        let mut waits = Vec::new();
        for sample in 0..self.options.samples {
            let job = random.below(jobs as u64) as usize;
            let (source, target) = self.ends(job);
            let id = format!("write-{sample}-{}", random.hex32());
            let written =
                self.client.put(format!("{}/{id}", self.source(source))).json(&json!({})).send().await;
            assert!(written.is_ok_and(|answer| answer.status().is_success()), "the source takes a document");
            let began = Instant::now();
            let arrives = format!("{}/{id}", self.target(target));
            loop {
                let found = self.client.get(&arrives).send().await.expect("the target answers");
                if found.status().is_success() {
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "{id} never came");
                tokio::time::sleep(LOOK).await;
            }
            waits.push(began.elapsed().as_secs_f64() * 1e3);
        }
        waits.sort_by(f64::total_cmp);
        if let (Some(middle), Some(last)) = (waits.get(waits.len() / 2), waits.last()) {
            println!("{} writes arrive: p50 {middle:.0} ms, max {last:.0} ms", waits.len());
        }
    }

    fn listener(&self, url: &str) -> Option<u32> {
        listener(reqwest::Url::parse(url).ok()?.port_or_known_default()?)
    }

    /// The number of open connections to the source's port, from any process.
    fn connections(&self) -> usize {
        let port = reqwest::Url::parse(&self.options.source).ok().and_then(|url| url.port_or_known_default());
        let end = format!(":{:04X}", port.unwrap_or_default());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        // The remote address is the third field. State 01 is an established connection.
        let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields
            .filter(|fields| {
                fields.get(2).is_some_and(|to| to.ends_with(&end)) && fields.get(3) == Some(&"01")
            })
            .count()
    }
}

/// The resident memory of a process, in MiB.
fn memory_mb(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb: f64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kb / 1024.0
}
