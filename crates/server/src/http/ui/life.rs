//! A job's life as a chart and a table, from its history.

use maud::{Markup, html};
use turnwise_protocol::{Event, EventKind, Job};

use super::format::{duration, text, time};

/// Width of the chart in its own units. The browser stretches it.
const WIDTH: f64 = 1_000.0;
/// Smallest width of a part, so that a short run among long waits is visible.
const MIN_WIDTH: f64 = 3.0;

/// What a job did for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waits,
    Backoff,
    Runs,
    Crashes,
    /// It has ended, and may run again later.
    Rests,
}

impl Phase {
    fn class(self) -> &'static str {
        match self {
            Phase::Waits => "waits",
            Phase::Backoff => "backoff",
            Phase::Runs => "runs",
            Phase::Crashes => "crashes",
            Phase::Rests => "rests",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Phase::Waits => "waited",
            Phase::Backoff => "waited after a crash",
            Phase::Runs => "ran",
            Phase::Crashes => "ran, and crashed or failed",
            Phase::Rests => "had ended",
        }
    }
}

/// A part of a job's life, in µs.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    phase: Phase,
    from_us: i64,
    to_us: i64,
}

/// The parts of a life, oldest first. The history has the newest event first.
fn parts(history: &[Event], has_ended: bool, now_us: i64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut events = history.iter().rev().peekable();
    while let Some(event) = events.next() {
        let next = events.peek();
        if next.is_none() && has_ended {
            break;
        }
        let phase = match (event.kind, next.map(|next| next.kind)) {
            (EventKind::Started, Some(EventKind::Crashed | EventKind::Failed)) => Phase::Crashes,
            (EventKind::Started, _) => Phase::Runs,
            (EventKind::Crashed, _) => Phase::Backoff,
            (EventKind::Added | EventKind::Stopped, _) => Phase::Waits,
            (EventKind::Completed | EventKind::Failed | EventKind::Cancelled, _) => Phase::Rests,
        };
        let to_us = next.map_or(now_us, |next| next.at_us);
        // Clocks of nodes differ a little.
        parts.push(Part { phase, from_us: event.at_us, to_us: to_us.max(event.at_us) });
    }
    parts
}

/// The chart and the table.
pub(super) fn shown(job: &Job, now_us: i64) -> Markup {
    let parts = parts(&job.history, job.state.is_final(), now_us);
    let dropped = job.history.last().is_some_and(|first| first.kind != EventKind::Added);
    html! {
        (chart(&parts))
        div.scroll tabindex="0" role="region" aria-label="History" {
            table {
                thead { tr { th scope="col" { "Time" } th scope="col" { "Step" } th.n scope="col" { "After" } th scope="col" { "Reason" } } }
                tbody {
                    @for (n, event) in job.history.iter().enumerate() {
                        tr {
                            td.when { (time(event.at_us)) }
                            td { span class={ "step " (step(event.kind)) } { (step(event.kind)) } }
                            td.n { @if let Some(before) = job.history.get(n + 1) { (duration((event.at_us - before.at_us).max(0).unsigned_abs())) } }
                            td { @if let Some(reason) = &event.reason { (text(reason)) } }
                        }
                    }
                }
            }
        }
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
        phases.iter().map(|phase| format!("{} {}", phase.name(), total(*phase))).collect();
    html! {
        figure.life {
            svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={ "The job " (told.join(", ")) } {
                @for part in parts {
                    @let (from, to) = (at(part.from_us), at(part.to_us));
                    @let width = (to - from).clamp(MIN_WIDTH, WIDTH);
                    rect class=(part.phase.class()) y="0" height="24" x=(format!("{:.1}", from.min(WIDTH - width))) width=(format!("{width:.1}")) {
                        title { (part.phase.name()) " " (duration((part.to_us - part.from_us).unsigned_abs())) }
                    }
                }
            }
            div.axis { (time(first.from_us)) (time(last.to_us)) }
            figcaption { @for phase in phases { span class={ "key " (phase.class()) } { (phase.name()) " " (total(phase)) } } }
        }
    }
}

fn step(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Added => "added",
        EventKind::Started => "started",
        EventKind::Stopped => "stopped",
        EventKind::Crashed => "crashed",
        EventKind::Completed => "completed",
        EventKind::Failed => "failed",
        EventKind::Cancelled => "cancelled",
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
            of(Phase::Waits, 0, 10),
            of(Phase::Crashes, 10, 15),
            of(Phase::Backoff, 15, 40),
            of(Phase::Runs, 40, 60),
        ];
        assert_eq!(parts(&history(&steps), true, 99), expected);
        // A job that has not ended lives until now.
        assert_eq!(parts(&history(&steps[..4]), false, 99)[3], of(Phase::Runs, 40, 99));
        // What follows an end is shown only if the job came back.
        let again = [(Added, 0), (Completed, 5), (Added, 9)];
        assert_eq!(parts(&history(&again), false, 12)[1], of(Phase::Rests, 5, 9));
        assert_eq!(parts(&[], false, 12), []);
    }
}
