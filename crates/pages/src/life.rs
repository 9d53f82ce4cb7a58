//! A job's life as a chart and as tables, from its history.

use maud::{Markup, html};
use turnwise_protocol::{Event, EventKind, Job, Reason, State, Why};

use super::attempts;
use super::format::{duration, text, time, word};
use super::parts::Column::{Number, Text};
use super::parts::{head, table};

/// Width of the chart in its own units. The browser stretches it.
const WIDTH: f64 = 1_000.0;
/// Smallest width of a part, so that a short run among long waits is visible.
const MIN_WIDTH: f64 = 3.0;
/// What follows a step this closely followed at once: the transactions of an add and of a pass take a moment.
const SAME_US: i64 = 50_000;

/// What a job did for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It waited, and the causes are not recorded.
    Waited,
    /// It waits in the queue.
    Queued,
    /// It waits outside of the queue, for a time.
    Delayed,
    Dependencies,
    Filter,
    Concurrency,
    /// It waits for a worker that takes its task.
    Task,
    /// It waits for a change of its source.
    Parked,
    /// It runs, and waits for a lock.
    Lock,
    Backoff,
    Runs,
    Crashes,
    /// It has ended, and may run again later.
    Rests,
}

impl Phase {
    /// Its class, which colours it, and its name.
    fn shown(self) -> (&'static str, &'static str) {
        match self {
            Phase::Waited => ("waited", "waited, for causes that are not recorded"),
            Phase::Queued => ("waits", "waits in the queue"),
            Phase::Delayed => ("outside", "is delayed"),
            Phase::Dependencies => ("outside", "waits for other jobs"),
            Phase::Filter => ("outside", "is paused"),
            Phase::Concurrency => ("outside", "waits for a concurrency limit"),
            Phase::Task => ("outside", "waits for a worker that takes its task"),
            Phase::Parked => ("outside", "is parked until its source changes"),
            Phase::Lock => ("outside", "waits for a lock"),
            Phase::Backoff => ("backoff", "waited after a crash"),
            Phase::Runs => ("runs", "ran"),
            Phase::Crashes => ("crashes", "ran, and crashed or failed"),
            Phase::Rests => ("rests", "had ended"),
        }
    }
}

/// What a job that waits does now, by its state and its reason. `None` if it has ended, or runs.
fn present(state: State, reason: Reason) -> Option<Phase> {
    Some(match state {
        State::Pending => Phase::Queued,
        State::Delayed if reason == Reason::Parked => Phase::Parked,
        State::Delayed => Phase::Delayed,
        State::Blocked => Phase::Dependencies,
        State::Paused => Phase::Filter,
        State::Limited if matches!(reason, Reason::NoWorkerForTask | Reason::TaskLimited) => Phase::Task,
        State::Limited => Phase::Concurrency,
        State::Crashing => Phase::Backoff,
        State::Waiting => Phase::Lock,
        State::Running | State::Completed | State::Failed | State::Cancelled => return None,
    })
}

/// A part of a job's life, in µs.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    phase: Phase,
    from_us: i64,
    to_us: i64,
}

/// The parts of a life, oldest first. The history has the newest event first, and no causes of waits. What the job does at present
/// is known by its cause, and since when.
fn parts(history: &[Event], has_ended: bool, present: Option<(Phase, i64)>, now_us: i64) -> Vec<Part> {
    let mut parts = Vec::new();
    // Edits are no steps of its life.
    let mut events = history.iter().rev().filter(|event| !event.kind.is_edit()).peekable();
    while let Some(event) = events.next() {
        let next = events.peek();
        if next.is_none() && has_ended {
            break;
        }
        let phase = match (event.kind, next.map(|next| next.kind)) {
            (EventKind::Started, Some(EventKind::Crashed | EventKind::Failed)) => Phase::Crashes,
            (EventKind::Started, _) => Phase::Runs,
            (EventKind::Crashed, _) => Phase::Backoff,
            (EventKind::Snoozed, _) => Phase::Delayed,
            (EventKind::Added | EventKind::Stopped, _) => Phase::Waited,
            (EventKind::Completed | EventKind::Failed | EventKind::Expired | EventKind::Cancelled, _) => {
                Phase::Rests
            }
            // Not among the events.
            (EventKind::Edited | EventKind::Held | EventKind::Released, _) => Phase::Waited,
        };
        let to_us = next.map_or(now_us, |next| next.at_us);
        // Clocks of nodes differ a little.
        let to_us = to_us.max(event.at_us);
        match present.filter(|_| next.is_none()) {
            None => parts.push(Part { phase, from_us: event.at_us, to_us }),
            Some((now, since_us)) => {
                let since_us =
                    if since_us - event.at_us < SAME_US { event.at_us } else { since_us.min(to_us) };
                if since_us > event.at_us {
                    parts.push(Part { phase, from_us: event.at_us, to_us: since_us });
                }
                parts.push(Part { phase: now, from_us: since_us, to_us });
            }
        }
    }
    parts
}

/// What keeps a job in the queue from starting, where its reason tells more than that others are before it.
fn kept(why: &Why) -> Option<&'static str> {
    Some(match why.reason {
        Reason::Locked | Reason::LockReserved => "At present, a lock keeps it from starting.",
        Reason::NoWorker => "At present, there is no worker for it.",
        Reason::WorkersQuiet => "At present, all workers for it are quiet.",
        _ => return None,
    })
}

/// The chart and the tables.
pub(super) fn shown(job: &Job, why: &Why, now_us: i64) -> Markup {
    let present = present(job.state, why.reason).map(|phase| (phase, why.since_us));
    let parts = parts(&job.history, job.state.is_final(), present, now_us);
    let has_unknown = parts.iter().any(|part| part.phase == Phase::Waited);
    let dropped = job.history.last().is_some_and(|first| first.kind != EventKind::Added);
    let rows = html! {
        @for (n, event) in job.history.iter().enumerate() {
            @let step = word(event.kind);
            tr {
                td.when { (time(event.at_us)) }
                td { span class={ "step " (step) } { (step) } }
                td.n { @if let Some(before) = job.history.get(n + 1) { (duration((event.at_us - before.at_us).max(0).unsigned_abs())) } }
                td { @if let Some(reason) = &event.reason { (text(reason)) } }
            }
        }
    };
    html! {
        (chart(&parts))
        @if let Some(kept) = kept(why) { p.quiet { (kept) } }
        @if has_unknown { p.quiet { "Of a wait that is over, only the length is recorded. Of the present one, the cause is known, too." } }
        (attempts::shown(job, now_us))
        details.all { summary { "All steps" } (table("History", head(&[Text("Time"), Text("Step"), Number("After"), Text("Reason")]), rows)) }
        @if dropped { p.quiet { "Older steps are not kept." } }
    }
}

fn chart(parts: &[Part]) -> Markup {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return html! {} };
    let whole_us = (last.to_us - first.from_us).max(1);
    let at = |us: i64| (us - first.from_us) as f64 / whole_us as f64 * WIDTH;
    let mut phases: Vec<Phase> = Vec::new();
    for part in parts {
        if !phases.contains(&part.phase) {
            phases.push(part.phase);
        }
    }
    let total = |phase: Phase| {
        let of = parts.iter().filter(|part| part.phase == phase);
        duration(of.map(|part| part.to_us - part.from_us).sum::<i64>().max(0).unsigned_abs())
    };
    let told: Vec<String> =
        phases.iter().map(|phase| format!("{} {}", phase.shown().1, total(*phase))).collect();
    html! {
        figure.life {
            svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={ "The job " (told.join(", ")) } {
                @for part in parts {
                    @let (from, to) = (at(part.from_us), at(part.to_us));
                    @let width = (to - from).clamp(MIN_WIDTH, WIDTH);
                    @let (class, name) = part.phase.shown();
                    rect class=(class) y="0" height="24" x=(format!("{:.1}", from.min(WIDTH - width))) width=(format!("{width:.1}")) {
                        title { (name) " " (duration((part.to_us - part.from_us).unsigned_abs())) }
                    }
                }
            }
            div.axis { (time(first.from_us)) (time(last.to_us)) }
            figcaption { @for phase in phases { @let (class, name) = phase.shown(); span class={ "key " (class) } { (name) " " (total(phase)) } } }
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

    #[test]
    fn a_life_has_waits_runs_crashes_and_backoffs() {
        use EventKind::{Added, Completed, Crashed, Started};
        let steps = [(Added, 0), (Started, 10), (Crashed, 15), (Started, 40), (Completed, 60)];
        let of = |phase, from_us, to_us| Part { phase, from_us, to_us };
        let expected = [
            of(Phase::Waited, 0, 10),
            of(Phase::Crashes, 10, 15),
            of(Phase::Backoff, 15, 40),
            of(Phase::Runs, 40, 60),
        ];
        assert_eq!(parts(&history(&steps), true, None, 99), expected);
        // A job that has not ended lives until now.
        assert_eq!(parts(&history(&steps[..4]), false, None, 99)[3], of(Phase::Runs, 40, 99));
        // What follows an end is shown only if the job came back.
        let again = [(Added, 0), (Completed, 5), (Added, 9)];
        assert_eq!(parts(&history(&again), false, None, 12)[1], of(Phase::Rests, 5, 9));
        assert_eq!(parts(&[], false, None, 12), []);
    }

    #[test]
    fn the_present_wait_has_its_cause_and_an_earlier_part_says_that_its_own_is_not_known() {
        use EventKind::{Added, Crashed, Started};
        let (s, none) = (1_000_000, Vec::<Part>::new());
        let of = |phase, from_us, to_us| Part { phase, from_us, to_us };
        let shown = |steps: &[(EventKind, i64)], state, reason, since_us| {
            let present = present(state, reason).map(|phase| (phase, since_us));
            parts(&history(steps), false, present, 100 * s)
        };
        let added = [(Added, 0)];
        let queued = shown(&added, State::Pending, Reason::AllSlotsTaken, 10);
        assert_eq!(queued, [of(Phase::Queued, 0, 100 * s)]);
        let later = shown(&added, State::Pending, Reason::AllSlotsTaken, 40 * s);
        assert_eq!(later, [of(Phase::Waited, 0, 40 * s), of(Phase::Queued, 40 * s, 100 * s)]);
        let blocked = shown(&added, State::Blocked, Reason::AfterOthers, 0);
        assert_eq!(blocked, [of(Phase::Dependencies, 0, 100 * s)]);
        let crashed = [(Added, 0), (Started, s), (Crashed, 2 * s)];
        let due = shown(&crashed, State::Pending, Reason::AllSlotsTaken, 5 * s);
        assert_eq!(due[2..], [of(Phase::Backoff, 2 * s, 5 * s), of(Phase::Queued, 5 * s, 100 * s)]);
        let locks = shown(&[(Added, 0), (Started, s)], State::Waiting, Reason::WaitsForLock, 7 * s);
        assert_eq!(locks[1..], [of(Phase::Runs, s, 7 * s), of(Phase::Lock, 7 * s, 100 * s)]);
        assert_eq!(shown(&[], State::Pending, Reason::AllSlotsTaken, 0), none);
    }
}
