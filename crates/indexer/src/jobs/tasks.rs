//! How far builds are, from the server's `_active_tasks`: one request per second for all builds of a process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use super::index::Building;

/// What the server told last.
#[derive(Default)]
pub(super) struct Tasks(Mutex<HashMap<(String, String), Task>>);

/// The tasks of one design document on all shards, together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Task {
    done: u64,
    total: u64,
    started_s: i64,
    updated_s: i64,
}

impl Tasks {
    /// Takes an answer of `_active_tasks`.
    pub fn set(&self, answer: Value) {
        #[derive(Deserialize)]
        struct Row {
            database: String,
            design_document: String,
            #[serde(default)]
            changes_done: u64,
            #[serde(default)]
            total_changes: u64,
            #[serde(default)]
            started_on: i64,
            #[serde(default)]
            updated_on: i64,
        }
        let rows = answer.as_array().cloned().unwrap_or_default();
        let mut tasks: HashMap<(String, String), Task> = HashMap::new();
        // Tasks of other kinds have no design document.
        for row in rows.into_iter().filter_map(|row| serde_json::from_value::<Row>(row).ok()) {
            let design = row.design_document.trim_start_matches("_design/").to_owned();
            let task = tasks.entry((database(&row.database).to_owned(), design)).or_default();
            task.done += row.changes_done;
            task.total += row.total_changes;
            task.started_s =
                if task.started_s == 0 { row.started_on } else { task.started_s.min(row.started_on) };
            task.updated_s = task.updated_s.max(row.updated_on);
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
    }

    /// How far the indexes of a design document are, if the server builds them.
    pub fn of(&self, database: &str, design: &str) -> Option<Building> {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Task { done, total, started_s, updated_s } =
            *tasks.get(&(database.to_owned(), design.to_owned()))?;
        let took_s = u64::try_from(updated_s - started_s).ok().filter(|s| *s > 0 && done > 0);
        let left_s = took_s.map(|took_s| took_s.saturating_mul(total.saturating_sub(done)) / done);
        let ends_s = left_s.and_then(|left_s| updated_s.checked_add(i64::try_from(left_s).ok()?));
        Some(Building { done, total, ends_us: ends_s.map(|s| s.saturating_mul(1_000_000)) })
    }
}

/// The database of a shard: `acme/orders` of `shards/80000000-ffffffff/acme/orders.1700000000`.
fn database(shard: &str) -> &str {
    let Some((_, name)) = shard.strip_prefix("shards/").and_then(|rest| rest.split_once('/')) else {
        return shard;
    };
    match name.rsplit_once('.') {
        Some((name, time)) if time.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tasks_of_all_shards_are_one_build() {
        let tasks = Tasks::default();
        let row = |shard: &str, done: u64| {
            json!({ "type": "indexer", "database": format!("shards/{shard}/a/b.1700000000"), "design_document": "_design/d",
                "changes_done": done, "total_changes": 100, "started_on": 1_000, "updated_on": 1_010 })
        };
        tasks.set(json!([row("0-7", 20), row("8-f", 30), { "type": "replication", "database": "x" }]));
        let building = Building { done: 50, total: 200, ends_us: Some(1_040_000_000) };
        assert_eq!(tasks.of("a/b", "d"), Some(building));
        assert_eq!(tasks.of("a/b", "e"), None);
        tasks.set(json!([]));
        assert_eq!(tasks.of("a/b", "d"), None);
    }

    #[test]
    fn the_database_of_a_shard() {
        assert_eq!(database("shards/00000000-7fffffff/x.y.1700000000"), "x.y");
        assert_eq!(database("plain"), "plain");
    }
}
