//! The runs of a job, from its history: when each began, how long it took, and how it ended.

use maud::{Markup, html};
use turnwise_protocol::{Event, EventKind, Job};

use super::format::{duration, text, time, word};
use super::parts::Column::{Number, Text};
use super::parts::{head, table};

/// A run.
#[derive(Debug, PartialEq, Eq)]
struct Run<'a> {
    /// The number of the attempt. A run that was stopped is none, and those of an earlier request are not counted any more.
    attempt: Option<u32>,
    /// `None` if the history does not go back as far.
    started_us: Option<i64>,
    /// `None` if it runs.
    end: Option<&'a Event>,
}

/// The runs, newest first. `history` is newest first, and `counted` attempts have ended.
fn runs(history: &[Event], counted: u32) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let mut started_us = None;
    for (n, event) in history.iter().rev().filter(|event| !event.kind.is_edit()).enumerate() {
        match event.kind {
            EventKind::Started => started_us = Some(event.at_us),
            EventKind::Added => started_us = None,
            // A job may also end while it waits.
            EventKind::Cancelled | EventKind::Failed | EventKind::Expired if started_us.is_none() => {}
            _ if started_us.is_some() || n == 0 => {
                runs.push(Run { attempt: None, started_us: started_us.take(), end: Some(event) });
            }
            _ => {}
        }
    }
    runs.extend(started_us.map(|_| Run { attempt: None, started_us, end: None }));
    runs.reverse();
    let mut left = counted;
    for run in &mut runs {
        run.attempt = match run.end.map(|end| end.kind) {
            None => counted.checked_add(1),
            Some(EventKind::Completed | EventKind::Failed | EventKind::Crashed) if left > 0 => {
                left -= 1;
                Some(left + 1)
            }
            Some(_) => None,
        };
    }
    runs
}

/// The table of the runs.
pub(super) fn shown(job: &Job, now_us: i64) -> Markup {
    let runs = runs(&job.history, job.attempts);
    let rows = html! {
        @for run in &runs {
            tr data-k=(run.started_us.or(run.end.map(|end| end.at_us)).unwrap_or_default()) {
                td.n { @if let Some(attempt) = run.attempt { (attempt) } @else { span.quiet { "–" } } }
                td {
                    @match run.end {
                        Some(end) => { @let step = word(end.kind); span class={ "step " (step) } { (step) } }
                        None => "runs",
                    }
                    @if let (None, Some(worker)) = (run.end, &job.worker) { div.quiet { "on " code { bdi { (worker) } } } }
                }
                td.when { @match run.started_us { Some(at_us) => (time(at_us)), None => span.quiet { "not kept" } } }
                td.n {
                    @if let Some(at_us) = run.started_us {
                        (duration((run.end.map_or(now_us, |end| end.at_us) - at_us).max(0).unsigned_abs()))
                    }
                }
                td { @if let Some(reason) = run.end.and_then(|end| end.reason.as_ref()) { (text(reason)) } }
            }
        }
    };
    html! {
        @if runs.is_empty() { p.empty { "It has not been started." } } @else {
            (table("Attempts", head(&[Number("Attempt"), Text("End"), Text("Started"), Number("Ran for"), Text("Reason")]), rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(steps: &[(EventKind, i64)]) -> Vec<Event> {
        let event = |(kind, at_us): &(EventKind, i64)| Event { at_us: *at_us, kind: *kind, reason: None };
        steps.iter().rev().map(event).collect()
    }

    type Shown = Vec<(Option<u32>, Option<i64>, Option<i64>)>;

    fn shown(steps: &[(EventKind, i64)], counted: u32) -> Shown {
        let history = history(steps);
        let runs = runs(&history, counted);
        runs.iter().map(|run| (run.attempt, run.started_us, run.end.map(|end| end.at_us))).collect()
    }

    #[test]
    fn runs_are_numbered_as_attempts_and_stopped_ones_are_none() {
        use EventKind::{Added, Cancelled, Completed, Crashed, Failed, Started, Stopped};
        let steps = [
            (Added, 0),
            (Started, 1),
            (Crashed, 2),
            (Started, 3),
            (Stopped, 4),
            (Started, 5),
            (Crashed, 6),
            (Started, 7),
        ];
        let ended =
            [(Some(2), Some(5), Some(6)), (None, Some(3), Some(4)), (Some(1), Some(1), Some(2))].as_slice();
        assert_eq!(shown(&steps, 2), [[(Some(3), Some(7), None)].as_slice(), ended].concat());
        assert_eq!(shown(&steps[..7], 2), ended);
        // Added again: its attempts count from the start.
        let again = [(Added, 0), (Started, 1), (Completed, 2), (Added, 3), (Started, 4), (Failed, 5)];
        assert_eq!(shown(&again, 1), [(Some(1), Some(4), Some(5)), (None, Some(1), Some(2))]);
        // The oldest steps are dropped, and a job that waits may be cancelled.
        assert_eq!(shown(&[(Crashed, 2), (Cancelled, 3)], 9), [(Some(9), None, Some(2))]);
        assert_eq!(shown(&[(Added, 1), (Cancelled, 3)], 0), []);
    }
}
