//! Checkpoints: `_local` documents on both sides that record how far a replication has come.
//!
//! Both documents are named after the replication's base id and have the same content. They hold the session that wrote
//! them, its sequence, and up to 50 earlier sessions. A checkpoint counts only as far as *both* sides have it. A target
//! may have been deleted and created again, or a side restored from a backup. The next run then starts at the latest
//! session in both documents or, if there is none, from the beginning.
//!
//! During a run, a client may delete a database and create it again. CouchDB accepts a `_local` document with any
//! revision, so a write does not detect this. A checkpoint in the new database would then be wrong permanently. The run
//! therefore verifies both databases before it writes a checkpoint ([`Checkpoints::verify`]), and from time to time
//! while it has none to write.
//!
//! **A source that rejects its checkpoint.** Not every user may write `_local` documents to a source, and a gateway before it may permit
//! reading only. The target's document alone then counts, and notes which database it belongs to ([`Alone`]). It says what the target has.
//! It cannot say whether the source is still the same, which its own document would. That is taken from the source's description: the
//! time of its creation, and a sequence that is not behind the checkpoint. A source that states neither is copied from the beginning.

use serde::{Deserialize, Serialize};
use turnwise_outbound::{Error, Fault, Peer, Request};

use crate::database::{self, Info};
use crate::report::Session;
use crate::seq::Seq;

/// The number of sessions in a checkpoint, as in CouchDB.
const MAX_HISTORY: usize = 50;
/// More than 50 sessions need, even with the sequences of a large cluster.
const DOC_BYTES: usize = 4 * 1024 * 1024;
/// How often a checkpoint is read again after another client has changed it.
const CONFLICT_ATTEMPTS: usize = 5;

/// The content of both documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    pub session_id: String,
    pub source_last_seq: Seq,
    pub history: Vec<Session>,
    pub replication_id_version: u32,
    /// Only in the target's document, while the source rejects its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_rejects_checkpoints: Option<Alone>,
}

/// The source of a checkpoint that only the target has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Alone {
    /// When it was created, in seconds, if it states that.
    created: Option<u64>,
}

impl Alone {
    /// Whether the checkpoint at `seq` is one of the database that `source` describes.
    fn is_of(&self, source: &Info, seq: &Seq) -> bool {
        let same = match (self.created, source.created()) {
            (Some(before), Some(now)) => before == now,
            // The sequence of a cluster names its shards. It goes on only from those of the same database.
            (None, None) => seq.plain().is_none(),
            _ => false,
        };
        // A database that was restored from a backup has lost changes.
        let is_behind =
            matches!((source.update_seq.number(), seq.number()), (Some(now), Some(at)) if now < at);
        same && !is_behind
    }
}

#[derive(Default, Serialize, Deserialize)]
struct LogDoc {
    #[serde(default)]
    _id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    _rev: Option<String>,
    #[serde(flatten)]
    log: Log,
}

/// The response to a write. The status is not enough, because a proxy in front of the server may return any status.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    ok: bool,
    rev: Option<String>,
}

/// Where a run starts, and the sessions before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// `None`: from the beginning.
    pub seq: Option<Seq>,
    /// Earlier sessions, latest first.
    pub history: Vec<Session>,
    /// The session that wrote the checkpoint.
    pub session_id: Option<String>,
}

impl Start {
    /// The last session of one side.
    fn of(log: &Log) -> Self {
        Self {
            seq: Some(log.source_last_seq.clone()),
            history: log.history.clone(),
            session_id: Some(log.session_id.clone()),
        }
    }

    /// The history after `session`: the latest sessions. A run with a `since_seq` resumes only after a run that began there, so the last
    /// one that did stays, however many came after it.
    pub fn history_after(&self, session: &Session, since_seq: Option<&Seq>) -> Vec<Session> {
        let (kept, left_out) = self.history.split_at(self.history.len().min(MAX_HISTORY - 1));
        let mut history: Vec<Session> = std::iter::once(session).chain(kept).cloned().collect();
        if let Some(since_seq) = since_seq
            && !history.iter().any(|session| session.began_at(since_seq))
            && let Some(began) = left_out.iter().find(|session| session.began_at(since_seq))
        {
            history.pop();
            history.push(began.clone());
        }
        history
    }

    /// Whether the earlier sessions go on from one that began at `since_seq`: each began where the one before it had come. Otherwise
    /// another run has begun elsewhere, and nothing is known of the changes in between.
    pub fn goes_on_from(&self, since_seq: &Seq) -> bool {
        for (nth, session) in self.history.iter().enumerate() {
            if session.began_at(since_seq) {
                return true;
            }
            // Those between the last two were left out.
            let is_cut = nth + 2 == MAX_HISTORY;
            match self.history.get(nth + 1) {
                Some(before) if is_cut || before.recorded_seq == session.start_last_seq => {}
                _ => return false,
            }
        }
        false
    }
}

/// The checkpoint documents of both sides.
pub(crate) struct Checkpoints {
    sides: [Document; 2],
    /// The result of the comparison at the start.
    pub start: Start,
    /// Why the source rejects its document, if it does.
    pub rejected: Option<String>,
}

/// The checkpoint document of one side.
struct Document {
    peer: Peer,
    id: String,
    rev: Option<String>,
    /// The session in the document, if there is one.
    session_id: Option<String>,
    /// The database's description at the start.
    info: Info,
}

impl Checkpoints {
    /// Reads both sides and finds the last session that both have.
    pub async fn find(sides: [(&Peer, &Info); 2], base_id: &str) -> Result<Self, Error> {
        let mut sides = sides.map(|(peer, info)| Document {
            peer: peer.clone(),
            id: format!("_local/{base_id}"),
            rev: None,
            session_id: None,
            info: info.clone(),
        });
        let [source, target] = &mut sides;
        let (on_source, on_target) = tokio::join!(source.read(), target.read());
        let (on_target, mut rejected) = (on_target?, None);
        let on_source = match on_source {
            Err(error) if error.is_refusal() => {
                rejected = Some(say_rejected(&error));
                Log::default()
            }
            read => read?,
        };
        let start = match &on_target.source_rejects_checkpoints {
            Some(alone) if alone.is_of(&source.info, &on_target.source_last_seq) => Start::of(&on_target),
            _ => compare(&on_source, &on_target),
        };
        Ok(Self { sides, start, rejected })
    }

    /// Verifies that both databases are still those with which the run began.
    ///
    /// # Errors
    /// [`Fault::Replaced`] of the side whose database was replaced, and errors of the requests, such as 404 for a
    /// database that was deleted.
    pub async fn verify(&mut self) -> Result<(), Error> {
        let [source, target] = &mut self.sides;
        tokio::try_join!(source.verify(), target.verify())?;
        Ok(())
    }

    /// Writes `log` on both sides, or only on the target if the source rejects it.
    ///
    /// # Errors
    /// Those of [`Checkpoints::verify`], which runs first.
    pub async fn write(&mut self, log: Log) -> Result<(), Error> {
        self.verify().await?;
        let [source, target] = &mut self.sides;
        if self.rejected.is_none() {
            let (on_source, on_target) = tokio::join!(source.write(&log), target.write(&log));
            match on_source {
                // The database is still there, as the verification has shown.
                Err(error) if is_rejected(&error) => self.rejected = Some(say_rejected(&error)),
                on_source => return on_source.and(on_target),
            }
        }
        let alone = Alone { created: source.info.created() };
        target.write(&Log { source_rejects_checkpoints: Some(alone), ..log }).await
    }
}

/// Whether the source does not let this user write a checkpoint. Other errors may pass.
fn is_rejected(error: &Error) -> bool {
    // 409: another process writes the same checkpoint. 500, 501, 507: such as a disk that cannot be written to.
    error.is_refusal() && error.status() != Some(409) || matches!(error.status(), Some(404 | 500 | 507))
}

fn say_rejected(error: &Error) -> String {
    tracing::warn!(
        %error,
        "the source rejects its checkpoint; the replication goes on with that of the target alone"
    );
    error.to_string()
}

impl Document {
    async fn read(&mut self) -> Result<Log, Error> {
        let found = match self.peer.json::<LogDoc>(&Request::get(&*self.id), DOC_BYTES).await {
            Err(error) if error.status() == Some(404) => LogDoc::default(),
            found => found?,
        };
        self.rev = found._rev;
        self.session_id = Some(found.log.session_id.clone()).filter(|id| !id.is_empty());
        Ok(found.log)
    }

    async fn verify(&mut self) -> Result<(), Error> {
        let info = database::info(&self.peer).await?;
        let another = match info.is_another_than(&self.info) {
            Some(another) => another,
            // No checkpoint was written or found so far, so none can be missing.
            None if self.session_id.is_none() => false,
            None => {
                self.read().await?;
                self.session_id.is_none()
            }
        };
        if another {
            return Err(self.peer.fault(http::Method::GET, "", Fault::Replaced));
        }
        self.info = info;
        Ok(())
    }

    async fn write(&mut self, log: &Log) -> Result<(), Error> {
        let mut attempt = 0;
        // A clone, because a conflict changes the document's fields.
        let peer = self.peer.clone();
        let mut retries = peer.retries();
        loop {
            let doc = LogDoc { _id: self.id.clone(), _rev: self.rev.clone(), log: log.clone() };
            let body = serde_json::to_vec(&doc).expect("a checkpoint is plain data");
            let request = Request::new(http::Method::PUT, &*self.id).json(body);
            match self.peer.json::<Written>(&request, DOC_BYTES).await {
                Ok(written) if !written.ok => {
                    let fault = Fault::Malformed("not that the checkpoint was written".to_owned());
                    retries.pause(self.peer.fault(http::Method::PUT, &self.id, fault)).await?;
                }
                Ok(written) => {
                    self.rev = written.rev;
                    self.session_id = Some(log.session_id.clone());
                    return Ok(());
                }
                // This run's own write whose response was lost, or another process that runs the same replication.
                Err(error) if error.status() == Some(409) && attempt < CONFLICT_ATTEMPTS => {
                    let had_one = self.session_id.is_some();
                    self.read().await?;
                    if had_one && self.session_id.is_none() {
                        return Err(self.peer.fault(http::Method::GET, "", Fault::Replaced));
                    }
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a target still has the checkpoint that its parked replication relies on: the one of the sequence `seq`. It is
/// missing where the target was deleted and created anew, and where it was restored from an older backup.
///
/// # Errors
/// Those of the request, such as 404 for a database that was deleted, and for a checkpoint that is missing.
pub(crate) async fn is_at(target: &Peer, base_id: &str, seq: Option<&Seq>) -> Result<bool, Error> {
    let Some(seq) = seq else {
        // Nothing was copied, so only the database must exist.
        return database::info(target).await.map(|_| true);
    };
    let log = target.json::<LogDoc>(&Request::get(format!("_local/{base_id}")), DOC_BYTES).await?.log;
    let recorded = log.history.iter().map(|session| &session.recorded_seq);
    Ok(recorded.chain([&log.source_last_seq]).any(|recorded| !recorded.is_other_than(seq)))
}

/// The last session that both sides have.
fn compare(source: &Log, target: &Log) -> Start {
    if source.session_id.is_empty() || target.session_id.is_empty() {
        return Start::default();
    }
    if source.session_id == target.session_id {
        // A crash between the two writes leaves one side further. The target's record counts, because it describes the
        // target's own documents.
        return Start::of(target);
    }
    // The latest session comes first on both sides. The first of the target's sessions that the source also has is the
    // latest common one.
    let is_common = |session: &Session| {
        !session.session_id.is_empty()
            && source.history.iter().any(|other| other.session_id == session.session_id)
    };
    let Some(nth) = target.history.iter().position(is_common) else { return Start::default() };
    let last = &target.history[nth];
    Start {
        seq: Some(last.recorded_seq.clone()),
        history: target.history[nth..].to_vec(),
        session_id: Some(last.session_id.clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn log(sessions: &[(&str, u64)]) -> Log {
        let session = |&(id, seq): &(&str, u64)| Session {
            session_id: id.to_owned(),
            recorded_seq: Seq::from(&json!(seq)),
            ..Session::default()
        };
        let history: Vec<Session> = sessions.iter().map(session).collect();
        let (session_id, source_last_seq) = history
            .first()
            .map_or_else(Default::default, |last| (last.session_id.clone(), last.recorded_seq.clone()));
        Log { session_id, source_last_seq, history, replication_id_version: 4, ..Log::default() }
    }

    fn start(source: &[(&str, u64)], target: &[(&str, u64)]) -> Option<u64> {
        compare(&log(source), &log(target)).seq.map(|seq| seq.number().unwrap())
    }

    #[test]
    fn the_same_session_on_both_sides_is_where_it_goes_on() {
        assert_eq!(start(&[("b", 9), ("a", 5)], &[("b", 9), ("a", 5)]), Some(9));
    }

    #[test]
    fn after_a_crash_between_the_two_writes_the_targets_record_counts() {
        assert_eq!(start(&[("b", 9), ("a", 5)], &[("b", 7), ("a", 5)]), Some(7));
    }

    #[test]
    fn the_latest_common_session_counts_when_one_side_is_behind() {
        assert_eq!(start(&[("c", 9), ("b", 7), ("a", 5)], &[("a", 5)]), Some(5));
        assert_eq!(start(&[("a", 5)], &[("c", 9), ("b", 7), ("a", 5)]), Some(5));
    }

    #[test]
    fn without_a_common_session_it_starts_over() {
        assert_eq!(start(&[("a", 5)], &[]), None);
        assert_eq!(start(&[], &[("a", 5)]), None);
        assert_eq!(start(&[("a", 5)], &[("x", 5)]), None);
    }

    #[test]
    fn a_checkpoint_of_the_target_alone_counts_for_the_same_source_only() {
        let info = |created: &str, seq: serde_json::Value| -> Info {
            serde_json::from_value(json!({ "instance_start_time": created, "update_seq": seq })).unwrap()
        };
        let is_of = |created: Option<u64>, now: &str, seq: serde_json::Value, at: serde_json::Value| {
            Alone { created }.is_of(&info(now, seq), &Seq::from(&at))
        };
        let (before, opaque) = (Some(1_795_297_690), |seq: u64| json!(format!("{seq}-x")));
        assert!(is_of(before, "1795297690", opaque(9), opaque(9)));
        assert!(is_of(before, "1795297690", json!(9), json!(7)));
        assert!(!is_of(before, "1795299999", opaque(9), opaque(7)), "another database");
        assert!(!is_of(before, "1795297690", opaque(6), opaque(7)), "a backup");
        assert!(!is_of(before, "0", opaque(9), opaque(7)));
        assert!(!is_of(None, "1795297690", opaque(9), opaque(7)));
        // A server that does not state when a database was created.
        assert!(is_of(None, "0", opaque(9), opaque(7)));
        assert!(!is_of(None, "0", json!(9), json!(7)), "any database may have reached this number");
    }

    #[test]
    fn the_session_that_began_at_since_seq_stays_in_the_history() {
        let session = |began: Seq, recorded: u64| Session {
            session_id: format!("s{recorded}"),
            start_last_seq: began,
            recorded_seq: Seq::from(&json!(recorded)),
            ..Session::default()
        };
        let since = Seq::from(&json!("5-g1AAA"));
        let after = |since_seq: Option<&Seq>| {
            // Earlier runs began elsewhere: only one of them where this one is asked to.
            let mut start = Start { history: vec![session(Seq::zero(), 4)], ..Start::default() };
            for nth in 6..200_u64 {
                let began = if nth == 6 { since.clone() } else { Seq::from(&json!(nth - 1)) };
                start.history = start.history_after(&session(began, nth), since_seq);
            }
            start.history
        };
        let ids = |history: &[Session]| history.iter().map(|s| s.session_id.clone()).collect::<Vec<_>>();
        let latest: Vec<String> = (150..200).rev().map(|nth| format!("s{nth}")).collect();
        assert_eq!(ids(&after(None)), latest);
        let kept = after(Some(&since));
        assert_eq!(kept.len(), MAX_HISTORY);
        assert_eq!(ids(&kept)[..MAX_HISTORY - 1], latest[..MAX_HISTORY - 1]);
        assert_eq!(kept[MAX_HISTORY - 1].session_id, "s6");
        let goes_on = |history: &[Session]| {
            Start { history: history.to_vec(), ..Start::default() }.goes_on_from(&since)
        };
        assert!(goes_on(&kept));
        assert!(!goes_on(&after(None)), "it was left out");
        // A run that began elsewhere, behind changes that no run has seen.
        let mut jumped = vec![session(Seq::from(&json!(300)), 400)];
        jumped.extend_from_slice(&kept[..MAX_HISTORY - 2]);
        jumped.push(session(since.clone(), 6));
        assert!(!goes_on(&jumped));
        // The beginning is written in two ways.
        assert!(session(Seq::zero(), 1).began_at(&Seq::none()));
    }

    #[test]
    fn the_layout_is_couchdbs() {
        let log = log(&[("a", 5)]);
        let doc = LogDoc { _id: "_local/x".to_owned(), _rev: Some("0-1".to_owned()), log: log.clone() };
        let doc = serde_json::to_value(doc).unwrap();
        let names: Vec<&str> = doc.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["_id", "_rev", "session_id", "source_last_seq", "history", "replication_id_version"]
        );
        let read: LogDoc = serde_json::from_value(doc).unwrap();
        assert_eq!(read.log, log);
    }
}
