//! Keeping the indexes of a CouchDB up to date: by turnwise, and by CouchDB's own builder (`ken`).
//!
//! Two tenants have databases with design documents. Everything is built first, which shows how the tenants share the server. Then
//! documents are written at random while both servers are killed. The lag of an index is the time from a write until its index has it,
//! and a first query is one that waits for its index. At the end, every index must have everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use turnwise_testkit::{CouchDb, Random, client, free_ports};

const USAGE: &str = "\
Usage: indexing [--builder turnwise|couchdb] [--turnwise BINARY] [--databases N] [--small N] [--designs N] [--docs N]
                [--seconds N] [--writes PER_SECOND] [--kills N] [--builds N] [--max-p95 MS] [--seed N]

  --databases  all databases (300), of which --small (50) belong to the second tenant
  --kills      how often each server is killed while documents are written (3)";

/// The concurrent requests while databases are created and looked at.
const AT_ONCE: usize = 8;
/// The time between two looks at an index that is awaited.
const LOOK: Duration = Duration::from_millis(100);
/// The longest lag that is measured, and the longest time until everything is built at the end.
const PATIENCE: Duration = Duration::from_secs(180);
/// The time between two queries of the foreground.
const FOREGROUND: Duration = Duration::from_millis(25);
/// How long the idle server is measured.
const IDLE: Duration = Duration::from_secs(20);
/// The database of the foreground, which does not change.
const FRONT: &str = "front";

#[derive(Clone)]
struct Options {
    turnwise: Option<PathBuf>,
    databases: usize,
    small: usize,
    designs: usize,
    docs: usize,
    seconds: u64,
    writes: u64,
    kills: u64,
    builds: usize,
    max_p95: u64,
    seed: u64,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            turnwise: None,
            databases: 300,
            small: 50,
            designs: 5,
            docs: 100,
            seconds: 120,
            writes: 20,
            kills: 3,
            builds: 4,
            max_p95: 500,
            seed: 1,
        };
        let mut by_turnwise = true;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: expected a number"));
            let size =
                || number().and_then(|number| usize::try_from(number).map_err(|error| error.to_string()));
            match name.as_str() {
                "--builder" if ["turnwise", "couchdb"].contains(&value.as_str()) => {
                    by_turnwise = value == "turnwise"
                }
                "--turnwise" => options.turnwise = Some(value.into()),
                "--databases" => options.databases = size()?,
                "--small" => options.small = size()?,
                "--designs" => options.designs = size()?,
                "--docs" => options.docs = size()?,
                "--seconds" => options.seconds = number()?,
                "--writes" => options.writes = number()?.max(1),
                "--kills" => options.kills = number()?,
                "--builds" => options.builds = size()?,
                "--max-p95" => options.max_p95 = number()?,
                "--seed" => options.seed = number()?,
                _ => return Err(format!("{name} {value} is not known")),
            }
        }
        if !by_turnwise {
            options.turnwise = None;
        } else if options.turnwise.is_none() {
            return Err("--turnwise names the binary".to_owned());
        }
        Ok(options)
    }
}

/// A running turnwise.
struct Turnwise {
    child: Child,
    url: String,
}

impl Drop for Turnwise {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The requests to one CouchDB.
#[derive(Clone)]
struct Couch {
    client: reqwest::Client,
    url: String,
}

impl Couch {
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Option<Value> {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).timeout(PATIENCE);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }

    async fn get(&self, path: &str) -> Option<Value> {
        self.send(Method::GET, path, None).await
    }

    /// How many changes the views of a design document lack.
    async fn lacks(&self, (database, design): &(String, usize)) -> Option<u64> {
        let info = self.get(&format!("/{database}/_design/d{design}/_info")).await?;
        info["view_index"]["updates_pending"]["total"].as_u64()
    }
}

fn databases(options: &Options) -> Vec<String> {
    let name = |n: usize| if n < options.small { format!("small-{n}") } else { format!("big-{n}") };
    (0..options.databases).map(name).collect()
}

fn docs(random: &mut Random, count: usize) -> Value {
    let doc = |random: &mut Random| json!({ "n": random.below(1_000_000), "text": "x".repeat(200) });
    json!({ "docs": (0..count).map(|_| doc(random)).collect::<Vec<_>>() })
}

fn design(n: usize) -> Value {
    let map = format!("function (doc) {{ emit([doc.n % {}, doc.n], doc.text.length); }}", n + 2);
    json!({ "language": "javascript", "views": { "v": { "map": map, "reduce": "_sum" } } })
}

async fn set_up(couch: &Couch, options: &Options) {
    let mut random = Random::new(options.seed);
    let mut all = databases(options);
    all.push(FRONT.to_owned());
    let filled: Vec<(String, Value)> =
        all.into_iter().map(|name| (name, docs(&mut random, options.docs))).collect();
    stream::iter(filled)
        .for_each_concurrent(AT_ONCE, |(name, docs)| async move {
            couch.send(Method::PUT, &format!("/{name}"), None).await.expect("a database");
            couch.send(Method::POST, &format!("/{name}/_bulk_docs"), Some(&docs)).await.expect("documents");
        })
        .await;
}

async fn add_designs(couch: &Couch, names: &[String], designs: usize) {
    stream::iter(names)
        .for_each_concurrent(AT_ONCE, |name| async move {
            for n in 0..designs {
                let path = format!("/{name}/_design/d{n}");
                couch.send(Method::PUT, &path, Some(&design(n))).await.expect("a design document");
            }
        })
        .await;
}

fn start(binary: &Path, folder: &Path, couch: &str, options: &Options) -> Turnwise {
    let config = folder.join("turnwise.ini");
    let text = format!(
        "[indexing]\nservers = {couch}\nexclude = {FRONT}\nbuilds = {}\nmax_p95_ms = {}\n[workers]\nhealth_interval = 1\nhealth_timeout = 3\n",
        options.builds, options.max_p95
    );
    std::fs::write(&config, text).expect("the folder can be written");
    let port = free_ports(1)[0];
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
    let store = format!("embedded:{}", folder.join("data").display());
    let child = Command::new(binary)
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", &store, "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("turnwise starts");
    Turnwise { child, url: format!("http://127.0.0.1:{port}") }
}

/// The build time of each tenant so far, in ms, and how many of its indexes were never built.
async fn shares(client: &reqwest::Client, url: &str) -> Option<BTreeMap<String, (u64, usize)>> {
    let mut shares: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let mut after = String::new();
    loop {
        let answer = client.get(format!("{url}/v1/indexes?limit=1000{after}")).send().await.ok()?;
        let page: Value = serde_json::from_slice(&answer.bytes().await.ok()?).ok()?;
        for index in page["indexes"].as_array()? {
            let share = shares.entry(index["tenant"].as_str()?.to_owned()).or_default();
            match index["built"]["took_ms"].as_u64() {
                Some(ms) => share.0 += ms,
                None => share.1 += 1,
            }
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('%', "%25").replace('/', "%2F")),
            None => return Some(shares),
        }
    }
}

/// Queries of the foreground until `stop`; their times.
async fn foreground(couch: &Couch, stop: impl Fn() -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop() {
        let began = Instant::now();
        if couch.get(&format!("/{FRONT}/_design/d0/_view/v?reduce=false&limit=10")).await.is_some() {
            times.push(began.elapsed());
        }
        tokio::time::sleep(FOREGROUND).await;
    }
    times
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, Duration::as_secs_f64)
}

fn told(what: &str, times: &[Duration]) {
    println!(
        "{what}: {} times, p50 {:.3} s, p95 {:.3} s, p99 {:.3} s, longest {:.3} s",
        times.len(),
        percentile(times, 50),
        percentile(times, 95),
        percentile(times, 99),
        percentile(times, 100)
    );
}

/// How many indexes lack something.
async fn behind(couch: &Couch, all: &[(String, usize)]) -> usize {
    let lacking = stream::iter(all).map(|index| async move { couch.lacks(index).await != Some(0) });
    let lacking: Vec<bool> = lacking.buffer_unordered(AT_ONCE).collect().await;
    lacking.into_iter().filter(|lacks| *lacks).count()
}

async fn until_built(couch: &Couch, all: &[(String, usize)]) -> (Duration, usize) {
    let (began, mut last) = (Instant::now(), Duration::ZERO);
    // One after the other, so that looking costs the server little; again, until no index had to be awaited.
    loop {
        let mut waited = false;
        for index in all {
            while couch.lacks(index).await != Some(0) {
                if began.elapsed() > PATIENCE {
                    return (began.elapsed(), behind(couch, all).await);
                }
                waited = true;
                tokio::time::sleep(LOOK).await;
                last = began.elapsed();
            }
        }
        if !waited {
            return (last, 0);
        }
    }
}

/// Which builds of one index on one shard the server ever ran at the same time.
async fn duplicates(couch: &Couch, stop: &AtomicBool) -> BTreeSet<String> {
    let mut twice = BTreeSet::new();
    while !stop.load(Ordering::Relaxed) {
        let tasks = couch.get("/_active_tasks").await.unwrap_or_default();
        let mut seen = BTreeSet::new();
        for task in tasks.as_array().into_iter().flatten().filter(|task| task["type"] == "indexer") {
            let index = format!("{} {}", task["database"], task["design_document"]);
            if !seen.insert(index.clone()) {
                twice.insert(index);
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    twice
}

#[tokio::main]
async fn main() {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            std::process::exit(2);
        }
    };
    let Some(server) = CouchDb::start().await else { std::process::exit(1) };
    let couch = Couch { client: client(), url: server.url().to_owned() };
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    // Otherwise it closes databases before their indexes are on the disk, and has to build these again.
    let most = json!(format!("{}", 4 * options.databases + 500));
    couch
        .send(Method::PUT, "/_node/_local/_config/couchdb/max_dbs_open", Some(&most))
        .await
        .expect("the setting");
    if options.turnwise.is_some() {
        for key in ["batch_channels", "incremental_channels"] {
            let path = format!("/_node/_local/_config/ken/{key}");
            couch.send(Method::PUT, &path, Some(&json!("0"))).await.expect("the setting");
        }
    }
    let began = Instant::now();
    set_up(&couch, &options).await;
    add_designs(&couch, &[FRONT.to_owned()], 1).await;
    couch.get(&format!("/{FRONT}/_design/d0/_view/v?limit=0")).await.expect("the index of the foreground");
    println!("{} databases: {:.1} s", options.databases, began.elapsed().as_secs_f64());
    let idle = Instant::now() + IDLE;
    told("foreground, idle", &foreground(&couch, || Instant::now() > idle).await);
    build_all(&couch, &options, folder.path(), server).await;
}

/// Builds everything, and goes on with the writes.
async fn build_all(couch: &Couch, options: &Options, folder: &Path, server: CouchDb) {
    let names = databases(options);
    let all: Vec<(String, usize)> =
        names.iter().flat_map(|name| (0..options.designs).map(move |n| (name.clone(), n))).collect();
    let began = Instant::now();
    add_designs(couch, &names, options.designs).await;
    println!("{} design documents: {:.1} s", all.len(), began.elapsed().as_secs_f64());
    let binary = options.turnwise.as_deref();
    let turnwise = binary.map(|binary| start(binary, folder, &couch.url, options));
    let done = AtomicBool::new(false);
    let shared = async {
        // The last look at which both tenants had indexes that were never built.
        let mut last: Option<BTreeMap<String, (u64, usize)>> = None;
        while !done.load(Ordering::Relaxed) {
            if let Some(turnwise) = &turnwise
                && let Some(shares) = shares(&couch.client, &turnwise.url).await
                && shares.len() == 2
                && shares.values().all(|(_, left)| *left > 0)
            {
                last = Some(shares);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        last
    };
    let build = async {
        let built = until_built(couch, &all).await;
        done.store(true, Ordering::Relaxed);
        built
    };
    let (front, last, (took, left), twice) = tokio::join!(
        foreground(couch, || done.load(Ordering::Relaxed)),
        shared,
        build,
        duplicates(couch, &done)
    );
    println!(
        "all {} indexes built: {:.1} s, {left} left, built twice at once: {twice:?}",
        all.len(),
        took.as_secs_f64()
    );
    told("foreground, while they are built", &front);
    if let Some(shares) = last {
        let times: Vec<f64> = shares.values().map(|(ms, _)| *ms as f64 / 1e3).collect();
        let (sum, squares) = times.iter().fold((0.0, 0.0), |(sum, squares), s| (sum + s, squares + s * s));
        println!(
            "build time while both tenants were behind: {shares:?}, Jain's index {:.3}",
            sum * sum / (times.len() as f64 * squares)
        );
    }
    write_and_kill(couch, options, folder, server, turnwise, &all).await;
}

async fn write_and_kill(
    couch: &Couch,
    options: &Options,
    folder: &Path,
    mut server: CouchDb,
    turnwise: Option<Turnwise>,
    all: &[(String, usize)],
) {
    let names = databases(options);
    let stop = Arc::new(AtomicBool::new(false));
    let (lags, firsts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (written, waiting) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let writes = async {
        let mut random = Random::new(options.seed + 1);
        let mut n: u64 = 0;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            let pick =
                |random: &mut Random, most: usize| usize::try_from(random.below(most as u64)).unwrap_or(0);
            let name = names[pick(&mut random, names.len())].clone();
            let count = pick(&mut random, 5) + 1;
            let docs = docs(&mut random, count);
            if couch.send(Method::POST, &format!("/{name}/_bulk_docs"), Some(&docs)).await.is_some() {
                written.fetch_add(count, Ordering::Relaxed);
            }
            let index = (name, pick(&mut random, options.designs));
            let (couch, at) = (couch.clone(), Instant::now());
            // One write in five is followed, and one in twenty is queried at once.
            if n.is_multiple_of(5) {
                let (lags, waiting) = (lags.clone(), waiting.clone());
                waiting.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    while at.elapsed() < PATIENCE && couch.lacks(&index).await != Some(0) {
                        tokio::time::sleep(LOOK).await;
                    }
                    lags.lock().await.push(at.elapsed());
                    waiting.fetch_sub(1, Ordering::Relaxed);
                });
            } else if n % 20 == 1 {
                let firsts = firsts.clone();
                tokio::spawn(async move {
                    let path = format!("/{}/_design/d{}/_view/v?reduce=false&limit=10", index.0, index.1);
                    if couch.get(&path).await.is_some() {
                        firsts.lock().await.push(at.elapsed());
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(1_000 / options.writes)).await;
        }
    };
    let kills = async {
        let mut turnwise = turnwise;
        let pause = Duration::from_secs(options.seconds) / u32::try_from(2 * options.kills + 1).unwrap_or(1);
        for _ in 0..options.kills {
            tokio::time::sleep(pause).await;
            if let Some(binary) = &options.turnwise {
                drop(turnwise.take());
                turnwise = Some(start(binary, folder, &couch.url, options));
            }
            tokio::time::sleep(pause).await;
            server.crash().await;
        }
        tokio::time::sleep(pause).await;
        stop.store(true, Ordering::Relaxed);
        turnwise
    };
    let ((), turnwise, twice) = tokio::join!(writes, kills, duplicates(couch, &stop));
    let (took, left) = until_built(couch, all).await;
    while waiting.load(Ordering::Relaxed) > 0 && left == 0 {
        tokio::time::sleep(LOOK).await;
    }
    println!(
        "{} documents written in {} s, each server killed {} times; then {:.1} s until {} of {} indexes had everything; built twice at once: {twice:?}",
        written.load(Ordering::Relaxed),
        options.seconds,
        options.kills,
        took.as_secs_f64(),
        all.len() - left,
        all.len()
    );
    told("lag of a write", &lags.lock().await);
    told("first query after a write", &firsts.lock().await);
    if let Some(turnwise) = turnwise {
        let states = couch.client.get(format!("{}/v1/counts?type=indexing", turnwise.url)).send().await;
        println!("jobs: {}", states.expect("turnwise answers").text().await.unwrap_or_default());
    }
    drop(server);
}
