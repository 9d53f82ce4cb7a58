//! The checks after the writers and the faults have stopped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, stream};
use serde_json::Value;
use tokio::time::Instant;

use super::World;
use super::workload::Acknowledged;
use turnwise_testkit::{Database, Difference, Fault, Leaves, Summary, canary, compare, leaves, revisions};

/// The time between two checks of databases that are not equal yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The number of databases that are read at the same time.
const IN_FLIGHT: usize = 2;

/// The number of revisions in one request.
const BATCH: usize = 250;

/// The number of differences that are shown per database.
const SHOWN: usize = 5;

/// How long after its last start turnwise's memory counts, in seconds. Pools and buffers have reached their size by then.
const WARM_UP: usize = 60;

/// With fewer seconds after that, the test does not check memory.
const MEMORY_SECONDS: usize = 180;

/// The median memory in the last third of the time may exceed that in the first third by this factor, plus this many bytes.
const GROWTH: f64 = 1.25;
const GROWTH_BYTES: f64 = (8 << 20) as f64;

/// Shorter base64 texts occur by chance.
const ENCODED_MIN: usize = 8;

/// All violations, as text.
pub(super) async fn judge(world: &World, acknowledged: &Acknowledged) -> Vec<String> {
    let mut broken = Vec::new();
    broken.extend(memory(&world.counts.memory()));
    for side in &world.sides {
        side.proxy.set(Fault::None).await;
    }
    let quiet = Instant::now();
    let unequal = until_equal(world).await;
    match unequal.as_slice() {
        [] => println!("both sides have the same leaves after {} s", quiet.elapsed().as_secs()),
        some => broken.push(format!(
            "{} databases still differ {} s after the last write: {some:?}",
            some.len(),
            world.options.settle_seconds
        )),
    }
    broken.extend(jobs(world, quiet).await);
    println!("{}", world.status().await);
    match unreadable(world).await {
        Some(problem) => broken.push(problem),
        None => broken.extend(contents(world, acknowledged).await),
    }
    if !world.turnwise.is_as_it_should().await {
        broken.push("turnwise has ended by itself".to_owned());
    }
    broken.extend(world.turnwise.stop().await.err());
    broken.extend(world.turnwise.check_store().await.err());
    broken.extend(secrets(world));
    broken
}

/// Waits until both sides have the same leaves. Returns the names of the databases that do not.
async fn until_equal(world: &World) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(world.options.settle_seconds);
    let mut left: Vec<usize> = (0..world.options.databases).collect();
    loop {
        let pairs = stream::iter(left).map(|number| async move {
            let [a, b] = [0, 1].map(|side: usize| &world.sides[side].databases[number]);
            let (a, b) = tokio::join!(leaves(a), leaves(b));
            (number, a.is_some() && a == b)
        });
        let pairs: Vec<(usize, bool)> = pairs.buffer_unordered(IN_FLIGHT).collect().await;
        left = pairs.into_iter().filter(|(_, equal)| !equal).map(|(number, _)| number).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return left.iter().map(|number| world.sides[0].databases[*number].name().to_owned()).collect();
        }
        world.look().await;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Checks that all replications run or wait for changes, and that none has failed permanently or skipped a document. Waits
/// for replications that still recover from the last fault.
async fn jobs(world: &World, quiet: Instant) -> Vec<String> {
    let deadline = quiet + Duration::from_secs(world.options.settle_seconds);
    loop {
        let docs = world.turnwise.replications().await;
        let mut broken = Vec::new();
        if docs.len() != 2 * world.options.databases {
            broken.push(format!("{} replications are left of {}", docs.len(), 2 * world.options.databases));
        }
        for doc in &docs {
            let (id, state) = (&doc["doc_id"], doc["state"].as_str().unwrap_or("?"));
            let passed_over = doc["info"]["doc_write_failures"].as_u64().unwrap_or(0);
            if !matches!(state, "running" | "pending") || passed_over > 0 {
                broken.push(format!("replication {id} is {state}: {}", doc["info"]));
            }
        }
        if broken.is_empty() || Instant::now() >= deadline {
            return broken;
        }
        world.look().await;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The first database that cannot be read, if any.
async fn unreadable(world: &World) -> Option<String> {
    for side in &world.sides {
        for database in &side.databases {
            if leaves(database).await.is_none() {
                return Some(format!(
                    "{} of {} cannot be read, so nothing was compared",
                    database.name(),
                    side.name
                ));
            }
        }
    }
    None
}

/// Checks that both sides are equal and hold all acknowledged writes.
async fn contents(world: &World, acknowledged: &Acknowledged) -> Vec<String> {
    let mut broken = Vec::new();
    let databases = stream::iter(0..world.options.databases).map(|number| async move {
        let [a, b] = [0, 1].map(|side: usize| &world.sides[side].databases[number]);
        let revisions = acknowledged.0.get(&number).map_or(&[][..], Vec::as_slice);
        (a, compare(a, b).await, lost(a, revisions).await)
    });
    let mut databases = databases.buffer_unordered(IN_FLIGHT);
    let (mut sum, mut count) = (Summary::default(), 0);
    while let Some((database, compared, lost)) = databases.next().await {
        let name = database.name();
        match compared {
            Ok(summary) => {
                sum.documents += summary.documents;
                sum.add(&summary);
            }
            Err(differences) => {
                let shown: Vec<String> = differences.iter().take(SHOWN).map(Difference::to_string).collect();
                broken.push(format!("{name}: {} differences: {}", differences.len(), shown.join("; ")));
            }
        }
        if !lost.is_empty() {
            let shown = lost.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            broken.push(format!("{name}: {} acknowledged revisions are gone: {shown}", lost.len()));
        }
        count += acknowledged.0.get(&number_of(world, database)).map_or(0, Vec::len);
    }
    println!(
        "compared: {} documents, {} leaves ({} deleted), {} attachments ({} MB); {count} acknowledged revisions",
        sum.documents,
        sum.leaves,
        sum.deleted_leaves,
        sum.attachments,
        sum.attachment_bytes >> 20
    );
    broken
}

fn number_of(world: &World, database: &Database) -> usize {
    let same = |other: &Database| other.url() == database.url();
    world.sides[0].databases.iter().position(same).expect("one of side A's databases")
}

/// The acknowledged revisions that no history in the database contains.
async fn lost(database: &Database, acknowledged: &[(String, String)]) -> Vec<String> {
    let Some(leaves) = leaves(database).await else { return vec!["the database cannot be read".to_owned()] };
    let histories = histories(database, &leaves).await;
    let none = BTreeSet::new();
    let known = |id: &str| histories.get(id).unwrap_or(&none);
    acknowledged
        .iter()
        .filter(|(id, rev)| !known(id).contains(rev))
        .map(|(id, rev)| format!("{id} {rev}"))
        .collect()
}

/// All revisions of each document, from the histories of its leaves.
async fn histories(database: &Database, leaves: &Leaves) -> HashMap<String, BTreeSet<String>> {
    let all: Vec<(String, String)> =
        leaves.iter().flat_map(|(id, revs)| revs.iter().map(|rev| (id.clone(), rev.clone()))).collect();
    let mut histories: HashMap<String, BTreeSet<String>> = HashMap::new();
    for batch in all.chunks(BATCH) {
        for ((id, _), revision) in revisions(database, batch).await {
            let start = revision.history["start"].as_u64().unwrap_or(0);
            let ids = revision.history["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
            let revs = (0..=start).rev().zip(ids.iter().filter_map(Value::as_str));
            histories
                .entry(id)
                .or_default()
                .extend(revs.map(|(generation, hash)| format!("{generation}-{hash}")));
        }
    }
    histories
}

/// Whether turnwise's memory has grown, from one sample per second since its last start.
fn memory(samples: &[u64]) -> Option<String> {
    let warm = samples.get(WARM_UP..).unwrap_or_default();
    if warm.len() < MEMORY_SECONDS {
        println!("memory: not judged, since turnwise ran for {} s after its last start", samples.len());
        return None;
    }
    let third = warm.len() / 3;
    let (first, last) = (median(&warm[..third]), median(&warm[warm.len() - third..]));
    let bound = first * GROWTH + GROWTH_BYTES;
    let mb = |bytes: f64| bytes / f64::from(1 << 20);
    let peak = warm.iter().max().copied().unwrap_or_default();
    println!(
        "memory: median {:.1} MB in the first third of {} s after warming up, {:.1} MB in the last (bound {:.1} MB); peak {} MB",
        mb(first),
        warm.len(),
        mb(last),
        mb(bound),
        peak >> 20
    );
    (last > bound).then(|| format!("turnwise's memory grew from {:.1} to {:.1} MB", mb(first), mb(last)))
}

fn median(samples: &[u64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2] as f64
}

/// Secrets in all that turnwise has printed: those of tests, and the passwords of servers in the options.
fn secrets(world: &World) -> Vec<String> {
    let log = std::fs::read(world.turnwise.log_file()).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    if let Some(line) = canary::find(&log) {
        told.insert("a test's secret".to_owned(), line);
    }
    for side in &world.sides {
        let url = reqwest::Url::parse(side.server.url()).expect("a server's URL can be parsed");
        let Some(password) = url.password() else { continue };
        let in_url = format!("{}:{password}@", url.username());
        // The start of Basic credentials, and of CouchDB's session cookie, which begins the same way: the base64 form of
        // the complete groups of `user:`.
        let user = format!("{}:", url.username());
        let encoded = STANDARD.encode(&user[..user.len() / 3 * 3]);
        let tells =
            |line: &&str| line.contains(&in_url) || (encoded.len() >= ENCODED_MIN && line.contains(&encoded));
        if let Some(line) = log.lines().find(tells) {
            told.insert(format!("{}'s password or cookie", side.name), line.to_owned());
        }
    }
    println!("log: {} lines", log.lines().count());
    told.into_iter().map(|(what, line)| format!("turnwise's log tells {what}: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grows_is_noticed_and_a_peak_is_not() {
        let mb = |mb: u64| mb << 20;
        let steady: Vec<u64> =
            (0..600).map(|second| mb(if second % 50 == 0 { 200 } else { 40 + second % 7 })).collect();
        assert_eq!(memory(&steady), None);
        let growing: Vec<u64> = (0..600).map(|second| mb(40 + second / 10)).collect();
        assert!(memory(&growing).is_some());
        assert_eq!(memory(&growing[..100]), None, "too short to tell");
    }
}
