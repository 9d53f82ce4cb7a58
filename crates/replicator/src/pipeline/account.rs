//! The progress of a run, in the form of checkpoints, snapshots and reports.

use rand::Rng;
use time::OffsetDateTime;

use crate::checkpoint::{Checkpoints, Log, Start};
use crate::database::Info;
use crate::progress::Progress;
use crate::report::{REPLICATION_ID_VERSION, Report, Session};
use crate::seq::Seq;
use crate::spec::Replication;
use crate::stats::{Stats, Tally};

/// The progress of a run.
pub(super) struct Account<'a> {
    tally: &'a Tally,
    /// The numbers of earlier runs: sessions in checkpoints hold sums, as in CouchDB.
    base: Stats,
    /// Whether snapshots and the report hold sums as well.
    reports_sums: bool,
    /// The checkpoints of earlier runs.
    start: Start,
    /// Where this run was asked to begin.
    since_seq: Option<Seq>,
    /// Where this run begins.
    pub start_seq: Seq,
    session_id: String,
    started: OffsetDateTime,
    pub progress: Progress,
    /// The sequence of the last checkpoint.
    pub checkpointed: Option<Seq>,
    /// Why the source rejects its checkpoint, if it does.
    pub source_rejects_checkpoints: Option<String>,
    /// The last change that was read.
    pub source_seq: Seq,
    pending: Option<Pending>,
    /// Changes that were done when the source was asked for the pending ones.
    done_when_asked: u64,
}

/// The source's number of pending changes.
struct Pending {
    changes: u64,
    /// Changes that were done at that time.
    done: u64,
}

impl<'a> Account<'a> {
    pub fn new(
        replication: &Replication,
        tally: &'a Tally,
        checkpoints: Option<&Checkpoints>,
        info: &Info,
    ) -> Self {
        let start = checkpoints.map(|found| found.start.clone()).unwrap_or_default();
        let base = start.history.first().map(Session::stats).unwrap_or_default();
        Self {
            tally,
            base,
            reports_sums: false,
            since_seq: replication.since_seq.clone(),
            start_seq: start_seq(replication, &start),
            checkpointed: start.seq.clone(),
            start,
            session_id: new_session_id(),
            started: OffsetDateTime::now_utc(),
            progress: Progress::default(),
            source_rejects_checkpoints: checkpoints.and_then(|found| found.rejected.clone()),
            source_seq: info.update_seq.clone(),
            pending: None,
            done_when_asked: 0,
        }
    }

    /// Continues from the numbers that the job has reached, if there are any.
    pub fn after(mut self, before: Option<&Stats>) -> Self {
        if let Some(before) = before {
            self.base = before.clone().larger(&self.base);
            self.reports_sums = true;
        }
        self
    }

    /// Notes that the source is being asked for the number of changes after the last one that is done. Returns the
    /// sequence of that one.
    pub fn ask_pending(&mut self) -> Seq {
        self.done_when_asked = self.progress.changes();
        self.through()
    }

    /// Records the source's answer.
    pub fn source_says_pending(&mut self, changes: Option<u64>) {
        self.pending = changes.map(|changes| Pending { changes, done: self.done_when_asked });
    }

    /// Whether more is done than the last checkpoint records.
    pub fn has_news(&self) -> bool {
        self.progress.is_beyond(&self.checkpointed)
    }

    /// Every change up to this sequence is done.
    pub fn through(&self) -> Seq {
        self.progress.through().unwrap_or(&self.start_seq).clone()
    }

    /// This run as an entry of the checkpoint's history.
    fn session(&self) -> Session {
        let stats = self.tally.stats().after(&self.base);
        let through = self.through();
        Session {
            session_id: self.session_id.clone(),
            start_time: http_date(self.started),
            end_time: http_date(OffsetDateTime::now_utc()),
            start_last_seq: self.start_seq.clone(),
            end_last_seq: through.clone(),
            recorded_seq: through,
            missing_checked: stats.revisions_checked,
            missing_found: stats.missing_revisions_found,
            docs_read: stats.docs_read,
            docs_written: stats.docs_written,
            doc_write_failures: stats.doc_write_failures,
            bulk_get_attempts: stats.bulk_get_attempts,
            bulk_get_docs: stats.bulk_get_docs,
        }
    }

    /// A checkpoint of this run.
    pub fn log(&self) -> Log {
        let session = self.session();
        Log {
            history: self.history_after(&session),
            session_id: session.session_id,
            source_last_seq: session.recorded_seq,
            replication_id_version: REPLICATION_ID_VERSION,
            source_rejects_checkpoints: None,
        }
    }

    fn history_after(&self, session: &Session) -> Vec<Session> {
        self.start.history_after(session, self.since_seq.as_ref())
    }

    /// The number of pending changes, if the source has reported it.
    pub fn changes_pending(&self) -> Option<u64> {
        let pending = self.pending.as_ref()?;
        let done_since = self.progress.changes() - pending.done;
        Some(pending.changes.saturating_sub(done_since))
    }

    /// A snapshot for observers.
    pub fn stats(&self) -> Stats {
        let tally = self.tally.stats();
        Stats {
            changes_pending: self.changes_pending(),
            checkpointed_source_seq: Some(self.checkpointed.clone().unwrap_or_else(Seq::none)),
            source_seq: Some(self.source_seq.clone()),
            through_seq: Some(self.through()),
            source_rejects_checkpoints: self.source_rejects_checkpoints.clone(),
            ..if self.reports_sums { tally.after(&self.base) } else { tally }
        }
    }

    /// The report at the end of the run.
    pub fn report(&self, stopped: bool) -> Report {
        let stats = self.stats();
        let session = self.session();
        let no_changes = self.tally.revisions_checked.get() == 0;
        let (session_id, history) = match &self.start.session_id {
            Some(last) if no_changes => (last.clone(), self.start.history.clone()),
            _ => (session.session_id.clone(), self.history_after(&session)),
        };
        Report {
            ok: true,
            no_changes,
            session_id,
            source_last_seq: session.recorded_seq,
            replication_id_version: REPLICATION_ID_VERSION,
            history,
            stopped,
            parked: None,
            stats,
        }
    }
}

impl Report {
    /// The report of a run that was stopped during the preparation.
    pub(super) fn stopped_before_it_began() -> Self {
        Self {
            ok: true,
            no_changes: true,
            session_id: new_session_id(),
            source_last_seq: Seq::zero(),
            replication_id_version: REPLICATION_ID_VERSION,
            history: Vec::new(),
            stopped: true,
            parked: None,
            stats: Stats::default(),
        }
    }
}

fn new_session_id() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

/// The sequence at which a run starts: its checkpoint, `since_seq`, or the beginning.
///
/// `since_seq` overrides the checkpoint of runs that did not start there, because the user has asked to start there. A
/// checkpoint of runs that started there, and of those that went on from there, is further on the same way. Runs without
/// `since_seq` started at 0.
fn start_seq(replication: &Replication, start: &Start) -> Seq {
    let found = start.seq.clone().filter(|_| match &replication.since_seq {
        None => true,
        Some(since) => start.goes_on_from(since),
    });
    found.or_else(|| replication.since_seq.clone()).unwrap_or_default()
}

/// A time as in HTTP headers: `Sat, 21 Nov 2026 08:54:30 GMT`.
fn http_date(time: OffsetDateTime) -> String {
    let (weekday, month) = (time.weekday().to_string(), time.month().to_string());
    let (day, year, hour, minute, second) =
        (time.day(), time.year(), time.hour(), time.minute(), time.second());
    format!("{}, {day:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", &weekday[..3], &month[..3])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::spec::Defaults;

    #[test]
    fn times_look_as_in_http() {
        let time = OffsetDateTime::from_unix_timestamp(1_795_251_270).unwrap();
        assert_eq!(http_date(time), "Sat, 21 Nov 2026 08:54:30 GMT");
    }

    #[test]
    fn a_checkpoint_beats_since_seq_only_if_that_is_where_it_began() {
        let body = json!({"source": "http://a/db", "target": "http://b/db", "since_seq": 5});
        let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
        let seq = |number: u64| Seq::from(&json!(number));
        let found = |began: u64| Start {
            seq: Some(seq(9)),
            history: vec![Session { start_last_seq: seq(began), ..Session::default() }],
            session_id: Some("s".to_owned()),
        };
        assert_eq!(start_seq(&replication, &found(5)), seq(9));
        assert_eq!(start_seq(&replication, &found(0)), seq(5));
        let body = json!({"source": "http://a/db", "target": "http://b/db", "since_seq": "0"});
        let from_0 = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
        assert_eq!(start_seq(&from_0, &found(0)), seq(9));
        assert!(start_seq(&from_0, &found(5)).is_zero());
        assert_eq!(start_seq(&replication, &Start::default()), seq(5));
    }
}
