//! Building all indexes of a design document.
//!
//! A query that waits for its index (`update=true`) builds it: one query builds all views of a design document, because they share an
//! index. `_design/…/_info` tells how many changes are left on all copies of all shards. A query may break off long before an index is
//! complete, at a proxy or a server that restarts. The server goes on with what it has, so the query is repeated as long as fewer
//! changes are left each time.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use turnwise_replicator::encode;

use crate::database::{Database, Error, design_path};

/// The time between two looks at how far a build is.
const LOOK: Duration = Duration::from_secs(1);
/// The time between two looks at whether an index is on the disk.
const LOOK_AT_COMMIT: Duration = Duration::from_millis(100);
/// How long an index may take until it is on the disk. CouchDB writes it five seconds after a change. With writes all the time, something
/// is always not yet written, but by then everything is that was built before.
const MAX_COMMIT: Duration = Duration::from_secs(15);
/// A pass that takes no longer is the last one: what was written meanwhile is no more than what readers always wait for.
const SHORT_PASS: Duration = Duration::from_secs(1);
/// The most passes. Each one covers what was written during the one before it, so that this is enough unless writes are faster than
/// the index.
const MAX_PASSES: usize = 100;
/// The most failures one after the other without any progress.
const MAX_FAILURES: u32 = 8;
/// The pause after the first failure; it doubles with each.
const PAUSE: Duration = Duration::from_millis(500);
/// The most partitions whose views are queried: each builds the shard that it is on.
const MAX_PARTITIONS: usize = 1_000;

/// A kind of indexes. Those of one kind in a design document are built together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Views.
    Views,
    /// The indexes of `_find`, which CouchDB keeps as views.
    Mango,
    /// `_search`
    Search,
    /// `_nouveau`
    Nouveau,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Views, Kind::Mango, Kind::Search, Kind::Nouveau];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Views => "views",
            Kind::Mango => "mango",
            Kind::Search => "search",
            Kind::Nouveau => "nouveau",
        }
    }

    /// Whether the views of a design document are indexes of `_find`.
    pub(crate) fn is_of_find(design: &Map<String, Value>) -> bool {
        design.get("language").and_then(Value::as_str) == Some("query")
    }

    /// The names of a design document's indexes of this kind.
    pub fn indexes(self, design: &Map<String, Value>) -> Vec<String> {
        let is_mango = Self::is_of_find(design);
        let field = match self {
            Kind::Views if !is_mango => "views",
            Kind::Mango if is_mango => "views",
            Kind::Search => "indexes",
            Kind::Nouveau => "nouveau",
            Kind::Views | Kind::Mango => return Vec::new(),
        };
        let indexes = design.get(field).and_then(Value::as_object);
        let names = indexes.into_iter().flat_map(Map::keys);
        // `lib` holds modules, and is no view.
        names.filter(|name| field != "views" || *name != "lib").cloned().collect()
    }
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Building {
    /// The changes that its indexes lacked at its beginning.
    pub total: u64,
    /// Those that they lack now.
    pub left: u64,
}

/// Builds all indexes of a design document, named without `_design/`, until they have everything that was written before the call.
/// `progress` is called at least once a second.
///
/// # Errors
/// The server refuses a query, as for a view that does not compile; or the build makes no progress.
pub(crate) async fn build(
    database: &Database,
    name: &str,
    design: &Map<String, Value>,
    progress: impl Fn(Building),
) -> Result<(), Error> {
    let queries = queries(database, name, design, &Kind::ALL).await?;
    if queries.is_empty() {
        return Ok(());
    }
    let total = left(database, name).await?;
    progress(Building { total, left: total });
    let (mut passes, mut failures, mut least) = (0, 0, total);
    while passes < MAX_PASSES {
        let begun = Instant::now();
        let asked = try_join_all(queries.iter().map(|query| database.send(Method::GET, query, None, true)));
        let watched = async {
            loop {
                tokio::time::sleep(LOOK).await;
                // What cannot be read now shows at the next look.
                if let Ok(left) = left(database, name).await {
                    progress(Building { total: total.max(left), left });
                }
            }
        };
        let asked = tokio::select! {
            asked = asked => asked,
            () = watched => unreachable!("it never ends"),
        };
        let took = begun.elapsed();
        match asked {
            Ok(answers) if answers.iter().all(Option::is_some) => (passes, failures) = (passes + 1, 0),
            Ok(_) => return Err(Error::Changed(format!("_design/{name}"))),
            Err(error) if error.may_pass() && failures < MAX_FAILURES => {
                tracing::debug!(%error, "a query for an index is repeated");
                failures += 1;
                tokio::time::sleep(PAUSE * 2_u32.pow(failures.min(6))).await;
                // A server that answers this goes on building what a query has waited for, even if that does not show, as for `_search`.
                if let Ok(left) = left(database, name).await
                    && (left < least || error.is_silence())
                {
                    (least, failures) = (left.min(least), 0);
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        let left = left(database, name).await?;
        progress(Building { total: total.max(left), left });
        // Other copies of the shards may still be behind the ones that have answered.
        if left == 0 || took <= SHORT_PASS && left <= total / 100 {
            return Ok(());
        }
    }
    let left = left(database, name).await?;
    Err(Error::Incomplete(
        format!("_design/{name}"),
        format!("{left} changes are left after {MAX_PASSES} passes"),
    ))
}

/// What the server tells about the index of the views of a design document; `None` if it has no views.
async fn view_index(database: &Database, name: &str) -> Result<Option<Value>, Error> {
    match database.get(&format!("{}/_info", design_path(name))).await {
        Ok(info) => Ok(Some(info["view_index"].clone())),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The changes that the views of a design document lack, on all copies of all shards; 0 if it has no views.
pub(crate) async fn left(database: &Database, name: &str) -> Result<u64, Error> {
    let info = view_index(database, name).await?;
    Ok(info.and_then(|info| info["updates_pending"]["total"].as_u64()).unwrap_or(0))
}

/// Waits until the index of the views is on the disk. CouchDB closes it when one of the design documents that have it goes. It is then
/// opened again as it was last written, which is some seconds after a build, and readers would wait for the rest once more.
pub(crate) async fn committed(database: &Database, name: &str) -> Result<(), Error> {
    let begun = Instant::now();
    while begun.elapsed() < MAX_COMMIT {
        if view_index(database, name).await?.is_none_or(|info| info["waiting_commit"] != true) {
            break;
        }
        tokio::time::sleep(LOOK_AT_COMMIT).await;
    }
    Ok(())
}

/// The signature of the views of a design document. Design documents with equal views share an index.
pub(crate) async fn signature(database: &Database, name: &str) -> Result<Option<String>, Error> {
    let info = database.get(&format!("{}/_info", design_path(name))).await?;
    Ok(info["view_index"]["signature"].as_str().map(str::to_owned))
}

/// Queries that build all indexes.
pub(crate) async fn queries(
    database: &Database,
    name: &str,
    design: &Map<String, Value>,
    kinds: &[Kind],
) -> Result<Vec<String>, Error> {
    let names = |kind: Kind| if kinds.contains(&kind) { kind.indexes(design) } else { Vec::new() };
    let path = design_path(name);
    let mut queries = Vec::new();
    let mut partitions: Vec<Option<String>> = vec![None];
    if is_partitioned(database, design).await? {
        partitions = partition_names(database).await?.into_iter().map(Some).collect();
    }
    let prefix = |partition: &Option<String>| match partition {
        Some(partition) => format!("_partition/{}/", encode(partition)),
        None => String::new(),
    };
    let view = names(Kind::Views).into_iter().chain(names(Kind::Mango)).next();
    for partition in &partitions {
        let prefix = prefix(partition);
        queries.extend(
            view.iter().map(|view| {
                format!("{prefix}{path}/_view/{}?limit=0&reduce=false&update=true", encode(view))
            }),
        );
        let of_kind = |path_of_kind: &str, kind: Kind| -> Vec<String> {
            let query =
                |index: &String| format!("{prefix}{path}/{path_of_kind}/{}?q=*:*&limit=1", encode(index));
            names(kind).iter().map(query).collect()
        };
        queries.extend(of_kind("_search", Kind::Search));
        queries.extend(of_kind("_nouveau", Kind::Nouveau));
    }
    Ok(queries)
}

/// Whether the indexes of a design document have to be asked by partition.
async fn is_partitioned(database: &Database, design: &Map<String, Value>) -> Result<bool, Error> {
    let info = database.get("").await?;
    let of_database = info["props"]["partitioned"] == true;
    let of_design = design.get("options").and_then(|options| options.get("partitioned"));
    Ok(of_database && of_design != Some(&Value::Bool(false)))
}

/// The first partitions of a database, by name.
async fn partition_names(database: &Database) -> Result<Vec<String>, Error> {
    let mut found: Vec<String> = Vec::new();
    let mut from = String::new();
    while found.len() < MAX_PARTITIONS {
        let start = encode(&Value::String(from.clone()).to_string());
        let page = database.get(&format!("_all_docs?limit=1&startkey={start}")).await?;
        let Some(id) = page["rows"][0]["id"].as_str() else { break };
        match id.split_once(':') {
            Some((partition, _)) if !id.starts_with('_') => {
                found.push(partition.to_owned());
                // The character behind the colon.
                from = format!("{partition};");
            }
            // A design document. Their ids are sorted among the others: this is the character behind the underscore.
            _ => from = "`".to_owned(),
        }
    }
    Ok(found)
}
