//! What a page of a list of jobs costs, by the library, without HTTP: on an embedded store that is filled at the first run, and read again at
//! later ones. `cargo run --release -p turnwise-lab-bench --bin lists -- FOLDER [JOBS] [TENANTS] [ROUNDS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use turnwise_lab_bench as _;
use turnwise_queue::claims::{self, Ending};
use turnwise_queue::listing::{Cursor, Listing, Order, Wanted};
use turnwise_queue::{Claim, Context, Keyspace, NewJob, Result, failures, jobs, workers};
use turnwise_store::embedded::{Embedded, Options};
use turnwise_store::{Store, Transaction, runtime};

const TYPES: [&str; 5] = ["image", "invoice", "mail", "report", "sync"];
/// Of a thousand jobs: those that stay pending, and those that are delayed.
const PENDING: usize = 78;
const DELAYED: usize = 20;
/// Jobs per transaction.
const BATCH: usize = 200;
const PAGE: usize = 100;
/// When the first job is added, in µs.
const START_US: i64 = 1_700_000_000_000_000;

/// The numbers of the command line, which follow the folder.
fn number(nth: usize, default: usize) -> usize {
    std::env::args().nth(nth).map_or(default, |word| word.parse().expect("a number"))
}

/// A number that looks random, so that neighbours in time are no neighbours in a queue.
fn mixed(n: usize) -> usize {
    let n = (n as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from((n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33).expect("31 bits")
}

fn job(n: usize, tenants: usize) -> NewJob {
    let options = RawValue::from_string("{\"url\":\"http://host/path\"}".to_owned()).expect("this is JSON");
    let job_type = TYPES[mixed(n) % TYPES.len()];
    let mut new = NewJob::new(job_type, &format!("job-{:08}", mixed(n + 7) * 16 + n % 16), options);
    new.spec.tenant = format!("tenant-{:04}", mixed(n + 13) % tenants);
    if n % 1_000 >= 1_000 - DELAYED {
        new.not_before_us = Some(START_US * 2 + at_us(n));
    }
    new
}

fn at_us(n: usize) -> i64 {
    START_US + i64::try_from(n).expect("a few million") * 1_000
}

/// Adds the jobs of a batch, and runs those that are to end.
async fn batch(tx: &Transaction, numbers: std::ops::Range<usize>, tenants: usize) -> Result<()> {
    let keys = &Keyspace::default();
    for n in numbers {
        let new = job(n, tenants);
        jobs::add(tx, keys, &new, at_us(n)).await?;
        if n % 1_000 < PENDING || n % 1_000 >= 1_000 - DELAYED {
            continue;
        }
        let claim = Claim { worker: "w".to_owned(), number: n as u64 + 1 };
        let context = || Context::new(tx, keys, &new.job_type, at_us(n) + 500, 20);
        claims::claim(context(), &new.id, &claim).await?;
        let ending = match n % 20 {
            0 => Ending::Failed(format!("HTTP {}", 500 + mixed(n) % 20).into()),
            _ => Ending::Completed(RawValue::NULL.to_owned().into()),
        };
        claims::end(context(), &new.id, &claim, &ending, None, None).await?;
    }
    Ok(())
}

async fn fill(store: &Store, count: usize, tenants: usize) -> Result<()> {
    for job_type in TYPES {
        let worker = workers::Worker::new("w", "n", 0, 1_000);
        let worker = &worker;
        let register =
            |tx: Transaction| async move { workers::register(&tx, &Keyspace::default(), job_type, worker) };
        store.transact(register).await?;
    }
    for begin in (0..count).step_by(BATCH) {
        let step =
            |tx: Transaction| async move { batch(&tx, begin..(begin + BATCH).min(count), tenants).await };
        store.transact(step).await?;
    }
    Ok(())
}

/// A page, and the position after it.
async fn page(store: &Store, wanted: &Wanted, from: &Cursor) -> Result<(usize, Option<Cursor>)> {
    let (tx, keys, mut last, mut found) = (store.begin().await?, Keyspace::default(), None, 0);
    let mut listing = Listing::open(&tx, &keys, wanted, &|_| true, from).await?;
    while found < PAGE {
        let jobs = listing.next(PAGE - found).await?;
        if jobs.is_empty() {
            break;
        }
        found += jobs.len();
        last = jobs.into_iter().next_back().map(|(cursor, _)| cursor);
    }
    Ok((found, last))
}

/// The median in ms, and the lowest.
fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    format!("{:7.2} {:7.2}", ms(times[times.len() / 2]), ms(times[0]))
}

fn wanted(order: Order, state: Option<&str>) -> Wanted {
    let states = state.map(|state| [state.to_owned()].into());
    Wanted { order, types: None, states, tenants: None, class: None, tags: None, ids: None }
}

#[tokio::main]
async fn main() {
    let folder = std::env::args().nth(1).expect("a folder for the store");
    let (count, tenants, rounds) = (number(2, 1_000_000), number(3, 1_000), number(4, 15));
    let options = Options { durable: false, ..Options::default() };
    let engine = Embedded::open_with(Path::new(&folder), options).expect("the store opens");
    let store = Store::new(engine, Arc::new(runtime::System));
    let keys = Keyspace::default();
    let types: Vec<String> = TYPES.map(str::to_owned).to_vec();
    let is_empty =
        |tx: Transaction| async move { jobs::types_after(&tx, &Keyspace::default(), None, 1).await };
    if store.transact(is_empty).await.expect("the store works").is_empty() {
        let begun = Instant::now();
        fill(&store, count, tenants).await.expect("the store works");
        println!("filled with {count} jobs of {tenants} tenants in {:.0} s", begun.elapsed().as_secs_f64());
    }
    let lists = [
        ("all, newest", wanted(Order::Newest, None)),
        ("all, oldest", wanted(Order::Oldest, None)),
        ("pending, newest", wanted(Order::Newest, Some("pending"))),
        ("pending, oldest", wanted(Order::Oldest, Some("pending"))),
        ("completed, newest", wanted(Order::Newest, Some("completed"))),
        ("of a type, newest", Wanted { types: Some(types[..1].to_vec()), ..wanted(Order::Newest, None) }),
    ];
    println!("{:22} first page, ms: median, lowest; second page", "list");
    for (name, wanted) in &lists {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let begun = Instant::now();
            let (_, next) = page(&store, wanted, &Cursor::default()).await.expect("the store works");
            first.push(begun.elapsed());
            let begun = Instant::now();
            page(&store, wanted, &next.expect("there are more")).await.expect("the store works");
            second.push(begun.elapsed());
        }
        println!("{name:22} {} {}", shown(first), shown(second));
    }
    let mut times = Vec::new();
    let mut looked_at = 0;
    for _ in 0..rounds {
        let tx = store.begin().await.expect("the store works");
        let begun = Instant::now();
        let found = failures::most_frequent(&tx, &keys, &types, None, None, &|_| true, 20).await;
        times.push(begun.elapsed());
        looked_at = found.expect("the store works").looked_at;
    }
    println!("{:22} {} ({looked_at} rows)", "failures by reason", shown(times));
}
