//! The screen's content as lines: types, tenants, jobs. It depends only on the server's answer and a size.

use std::time::Duration;

use indicatif::HumanCount;
use turnwise_client::{Fairness, QueuedJob, Reason, State, Tenant, TypeSummary};

use super::Snapshot;
use crate::jobs::kept_by;
use crate::table::{self, Align};
use crate::tenants::{HEAD, ORDERS, plural, row};
use crate::units::ago;

/// The number of types listed above the tables. If there are more, a line states how many.
const MAX_TYPES: usize = 4;
/// Rows that the tables get before types are listed, on a terminal with few lines.
const FIRST_ROWS: usize = 4;
/// How long a newer snapshot may be late before the screen says that its content is old.
const LATE: Duration = Duration::from_secs(3);
/// The minimum width of a table, however narrow the terminal is.
const NARROWEST: usize = 20;

/// A size in characters and lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub width: usize,
    pub height: usize,
}

/// A line of the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub text: String,
    pub style: Style,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    /// The head of a table.
    Head,
    Bold,
    Dim,
}

/// What to show.
pub(super) struct View<'a> {
    pub server: &'a str,
    pub snapshot: &'a Snapshot,
    /// The place in [`ORDERS`] of the order of tenants.
    pub sort: usize,
    /// The age of the snapshot, less the interval after which a new one was requested.
    pub age: Duration,
    /// Why the latest request failed, if it did.
    pub trouble: Option<&'a str>,
    /// On a live screen, as opposed to output that is printed once.
    pub live: bool,
}

impl View<'_> {
    pub fn lines(&self, size: Size) -> Vec<Line> {
        let mut bottom: Vec<Line> = self.trouble().into_iter().map(|text| line(Style::Bold, text)).collect();
        if self.live {
            let (by, _) = ORDERS[self.sort];
            let keys = format!("q quits, s sorts (now by {by}), `turnwise why TYPE ID` shows more");
            bottom.push(line(Style::Dim, keys));
        }
        // Each table has an empty line and its head before its rows; the title has one line.
        let room = size.height.saturating_sub(bottom.len() + 5);
        let mut lines = vec![line(Style::Bold, self.title())];
        // If there is little room, the tables get it.
        let types = match MAX_TYPES.min(room.saturating_sub(FIRST_ROWS)) {
            0 => Vec::new(),
            most => self.types(most),
        };
        lines.extend(types.into_iter().map(|text| line(Style::Plain, text)));
        let room = (room + 1).saturating_sub(lines.len());
        let (tenants, jobs) = (&self.snapshot.tenants.tenants, &self.snapshot.queue.jobs);
        let for_tenants = tenants.len().min((room / 2).max(room.saturating_sub(jobs.len())));
        let jobs = some_of_each(jobs, room - for_tenants);
        let one_type = self.snapshot.tenants.types.len() <= 1;
        // Without room for rows, the table is left out: an empty table would mean that there are none.
        if for_tenants > 0 || tenants.is_empty() {
            lines.extend(table(
                "no tenants: no job waits, runs, or has run recently",
                tenant_rows(&tenants[..for_tenants], one_type),
                size.width,
            ));
        }
        if !jobs.is_empty() || self.snapshot.queue.jobs.is_empty() {
            lines.extend(table("no jobs wait or run", job_rows(&jobs, one_type), size.width));
        }
        lines.truncate(size.height.saturating_sub(bottom.len()));
        if self.live {
            lines.resize_with(size.height.saturating_sub(bottom.len()), Line::default);
        }
        lines.extend(bottom);
        for line in &mut lines {
            line.text = table::cut(&line.text, size.width);
        }
        lines
    }

    /// The message about an old snapshot, if it is old.
    fn trouble(&self) -> Option<String> {
        let age = self.age;
        match self.trouble {
            Some(trouble) => Some(format!("{}s old: {trouble}", age.as_secs())),
            None if age >= LATE => {
                Some(format!("{}s old: no answer from {} yet", age.as_secs(), self.server))
            }
            None => None,
        }
    }

    fn title(&self) -> String {
        let types = &self.snapshot.tenants.types;
        let sum = |count: fn(&TypeSummary) -> usize| types.iter().map(count).sum::<usize>();
        format!(
            "turnwise at {}: {}/{} slots, {}, {} waiting",
            self.server,
            sum(|summary| summary.capacity.running),
            sum(|summary| summary.capacity.slots),
            plural(sum(|summary| summary.tenants), "tenant", "tenants"),
            sum(|summary| summary.waiting_tenants),
        )
    }

    /// A line for each type, up to `most`, and a line that states how many more there are.
    fn types(&self, most: usize) -> Vec<String> {
        let types = &self.snapshot.tenants.types;
        let mut lines: Vec<String> = types.iter().take(most).map(type_line).collect();
        if let more @ 1.. = types.len().saturating_sub(most) {
            let more = plural(more, "type", "types");
            lines.push(format!("  … and {more} more; --type TYPE shows one"));
        }
        lines
    }
}

/// As many jobs as there is room for: of each type, some that run, some that are pending, and some that wait otherwise.
fn some_of_each(jobs: &[QueuedJob], room: usize) -> Vec<&QueuedJob> {
    let kind = |job: &QueuedJob| match job.state {
        State::Running | State::Waiting => 0,
        State::Pending => 1,
        _ => 2,
    };
    let same =
        |one: &QueuedJob, other: &QueuedJob| one.job_type == other.job_type && kind(one) == kind(other);
    let groups: Vec<&[QueuedJob]> = jobs.chunk_by(same).collect();
    let mut taken = vec![0; groups.len()];
    let mut left = room.min(jobs.len());
    while left > 0 {
        for (group, taken) in groups.iter().zip(&mut taken) {
            if left > 0 && *taken < group.len() {
                *taken += 1;
                left -= 1;
            }
        }
    }
    groups.into_iter().zip(taken).flat_map(|(group, taken)| &group[..taken]).collect()
}

fn type_line(summary: &TypeSummary) -> String {
    let TypeSummary { job_type, capacity, fairness, tenants, waiting_tenants, jobs } = summary;
    // The running ones are beside the slots.
    let jobs = jobs.by_state().into_iter().filter(|(state, jobs)| *jobs > 0 && *state != "running");
    let jobs: String = jobs.map(|(state, jobs)| format!(", {} {state}", HumanCount(jobs))).collect();
    let slots = match capacity.workers {
        0 if capacity.quiet > 0 => "all workers quiet".to_owned(),
        0 => "no worker".to_owned(),
        workers => {
            let workers = plural(workers, "worker", "workers");
            let most = capacity.most_slots.map(|most| format!(" (at most {most})")).unwrap_or_default();
            format!("{}/{} slots{most} of {workers}", capacity.running, capacity.slots)
        }
    };
    let fairness = match fairness {
        Fairness::VirtualTime => "",
        Fairness::Rfc => ", fairness rfc",
    };
    let tenants = plural(*tenants, "tenant", "tenants");
    format!("  {job_type}: {slots}, {tenants} ({waiting_tenants} waiting){jobs}{fairness}")
}

/// An empty line, the head, and the rows; without rows, a message.
fn table(empty: &str, rows: Rows, width: usize) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    if rows.cells.len() == 1 {
        lines.push(line(Style::Dim, empty.to_owned()));
        return lines;
    }
    let width = (width != usize::MAX).then_some(width.max(NARROWEST));
    for (n, text) in table::columns(&rows.cells, &rows.align, width).into_iter().enumerate() {
        lines.push(line(if n == 0 { Style::Head } else { Style::Plain }, text));
    }
    lines
}

/// A table's cells, with its head first.
struct Rows {
    cells: Vec<Vec<String>>,
    align: Vec<Align>,
}

impl Rows {
    /// Leaves out the first column if it would be the same in every row.
    fn new<const N: usize>(head: [(&str, Align); N], rows: Vec<[String; N]>, without_first: bool) -> Rows {
        let skip = usize::from(without_first);
        let names = head.map(|(name, _)| name.to_owned());
        let cells = std::iter::once(names).chain(rows).map(|row| row.into_iter().skip(skip).collect());
        Rows { cells: cells.collect(), align: head.iter().skip(skip).map(|(_, align)| *align).collect() }
    }
}

fn tenant_rows(tenants: &[Tenant], one_type: bool) -> Rows {
    // Names on the left, numbers on the right.
    let head: [(&str, Align); HEAD.len()] =
        std::array::from_fn(|n| (HEAD[n], if n < 2 { Align::Left } else { Align::Right }));
    Rows::new(head, tenants.iter().map(row).collect(), one_type)
}

fn job_rows(jobs: &[&QueuedJob], one_type: bool) -> Rows {
    use Align::{Left, Right};
    let head =
        [("TYPE", Left), ("JOB", Left), ("TENANT", Left), ("STATE", Left), ("FOR", Right), ("REASON", Left)];
    let row = |job: &&QueuedJob| {
        [
            match &job.task {
                Some(task) => format!("{} / {task}", job.job_type),
                None => job.job_type.clone(),
            },
            job.document.clone().unwrap_or_else(|| job.id.clone()),
            job.tenant.clone(),
            job.state.as_str().to_owned(),
            ago(job.since_us),
            reason(job),
        ]
    };
    let one_type = one_type && jobs.iter().all(|job| job.task.is_none());
    Rows::new(head, jobs.iter().map(row).collect(), one_type)
}

fn reason(job: &QueuedJob) -> String {
    let code = job.reason.as_str();
    if let Some(kept_by) = kept_by(job.paused_by.as_deref(), job.limited.as_ref(), job.waits_for) {
        return kept_by;
    }
    match (job.state, job.reason, job.not_before_us, &job.worker) {
        (State::Running | State::Waiting, Reason::Runs, _, Some(worker)) => format!("on {worker}"),
        (State::Running | State::Waiting, _, _, Some(worker)) => format!("{code} on {worker}"),
        (_, Reason::Backoff | Reason::NotBefore, Some(at_us), _) => format!("{code}, {}", ago(at_us)),
        _ => code.to_owned(),
    }
}

fn line(style: Style, text: String) -> Line {
    Line { text, style }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    const NOW_US: i64 = 4_000_000_000_000_000;

    fn tenant(name: &str, pending: usize) -> Value {
        json!({ "type": "mail", "tenant": name, "shares": 100, "service_us": 61_000_000, "usage_us": 1_500_000,
            "deficit_us": -2_000_000, "running": 1, "pending": pending, "oldest_claimable_us": NOW_US })
    }

    fn job(job_type: &str, id: &str, state: &str, reason: &str) -> Value {
        json!({ "type": job_type, "id": id, "tenant": "acme", "state": state, "reason": reason, "since_us": NOW_US,
            "worker": if state == "running" { json!("w1") } else { Value::Null } })
    }

    fn snapshot(types: &[&str], tenants: Vec<Value>, jobs: Vec<Value>) -> Snapshot {
        let types: Vec<Value> = types
            .iter()
            .map(|name| {
                json!({ "type": name, "capacity": { "workers": 1, "slots": 4, "most_slots": if *name == "elastic" { json!(9) } else { Value::Null }, "running": 4 },
                    "fairness": "rfc", "tenants": 10_000, "waiting_tenants": 9_999, "jobs": { "delayed": 10_000, "completed": 1_234_567 } })
            })
            .collect();
        Snapshot {
            tenants: serde_json::from_value(json!({ "types": types, "tenants": tenants })).unwrap(),
            queue: serde_json::from_value(json!({ "types": types, "jobs": jobs })).unwrap(),
            at: tokio::time::Instant::now(),
        }
    }

    fn view(snapshot: &Snapshot) -> View<'_> {
        let age = Duration::ZERO;
        View { server: "http://s", snapshot, sort: 0, age, trouble: None, live: true }
    }

    fn text(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_screen_is_full_and_no_fuller_however_much_there_is() {
        let tenants: Vec<Value> =
            (0..300).map(|n| tenant(&format!("{n}-{}", "x".repeat(500)), 10_000)).collect();
        let jobs: Vec<Value> = (0..300)
            .map(|n| job("mail", &format!("{n}-{}", "漢".repeat(170)), "pending", "behind_its_tenant"))
            .collect();
        let full = snapshot(&["mail"], tenants, jobs);
        let empty = snapshot(&[], vec![], vec![]);
        for snapshot in [&full, &empty] {
            for (width, height) in [(80, 24), (120, 40), (60, 12), (20, 5), (500, 200), (1, 1), (0, 0)] {
                let lines = view(snapshot).lines(Size { width, height });
                assert!(lines.len() <= height.max(1), "{width}×{height}: {}", lines.len());
                for line in &lines {
                    let wide = unicode_width::UnicodeWidthStr::width(line.text.as_str());
                    assert!(wide <= width.max(1), "{width}×{height}: {}", line.text);
                }
            }
        }
        let lines = view(&full).lines(Size { width: 80, height: 24 });
        let shown = |head: &str| text(&lines).iter().position(|line| line.starts_with(head)).unwrap();
        assert_eq!((lines.len(), shown("TENANT"), shown("JOB"), shown("q quits")), (24, 3, 13, 23));
        let low = view(&full).lines(Size { width: 80, height: 8 });
        assert_eq!(
            (text(&low)[3].starts_with("0-x"), text(&low)[6].starts_with("0-漢")),
            (true, true),
            "{low:?}"
        );
        for height in 0..24 {
            let low = view(&full).lines(Size { width: 80, height });
            assert!(!text(&low).iter().any(|line| line.starts_with("no ")), "{height}: {low:?}");
        }
        let printed =
            View { live: false, ..view(&empty) }.lines(Size { width: usize::MAX, height: usize::MAX });
        assert!(text(&printed).contains(&"no jobs wait or run"), "{printed:?}");
    }

    #[test]
    fn rows_are_told_in_columns() {
        let jobs =
            vec![job("mail", "one", "running", "runs"), job("mail", "two", "pending", "all_slots_taken")];
        let one = snapshot(&["mail"], vec![tenant("acme", 2)], jobs);
        let lines = View { live: false, ..view(&one) }.lines(Size { width: usize::MAX, height: usize::MAX });
        let expected = [
            "turnwise at http://s: 4/4 slots, 10000 tenants, 9999 waiting",
            "  mail: 4/4 slots of 1 worker, 10000 tenants (9999 waiting), 10,000 delayed, 1,234,567 completed, fairness rfc",
            "",
            "TENANT  SHARES  DEFICIT  USED  SERVED  RUNNING  WAITING",
            "acme       100    -2.0s  1.5s     61s        1        2",
            "",
            "JOB  TENANT  STATE",
            "one  acme    running",
            "two  acme    pending",
        ];
        for (line, expected) in text(&lines).iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}\n{expected}");
        }
        assert!(lines[7].text.ends_with("on w1") && lines[8].text.ends_with("all_slots_taken"), "{lines:?}");
    }

    #[test]
    fn each_type_and_kind_gets_its_rows() {
        let mut jobs: Vec<Value> = (0..9).map(|n| job("a", &format!("r{n}"), "running", "runs")).collect();
        jobs.extend((0..9).map(|n| job("a", &format!("p{n}"), "pending", "behind_its_tenant")));
        jobs.push(job("b", "d0", "delayed", "not_before"));
        let all = snapshot(&["a", "b"], vec![], jobs);
        let ids = |room| -> Vec<&str> {
            some_of_each(&all.queue.jobs, room).into_iter().map(|job| job.id.as_str()).collect()
        };
        assert_eq!(ids(6), ["r0", "r1", "r2", "p0", "p1", "d0"]);
        assert_eq!((ids(0).len(), ids(19).len(), ids(100).len()), (0, 19, 19));
    }

    #[test]
    fn slots_that_follow_the_demand_have_their_bound_beside_them() {
        let lines = view(&snapshot(&["elastic"], vec![], vec![])).lines(Size { width: 100, height: 24 });
        let expected = "  elastic: 4/4 slots (at most 9) of 1 worker, ";
        assert!(lines.iter().any(|line| line.text.starts_with(expected)), "{lines:?}");
    }

    #[test]
    fn what_is_old_is_told_to_be() {
        let empty = snapshot(&[], vec![], vec![]);
        let bottom = |age, trouble| {
            let age = Duration::from_secs(age);
            let lines = View { age, trouble, ..view(&empty) }.lines(Size { width: 80, height: 24 });
            lines[22].text.clone()
        };
        assert_eq!(bottom(2, None), "");
        assert_eq!(bottom(3, None), "3s old: no answer from http://s yet");
        assert_eq!(bottom(1, Some("no answer")), "1s old: no answer");
    }
}
