//! Replications as documents of a `_replicator` database, with the same requests for turnwise and CouchDB.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwise_testkit::Database;

/// The time between two checks of the documents. Each check reads only changes since the last one, so that it costs the server little.
const LOOK: Duration = Duration::from_millis(100);
/// Far longer than any replication takes. Exceeding it means that something is wrong.
const LIMIT: Duration = Duration::from_mins(5);

/// Writes a document for each pair, and waits until all have completed. Returns the seconds that it took.
pub async fn replicate<'a>(
    replicator: &Database,
    pairs: impl Iterator<Item = (&'a Database, &'a Database)>,
    fields: &[(&str, Value)],
) -> f64 {
    let doc = |(nth, (from, to)): (usize, (&Database, &Database))| {
        let mut doc = json!({ "_id": format!("bench-{nth}"), "source": from.url(), "target": to.url() });
        for (name, value) in fields {
            doc[*name] = value.clone();
        }
        doc
    };
    let docs: Vec<Value> = pairs.enumerate().map(doc).collect();
    let mut waiting: HashSet<String> =
        docs.iter().filter_map(|doc| doc["_id"].as_str()).map(str::to_owned).collect();
    let start = Instant::now();
    replicator.post("/_bulk_docs", &json!({ "docs": docs })).await;
    let mut since = "0".to_owned();
    while !waiting.is_empty() {
        assert!(start.elapsed() < LIMIT, "{} documents did not complete: {waiting:?}", waiting.len());
        tokio::time::sleep(LOOK).await;
        let changes = replicator.get(&format!("/_changes?include_docs=true&since={since}")).await;
        for row in changes["results"].as_array().expect("_changes answers with results") {
            match row["doc"]["_replication_state"].as_str() {
                Some("completed") => {
                    waiting.remove(row["id"].as_str().unwrap_or_default());
                }
                Some(_) => panic!("{} did not complete: {}", row["id"], row["doc"]),
                None => {}
            }
        }
        let last = &changes["last_seq"];
        since = last.as_str().map_or_else(|| last.to_string(), str::to_owned);
    }
    start.elapsed().as_secs_f64()
}
