//! Writes the mirror's states to the upstream's documents.
//!
//! The transaction that ends a replication records the owed state in a row. States are written back in batches: the
//! follower reads the current documents, and writes the states of those that have not changed since, in one request.
//! Meanwhile the next batch collects. If the server rejects a document, the follower retries it after growing pauses,
//! and other documents do not wait for it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use serde_json::{Map, Value};
use turnwise_outbound::Error;
use turnwise_store::Watch;

use super::apply::End;
use super::follow::Follower;
use super::rows::{Owed, list_owed};
use super::server::{self, BulkDocsRow};
use super::service::Upstream;
use crate::documents::{DocTx, write::REPLICATION};
use crate::waits::or_never;

/// States per request.
const BATCH: usize = 50;
/// Owed states that one pass reads, so that states which wait for their time do not block others.
const LOOKED_AT: usize = 2_000;
/// The pause after a document's first rejection; it doubles after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// A state that must be written.
struct Due {
    owed: Owed,
    /// The upstream's revision whose run it describes.
    rev: String,
    /// The members that describe it.
    state: Map<String, Value>,
}

/// The result for one state.
enum WriteResult {
    /// It was written, as this revision.
    Written(String),
    /// The document was changed after its run began; the change will come with the feed.
    Changed,
    /// The server rejects it.
    Refused(String),
}

impl Follower {
    /// Writes back owed states, without end.
    pub(super) async fn write_back(&self) -> Result<Infallible, End> {
        let runtime = self.upstream.store.runtime();
        loop {
            let (due, next_us, wake) = self.look().await?;
            if !due.is_empty() {
                self.write_states(due).await?;
                continue;
            }
            tokio::select! {
                () = wake => {}
                () = or_never(next_us.map(|next_us| runtime.sleep_until(next_us))) => {}
            }
        }
    }

    /// What is due, when the next state will be, and a watch for more.
    async fn look(&self) -> Result<(HashMap<String, Due>, Option<i64>, Watch), End> {
        let Upstream { store, keys, .. } = &self.upstream;
        let (db, now_us) = (&self.db, store.runtime().now_us());
        let (due, next_us, seen) = store
            .transact(|tx| async move {
                // Each state is written with its document, which changes the sequence as well.
                let sequence = tx.get_with(&keys.sequence(db), turnwise_store::Isolation::Snapshot).await?;
                let mut due = HashMap::new();
                let mut next_us: Option<i64> = None;
                for (id, owed) in list_owed(&tx, keys, db, LOOKED_AT).await? {
                    if owed.due_us > now_us {
                        next_us = Some(next_us.map_or(owed.due_us, |next_us| next_us.min(owed.due_us)));
                        continue;
                    }
                    if due.len() == BATCH || !due.is_empty() && !tx.has_room() {
                        next_us = Some(now_us);
                        break;
                    }
                    let doc = DocTx { tx: &tx, keys, db, id: &id };
                    let (rev, mut state) = (doc.seen().await?, doc.body().await?);
                    state.retain(|name, _| REPLICATION.contains(&name.as_str()));
                    match rev {
                        Some(rev) if state.contains_key("_replication_state") => {
                            due.insert(id, Due { owed, rev, state });
                        }
                        // It runs again, or was deleted: no state is owed.
                        _ => doc.clear_owed()?,
                    }
                }
                Ok::<_, turnwise_queue::Error>((due, next_us, sequence))
            })
            .await?;
        let wake = store.watch(keys.sequence(db), seen).await?;
        Ok((due, next_us, wake))
    }

    async fn write_states(&self, due: HashMap<String, Due>) -> Result<(), End> {
        let ids: Vec<String> = due.keys().cloned().collect();
        let (looked_at, documents) = server::documents(&self.server, &self.name, &ids).await?;
        let mut results: HashMap<&str, WriteResult> =
            ids.iter().take(looked_at).map(|id| (id.as_str(), WriteResult::Changed)).collect();
        let mut drafts = Vec::new();
        for mut document in documents {
            let text = |name: &str| document.get(name).and_then(Value::as_str);
            let Some((id, due)) = text("_id").and_then(|id| due.get_key_value(id)) else { continue };
            if text("_rev") != Some(&due.rev) {
                continue;
            }
            for name in REPLICATION {
                document.shift_remove(name);
            }
            document.extend(due.state.clone());
            results.remove(id.as_str());
            drafts.push(document);
        }
        for outcome in self.write(&drafts).await? {
            let Some((id, _)) = due.get_key_value(&outcome.id) else { continue };
            let became = match outcome {
                BulkDocsRow { rev: Some(rev), error: None, .. } => WriteResult::Written(rev),
                BulkDocsRow { error: Some(error), .. } if error == "conflict" => WriteResult::Changed,
                BulkDocsRow { error, reason, .. } => {
                    let reason = match reason {
                        Some(Value::String(reason)) => reason,
                        _ => String::new(),
                    };
                    WriteResult::Refused(
                        self.server.clean(&format!("{}: {reason}", error.unwrap_or_default())),
                    )
                }
            };
            results.insert(id, became);
        }
        self.settle(&due, &results).await
    }

    /// Writes documents together, or one by one if the server rejects all of them because of one.
    async fn write(&self, drafts: &[Map<String, Value>]) -> Result<Vec<BulkDocsRow>, End> {
        let mut outcomes = Vec::with_capacity(drafts.len());
        let mut parts: Vec<_> = drafts.chunks(BATCH).collect();
        while let Some(part) = parts.pop() {
            match (server::write(&self.server, &self.name, part).await, part) {
                (Ok(written), _) => outcomes.extend(written),
                (Err(error), _) if !is_refusal(&error) => return Err(error.into()),
                (Err(error), [draft]) => outcomes.push(BulkDocsRow {
                    id: draft.get("_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    rev: None,
                    error: Some("refused".to_owned()),
                    reason: Some(Value::String(error.of_server())),
                }),
                (Err(_), part) => parts.extend(part.chunks(1)),
            }
        }
        Ok(outcomes)
    }

    /// Records the results of owed states.
    async fn settle(
        &self,
        due: &HashMap<String, Due>,
        results: &HashMap<&str, WriteResult>,
    ) -> Result<(), End> {
        let Upstream { store, keys, .. } = &self.upstream;
        let (db, now_us) = (&self.db, store.runtime().now_us());
        store
            .transact(|tx| async move {
                for (id, became) in results {
                    let Some(Due { owed, rev, .. }) = due.get(*id) else { continue };
                    let doc = DocTx { tx: &tx, keys, db, id };
                    if doc.seen().await?.as_deref() != Some(rev) {
                        // The mirror has the document's next revision, and has dropped the owed state of this one.
                        continue;
                    }
                    match became {
                        WriteResult::Written(now) => {
                            doc.write_seen(now)?;
                            doc.clear_owed()?;
                        }
                        WriteResult::Changed | WriteResult::Refused(_) => {
                            let attempts = owed.attempts.saturating_add(1);
                            let pause =
                                FIRST_PAUSE.saturating_mul(1 << (attempts - 1).min(20)).min(LONGEST_PAUSE);
                            let pause_us = i64::try_from(pause.as_micros()).unwrap_or(i64::MAX);
                            let due_us = now_us.saturating_add(pause_us);
                            doc.write_owed(&Owed { due_us, attempts })?;
                        }
                    }
                }
                Ok::<_, turnwise_queue::Error>(())
            })
            .await?;
        for (id, became) in results {
            match became {
                WriteResult::Written(_) => {}
                WriteResult::Changed => {
                    tracing::debug!(db, id, "the upstream's document has a newer revision, which decides")
                }
                WriteResult::Refused(reason) => {
                    tracing::warn!(
                        db,
                        id,
                        reason,
                        "the upstream refuses a replication's state; retrying later"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Whether the server responded that it rejects this at the moment.
fn is_refusal(error: &Error) -> bool {
    error.status().is_some_and(|status| (400..500).contains(&status)) && !error.is_passing()
}
