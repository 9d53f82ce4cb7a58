//! The workloads: what each tenant adds, and when.

use serde::{Deserialize, Serialize};

/// The most jobs that one request adds.
pub const BATCH: usize = 1_000;
/// The number of tenants of the workload [`zipf`].
const MANY: usize = 1_000;
/// The jobs of the workload [`zipf`], of all tenants.
const ZIPF_JOBS: f64 = 24_000.0;
/// The jobs that a burst has, and the jobs of a tenant with many names.
const BURST_JOBS: usize = 10_000;
/// How many names the tenant of the workload [`names`] uses.
const NAMES: usize = 50;
/// How long most jobs run, in ms.
const RUN_MS: u64 = 100;
/// The number of jobs that keep a tenant's backlog from running empty.
const BACKLOG: usize = 4_000;
/// The number of tenants that add a few jobs all the time.
const VICTIMS: usize = 3;
/// The jobs that each of them adds per second.
const VICTIM_RATE: f64 = 20.0;

/// What the programs run: which tenants add which jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Workload {
    /// Its name on the command line.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// How many jobs run at the same time.
    pub slots: usize,
    /// How long it lasts, in s.
    pub seconds: u64,
    /// The length of the sliding window in which service is compared with what tenants are entitled to, in s.
    pub window: u64,
    /// What the tenants add.
    pub streams: Vec<Stream>,
}

/// What one tenant adds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stream {
    /// The tenant.
    pub tenant: String,
    /// How long its jobs run on average, in ms; see [`Stream::run_ms_of`].
    pub run_ms: u64,
    /// The number of jobs that are added before the clock starts.
    pub preload: usize,
    /// The number of jobs that are added as fast as the server takes them, at `burst_s`.
    pub burst: usize,
    /// When the burst comes, in s.
    pub burst_s: u64,
    /// Jobs per second, added one by one.
    pub rate: f64,
    /// Jobs are added whenever fewer than this many are there.
    pub keep: usize,
    /// Whether the waits of its jobs are reported.
    pub victim: bool,
}

impl Stream {
    fn new(tenant: impl Into<String>, run_ms: u64) -> Stream {
        Stream { tenant: tenant.into(), run_ms, ..Stream::default() }
    }

    /// How long the job with this number runs, in ms: from half to one and a half times the average. If all jobs ran for the
    /// same time, all slots would become free together. `fairness.mjs` computes the same.
    pub fn run_ms_of(&self, number: usize) -> f64 {
        self.run_ms as f64 * (0.5 + (number as f64 * 0.618_033_988_749_894_9) % 1.0)
    }
}

/// Tenants that each add a job now and then, far below their share.
fn victims() -> impl Iterator<Item = Stream> {
    (1..=VICTIMS).map(|n| Stream {
        rate: VICTIM_RATE,
        victim: true,
        ..Stream::new(format!("victim-{n}"), RUN_MS)
    })
}

fn workload(name: &str, title: &str, seconds: u64, window: u64, streams: Vec<Stream>) -> Workload {
    Workload { name: name.to_owned(), title: title.to_owned(), slots: 50, seconds, window, streams }
}

/// All workloads, in the order of the report. `million` is the backlog of the last one.
pub fn all(million: usize) -> Vec<Workload> {
    vec![calm(), burst(), names(), lengths(), zipf(), backlog(million)]
}

fn calm() -> Workload {
    let title = "Three tenants add 20 jobs/s each, alone";
    workload("calm", title, 20, 10, victims().collect())
}

fn burst() -> Workload {
    let title = "The same, and another tenant adds 10,000 jobs at once";
    let big = Stream { burst: BURST_JOBS, burst_s: 5, ..Stream::new("big", RUN_MS) };
    workload("burst", title, 35, 10, victims().chain([big]).collect())
}

fn names() -> Workload {
    let title = "The same, and the other tenant spreads the 10,000 jobs over 50 names";
    let named =
        |n| Stream { burst: BURST_JOBS / NAMES, burst_s: 5, ..Stream::new(format!("big-{n}"), RUN_MS) };
    workload("names", title, 35, 10, victims().chain((1..=NAMES).map(named)).collect())
}

fn lengths() -> Workload {
    let title = "Two tenants with a backlog each: one has jobs of 10 ms, the other jobs of 10 s";
    let short = Stream { keep: BACKLOG, ..Stream::new("short", 10) };
    let long = Stream { keep: 200, ..Stream::new("long", 10_000) };
    workload("lengths", title, 150, 60, vec![short, long])
}

fn zipf() -> Workload {
    let title = "1,000 tenants add all their jobs at once; the n-th largest has 1/n of the largest one's";
    let harmonic: f64 = (1..=MANY).map(|n| 1.0 / n as f64).sum();
    let size = |n: usize| ((ZIPF_JOBS / harmonic / n as f64).round() as usize).max(1);
    let stream = |n: usize| Stream {
        preload: size(n),
        // Half of all tenants have fewer jobs than this.
        victim: n > MANY / 2,
        ..Stream::new(format!("tenant-{n:04}"), RUN_MS)
    };
    workload("zipf", title, 40, 10, (1..=MANY).map(stream).collect())
}

fn backlog(million: usize) -> Workload {
    let title = format!("Three tenants add 20 jobs/s each beside a tenant with a backlog of {million} jobs");
    let big = Stream { preload: million, ..Stream::new("big", RUN_MS) };
    workload("backlog", &title, 30, 10, victims().chain([big]).collect())
}
