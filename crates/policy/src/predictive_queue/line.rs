//! The line of a job: how many other jobs of the window name a resource that it wants exclusively.
//!
//! A queue ends only when its busiest resource has done all its work. So that resource should never be idle, and its
//! jobs should not remain until the end, when few jobs can run at the same time. But the table of contention puts a
//! job that wants it exclusively last, because other jobs share it.
//!
//! The *line* of a job is a sum over the resources that it wants exclusively by name. For each of them, it counts the
//! other jobs of the window that name it, in either mode. In [`order`](super::order), each of these jobs makes the
//! job older by a tick. Among jobs that weigh zero, the one with the longest line comes first. Only names count. A
//! job that wants all of a level excludes every other job of that level whenever it starts, so an early start gains
//! nothing. Run times do not count: only those of past runs would be known, and they make no difference (design note
//! 0032).

use std::collections::HashMap;

use super::locks::{Request, Requests};

/// The line of a job among the other jobs of its window.
pub fn line<'a>(job: &'a Requests, others: impl Iterator<Item = &'a Requests> + Clone) -> u64 {
    lines(std::iter::once(job).chain(others)).first().copied().unwrap_or_default()
}

/// The line of each job of a window.
pub(crate) fn lines<'a>(window: impl Iterator<Item = &'a Requests> + Clone) -> Vec<u64> {
    let mut named: HashMap<(&str, &str), u64> = HashMap::new();
    for (level, request) in window.clone().flat_map(by_level) {
        let mut count = |name: &'a String| *named.entry((level, name)).or_default() += 1;
        match request {
            Request::Shared(names) => names.keys().for_each(&mut count),
            Request::Exclusive(names) => names.iter().for_each(&mut count),
            _ => {}
        }
    }
    let others = |level: &str, name: &String| named.get(&(level, name.as_str())).map_or(0, |all| all - 1);
    let line = |job: &'a Requests| {
        let exclusive = by_level(job).filter_map(|(level, request)| match request {
            Request::Exclusive(names) => Some(names.iter().map(|name| others(level, name)).sum::<u64>()),
            _ => None,
        });
        exclusive.sum()
    };
    window.map(line).collect()
}

fn by_level(job: &Requests) -> impl Iterator<Item = (&str, &Request)> {
    job.levels.iter().flat_map(|(level, at)| at.requests().map(|request| (level.as_str(), request)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_the_other_jobs_that_name_a_resource_wanted_exclusively() {
        let window = [
            r#"{"node": {"exclusive": ["a", "b"]}}"#,
            r#"{"node": {"exclusive": ["b"]}, "disk": {"exclusive": ["a"]}}"#,
            r#"{"node": {"shared": ["a", "c"]}}"#,
            r#"{"node": {"exclusive": ["c"], "shared": "all"}}"#,
            r#"{"node": {"exclusive": "all"}}"#,
            r#"{"node": {"exclusive": "unknown"}, "disk": {"exclusive": ["z"]}}"#,
            "{}",
        ];
        let window = window.map(|json| serde_json::from_str::<Requests>(json).unwrap());
        // First job: the third one names `a`, and the second one `b`. Second job: the first one names `b`; no other
        // job names `a` at its level. Jobs that share have no line.
        assert_eq!(lines(window.iter()), [2, 1, 0, 1, 0, 0, 0]);
    }
}
